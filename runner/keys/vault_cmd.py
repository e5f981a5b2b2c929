"""`impyard vault`: import, set, list and remove credentials. Values come in, and never go out."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence

import click
import msgspec

from impyard.addon.errors import ImpyardError
from impyard.addon.vault import osring
from impyard.addon.vault.credential import NAME, Credential
from impyard.addon.vault.store import FILE, Contents, Vault, default_dir
from impyard.addon.vault.templates import READY
from impyard.runner.keys import sources as keysources
from impyard.runner.keys import vault_input
from impyard.runner.keys.pifiles import RESERVED_FIELDS
from impyard.runner.keys.sources import Found
from impyard.runner.keys.vault_words import as_json, expiry, failure, line, origin
from impyard.runner.lazygroup import LazyGroup
from impyard.runner.text import beside, columns_of, visible, wrapped
from impyard.runner.typed import as_typed, command_line, did_you_mean

WIDE_COLUMNS = 120  # from here on a long row is broken within its last column
LEAST_KEY = 20  # characters: no provider that is known here has shorter ones
MIN_WATCHED = 12  # what is shorter could be in a request by chance
_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")  # as templates name them
_keyring = click.option(
    "--keyring/--no-keyring",
    default=None,
    help="Keep the secrets in the system's keyring, or in a file that only you can read (the default for new ones).",
)


@click.group(cls=LazyGroup, entries={}, invoke_without_command=True)
@click.pass_context
def vault(ctx: click.Context) -> int:
    """Keep the credentials that the gateway puts on requests, outside of the box. Without a command: list.

    \b
    impyard vault import       what pi and your shell have
    impyard vault set github   store one, typed or piped in
    impyard vault list         what there is, without values
    """
    return int(ctx.invoke(list_command, as_json_=False)) if ctx.invoked_subcommand is None else 0


@vault.command("import")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@_keyring
def import_command(names: Sequence[str], keyring: bool | None) -> int:
    """Take credentials over from pi and your shell.

    All that there are, or those that are NAMEd.

    \b
    impyard vault import             what pi's auth.json and models.json, and variables such as
                                     OPENAI_API_KEY and GH_TOKEN hold
    impyard vault import anthropic   just this one, also in place of one that was set by hand

    A key that pi has as a variable or a command is worked out here, on the host.
    """
    store = Vault(default_dir())
    found, faults = _look(store)
    if missing := [name for name in names if name not in found]:
        if faults:
            raise faults[0]
        raise ImpyardError(
            f"nothing named `{missing[0]}` to import{did_you_mean(missing[0], found)}",
            hint=f"`impyard vault set {missing[0] if NAME.fullmatch(missing[0]) else 'NAME'}` stores a value by hand",
        )
    if not found and not faults:
        raise ImpyardError(
            "nothing to import: pi has no credentials here, and no variable holds one",
            hint="log in with `pi`, export a key such as ANTHROPIC_API_KEY, or use `impyard vault set NAME`",
        )
    if keyring:
        osring.backend_name()  # raises where there is none
    rows = [_imported(store, found[name], name in names, keyring) for name in (names or found)]
    rows += [("", "failed", fault.message) for fault in faults if not names]
    width = max(len(name) for name, _, _ in rows) + 2
    for name, state, detail in rows:
        left = f"{name:<{width}}{state}"
        click.echo(beside(left, visible(as_typed(detail)), width + 11, columns_of(sys.stdout)))
    return 1 if any(state == "failed" for _, state, _ in rows) else 0


def _imported(store: Vault, found: Found, by_name: bool, keyring: bool | None) -> tuple[str, str, str]:
    """Import one: its name, what became of it, and the detail."""
    name = visible(found.name)
    if not by_name and found.name in store.overview().removed:
        return name, "removed", f"by you; `impyard vault import {name}` brings it back"
    try:
        taken = keysources.take(store, found.get(), by_name=by_name, keyring=keyring)
    except ImpyardError as exc:
        return name, "failed", exc.message
    if taken is None:
        return name, "kept", f"as you set it by hand; `impyard vault import {name}` takes it from {found.where}"
    if taken.is_same:
        return name, "unchanged", f"from {found.where}"
    return name, "imported", f"from {found.where}" + (" into the keyring" if keyring else "")


@vault.command("set")
@click.argument("name")
@click.argument("value", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.option("--field", metavar="F", help="Store a further value under this name, for templates with {F}.")
@click.option(
    "--provider",
    metavar="P",
    help="Whose key or login it is, where that is not NAME: the stand-in looks like one, a login is renewed there.",
)
@click.option("--oauth", is_flag=True, help="Read a login: a JSON object with `access`, `refresh` and `expires`.")
@_keyring
def set_command(
    name: str, value: Sequence[str], field: str | None, provider: str | None, oauth: bool, keyring: bool | None
) -> int:
    """Store a credential, typed or piped in.

    \b
    impyard vault set github                      asks for it
    gh auth token | impyard vault set github      takes it from a pipe
    impyard vault set registry --field password   a further value, for a template of your own
    impyard vault set proxy --oauth < login.json  {"access": "…", "refresh": "…", "expires": …}

    The value is never an argument: those stand in the shell's history and in the list of processes.
    """
    if value:
        raise click.UsageError("a value is never an argument; `impyard vault set NAME` asks for it")
    if not NAME.fullmatch(name):  # unnamed, as it may hold the value: `NAME=VALUE`
        raise click.UsageError("that is no name for a credential: use a-z, 0-9, `.`, `_` and `-`, at most 64 of them")
    if provider is not None and not NAME.fullmatch(provider):
        raise click.UsageError("`--provider` takes the provider's id, such as anthropic")
    # It may be one that only the user's policy knows; a slip of the fingers would leave a login without renewal.
    if provider is not None and provider not in READY and (close := did_you_mean(provider, READY)):
        raise click.UsageError(f"no provider is called `{provider}`{close}")
    if oauth and field:
        raise click.UsageError("`--oauth` and `--field` do not go together")
    field = None if field == "key" else field
    if field is not None and (field in RESERVED_FIELDS or not _FIELD.fullmatch(field)):
        raise click.UsageError("that is no name for a field: use letters, digits, `_` and `-`; a login needs `--oauth`")
    store = Vault(default_dir())
    # What cannot be used is said to be so before anything is typed.
    in_keyring = name in store.overview().in_keyring if keyring is None else keyring
    place = f"the keyring ({osring.backend_name()})" if in_keyring else "the vault"
    fresh = vault_input.read_login(name) if oauth else None
    text = "" if oauth else vault_input.read_value(f"the {field or 'value'} of {name}", name)

    def change(current: Credential | None) -> Credential:
        base = current or Credential(name=name, kind="api_key", source="set")
        if field is not None:
            changed = msgspec.structs.replace(base, fields={**base.fields, field: text})
        else:
            new = fresh or keysources.key_credential(name, text, "set")
            changed = msgspec.structs.replace(new, fields=base.fields, provider=base.provider)
        return changed if provider is None else msgspec.structs.replace(changed, provider=provider)

    store.update(name, change, revive=True, keyring=keyring)
    click.echo(f"stored {f'the {field} of ' if field else ''}{name} in {place}")
    if text and len(text) < MIN_WATCHED:
        click.echo(f"it is shorter than {MIN_WATCHED} characters: requests are not searched for it", err=True)
    if text and field is None and len(text) < LEAST_KEY and (provider or name) in READY:
        click.echo(
            f"is this the whole key? it has {len(text)} characters, which is few for {provider or name}", err=True
        )
    return 0


@vault.command("list")
@click.option("--json", "as_json_", is_flag=True, help="One JSON document.")
def list_command(as_json_: bool) -> int:
    """List the credentials, without values.

    Each with its type, where it came from, its expiry and the last failure.

    \b
    impyard vault list
    impyard vault list --json | jq '.credentials[].name'
    """
    store = Vault(default_dir())
    contents = store.overview()
    now_ms = time.time() * 1000
    if as_json_:
        click.echo(json.dumps(as_json(contents, store.folder / FILE), indent=2))
        return 0
    if not contents.credentials:
        _say_empty(store)
    width = max((len(name) for name in contents.credentials), default=0) + 2
    columns = columns_of(sys.stdout)
    for name in sorted(contents.credentials):
        one = contents.credentials[name]
        in_keyring = name in contents.in_keyring
        if sys.stdout.isatty():
            left = f"{name:<{width}}{one.kind}"
            right = visible(as_typed(line(one, now_ms, in_keyring)))
            if columns and columns >= WIDE_COLUMNS:
                right = wrapped(right, columns - width - 9).replace("\n", "\n" + " " * (width + 9))
                click.echo(f"{left:<{width + 9}}{right}")
            else:
                click.echo(beside(left, right, width + 9, columns))
        else:
            cells = (name, one.kind, origin(one), expiry(one, now_ms), as_typed(failure(one, now_ms)))
            click.echo("\t".join(visible(cell) for cell in cells))
    if contents.removed:
        click.echo(_removed_words(store, contents), err=True)
    return 0


@vault.command("remove")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def remove_command(names: Sequence[str]) -> int:
    """Take credentials out of the vault.

    \b
    impyard vault remove openai

    A run does not import a removed one again; `impyard vault import NAME` and `impyard vault set NAME` bring it back.
    """
    store = Vault(default_dir())
    contents = store.overview()
    elsewhere = set(_look(store)[0]) | {keysources.DEMO}
    known = {*contents.credentials, *contents.removed, *elsewhere}
    if unknown := [name for name in names if name not in known]:
        raise ImpyardError(
            f"the vault has no credential `{unknown[0]}`{did_you_mean(unknown[0], contents.credentials)}"
            + ("; nothing was removed" if len(set(names)) > 1 else ""),
            hint="`impyard vault list` shows what it has",
        )
    for name in dict.fromkeys(names):
        click.echo(_removed(store, contents, name))
    return 0


def _removed(store: Vault, contents: Contents, name: str) -> str:
    was = contents.credentials.get(name)
    if not store.remove(name):
        return f"{visible(name)} was not in the vault; runs will not import it by themselves"
    kept = f"; pi keeps its own, in {was.pi_file}" if was and was.pi_file else ""
    return visible(f"removed {name}{kept}")


def _removed_words(store: Vault, contents: Contents) -> str:
    """The removed ones, each kind with the command that brings it back."""
    there = set(_look(store)[0])
    parts = []
    for verb, names in (("import", contents.removed & there), ("set", contents.removed - there)):
        if names:
            only = next(iter(names)) if len(names) == 1 else "NAME"
            again = "brings it back" if len(names) == 1 else "brings one back"
            listed = ", ".join(sorted(names))
            parts.append(f"removed: {visible(listed)} ({visible(command_line('vault', verb, only))} {again})")
    return "\n".join(parts)


def _look(store: Vault) -> tuple[dict[str, Found], list[ImpyardError]]:
    return keysources.look(os.environ, store.folder)


def _say_empty(store: Vault) -> None:
    click.echo(f"no credentials in {store.folder}", err=True)
    if os.geteuid() == 0 and (user := os.environ.get("SUDO_USER")):
        click.echo(f"this is root's vault; without sudo it is that of {user}", err=True)
    if found := _look(store)[0]:
        command = command_line("vault", "import")
        click.echo(f"{command} takes over: {visible(', '.join(found))}", err=True)
    else:
        click.echo(f"{command_line('vault', 'set', 'NAME')} stores one", err=True)
