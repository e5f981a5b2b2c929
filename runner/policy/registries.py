"""Package registries as this machine's own tools know them: nothing of them is written in a preset.

A `Place` is where a preset's rules lead. User names and passwords of an address end here: they are in no place, message
or policy. What reads which configuration stands in `registries_*.py`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from impyard.addon.errors import ImpyardError
from impyard.addon.policyinject import looks_secret
from impyard.addon.request import canonical_host
from impyard.addon.rules import DEFAULT_PORTS
from impyard.addon.yamlnodes import short

_LIMIT_S = 30.0  # npm takes a quarter of a second, cargo less; a disk that sleeps takes longer
_MAX_FILE = 1 << 20
# What a path has without encoding and without two meanings; "%" is left out, as a rule would have to name each reading.
_PATH = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,=:@-]+)*/?")
_SPECIAL = re.compile(r"[.\\+*?()|\[\]{}^$]")


class NotFound(ImpyardError):
    """No registry is configured here, and the tool that would know is not there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a registry is. host: canonical. prefix: what its paths begin with, as "a/b/" or "". words: other parts of a
    preset's expressions, by the name of their placeholder."""

    scheme: str
    host: str
    port: int
    prefix: str = ""
    words: tuple[tuple[str, str], ...] = ()

    @property
    def url(self) -> str:
        """Its address, for people."""
        return f"{self.scheme}://{self.authority}/{self.prefix}"

    @property
    def authority(self) -> str:
        """The host, with the port where that is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(slots=True)
class Found:
    """What a preset's placeholders stand for, and what a person should know of where that comes from."""

    places: dict[str, list[Place]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, place: Place) -> None:
        known = self.places.setdefault(name, [])
        if place not in known:
            known.append(place)


@dataclass(frozen=True, slots=True)
class Machine:
    """What is asked about this machine's configuration: environment, files, programs. root: the project's folder."""

    env: Mapping[str, str]
    root: Path
    etc: Path = Path("/etc")

    @property
    def home(self) -> Path:
        return Path(self.env.get("HOME") or "/nonexistent")

    def has(self, tool: str) -> bool:
        return shutil.which(tool, path=self.env.get("PATH", "")) is not None

    def ask(self, *command: str, cwd: Path | None = None, **env: str) -> tuple[str, str]:
        """What a tool prints on stdout and on stderr; nothing when it is not there, or does not come to an end."""
        program = shutil.which(command[0], path=self.env.get("PATH", ""))
        if program is None:
            return "", ""
        try:
            done = subprocess.run(
                [program, *command[1:]],
                cwd=cwd or self.root,
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return "", ""
        return done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")

    def read(self, path: Path) -> str:
        """A file's text; "" for one that is not there or is no plain file."""
        try:
            if not path.is_file():
                return ""
            with path.open("rb") as file:
                return file.read(_MAX_FILE).decode("utf-8", "replace")
        except OSError:
            return ""

    def lower_env(self, name: str) -> str:
        """A variable in whatever case it is written."""
        return next((value for key, value in self.env.items() if key.lower() == name.lower()), "")


def place_of(address: str, notes: list[str] | None = None) -> Place:
    """The place of an address: a URL, or a host alone with or without a path.

    Credentials in it are dropped, and that is told in `notes`. Raises ImpyardError, which repeats no credential.
    """
    address = address.strip().removeprefix("sparse+")
    if "://" not in address:
        address = f"https://{address}"
    if re.search(r"[?#].*@", address):  # where a URL ends for others, and its host with it
        raise ImpyardError(
            f"an address of a registry has a user or a password that is not encoded: {_told(address)}",
            hint="leave it out, or write %23 for # and %3F for ?",
        )
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as exc:
        raise ImpyardError(f"an address of a registry cannot be read: {_told(address)}", hint=_HOST) from exc
    if parts.scheme not in DEFAULT_PORTS:
        raise ImpyardError(f"{_told(address)} is not reached over https or http", hint=_HOST)
    try:
        host = canonical_host(parts.hostname or "")
    except ValueError as exc:
        raise ImpyardError(f"{_told(address)} names no legal host", hint=_HOST) from exc
    if (parts.username is not None or parts.password is not None) and notes is not None:
        notes.append(
            f"the address of {host} holds a user or a password, which is left out: no policy holds one. "
            "`impyard vault set NAME` keeps it, and `inject` puts it on"
        )
    if not _PATH.fullmatch(parts.path) or any(part in (".", "..") for part in parts.path.split("/")):
        raise ImpyardError(
            f"the path of {_told(address)} has parts that can be read in several ways",
            hint="write the entry by hand: `impyard policy preset show NAME --host HOST` gives one to begin with",
        )
    if any(map(looks_secret, parts.path.split("/"))):
        raise ImpyardError(
            f"the path at {host} seems to hold a key, and a policy holds none",
            hint="give the registry without it: --host URL",
        )
    prefix = parts.path.strip("/")
    return Place(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme], f"{prefix}/" if prefix else "")


def expression(text: str) -> str:
    """An expression that matches just `text`, a piece of a path."""
    return _SPECIAL.sub(lambda found: "\\" + found[0], text)


def base_of(prefix: str) -> str:
    """What an index for pip at ".../simple/" lies below; the prefix itself where it does not end so."""
    return prefix.removesuffix("simple/") if prefix == "simple/" or prefix.endswith("/simple/") else prefix


_HOST = "name it with --host, as in --host https://registry.example.org/path/"


def _told(address: str) -> str:
    """An address for a message: without what stands before an "@", without a query."""
    scheme, _, rest = address.partition("://")
    rest = rest.rpartition("@")[2]  # before all else: a password may have any character in it
    authority, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    rest = authority + slash + path
    if looks_secret(rest):
        rest = authority
    return f'"{short(f"{scheme}://{rest}")}"'


def given(found: Found, name: str, addresses: Sequence[str]) -> None:
    """Fill one placeholder with what the user named."""
    for address in addresses:
        found.add(name, place_of(address, found.notes))


def missing(what: str, *, name: str, option: str = "--host") -> NotFound:
    return NotFound(
        f"no {what} is configured here that could be found",
        hint=f"name it: `impyard policy preset add {name} {option} https://registry.example.org/path/`",
    )
