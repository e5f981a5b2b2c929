"""A credential of the vault, as a value. Its secrets show in no repr; nothing here reads or writes a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
FAR_FUTURE_MS = 4_102_444_800_000  # 2100: an expiry that nothing waits for

Kind = Literal["api_key", "oauth"]


class TokenEndpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a login is refreshed when it is not its provider's usual place.

    url: https, or http on loopback. encoding: of the request's body. ca: a PEM file to verify it with, "" for the
    usual ones.
    """

    url: str
    encoding: Literal["json", "form"] = "json"
    client_id: str = ""
    ca: str = ""


class Failure(msgspec.Struct, frozen=True):
    """The last refresh that failed. at: milliseconds since 1970. what: for people, without any value. final: there is
    no use in another one until the credential changes."""

    at: int
    what: str
    final: bool = False


class Credential(msgspec.Struct, frozen=True, omit_defaults=True):
    """One named credential.

    kind: "api_key" has `key`; "oauth" has `access`, and `refresh` where it can be renewed, with `expires` in
    milliseconds since 1970 (0: never). account: the provider's id of the account, where requests name it. fields:
    further secret values that a template may name. provider: whose shapes and refresh it has, "" for those of its own
    name. source: "pi", "models", "env:NAME", "demo" or "set". pi_file: pi's auth.json that shares this login. extra:
    what else pi keeps with it, no secret. failure: of its last refresh, None when that worked.
    """

    name: str
    kind: Kind
    key: str = ""
    access: str = ""
    refresh: str = ""
    expires: int = 0
    account: str = ""
    fields: Mapping[str, str] = {}
    provider: str = ""
    source: str = ""
    pi_file: str = ""
    token_endpoint: TokenEndpoint | None = None
    extra: Mapping[str, Any] = {}
    failure: Failure | None = None

    @property
    def family(self) -> str:
        """Whose shapes and refresh it has."""
        return self.provider or self.name

    def values(self) -> dict[str, str]:
        """What a template may name, by field: `key`, `access`, `account_id` and its own fields; empty ones left out."""
        found = {"key": self.key, "access": self.access, "account_id": self.account, **self.fields}
        return {name: value for name, value in found.items() if value}

    def secrets(self) -> dict[str, str]:
        """Every secret value by field: what must be seen nowhere but at the host that it is bound to."""
        found = {"key": self.key, "access": self.access, "refresh": self.refresh, **self.fields}
        return {name: value for name, value in found.items() if value}

    def __repr__(self) -> str:
        return f"<credential {self.name} ({self.kind})>"
