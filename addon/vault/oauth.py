"""Which request renews a login, and what its answer means. Values in, values out: no clock, no socket, no file.

The endpoints and forms are those of the pi agent 1.6.0 (`pi-ai/dist/auth/oauth/`). What an endpoint says is not
believed: a token ends up in a header, so it must be fit for one, and nothing of an answer gets into a message but its
status and the plain code of its error.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard
from urllib.parse import urlencode, urlsplit

import msgspec

from impyard.addon.vault.credential import Credential, TokenEndpoint

SKEW_MS = 60_000  # a token is used only while it is good for longer than this
MAX_LIFE_S = 10 * 365 * 86_400.0  # longer is no lifetime but a mistake
CODEX_CLAIM = "https://api.openai.com/auth"
DIRECT_SCOPE = "chatgpt.tokens.use.direct"
COPILOT_HEADERS = (
    ("user-agent", "GitHubCopilotChat/0.35.0"),
    ("editor-version", "vscode/1.107.0"),
    ("editor-plugin-version", "copilot-chat/0.35.0"),
    ("copilot-integration-id", "vscode-chat"),
)

# The refresh token is spent, revoked or expired. invalid_grant is RFC 6749, 5.2; the others are OpenAI's.
FINAL_CODES = frozenset({"invalid_grant", "refresh_token_expired", "refresh_token_invalidated", "refresh_token_reused"})
_CODE = re.compile(r"[a-z]{2,20}(?:_[a-z]{1,20}){0,4}")
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")  # a larger one does not fit into a request's head
_DOMAIN = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]", re.I)


@dataclass(frozen=True, slots=True)
class _Family:
    """How one provider's logins are renewed.

    early_s: how much before its end pi notes a token's end; the vault does the same, so that both mean the same number.
    life_s: of a token whose answer names none; 0 where it must.
    """

    endpoint: TokenEndpoint
    early_s: int = 0
    life_s: int = 0


_FAMILIES = {
    "anthropic": _Family(
        TokenEndpoint("https://platform.claude.com/v1/oauth/token", "json", "9d1c250a-e61b-44d9-88ed-5944d1962f5e"),
        early_s=300,
    ),
    "openai-codex": _Family(
        TokenEndpoint("https://auth.openai.com/oauth/token", "form", "app_EMoamEEZ73f0CkXaXp7hrann")
    ),
    "openai": _Family(TokenEndpoint("https://auth.openai.com/api/accounts/oauth/token", "form"), early_s=180),
    "github-copilot": _Family(TokenEndpoint("https://api.github.com/copilot_internal/v2/token"), early_s=300),
    "xai": _Family(
        TokenEndpoint("https://auth.x.ai/oauth2/token", "form", "b1a00492-073a-47ea-816f-4c329264a828"),
        early_s=300,
        life_s=3600,
    ),
    "kimi-coding": _Family(
        TokenEndpoint("https://auth.kimi.com/api/oauth/token", "form", "17e5f671-d194-4dfb-9706-5516cb48c098")
    ),
}


class CannotRenew(Exception):
    """There is no request that renews this login. The message says why, for people and without any value."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One request to a token endpoint. Only its method and URL show; ca: a PEM file to verify it with, "" the usual."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    ca: str = ""


@dataclass(frozen=True, slots=True)
class Renewed:
    """New tokens. refresh: "" where the old one stays. expires: ms since 1970. extra: what changes in the other."""

    access: str = field(repr=False)
    refresh: str = field(repr=False)
    expires: int
    account: str
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """No new token. what: for people, without any value. final: asking again with the same refresh token is no use.

    refresh: the refresh token that an unusable answer brought; the old one may be spent, so it has to be kept.
    """

    what: str
    final: bool = False
    refresh: str = field(default="", repr=False)


def is_usable(credential: Credential, now_ms: float, good_for_ms: float = SKEW_MS) -> bool:
    """Whether it may be put into a request: a key, or a token that is good for a minute more, or as long as is said."""
    if credential.kind == "api_key":
        return bool(credential.key or credential.fields)
    return bool(credential.access) and (credential.expires == 0 or credential.expires > now_ms + good_for_ms)


def request_for(credential: Credential) -> TokenRequest:
    """The request that renews an "oauth" credential. Raises CannotRenew when there is none."""
    family = _FAMILIES.get(credential.family)
    own = credential.token_endpoint
    if not _TOKEN.fullmatch(credential.refresh):
        raise CannotRenew("it has no refresh token" if not credential.refresh else "its refresh token is damaged")
    if own is None and family is None:
        raise CannotRenew(f"impyard does not know how logins of {credential.family!r} are renewed")
    endpoint = own or (family.endpoint if family else TokenEndpoint(""))
    if credential.family == "github-copilot":
        url = own.url if own else _copilot_url(credential)
        bearer = ("authorization", f"Bearer {credential.refresh}")
        return TokenRequest("GET", url, (("accept", "application/json"), bearer, *COPILOT_HEADERS), ca=endpoint.ca)
    fields = {"grant_type": "refresh_token", "client_id": _client_id(credential, family)}
    fields["refresh_token"] = credential.refresh
    if credential.family == "openai":
        fields["resource"] = "https://api.openai.com/v1"
    fields = {name: value for name, value in fields.items() if value}
    if endpoint.encoding == "json":
        kind, body = "application/json", json.dumps(fields).encode()
    else:
        kind, body = "application/x-www-form-urlencoded", urlencode(fields).encode()
    headers = (("accept", "application/json"), ("content-type", kind))
    return TokenRequest("POST", endpoint.url, headers, body, endpoint.ca)


