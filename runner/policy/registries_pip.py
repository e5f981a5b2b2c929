"""pip's indexes, and where their files lie."""

from __future__ import annotations

import ast
import configparser
import contextlib
import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from impyard.addon.errors import ImpyardError
from impyard.runner.policy.registries import Found, Machine, Place, base_of, missing, place_of

_SAID = re.compile(r"([^=\s]+)=(['\"].*)")
_AT = re.compile(r"^pip \S+ from (.+?) \(python", re.MULTILINE)
_LINK = re.compile(r"""<a\b[^>]*?\bhref\s*=\s*["']?([^"'\s>]+)""", re.IGNORECASE)
_SECTIONS = (":env:", "install", "download", "global")  # the first that says something counts, for pip too


def addresses(machine: Machine) -> list[str]:
    """The indexes that pip would ask, as they are configured: they may hold a password."""
    values = _asked(machine)
    main, more = _value(values, "index-url").strip(), _value(values, "extra-index-url").split()
    if not main:
        own = _own_default(machine)
        main = own[0] if own else ""
    return [each for each in (main, *more) if each]


def is_local(address: str) -> bool:
    """Whether an index is a folder of this machine."""
    return address.startswith(("file:", "/"))


def read(machine: Machine, found: Found) -> None:
    """Fill `pip`. Raises ImpyardError without an index."""
    for address in addresses(machine):
        if is_local(address):
            if (note := "an index in a folder of this machine is left out: the box does not see it") not in found.notes:
                found.notes.append(note)
            continue
        found.add("pip", place_of(address, found.notes))
    if not found.places.get("pip"):
        raise missing("index of Python packages", name="pip")
    found.notes.insert(0, f"indexes, by pip's configuration: {', '.join(place.url for place in found.places['pip'])}")


def files_of(machine: Machine, found: Found, looked: dict[Place, list[Place]]) -> None:
    """Fill `pip-files`: as the index was seen to say, as pip knows of its default, else beside the index.

    looked: what one page of an index named.
    """
    own = _own_default(machine)
    for index in found.places.get("pip", ()):
        if index in looked:
            places = looked[index]
        elif own is not None and index == place_of(own[0]):
            places = [place_of(f"{own[1]}/packages")]
        else:
            places = [beside(index)]
            found.notes.append(
                f"the files of {index.url} are taken to lie at {places[0].url}; if an install is denied elsewhere, use "
                "--look or --files"
            )
        for place in places:
            found.add("pip-files", place)


def beside(index: Place) -> Place:
    """Where the servers that have index and files on one host keep the files of an index at ".../simple/"."""
    base = base_of(index.prefix)
    return Place(index.scheme, index.host, index.port, base if base and base != index.prefix else "packages/")


def files_named(index: Place, page: str, url: str) -> list[Place]:
    """Where the files lie that a page of an index names. Raises ImpyardError for a page that names none."""
    found: list[Place] = []
    for link in _LINK.findall(page):
        parts = urlsplit(urljoin(url, link.replace("&amp;", "&")))
        if parts.scheme not in ("http", "https"):
            continue
        first = parts.path.lstrip("/").partition("/")[0] if parts.path.count("/") > 1 else ""
        place = place_of(f"{parts.scheme}://{parts.netloc}/{first}")
        usual = beside(index)
        same = (place.scheme, place.host, place.port) == (usual.scheme, usual.host, usual.port)
        if same and parts.path.lstrip("/").startswith(usual.prefix):
            place = usual
        if place not in found:
            found.append(place)
    if not found:
        raise ImpyardError(f"a page of {index.url} names no files", hint="name their host: --files URL")
    return found


def _asked(machine: Machine) -> dict[str, str]:
    """All that pip's configuration says, by `section.key`."""
    out, _ = machine.ask("pip", "config", "list") if machine.has("pip") else machine.ask("pip3", "config", "list")
    values = {}
    for line in out.splitlines():
        if said := _SAID.fullmatch(line.strip()):
            with contextlib.suppress(ValueError, SyntaxError):
                values[said[1].lower()] = str(ast.literal_eval(said[2]))
    if not values:
        values = _files(machine)
    for name in ("index-url", "extra-index-url"):
        if text := machine.env.get(f"PIP_{name.upper().replace('-', '_')}", ""):
            values[f":env:.{name}"] = text
    return values


def _value(values: dict[str, str], key: str) -> str:
    return next((values[f"{section}.{key}"] for section in _SECTIONS if f"{section}.{key}" in values), "")


def _files(machine: Machine) -> dict[str, str]:
    """The same from the files themselves, where pip is not there."""
    config = machine.env.get("XDG_CONFIG_HOME") or str(machine.home / ".config")
    named = machine.env.get("PIP_CONFIG_FILE", "")
    paths = [machine.etc / "pip.conf", machine.home / ".pip" / "pip.conf", Path(config) / "pip" / "pip.conf"]
    values: dict[str, str] = {}
    for path in [*paths, *([Path(named)] if named else [])]:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(machine.read(path))
        except configparser.Error:
            continue
        for section in parser.sections():
            values |= {f"{section}.{name.replace('_', '-')}": value for name, value in parser.items(section) if value}
    return values


def _own_default(machine: Machine) -> tuple[str, str] | None:
    """The index and the host of files that pip has built in, as its own source says: it is asked nowhere else."""
    out, _ = machine.ask("pip", "--version") if machine.has("pip") else machine.ask("pip3", "--version")
    if not (at := _AT.search(out)):
        return None
    text = machine.read(Path(at[1]) / "_internal" / "models" / "index.py")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    for call in [node.value for node in tree.body if isinstance(node, ast.Assign)]:
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
            files = [each.value for each in call.keywords if each.arg == "file_storage_domain"]
            if files and isinstance(files[0], ast.Constant):
                return urljoin(str(call.args[0].value), "simple/"), str(files[0].value)
    return None
