"""Sentinels: worthless stand-ins for credentials, in the shape that clients look at. Pure, but for what `random` gives.

Each is a public prefix, the mark of its run, a tag that says whose it is, and random filling. Mark and tag are
lower-case letters and digits, so that they come through unchanged wherever a client puts the value, in a host name too.
Of the real value a sentinel has the prefix, the kinds of characters and about the length, and nothing else.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from impyard.addon.vault.credential import FAR_FUTURE_MS, Credential

_SMALL = string.ascii_lowercase + string.digits
_LETTERS = string.ascii_letters + string.digits
MARK = "impyard"  # what every mark begins with
MARK_LENGTH = len(MARK) + 10
TAG_LENGTH = 6
_FILLING = 26  # characters at least: 134 bits where all are lower case
_LONGEST = 200
_ATTEMPTS = 100
_NOTABLE = 8  # characters of a secret that a sentinel must not hold in a row

# What is public of a key: who issued it, and what kind it is.
_PREFIX = re.compile(
    r"sk-ant-(?:(?:api|oat|ort|admin|sid)[0-9]{2}-)?|sk-or-v1-|sk-(?:proj-|svcacct-|admin-|lf-)?|gh[oprsu]_"
    r"|github_pat_|gl(?:pat|dt|rt|ptt|cbt|soat|ft)-|npm_|pypi-|AIza|gsk_|xai-|hf_|nvapi-|xox[bp]-|r8_|csk-|tgp_v1_|fw_"
    r"|pplx-|vck_|jina_|tvly-|dop_v1_"
)
_JWT = re.compile(r"eyJ[A-Za-z0-9_+/-]*={0,2}\.[A-Za-z0-9_+/-]+={0,2}\.[A-Za-z0-9_+/-]*={0,2}")
_ACCOUNT_CLAIM = "https://api.openai.com/auth"
_ACCOUNT = "chatgpt_account_id"
# GitHub Copilot's token names the host that it is for, which its clients obey.
_COPILOT = re.compile(r"(?:^|;)(?:tid|exp|proxy-ep)=")
_PROXY_EP = re.compile(r"(?:^|;)proxy-ep=((?:[a-z0-9-]{1,63}\.){1,6}[a-z]{2,20})(?=;|$)")

Random = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Those of one run.

    mark: in each of them as it stands. by_name: credentials whose values are sentinels, by name; `account` is made up,
    and they expire in the far future. tags: (credential, field) by tag, which follows the mark.
    """

    mark: str
    by_name: Mapping[str, Credential] = field(default_factory=dict)
    tags: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def owner(self, text: str) -> tuple[str, str] | None:
        """Whose sentinel it is, as (credential, field), by the text that comes after the mark; None: nobody's."""
        return self.tags.get(text[:TAG_LENGTH])


def mint(credentials: Iterable[Credential], random: Random = secrets.token_bytes) -> Sentinels:
    """New sentinels for all secrets of `credentials`, under a new mark. Raises RuntimeError when `random` is none."""
    credentials = list(credentials)
    real = [value[len(public_prefix(value)) :] for each in credentials for value in each.secrets().values()]
    mark = MARK + _text(_SMALL, MARK_LENGTH - len(MARK), random)
    tags: dict[str, tuple[str, str]] = {}
    by_name: dict[str, Credential] = {}

    def stand_in(credential: Credential, name: str, value: str, account: str) -> str:
        for _ in range(_ATTEMPTS):
            tag = _text(_SMALL, TAG_LENGTH, random)
            made = _shaped_like(value, mark + tag, account, random)
            if tag not in tags and made.count(MARK) == 1 and not _holds_any(made, real):
                tags[tag] = credential.name, name
                return made
        raise RuntimeError("no sentinel came out of so many attempts")

    for credential in credentials:
        account = _account(random)
        made = {name: stand_in(credential, name, value, account) for name, value in credential.secrets().items()}
        by_name[credential.name] = Credential(
            name=credential.name,
            kind=credential.kind,
            key=made.get("key", "") if credential.key else "",
            access=made.get("access", "") if credential.access else "",
            refresh=made.get("refresh", "") if credential.refresh else "",
            expires=FAR_FUTURE_MS if credential.kind == "oauth" else 0,
            account=account if credential.account else "",
            fields={name: made[name] for name in credential.fields if name in made},
            provider=credential.provider,
            extra={key: value for key, value in credential.extra.items() if not _holds_any(_as_text(value), real, 4)},
        )
    return Sentinels(mark, by_name, tags)


