"""A credential of the vault in words and as JSON: where it came from, how long it lasts. Never its value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Contents
from impyard.runner.text import counted

_ORIGINS = {
    "pi": "pi's auth.json",
    "models": "pi's models.json",
    "demo": "the demo model's account",
    "set": "set by hand",
}
_NEVER_MS = 10 * 365 * 86_400_000  # what lasts ten years more lasts for ever


def origin(credential: Credential) -> str:
    """Where it came from."""
    if credential.source.startswith("env:"):
        return f"variable {credential.source[4:]}"
    return _ORIGINS.get(credential.source, "unknown")


def expiry(credential: Credential, now_ms: float) -> str:
    """When it ends, for a login; "" for a key, of which nobody knows."""
    if credential.kind != "oauth":
        return ""
    left_ms = credential.expires - now_ms
    if not credential.expires or left_ms > _NEVER_MS:
        return "never expires"
    renewed = ", renewed when it is used" if credential.refresh and credential.failure is None else ""
    if left_ms > 0:
        return f"expires in {_span(left_ms)}{renewed}"
    return f"expired{renewed}" if credential.expires < 10 else f"expired {_span(-left_ms)} ago{renewed}"


def failure(credential: Credential, now_ms: float) -> str:
    """What went wrong when it was last renewed, "" for nothing."""
    if credential.failure is None:
        return ""
    ago = _span(max(now_ms - credential.failure.at, 0))
    way = (
        "log in again with `pi`"
        if credential.pi_file
        else f"`impyard vault set {credential.name} --oauth` takes another"
    )
    return f"could not be renewed {ago} ago ({credential.failure.what}); {way}"


def line(credential: Credential, now_ms: float, in_keyring: bool) -> str:
    """All that is to be said of it, but name and type."""
    fields = [name for name in credential.fields if not name.endswith(".bare")]
    parts = [
        origin(credential),
        "in the keyring" if in_keyring else "",
        f"like {credential.provider}" if credential.provider else "",
        f"fields: {', '.join(fields)}" if fields else "",
        expiry(credential, now_ms),
        failure(credential, now_ms),
    ]
    return "; ".join(filter(None, parts))


def as_json(contents: Contents, path: Path) -> dict[str, Any]:
    """The vault without its values. expires: milliseconds since 1970, null for never or unknown."""
    return {
        "vault": str(path),
        "credentials": [
            {
                "name": name,
                "type": one.kind,
                "provider": one.family,
                "source": one.source,
                "expires": one.expires or None,
                "fields": list(one.fields),
                "keyring": name in contents.in_keyring,
                "failure": None if one.failure is None else {"at": one.failure.at, "what": one.failure.what},
            }
            for name, one in sorted(contents.credentials.items())
        ],
        "removed": sorted(contents.removed),
    }


def _span(ms: float) -> str:
    minutes = ms / 60_000
    if minutes < 1:
        return "less than a minute"
    for limit, unit, size in ((120, "minute", 1), (2880, "hour", 60), (float("inf"), "day", 1440)):
        if minutes < limit:
            return counted(int(minutes / size), unit)
    raise AssertionError
