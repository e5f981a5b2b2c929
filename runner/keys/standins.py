"""What a box gets in place of credentials: the gateway's sentinels, where pi and other tools look for the real ones.

The gateway mints them at its start and says in `ready` which credential is bound to which host. Read here, checked for
the model's, and made into the variables and files of the box. Nothing here sees a real value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential
from impyard.runner.agent import MODEL_HOSTS, Agent, ways
from impyard.runner.keys.firstuse import State
from impyard.runner.keys.sources import TOOL_VARIABLES, agent_folder
from impyard.runner.typed import as_typed


class Binding(msgspec.Struct, frozen=True):
    """An entry of the policy that puts a credential on what is asked of a host. at: its "file:line".

    env: variables, and files: (path in HOME, template), that hold the sentinel in the box. missing: the vault has no
    such credential.
    """

    credential: str
    host: str
    at: str
    env: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    missing: bool = False


class Keys(msgspec.Struct, frozen=True):
    """What `ready` says of credentials. sentinels: by name."""

    sentinels: Mapping[str, Credential] = {}
    bindings: tuple[Binding, ...] = ()


def read_keys(ready: Mapping[str, Any]) -> Keys:
    """The `keys` of a `ready` event; none of an older form. Raises ImpyardError for what cannot be read."""
    try:
        return msgspec.convert(ready.get("keys") or {}, Keys)
    except msgspec.ValidationError:
        raise ImpyardError("the gateway's word on credentials cannot be read", hint="install impyard anew") from None


def for_agent(
    keys: Keys, agent: Agent, environ: Mapping[str, str], policies: Sequence[Path], root: Path, kept: State
) -> Credential | None:
    """The sentinel of the credential that the policy binds to the model's host.

    kept: what the vault has under the provider's name. Raises ImpyardError, saying what to do, when there is none
    or no binding; the demo model's run goes on without one that nobody removed.
    """
    own = keys.sentinels.get(agent.provider)
    host = agent.host(own)
    there = [b for b in keys.bindings if (b.credential == agent.provider if host is None else _is_for(b, host))]
    named = [b.credential for b in there if not b.missing and b.credential in keys.sentinels]
    if named:
        return keys.sentinels[agent.provider if agent.provider in named else named[-1]]
    if agent.is_demo and kept != "removed":
        return None
    if there and kept == "there":  # the policy wants another one, which is not there
        missing = there[-1]
        raise ImpyardError(
            f"{missing.at}: the policy puts `{missing.credential}` on requests to {missing.host}, and the vault has no "
            "such credential",
            hint=f"`impyard vault set {missing.credential}` stores one",
        )
    if kept == "removed":
        again = f"`impyard vault import {agent.provider}`"
        other = f"`impyard vault set {agent.provider}` stores another"
        elsewhere = f" takes it from pi or the environment again, {other}"
        raise ImpyardError(
            f"the credential `{agent.provider}` of the model's provider was removed from the vault",
            hint=again + ("" if agent.is_demo else elsewhere),
        )
    if kept == "none":
        raise ImpyardError(
            f"no credentials for the model provider `{agent.provider}`",
            hint=ways(agent.provider, agent_folder(environ)),
        )
    raise _unbound(agent, host, policies, root)


def for_tools(
    keys: Keys, agent: Agent | None, note: Callable[[str], None], removed: Collection[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Variables, and files by path in HOME, of the policy's bindings; what is missing is told to `note`.

    removed: the credentials that the user took out of the vault."""
    env: dict[str, str] = {}
    parts: dict[str, list[str]] = {}
    for binding in keys.bindings:
        stand_in = keys.sentinels.get(binding.credential)
        if binding.missing or stand_in is None:
            if binding.credential not in MODEL_HOSTS and not (agent and binding.credential == agent.provider):
                command = as_typed(_way_back(binding.credential, removed))
                note(f"the vault has no `{binding.credential}`, which {binding.at} puts on requests: {command}")
            continue
        values = stand_in.values()
        for name in binding.env:
            env[name] = values.get("key") or values.get("access") or ""
        for path, text in binding.files:
            line = _rendered(text, {**values, "host": binding.host}, binding)
            if line not in (lines := parts.setdefault(_inside(path, binding), [])):
                lines.append(line)
    return env, {path: "\n".join(lines) + "\n" for path, lines in parts.items()}


def _way_back(name: str, removed: Collection[str]) -> str:
    variable = next((each for each in TOOL_VARIABLES.get(name, ()) if os.environ.get(each)), None)
    if name in removed and variable:
        return f"you removed it; `impyard vault import {name}` takes it from {variable}"
    return f"`impyard vault set {name}` stores it"


def write_files(files: Mapping[str, str], home: Path) -> None:
    """Write files into the new HOME, readable for its owner only."""
    for path, text in files.items():
        target = home / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)


def _is_for(binding: Binding, host: str) -> bool:
    return binding.host.rpartition(":")[0] == host if ":" in binding.host else binding.host == host


def _rendered(text: str, values: Mapping[str, str], binding: Binding) -> str:
    from impyard.addon.vault.templates import Template

    try:
        return Template.parse(text, lines=True).render(values).rstrip("\n")
    except KeyError as exc:
        raise ImpyardError(
            f"{binding.at}: the file wants {{{exc.args[0]}}}, which the credential `{binding.credential}` has not",
            hint=f"its fields are {', '.join(sorted(values))}",
        ) from None
    except ValueError as exc:
        raise ImpyardError(
            f"{binding.at}: the file's template is none: {exc}", hint="`impyard policy check` shows its place"
        ) from None


def _inside(path: str, binding: Binding) -> str:
    """A path below HOME that is nobody else's. The policy was checked where it was read; this holds without that."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or parts[0] == "agent" or not path.isprintable():
        raise ImpyardError(f"{binding.at}: `{path}` is no place for a file in the box's HOME", hint="name it `.npmrc`")
    return path


def _unbound(agent: Agent, host: str | None, policies: Sequence[Path], root: Path) -> ImpyardError:
    """The policy leaves the model without its credential: where, and the line that mends it."""
    from impyard.addon.policy import load_policy
    from impyard.addon.rules import Upstream

    entries = load_policy(policies, root=root).entries_for(host) if host else []
    line = _line(agent, over_http=False)
    if not entries:
        name = f"host {host}" if host else f"provider `{agent.provider}`"
        place = f"{policies[-1]}: no entry puts a credential on requests to the model's {name}"
        example = f"an entry with `host: {host or '…'}`, `{line}` and a rule that allows the calls"
        return ImpyardError(place, hint=example)
    entry = entries[0]
    if "*" in entry.host:
        hint = f"write an entry for {host} with `{line}`: no wildcard gets a credential"
    else:
        plain = isinstance(entry.upstream, Upstream) and entry.upstream.scheme == "http"
        hint = f"add this line to that entry: `{_line(agent, over_http=plain)}`"
    return ImpyardError(f"{entry.at}: the entry for {entry.host} puts no credential on the model's calls", hint=hint)


def _line(agent: Agent, *, over_http: bool) -> str:
    """The line of an entry that gives the model its credential."""
    from impyard.addon.vault.templates import READY

    if agent.provider in READY and not agent.custom.get("api") and not over_http:
        return f"inject: {agent.provider}"
    if agent.provider in READY and not agent.custom.get("api"):
        return f"inject: {{credential: {agent.provider}, over_http: true}}"
    headers = ", ".join(f'{name}: "{text}"' for name, text in agent.headers().items())
    more = ", over_http: true" if over_http else ""
    return f"inject: {{credential: {agent.provider}, headers: {{{headers}}}{more}}}"