def public_prefix(value: str) -> str:
    """What a key begins with that says no more than who issued it; "" where nothing is known."""
    found = _PREFIX.match(value)
    return found[0] if found else ""


def _shaped_like(value: str, marked: str, account: str, random: Random) -> str:
    """A sentinel of the shape of `value` with `marked` in it."""
    if _JWT.fullmatch(value):
        return _jwt(value, marked, account, random)
    if _COPILOT.search(value):
        return _copilot(value, marked, random)
    prefix = public_prefix(value)
    rest = value[len(prefix) :]
    letters = string.ascii_lowercase
    for kind in (string.ascii_uppercase, string.digits, "-", "_"):
        if any(character in rest for character in kind):
            letters += kind
    room = min(len(value), _LONGEST) - len(prefix) - len(marked)
    # The last one is no "-" or "_", at which whoever selects a word would stop.
    filling = _text(letters, max(room, _FILLING + 2) - 1, random) + _text(string.ascii_lowercase, 1, random)
    return prefix + marked + filling


def _jwt(value: str, marked: str, account: str, random: Random) -> str:
    """Three parts; the middle one in the alphabet of both base64s, as pi decodes it with `atob`, and without padding.

    Of the real one it has no claim but that there is an account, of which it names a made-up one.
    """
    payload: dict[str, Any] = {"exp": FAR_FUTURE_MS // 1000, "iat": 1_700_000_000, "jti": _text(_LETTERS, 24, random)}
    claims = _claims(value)
    if isinstance(inner := claims.get(_ACCOUNT_CLAIM), dict) and _ACCOUNT in inner:
        payload[_ACCOUNT_CLAIM] = {_ACCOUNT: account}
    head, body = _base64({"alg": "RS256", "typ": "JWT"}), _base64(payload)
    room = min(len(value), 2 * _LONGEST) - len(head) - len(body) - len(marked)
    return f"{head}.{body}.{marked}{_text(_LETTERS, max(room, _FILLING), random)}"


def _copilot(value: str, marked: str, random: Random) -> str:
    parts = [f"tid={marked}{_text(_SMALL, _FILLING, random)}", f"exp={FAR_FUTURE_MS // 1000}"]
    if found := _PROXY_EP.search(value):
        parts.append(f"proxy-ep={found[1]}")
    return ";".join([*parts, f"8kp=1:{_text(string.hexdigits[:16], 64, random)}"])


def _claims(token: str) -> dict[str, Any]:
    """The payload of a JSON web token in either alphabet; empty when it is none."""
    body = token.split(".")[1].rstrip("=").replace("+", "-").replace("/", "_")
    try:
        found = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _base64(value: dict[str, Any]) -> str:
    # None of `>`, `?` and `~` is in it, and of ASCII only these come out as one of "+", "/", "-" and "_".
    text = json.dumps(value, separators=(",", ":"))
    return base64.b64encode(text.encode("ascii")).decode().rstrip("=")


def _account(random: Random) -> str:
    """A made-up id in the form of a version 4 UUID."""
    digits = _text(string.hexdigits[:16], 30, random)
    return f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-8{digits[15:18]}-{digits[18:30]}"


def _holds_any(text: str, real: Iterable[str], least: int = _NOTABLE) -> bool:
    """Whether a real value stands in `text`. The short ones of fewer than `least` characters may, by chance."""
    return any(len(value) >= least and value in text for value in real)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _text(letters: str, length: int, random: Random) -> str:
    """So many random characters of `letters`, each as likely as the others but for one part in 2**64."""
    number = int.from_bytes(random(length + 8))
    found = []
    for _ in range(length):
        number, rest = divmod(number, len(letters))
        found.append(letters[rest])
    return "".join(found)
