"""`runs/rotated.jsonl`: which rotated files there are, and which were removed on purpose, with where chains stood then.

It is what tells a file that was taken away, exchanged or cut from one that never was. Only the check reads it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from impyard.addon.decisions import line_hash
from impyard.addon.errors import ImpyardError
from impyard.addon.newfile import open_appended
from impyard.runner.decisions import logread
from impyard.runner.decisions.lines import parse
from impyard.runner.decisions.logfiles import Rotated, only, open_file, open_log, rotated_name
from impyard.runner.project import RUN_ID
from impyard.runner.times import now

NAME = "rotated.jsonl"
_A_LINE = 2000  # ends of runs in one line
_PLACE = re.compile(rb'"run":"([^"\\]{1,200})","seq":([0-9]{1,18}),')  # as the judge writes it


class Known(NamedTuple):
    """sizes: bytes of the text of each file that there should be. removed: files that were removed on purpose, and the
    lines in them. ends: of runs in those, the number and hash of the last line that went. last_file: which of them held
    that line. when: the time at which each was removed, as the log writes times."""

    sizes: dict[str, int]
    removed: dict[str, int]
    ends: dict[str, tuple[int, str]]
    last_file: dict[str, str]
    when: dict[str, str]


class FileList:
    """The list of a folder of runs."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._path = runs / NAME

    def packed(self, name: str, size: int) -> None:
        """Note a file. Raises OSError."""
        self._append([{"file": name, "bytes": size, "ts": now()}])

    def removed(self, file: Rotated, begun: set[str] | None) -> None:
        """Note that a file is going to be removed, one of decisions with where the chains stood that may be asked for;
        `begun` are runs that go on in files that stay. Raises OSError."""
        ends, lines = _ends(file.path, self._runs, begun) if begun is not None else ({}, 0)
        items = list(ends.items())
        parts = [dict(items[at : at + _A_LINE]) for at in range(0, len(items), _A_LINE)]
        records = [{"removed": file.path.name, "ends": part} for part in parts]
        self._append([*records, {"removed": file.path.name, "lines": lines, "ts": now()}])

    def read(self) -> Known:
        """What is noted. Lines that are damaged are left out. Raises ImpyardError when it cannot be read."""
        known = Known({}, {}, {}, {}, {})
        found = open_file(self._path)
        if found is None:
            return known
        with found:
            for line in logread.forward(found):
                try:
                    _take(json.loads(line.text), known, self._runs)
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    continue
        return known

    def _append(self, records: Iterable[dict[str, Any]]) -> None:
        descriptor = open_appended(self._path, os.O_RDWR)
        try:
            size = os.fstat(descriptor).st_size
            # Half a line that a full disk left must not take the next one with it.
            begin = b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""
            for record in records:
                line, begin = begin + json.dumps(record).encode() + b"\n", b""
                if os.write(descriptor, line) != len(line):
                    raise OSError(f"{self._path} could not be written as a whole")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _take(record: dict[str, Any], known: Known, runs: Path) -> None:
    name = record.get("file") or record.get("removed")
    if not isinstance(name, str) or rotated_name(runs / f"{name.split('-')[0]}.jsonl", name) is None:
        return
    if "file" in record:
        known.sizes[name] = _count(record["bytes"])
        return
    # One that is there all the same was not removed: whoever wanted to died before.
    if os.path.lexists(runs / name):
        return
    known.sizes.pop(name, None)
    known.removed[name] = _count(record.get("lines", known.removed.get(name, 0)))
    for run, (seq, last) in dict(record.get("ends", {})).items():
        if _count(seq) > known.ends.get(run, (0, ""))[0]:
            known.ends[run] = (seq, str(last))
            known.last_file[run] = name
    if isinstance(ts := record.get("ts"), str):
        known.when[name] = ts


def _count(value: object) -> int:
    """The number, as we write it. Raises ValueError for anything else, such as infinity."""
    if type(value) is not int or value < 0:
        raise ValueError("no number of bytes or lines")
    return value


def begun_in(log: Path, files: list[Rotated]) -> set[str]:
    """The runs that go on behind these files, the oldest of a log of decisions. Raises ImpyardError."""
    begun: set[str] = set()
    seen: set[str] = set()
    paths = {each.path for each in files}
    with open_log(log) or nullcontext() as found:
        if found is None:
            return begun
        start = next((base for path, base in found.bounds() if path not in paths), found.size)
        for _, piece in logread.blocks(found, start, found.size):
            for run, seq in _PLACE.findall(piece):
                name = run.decode("ascii", "replace")
                if name not in seen:
                    seen.add(name)
                    if seq != b"1":
                        begun.add(name)
    return begun


def _ends(path: Path, runs: Path, begun: set[str]) -> tuple[dict[str, tuple[int, str]], int]:
    """The last line of each run in a file that may be asked for again: of runs that are kept or go on, and of gateways.
    And how many lines there are."""
    ends: dict[str, tuple[int, str]] = {}
    kept: dict[str, bool] = {}
    lines = 0
    found = only(path)
    if found is None:
        raise ImpyardError(f"{path} cannot be read, so it is not removed", hint="look at it, and remove it by hand")
    with found:
        for line in logread.forward(found):
            lines += 1
            entry = parse(line.text)
            if entry is None:
                continue
            if entry.run not in kept:
                kept[entry.run] = (
                    entry.run in begun or RUN_ID.fullmatch(entry.run) is None or (runs / entry.run).is_dir()
                )
            if kept[entry.run]:
                ends[entry.run] = (entry.seq, line_hash(line.text))
    return ends, lines


def names(known: Known, log: Path) -> Iterator[str]:
    """The files of a log that there should be."""
    return (name for name in known.sizes if rotated_name(log, name) is not None)
