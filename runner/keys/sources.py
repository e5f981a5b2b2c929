"""Where the user's credentials come from: pi's own files, the environment, the account of the demo model.

`available` says what there is without running or reading more than names; a `Found` gets its credential when it is
asked. `follow` brings the vault up to date with the source of one. No message has a value in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.privatefolder import PrivateFolder
from impyard.addon.vault.store import Vault, check, default_dir, fault_of_value
from impyard.runner.keys.pifiles import (
    agent_folder,
    custom_providers,
    literal,
    read_object,
    resolve_template,
)
from impyard.runner.keys.pikeys import (
    custom_credential,
    has_secrets,
    key_credential,
    login_credential,
    login_expires,
    with_headers,
)

__all__ = [
    "KEY_VARIABLES",
    "Change",
    "Found",
    "agent_folder",
    "available",
    "custom_providers",
    "follow",
    "key_credential",
    "literal",
    "read_object",
    "resolve_template",
]

# Provider to the variables that pi reads its key from, in pi's order.
KEY_VARIABLES: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_OAUTH_TOKEN", "ANTHROPIC_API_KEY"),
    "openai": ("OPENAI_API_KEY",),
    "google": ("GEMINI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "github-copilot": ("COPILOT_GITHUB_TOKEN",),
    "xai": ("XAI_API_KEY",),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "cerebras": ("CEREBRAS_API_KEY",),
    "together": ("TOGETHER_API_KEY",),
    "fireworks": ("FIREWORKS_API_KEY",),
    "huggingface": ("HF_TOKEN",),
    "nvidia": ("NVIDIA_API_KEY",),
    "moonshotai": ("MOONSHOT_API_KEY",),
    "zai": ("ZAI_API_KEY",),
    "kimi-coding": ("KIMI_API_KEY",),
    "minimax": ("MINIMAX_API_KEY",),
    "vercel-ai-gateway": ("AI_GATEWAY_API_KEY",),
}
# The same for what is no model provider, in the order of the tools themselves.
TOOL_VARIABLES: dict[str, tuple[str, ...]] = {
    "github": ("GH_TOKEN", "GITHUB_TOKEN"),
    "gitlab": ("GITLAB_TOKEN",),
    "npm": ("NPM_TOKEN", "NODE_AUTH_TOKEN"),
}
DEMO = "demo"  # its key comes from its own account, whatever pi knows under this name
DEMO_ACCOUNT = "demo-account"  # in the vault's folder: the key of the demo model's only account
_MAX_KEY_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Found:
    """A credential that could be had. source: as in `Credential`. where: the same for people.

    expires: of a login, milliseconds since 1970, 0 for never. `get` reads it, runs its command, and raises
    ImpyardError when that yields nothing usable.
    """

    name: str
    source: str
    where: str
    get: Callable[[], Credential] = field(repr=False, compare=False)
    expires: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """What `follow` did. text: to tell the user. imported: whether the vault has something new."""

    name: str
    text: str
    imported: bool


def available(environ: Mapping[str, str], folder: Path | None = None) -> list[Found]:
    """All that there is, the one that pi would take first where a name has several. `folder`: the vault's.

    Raises ImpyardError for a file of pi's that cannot be read.
    """
    return [found for source in sources(environ, folder) for found in source()]


def sources(environ: Mapping[str, str], folder: Path | None = None) -> list[Callable[[], list[Found]]]:
    """`available` in its parts: each may raise for itself."""
    return [
        partial(_logins, environ),
        partial(_custom, environ),
        partial(_variables, environ),
        partial(_demo, folder or default_dir()),
    ]


def look(environ: Mapping[str, str], folder: Path) -> tuple[dict[str, Found], list[ImpyardError]]:
    """What there is by name, and what is wrong with the places where more would be."""
    found: list[Found] = []
    faults: list[ImpyardError] = []
    for source in sources(environ, folder):
        try:
            found += source()
        except ImpyardError as exc:
            faults.append(exc)
    return first_of(found), faults


def first_of(found: Iterable[Found]) -> dict[str, Found]:
    """By name, the one that counts."""
    by_name: dict[str, Found] = {}
    for one in found:
        by_name.setdefault(one.name, one)
    return by_name


def follow(vault: Vault, name: str, environ: Mapping[str, str]) -> Change | None:
    """Bring a credential of the vault up to date with its source, or import it on its first use.

    One that was set by hand or removed is left alone, one whose source is gone stays. Returns what to tell the user,
    None when nothing is new. Raises ImpyardError when there is none yet and its source yields nothing.
    """
    contents = vault.overview()
    stored = contents.credentials.get(name)
    if name in contents.removed or (stored is not None and stored.source == "set"):
        return None
    try:
        found = _find(name, environ, vault.folder)
        fresh = found.get() if found else None
        if fresh is not None:
            check(fresh)
    except ImpyardError as exc:
        if stored is None:
            raise
        return Change(name, f"the stored credential {name} is used, as its source cannot be read: {exc.message}", False)
    if found is None or fresh is None:
        return None
    if stored is not None and _merged(stored, fresh) == stored:
        return None  # a run that changes nothing does not wait for the lock, for which many may stand in line
    was = take(vault, fresh)
    if was is None or was.is_same:
        return None
    if was.before is None:
        return Change(name, f"imported the credential {name} into the vault, from {found.where}", True)
    return Change(name, f"imported the credential {name} anew, as it has changed in {found.where}", True)


def _find(name: str, environ: Mapping[str, str], folder: Path) -> Found | None:
    if name == DEMO:  # whatever pi's files have or lack
        return first_of(_demo(folder)).get(name)
    for source in sources(environ, folder):
        try:
            found = first_of(source()).get(name)
        except ImpyardError:
            if name in TOOL_VARIABLES:  # pi has nothing of it
                continue
            raise
        if found is not None:
            return found
    return None


@dataclass(frozen=True, slots=True)
class Taken:
    """What was there before `take`, None for nothing, and whether that stayed as it was."""

    before: Credential | None
    is_same: bool


def take(vault: Vault, fresh: Credential, *, by_name: bool = False, keyring: bool | None = None) -> Taken | None:
    """Put what a source has into the vault, if that is new. `by_name`: also over one that was set by hand or removed;
    otherwise None for those."""
    taken: Taken | None = None

    def change(current: Credential | None) -> Credential | None:
        nonlocal taken
        if current is not None and current.source == "set" and not by_name:
            return None
        merged = fresh if current is None else _merged(current, fresh)
        taken = Taken(current, merged == current)
        return merged

    vault.update(fresh.name, change, revive=by_name, keyring=keyring)
    return taken


def _merged(current: Credential, fresh: Credential) -> Credential:
    """What the source has now, with what only the vault knows; the vault's own where its login is the newer one."""
    older = (fresh.expires, fresh.refresh == current.refresh) < (current.expires, True)
    refused = current.failure is not None and current.failure.final
    if current.pi_file == fresh.pi_file != "" and current.refresh and older and not refused:
        return current  # it was refreshed here, and pi's file could not be written
    same_login = (fresh.kind, fresh.key, fresh.access, fresh.refresh) == (
        current.kind,
        current.key,
        current.access,
        current.refresh,
    )
    return msgspec.structs.replace(
        fresh,
        fields={**current.fields, **fresh.fields},
        provider=current.provider or fresh.provider,
        token_endpoint=fresh.token_endpoint or current.token_endpoint,
        failure=current.failure if same_login else None,
    )


