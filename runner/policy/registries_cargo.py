"""cargo's indexes, and where their crates lie."""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner.policy.registries import Found, Machine, Place, expression, missing, place_of

_SAID = re.compile(r"failed to download from `(\S+?)config\.json`")
_MARK = re.compile(r"\{(?:crate|version|prefix|lowerprefix|sha256-checksum)\}")
_CARGO_TOML = '[package]\nname = "asks"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\nasked = "1"\n'


def addresses(machine: Machine) -> list[str]:
    """The indexes that cargo would ask, as they are configured. Raises ImpyardError for what is no index."""
    config = _config(machine)
    sources, registries = _table(config, "source"), _table(config, "registries")
    main = _replaced(sources, registries) or _asked(machine)
    more = [str(table["index"]) for table in registries.values() if isinstance(table, dict) and "index" in table]
    more += [v for k, v in machine.env.items() if k.startswith("CARGO_REGISTRIES_") and k.endswith("_INDEX")]
    return [each for each in (main, *more) if each]


def read(machine: Machine, found: Found) -> None:
    """Fill `cargo`. Raises ImpyardError when no index is found."""
    for address in addresses(machine):
        if not address.startswith("sparse+"):
            raise ImpyardError(
                "an index of cargo's is a git repository, which the preset cargo does not read",
                hint="`impyard policy preset add github-clone` allows clones; or name a sparse index: --host URL",
            )
        found.add("cargo", place_of(address, found.notes))
    if not found.places.get("cargo"):
        raise missing("index of crates", name="cargo")
    found.notes.insert(0, f"indexes, by cargo's configuration: {', '.join(p.url for p in found.places['cargo'])}")


def files_of(machine: Machine, found: Found, looked: dict[Place, str]) -> None:
    """Fill `cargo-files`. looked: the config.json of indexes that were asked. Raises ImpyardError without."""
    for index in found.places.get("cargo", ()):
        texts = [looked[index]] if looked.get(index) else _cached(machine, index)
        if not texts:
            raise ImpyardError(
                f"where the crates of {index.url} lie is not known: cargo has not fetched its config.json yet",
                hint="`--look` reads that one file from the index, `--files URL` tells it (`dl` in config.json)",
            )
        if len(texts) > 1 and len({p for p in found.places["cargo"] if p.host == index.host}) < len(texts):
            found.notes.append(f"cargo knows several indexes on {index.host}; the crates of all of them are allowed")
        for text in texts:
            found.add("cargo-files", crates_at(text, index))


def crates_at(config: str, index: Place) -> Place:
    """Where crates lie by an index's config.json. Raises ImpyardError for one that does not say."""
    try:
        dl = str(json.loads(config)["dl"])
    except (ValueError, KeyError, TypeError) as exc:
        raise ImpyardError(f"the config.json of {index.url} has no `dl`", hint="tell it: --files URL") from exc
    return from_dl(dl)


def from_dl(dl: str) -> Place:
    """The place that a `dl` of an index means: the Cargo book, "Index Format"."""
    beginning, mark, _ = dl.partition("{")
    head = beginning if not mark else beginning.rpartition("/")[0] + "/"
    place = place_of(head)
    if not mark:
        file = "[^/%]+/[^/%]+(/download)?"
    else:
        pieces = _MARK.split(dl[len(head) :])
        file = "[^%]+".join(map(expression, pieces))
    return Place(place.scheme, place.host, place.port, place.prefix, (("file", file),))


def _replaced(sources: Mapping[str, Any], registries: Mapping[str, Any]) -> str | None:
    """The index that stands in for the usual one; None when nothing does. Raises ImpyardError for one that is none."""
    table = sources.get("crates-io")
    seen = set()
    while isinstance(table, dict) and "replace-with" in table:
        name = str(table["replace-with"])
        if name in seen:
            break
        seen.add(name)
        if name in registries and name not in sources:
            return str(_table(registries, name).get("index", "")) or None
        table = sources.get(name)
    if not isinstance(table, dict):
        return None
    if "registry" in table:
        return str(table["registry"])
    if "local-registry" in table or "directory" in table:
        raise ImpyardError(
            "cargo takes its crates from a folder here, which needs no network",
            hint="name an index all the same: --host URL",
        )
    return None


def _asked(machine: Machine) -> str | None:
    """The index that cargo has built in. It says so when it cannot be reached, and here nothing can."""
    if not machine.has("cargo"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "src").mkdir()
        (project / "src" / "lib.rs").touch()
        (project / "Cargo.toml").write_text(_CARGO_TOML)
        nowhere = "http://127.0.0.1:9"
        _, err = machine.ask(
            "cargo", "fetch", cwd=project, CARGO_HOME=str(project / "home"), CARGO_NET_RETRY="0",
            CARGO_HTTP_PROXY=nowhere, HTTPS_PROXY=nowhere, https_proxy=nowhere, NO_PROXY="", no_proxy="",
            RUSTUP_AUTO_INSTALL="0", RUSTUP_HOME=machine.env.get("RUSTUP_HOME", str(machine.home / ".rustup")),
        )  # fmt: skip
    said = _SAID.search(err)
    return f"sparse+{said[1]}" if said else None


def _cached(machine: Machine, index: Place) -> list[str]:
    """Each config.json that cargo keeps of indexes on this host: which of them is whose, it does not say."""
    home = Path(machine.env.get("CARGO_HOME") or machine.home / ".cargo")
    paths = sorted((home / "registry" / "index").glob(f"{index.host}-*/config.json"))
    return list(dict.fromkeys(filter(None, map(machine.read, paths))))


def _config(machine: Machine) -> dict[str, Any]:
    """cargo's config: of the project and the folders above it, then of the user; what is nearer counts."""
    home = Path(machine.env.get("CARGO_HOME") or machine.home / ".cargo")
    folders = [*(folder / ".cargo" for folder in (machine.root, *machine.root.parents)), home]
    merged: dict[str, Any] = {}
    for folder in reversed(folders):
        text = machine.read(folder / "config.toml") or machine.read(folder / "config")
        try:
            merged = _merged(merged, tomllib.loads(text))
        except tomllib.TOMLDecodeError as exc:
            raise ImpyardError(f"cargo's config in {folder} is not TOML", hint="name the index: --host URL") from exc
    return merged


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def _table(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}
