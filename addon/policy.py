"""The policy: which entries are about a host, and loading it all from files.

A policy that loads is whole: one fault anywhere refuses all of it, and every fault is reported at once.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from impyard.addon.errors import Fault, PolicyError
from impyard.addon.paths import MatchFailed
from impyard.addon.policyfile import MAX_BYTES, read_entries
from impyard.addon.policyhomes import Homes
from impyard.addon.request import is_address
from impyard.addon.rules import Entry, Inject, Proxy, Route, Rule, Upstream

__all__ = [
    "MAX_BYTES",
    "Entry",
    "Inject",
    "MatchFailed",
    "Policy",
    "Proxy",
    "Route",
    "Rule",
    "Upstream",
    "load_policy",
    "read_policy",
]

_NOTHING: frozenset[str] = frozenset()
OWN_FILE = "policies/gateway.yaml"  # a project's own; `impyard init` writes it


class Policy:
    """All entries of one or more files, in order. Immutable once built.

    entries: in file order; over all of them the last matching rule wins.
    hash: "sha256:<hex>" of the files' bytes one after the other, as `cat FILES | sha256sum` prints.
    injects: the entries that have an `inject`, with it, in file order.
    """

    __slots__ = ("_any", "_bound", "_exact", "_passes", "_related", "_suffix", "entries", "hash", "injects")

    def __init__(self, entries: Iterable[Entry], hash: str) -> None:
        self.entries = tuple(entries)
        self.hash = hash
        self.injects = tuple((entry, entry.inject) for entry in self.entries if entry.inject is not None)
        self._bound: dict[str, frozenset[str]] = {}
        for entry, inject in self.injects:
            self._bound[entry.host] = self._bound.get(entry.host, frozenset()) | {inject.credential}
        self._passes = any(entry.sentinels_pass for entry in self.entries)
        self._exact: dict[str, list[Entry]] = {}
        self._suffix: dict[str, list[Entry]] = {}
        self._any: list[Entry] = []
        self._related: dict[str, Entry] = {}
        for entry in self.entries:
            if entry.host == "*":
                self._any.append(entry)
            elif entry.host.startswith("*."):
                self._suffix.setdefault(entry.host[2:], []).append(entry)
            else:
                self._exact.setdefault(entry.host, []).append(entry)
            self._related.setdefault(_tail(entry.host), entry)

    def entries_for(self, host: str) -> list[Entry]:
        """The entries about a canonical host, last first, whatever their scheme and port.

        "*.suffix" covers names below the suffix, not the suffix; an address is covered only where it is written out.
        """
        found = list(self._exact.get(host, ()))
        if not is_address(host):
            found += self._any
            if self._suffix:
                rest = host.partition(".")[2]
                while rest:
                    found += self._suffix.get(rest, ())
                    rest = rest.partition(".")[2]
        if len(found) > 1:
            found.sort(key=lambda entry: entry.order, reverse=True)
        return found

    def bound_to(self, host: str) -> frozenset[str]:
        """The names of the credentials that some entry binds to a canonical host, whatever its scheme and port."""
        return self._bound.get(host, _NOTHING)  # a host with a wildcard has no `inject`

    def sentinels_pass(self, host: str) -> bool:
        """Whether some entry about a canonical host lets the box send sentinels there."""
        return self._passes and any(entry.sentinels_pass for entry in self.entries_for(host))

    def related(self, host: str) -> Entry | None:
        """An entry about another host of the same domain, for messages only."""
        return self._related.get(_tail(host))


def load_policy(paths: Sequence[Path], *, root: Path | None = None) -> Policy:
    """The policy in `paths`; the entries of a later file come after those of an earlier one.

    Files below `root` are named relative to it in faults and in `at`. Raises PolicyError with every fault found.
    """
    contents: list[tuple[Path, bytes]] = []
    faults: list[Fault] = []
    for path in paths:
        try:
            with open_file(path) as file:
                contents.append((path, file.read(MAX_BYTES + 1)))
        except OSError as exc:
            faults.append(unreadable(path, root, exc))
    if faults:
        raise PolicyError(tuple(faults), hint="every policy file must be there and readable before anything is allowed")
    return read_policy(contents, root=root)


def read_policy(
    contents: Sequence[tuple[Path, bytes]], *, root: Path | None = None, rest: Callable[[], None] | None = None
) -> Policy:
    """The policy in files that were read already; otherwise as `load_policy`.

    rest: called between pieces of work that let no other thread have its turn.
    """
    entries: list[Entry] = []
    faults: list[Fault] = []
    digest = hashlib.sha256()
    homes = Homes()
    if not contents:
        faults.append(Fault("policy", 0, 0, "no policy file was given"))
    for path, data in contents:
        digest.update(data)
        found, wrong = read_entries(
            data, file=shown(path, root), folder=path.parent, first=len(entries), homes=homes, rest=rest
        )
        entries += found
        faults += wrong
    if faults:
        raise PolicyError(tuple(faults), hint=_mend(faults))
    return Policy(entries, f"sha256:{digest.hexdigest()}")


def open_file(path: Path) -> BinaryIO:
    """A policy file, open to be read. Raises OSError, also for what is no regular file: a pipe would never end."""
    # Without O_NONBLOCK the mere opening of a pipe would wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError("is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")
    return open(descriptor, "rb")


def _mend(faults: Sequence[Fault]) -> str:
    where = "the file" if not faults[0].line else "that line" if len(faults) == 1 else "these lines"
    hint = f"edit {where}: until the whole policy is right, nothing is allowed"
    own = [fault for fault in faults if fault.file == OWN_FILE]
    if own and not own[0].line:  # empty, or nothing that could be read: there is no line to edit
        hint += "; `impyard init --force` writes the shipped one anew"
    return hint


def shown(path: Path, root: Path | None) -> str:
    """The name of a policy file for people: relative to `root` when inside it."""
    if root is not None:
        try:
            return str(path.relative_to(root))
        except ValueError:
            pass
    return str(path)


def unreadable(path: Path, root: Path | None, exc: OSError) -> Fault:
    """The fault for a policy file that cannot be read."""
    return Fault(shown(path, root), 0, 0, f"cannot be read: {(exc.strerror or str(exc)).lower()}")


def _tail(host: str) -> str:
    return host if ":" in host else ".".join(host.split(".")[-2:])