def _logins(environ: Mapping[str, str]) -> list[Found]:
    """What pi keeps in its auth.json."""
    file = agent_folder(environ) / "auth.json"
    found = []
    for name, entry in read_object(file).items():
        if isinstance(entry, dict) and name != DEMO:
            expires = login_expires(entry) if entry.get("type") == "oauth" else 0
            found.append(Found(name, "pi", str(file), partial(_login, name, entry, environ, file), expires))
    return found


def _login(name: str, entry: Mapping[str, Any], environ: Mapping[str, str], file: Path) -> Credential:
    """A login, with the headers that models.json has for its provider."""
    login = login_credential(name, entry, environ, file)
    own = custom_providers(environ).get(name)
    return with_headers(login, own, environ, agent_folder(environ) / "models.json") if isinstance(own, dict) else login


def _custom(environ: Mapping[str, str]) -> list[Found]:
    """The providers of pi's models.json that have a key or secret headers of their own."""
    file = agent_folder(environ) / "models.json"

    def variable(name: str) -> str:
        return next((environ[each] for each in KEY_VARIABLES.get(name, ()) if environ.get(each)), "")

    return [
        Found(name, "models", str(file), partial(custom_credential, name, entry, environ, file, variable(name)))
        for name, entry in custom_providers(environ).items()
        if isinstance(entry, dict) and has_secrets(entry) and name != DEMO
    ]


def _variables(environ: Mapping[str, str]) -> list[Found]:
    return [
        Found(name, f"env:{variable}", variable, partial(_from_variable, name, environ[variable], variable))
        for name, variables in (KEY_VARIABLES | TOOL_VARIABLES).items()
        for variable in variables
        if environ.get(variable)
    ]


def _from_variable(name: str, value: str, variable: str) -> Credential:
    if fault := fault_of_value(value):
        raise ImpyardError(f"the variable {variable} holds no usable key: {fault}", hint=f"export {variable} anew")
    return key_credential(name, value, f"env:{variable}")


def _demo(folder: Path) -> list[Found]:
    found = PrivateFolder(folder, "the vault").read(DEMO_ACCOUNT, _MAX_KEY_BYTES)
    if found is None:
        return []
    key = found[0].decode("ascii", "replace").strip()
    return [Found(DEMO, "demo", "the demo model's account", partial(key_credential, DEMO, key, "demo"))]
