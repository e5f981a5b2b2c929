"""What a preset's placeholders stand for: named by the user, or read from the machine's own configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.runner.policy import (
    registries_apt,
    registries_cargo,
    registries_go,
    registries_look,
    registries_npm,
    registries_pip,
)
from impyard.runner.policy.presets import Preset
from impyard.runner.policy.registries import Found, Machine, Place, given, place_of

GITLAB = "https://gitlab.com"
_READERS = {
    "npm": registries_npm.read,
    "pip": registries_pip.read,
    "cargo": registries_cargo.read,
    "go": registries_go.read,
    "apt": registries_apt.read,
}
# Where what they name may come from, for people.
HINTS = {
    "npm": "npm's configuration, scopes too",
    "pip": "pip's configuration",
    "cargo": "cargo's configuration",
    "go": "GOPROXY and GOSUMDB",
    "apt": "apt's sources",
    "gitlab": "gitlab.com, or --host",
}


def find(preset: Preset, root: Path, *, hosts: Sequence[str], files: Sequence[str], look: bool) -> Found:
    """The places of a preset. Raises ImpyardError for options that it has no use for, and for what is not to be found.

    look: whether a registry may be asked for one page.
    """
    name, found = preset.name, Found()
    if not preset.placeholders:
        if hosts or files or look:
            raise ImpyardError(f"the preset {name} has its hosts itself", hint="leave --host, --files and --look out")
        return found
    if (files or look) and name not in ("pip", "cargo"):
        raise ImpyardError(f"the preset {name} has no files elsewhere", hint="leave --files and --look out")
    machine = Machine(os.environ, root)
    if hosts:
        given(found, name, hosts)
    elif name == "gitlab":
        given(found, name, [GITLAB])
    else:
        _READERS[name](machine, found)
    if name == "pip":
        _pip(found, hosts, files, look, machine)
    elif name == "cargo":
        _cargo(found, hosts, files, look, machine)
    elif name == "apt" and hosts:
        found.places["apt"] = [registries_apt.within(place) for place in found.places["apt"]]
    return found


def _pip(found: Found, hosts: Sequence[str], files: Sequence[str], look: bool, machine: Machine) -> None:
    looked: dict[Place, list[Place]] = {}
    if files:
        found.places.pop("pip-files", None)
        given(found, "pip-files", files)
        return
    if look:
        for address in hosts or [a for a in registries_pip.addresses(machine) if not registries_pip.is_local(a)]:
            index = place_of(address)
            looked[index] = registries_pip.files_named(index, *registries_look.page(address, "pip/"))
    registries_pip.files_of(machine, found, looked)


def _cargo(found: Found, hosts: Sequence[str], files: Sequence[str], look: bool, machine: Machine) -> None:
    if files:
        for address in files:
            found.add("cargo-files", registries_cargo.from_dl(address))
        return
    looked: dict[Place, str] = {}
    if look:
        for address in hosts or registries_cargo.addresses(machine):
            looked[place_of(address)] = registries_look.page(address, "config.json")[0]
    registries_cargo.files_of(machine, found, looked)
