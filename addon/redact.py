"""What must not be written down: secrets in headers, queries and anywhere a well-known kind of key shows itself."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

REDACTED = "<redacted>"

# Anywhere in a name. "key" is kept out of "keyword", which search services use and nobody hides.
_ANYWHERE = re.compile(r"token|secret|passw|passphrase|signature|credential|cookie|authorization|key(?!word)|assertion")
# As a word of its own in a name: "sig", not "design"; "auth", not "author".
_WORDS = frozenset({"auth", "jwt", "pass", "pwd", "sig", "session", "sid", "code", "verifier", "otp", "bearer", "hmac"})
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_FIELD = re.compile(r"[^&;]+")
# Keys that are known by their look: model providers, GitHub, GitLab, Slack, AWS, Google, Stripe, JSON web tokens.
_LOOKS = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{16,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_-]{16,}|xox[a-z]-[A-Za-z0-9-]{10,}|A[KS]IA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}"
    r"|[sr]k_live_[A-Za-z0-9]{16,}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}[A-Za-z0-9._-]*)"
)
_USERINFO = re.compile(r"(?<=://)[^/?#@\s]*@")
_MAX_NAME = 64  # of a name that is remembered; names come from the box


def header(name: str, value: str) -> str:
    """A header's value as it may be written down. `name` is in lower case."""
    if _is_secret(name):
        return REDACTED
    if "://" in value or "?" in value:  # Referer, Location and the like carry whole addresses
        value = _USERINFO.sub(REDACTED + "@", value)
        before, mark, rest = value.partition("?")
        value = before + mark + query(rest)
    return text(value)


def query(raw: str) -> str:
    """A query with the values of secret fields redacted, names and order kept."""
    return _FIELD.sub(_field, raw) if raw else raw


def text(raw: str) -> str:
    """`raw` without what looks like a key, also where its characters are percent-encoded."""
    if _LOOKS.search(raw):
        raw = _LOOKS.sub(REDACTED, raw)
    if "%" in raw and _LOOKS.search(unquote(unquote(raw))):
        return REDACTED
    return raw


def _field(found: re.Match[str]) -> str:
    name, equals, value = found[0].partition("=")
    if equals and value and _is_secret(name):
        return name + equals + REDACTED
    return name + equals + text(value) if equals else text(name)


def _is_secret(name: str) -> bool:
    return _classified(name) if len(name) <= _MAX_NAME else _classified.__wrapped__(name)


@lru_cache(maxsize=1024)
def _classified(name: str) -> bool:
    """Whether the value under a name is a secret, by the name after undoing up to two levels of encoding."""
    if "%" in name or "+" in name:
        name = unquote(unquote(name)).replace("+", " ")
    return bool(_ANYWHERE.search(name.lower())) or any(word.lower() in _WORDS for word in _SPLIT.split(name))