def read_answer(
    credential: Credential, status: int, body: bytes, *, now_ms: float, server_ms: float | None = None
) -> Renewed | Refused:
    """What an endpoint's answer means.

    now_ms: when the request was sent, as lifetimes are counted from then. server_ms: the time that the answer itself
    names, for an end that is given by the server's clock.
    """
    found = _object(body)
    if not 200 <= status < 300:
        code = _code(found, credential)
        final = code in FINAL_CODES and status in (400, 401, 403)
        return Refused(f"the token endpoint answered {status}{f' {code}' if code else ''}", final)
    if found is None:
        return Refused("the token endpoint's answer is not JSON")
    refresh = found.get("refresh_token") or ""
    if refresh and not is_token(refresh):
        return Refused("the token endpoint's answer holds a refresh token that cannot be one")
    copilot = credential.family == "github-copilot"
    if copilot:
        refresh = ""  # GitHub's token stays what it is
    access = found.get("token" if copilot else "access_token")
    if not is_token(access):
        fault = "no access token" if access in (None, "") else "an access token that is not fit for a header"
        return Refused(f"the token endpoint's answer holds {fault}", refresh=refresh)
    expires = _expires(credential, found, now_ms, server_ms)
    if expires is None:
        return Refused(
            "the token endpoint's answer does not say a usable time for which its token is good", refresh=refresh
        )
    account, extra = credential.account, {}
    if credential.family == "openai-codex":
        account = codex_account(access)
        if not account:
            return Refused("the new access token names no account", refresh=refresh)
    if credential.family == "openai":
        scope = found.get("scope")
        extra = {"scopes": scope.split()} if isinstance(scope, str) else {}
        if DIRECT_SCOPE not in extra.get("scopes", ()):
            return Refused(f"the new access token lacks the scope {DIRECT_SCOPE}", refresh=refresh)
    return Renewed(access, refresh, expires, account, extra)


def codex_account(access: str) -> str:
    """The account's id in an access token of openai-codex; "" when it is no such token."""
    parts = access.split(".")
    if len(parts) != 3:
        return ""
    try:
        plain = parts[1].rstrip("=").replace("-", "+").replace("_", "/")
        claims = _object(base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)) or {}
    except ValueError:
        return ""
    claim = claims.get(CODEX_CLAIM)
    account = claim.get("chatgpt_account_id") if isinstance(claim, dict) else None
    return account if isinstance(account, str) and re.fullmatch(r"[\x21-\x7e]{1,200}", account) else ""


def _client_id(credential: Credential, family: _Family | None) -> str:
    """The client's id: the endpoint's own, else the login's, else the provider's; "" where none is sent."""
    own = credential.token_endpoint.client_id if credential.token_endpoint else ""
    issued = credential.extra.get("clientId") if credential.family == "openai" else None
    found = own or (issued if isinstance(issued, str) else "") or (family.endpoint.client_id if family else "")
    if credential.family == "openai" and not found.strip():
        raise CannotRenew("it lacks the client id that was issued with the login")
    return found


def _copilot_url(credential: Credential) -> str:
    """GitHub's address, or the one of the enterprise that the login names."""
    named = credential.extra.get("enterpriseUrl")
    if not isinstance(named, str) or not named.strip():
        return _FAMILIES["github-copilot"].endpoint.url
    named = named.strip()
    try:
        host = urlsplit(named if "://" in named else f"https://{named}").hostname or ""
    except ValueError:
        host = ""
    if not is_token(named) or not _DOMAIN.fullmatch(host):
        raise CannotRenew("its enterpriseUrl is no name of a host")
    return f"https://api.{host}/copilot_internal/v2/token"


def _expires(credential: Credential, found: Mapping[str, Any], now_ms: float, server_ms: float | None) -> int | None:
    """When the new token is to be renewed, in ms since 1970; None when that is not told, or would be at once."""
    family = _FAMILIES.get(credential.family)
    if credential.family == "github-copilot":
        end = _number(found.get("expires_at"))
        life = None if end is None else end - (now_ms if server_ms is None else server_ms) / 1000
    elif found.get("expires_in") is None:
        life = family.life_s or None if family else None
    else:
        life = _number(found.get("expires_in"))
    if life is None or not 0 < life <= MAX_LIFE_S:
        return None
    early = min(family.early_s if family else 0, life / 2)
    left_ms = (life - early) * 1000
    return int(now_ms + left_ms) if left_ms > SKEW_MS else None


def _number(value: object) -> float | None:
    """A finite number; a string of digits is none, as no provider sends one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def is_token(value: object) -> TypeGuard[str]:
    """Whether it can be put into a header as it is."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def _object(body: bytes) -> dict[str, Any] | None:
    """The JSON object that `body` is, or None."""
    try:
        found = msgspec.json.decode(body)
    except (ValueError, RecursionError):  # a MsgspecError is a ValueError
        return None
    return found if isinstance(found, dict) else None


def _code(found: Mapping[str, Any] | None, credential: Credential) -> str:
    """The error's code (RFC 6749, 5.2; or in an object, as OpenAI and Anthropic have it), if it is plainly one."""
    error = (found or {}).get("error")
    candidates = (error.get("code"), error.get("type")) if isinstance(error, dict) else (error,)
    for code in candidates:
        if isinstance(code, str) and len(code) <= 40 and _CODE.fullmatch(code) and not _overlaps(code, credential):
            return code
    return ""


def _overlaps(text: str, credential: Credential) -> bool:
    return any(text in secret or secret in text for secret in credential.secrets().values())
