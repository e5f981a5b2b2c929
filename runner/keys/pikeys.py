"""Entries of pi's files as credentials of the vault. Which entry counts is keysources.py's business.

What is secret in an entry beyond its key or tokens becomes a field of the credential; the rest is kept as its `extra`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import fault_of_value
from impyard.runner.keys.pifiles import RESERVED_FIELDS, resolve_template, template_variables
from impyard.runner.keys.plainpi import plain_extra, plain_provider
from impyard.runner.keys.plainvalues import is_model

_NO_EXTRA = ("type", "key", "access", "refresh", "expires", "accountId", "env")


def key_credential(name: str, key: str, source: str) -> Credential:
    """A key as a credential. Anthropic's tokens of a subscription are logins, wherever they were kept as keys."""
    if "sk-ant-oat" in key:
        return Credential(name=name, kind="oauth", access=key, source=source)
    return Credential(name=name, kind="api_key", key=key, source=source)


def login_credential(name: str, entry: Mapping[str, Any], environ: Mapping[str, str], file: Path) -> Credential:
    """An entry of auth.json. Raises ImpyardError for one without a key, or with a key that cannot be resolved."""
    where = f"{file}: {name}"
    own = {key: text for key, text in _object(entry, "env").items() if isinstance(text, str) and text}
    if entry.get("type") == "oauth":
        access, refresh = _text(entry, "access"), _text(entry, "refresh")
        if not access and not refresh:
            raise ImpyardError(f"{where}: the login has no token", hint="log in again with `pi`")
        login = Credential(
            name=name,
            kind="oauth",
            access=access,
            refresh=refresh,
            expires=login_expires(entry),
            account=_account(entry) or (_account_in(access) if name == "openai-codex" else ""),
            source="pi",
            pi_file=os.path.realpath(file),  # as pi locks it
        )
        named: set[str] = set()
    else:
        text = _text(entry, "key")
        if not text:
            raise ImpyardError(f"{where}: the entry has no key", hint="log in again with `pi`")
        named = template_variables(text)
        login = key_credential(name, resolve_template(text, own, environ, where), "pi")
    others = {key: value for key, value in entry.items() if key not in _NO_EXTRA}
    extra = plain_extra({**others, "env": {key: text for key, text in own.items() if key not in named}})
    plain_env = extra.get("env", {})
    secret = {key: text for key, text in own.items() if key not in plain_env}
    secret |= {key: value for key, value in others.items() if key not in extra}
    return msgspec.structs.replace(login, extra=extra, fields=_fields(secret, login))


def custom_credential(
    name: str, entry: Mapping[str, Any], environ: Mapping[str, str], file: Path, variable: str = ""
) -> Credential:
    """A provider of models.json, with the key of a variable where the entry has none. Raises ImpyardError when its key
    or a header cannot be resolved."""
    key = resolve_template(text, {}, environ, f"{file}: {name}") if (text := _text(entry, "apiKey")) else variable
    return with_headers(key_credential(name, key, "models"), entry, environ, file)


def with_headers(
    credential: Credential, entry: Mapping[str, Any], environ: Mapping[str, str], file: Path
) -> Credential:
    """The credential with the secret headers that its provider has in models.json."""
    where = f"{file}: {credential.name}"
    fields: dict[str, str] = {}
    for header in plain_provider(entry).headers:
        value = resolve_template(header.template, {}, environ, where)
        if fields.setdefault(header.named, value) != value:
            raise ImpyardError(
                f"{where}: the header {header.name} has several values", hint="name one provider for each"
            )
        bare = value.partition(" ")[2].strip()  # `Bearer …`: the token alone is a secret too
        if bare:
            fields[f"{header.named}.bare"] = bare
    return msgspec.structs.replace(credential, fields={**credential.fields, **fields})


def has_secrets(entry: Mapping[str, Any]) -> bool:
    """Whether a provider of models.json has a key, or a header that holds a secret."""
    return bool(_text(entry, "apiKey") or plain_provider(entry).headers)


def _fields(secret: Mapping[str, Any], login: Credential) -> dict[str, str]:
    """What else is secret in an entry of pi's, as fields: watched like the key, as far as a header could carry it."""
    known = set(login.secrets().values())
    return {
        _field_name(name, number): value
        for number, (name, value) in enumerate(secret.items())
        if isinstance(value, str) and value not in known and not fault_of_value(value)
    }


def _field_name(name: str, number: int) -> str:
    """A name that may be shown: one that is none may be a secret itself."""
    if not is_model(name) or not name[0].isalpha():
        return f"own-{number}"
    return f"own-{name}" if name in RESERVED_FIELDS else name


def login_expires(entry: Mapping[str, Any]) -> int:
    """When a login of pi's ends. Without a time pi refreshes it before its next use, so it counts as long over."""
    value = entry.get("expires")
    known = int(value) if isinstance(value, int | float) and 0 < value < 1e17 else 0
    return known or (1 if _text(entry, "refresh") else 0)


def _account(entry: Mapping[str, Any]) -> str:
    account = _text(entry, "accountId")
    return "" if fault_of_value(account) else account


def _account_in(access: str) -> str:
    from impyard.addon.vault.oauth import codex_account  # the rest of it is the gateway's: no start need load it

    return codex_account(access)


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    return value if isinstance(value, str) else ""


def _object(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = entry.get(name)
    return value if isinstance(value, dict) else {}
