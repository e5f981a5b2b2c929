"""What must not be written down: secrets in headers, queries and anywhere a well-known kind of key shows itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import unquote

import re2

REDACTED = "<redacted>"

# Anywhere in a name. "key" is kept out of "keyword", which search services use and nobody hides.
_ANYWHERE = re.compile(r"token|secret|passw|passphrase|signature|credential|cookie|authorization|key(?!word)|assertion")
# As a word of its own in a name: "sig", not "design"; "auth", not "author".
_WORDS = frozenset({"auth", "jwt", "pass", "pwd", "sig", "session", "sid", "code", "verifier", "otp", "bearer", "hmac"})
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_FIELD = re.compile(r"[^&;]+")
# A name and a password, or a token alone, before a host; behind "//" alone only what has a colon.
_USERINFO = re.compile(r"(?<=://)[^/?#@\s]+@|(?<=//)[^/?#@:\s]*:[^/?#@\s]*@")
_PAIR = re.compile(r"([^?&;#/=\s,<>\"']+)=([^?&;#/\s,<>\"']+)")
_MAX_NAME = 64  # of a name that is remembered; names come from the box

# Keys that are known by their look: model providers, GitHub, GitLab, Slack, AWS, Google, Stripe, JSON web tokens.
_LOOKS = re2.compile(
    r"(?:\b|_)(?:sk-[A-Za-z0-9_-]{16,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}|A[KS]IA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}"
    r"|[sr]k_live_[A-Za-z0-9]{16,}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}[A-Za-z0-9._-]*)"
)
_HAS_LOOKS = re2.Set.SearchSet()  # the same as a yes or no, which is three times faster
_HAS_LOOKS.Add(_LOOKS.pattern)
_HAS_LOOKS.Compile()


def is_clean(texts: Iterable[str]) -> bool:
    """Whether none of the texts holds what looks like a key, percent-encoded or not."""
    whole = "\n".join(texts)
    if _HAS_LOOKS.Match(_encodable(whole)):
        return False
    return "%" not in whole or not _HAS_LOOKS.Match(_encodable(_decoded(whole)))


def is_secret(name: str) -> bool:
    """Whether the value of a header or of a query's field is a secret, by its name in any encoding."""
    return _classified(name) if len(name) <= _MAX_NAME else _classified.__wrapped__(name)


def value(value: str, *, clean: bool = False) -> str:
    """The value of a header, or a path, that is no secret as a whole. `clean`: `is_clean` was asked about it.

    What is an address, or holds some, loses user names with their passwords and the values of secret fields. Redacted
    as a whole where those are percent-encoded.
    """
    if "=" in value or "//" in value or ("%" in value and _has_parts(_decoded(value))):
        value = _without_parts(value)
        if "%" in value and _without_parts(decoded := _decoded(value)) != decoded:
            return REDACTED
    return value if clean else text(value)


def query(raw: str, *, clean: bool = False) -> str:
    """A query with the values of secret fields redacted, names and order kept."""
    return _FIELD.sub(lambda found: _field(found[0], clean), raw) if raw else raw


def host(raw: str, *, clean: bool = False) -> str:
    """A host, which in a malformed request may be more than that."""
    before, at, after = raw.rpartition("@")
    raw = f"{REDACTED}@{after}" if at and before else raw
    return raw if clean else text(raw)


def text(raw: str) -> str:
    """`raw` without what looks like a key; redacted as a whole where the key's characters are percent-encoded."""
    raw = _LOOKS.sub(REDACTED, _encodable(raw))
    return raw if is_clean((raw,)) else REDACTED


def _has_parts(text: str) -> bool:
    return "=" in text or "//" in text


def _without_parts(address: str) -> str:
    return _PAIR.sub(_pair, _USERINFO.sub(REDACTED + "@", address))


def _pair(found: re.Match[str]) -> str:
    return f"{found[1]}={REDACTED}" if is_secret(found[1]) else found[0]


def _field(field: str, clean: bool) -> str:
    name, equals, inner = field.partition("=")
    if inner and is_secret(name):
        return name + equals + REDACTED
    return (name if clean else text(name)) + equals + value(inner, clean=clean)


@lru_cache(maxsize=1024)
def _classified(name: str) -> bool:
    """Whether the value under a name is a secret, by the name after undoing up to two levels of encoding."""
    if "%" in name or "+" in name:
        name = _decoded(name).replace("+", " ")
    return bool(_ANYWHERE.search(name.lower())) or any(word.lower() in _WORDS for word in _SPLIT.split(name))


def _decoded(text: str) -> str:
    return unquote(unquote(text))


def _encodable(text: str) -> str:
    """`text` without lone surrogates, which RE2 cannot take."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
