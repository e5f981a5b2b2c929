"""All decisions of a log that are meant, oldest first, and the one that an id means.

A log may be huge: memory stays flat. For a page of the newest, `page` reads from the end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from impyard.addon.errors import ImpyardError
from impyard.runner.decisions import logread
from impyard.runner.decisions.lines import Entry, Selection, parse, parse_all
from impyard.runner.text import visible

PROBE_BYTES = 1 << 20  # how far apart a log is looked at for where a time begins
# So much of nothing but older lines: before that, no younger ones are looked for. Lines are in the order of time but
# where a clock was set back.
CERTAIN_BYTES = 4 << 20
_TS_BEGIN = b'"ts":'
_TS = re.compile(rb'"ts":\s*"([^"\\]{1,40})"')
MOST_NAMED = 5  # of the decisions that an id may mean


class Read(NamedTuple):
    """A decision and the bytes of its line, without the newline."""

    entry: Entry
    line: bytes


def read(log: Path, selection: Selection) -> Iterator[Read]:
    """The decisions that are meant, in the file's order, up to its present end.

    With `selection.since`, the file is read from where the time begins. Damaged lines are left out, and counted in
    `selection`. A log that is missing has none. Raises ImpyardError when it cannot be read.
    """
    for line in lines(log, selection):
        entry = selection.entry(line)
        if entry is not None:
            yield Read(entry, line.text)


def lines(log: Path, selection: Selection) -> Iterator[logread.Line]:
    """The lines among which those are that are meant: for who parses them by himself."""
    descriptor = logread.open_log(log)
    if descriptor is None:
        return
    try:
        start, end = span_of(descriptor, selection)
        yield from logread.forward(descriptor, start, end, selection.needles)
    finally:
        os.close(descriptor)


def batches(log: Path, selection: Selection, span: tuple[int, int] | None = None) -> Iterator[list[Entry]]:
    """All decisions of the times that are meant, some hundred at a time, as fast as can be; or those in the bytes
    `span`, which begin and end with a line.

    They are not all meant: `selection.wants` says which are. For the rest as `read`.
    """
    descriptor = logread.open_log(log)
    if descriptor is None:
        return
    try:
        start, end = span or span_of(descriptor, selection)
        for offset, piece in logread.blocks(descriptor, start, end, selection.needles):
            entries = parse_all(piece)
            yield _one_by_one(offset, piece, selection) if entries is None else entries
    finally:
        os.close(descriptor)


def _one_by_one(offset: int, piece: bytes, selection: Selection) -> list[Entry]:
    """The decisions among lines of which some are damaged."""
    entries = []
    *whole, half = piece.split(b"\n")
    for text in (*whole, half):
        if text and (entry := parse(text)) is not None:
            entries.append(entry)
        elif text:
            selection.saw_damage(logread.Line(offset, text[: logread.LINE_CAP], text is not half))
        offset += len(text) + 1
    return entries


def start_of(descriptor: int, since: str, *, through_damage: bool = True) -> int:
    """A byte where a line begins, before which no line is of the time `since` or younger, for all that is known.

    Not `through_damage`: a byte of any kind, and megabytes without a time in them count as older.
    """
    start = position = os.fstat(descriptor).st_size
    older = 0
    while position > 0 and older < CERTAIN_BYTES:
        position = max(position - PROBE_BYTES, 0)
        # A little more, for a time that stands where two looks meet.
        block = os.pread(descriptor, PROBE_BYTES + 64, position)
        times = times_in(block[max(block.rfind(_TS_BEGIN), 0) :])  # mostly the last one is enough
        if any(ts >= since for ts in times) or any(ts >= since for ts in times_in(block)):
            start, older = position, 0
        elif times or not through_damage:  # else it is the middle of one long line
            older += PROBE_BYTES
    if not through_damage:
        return start
    # From the line that begins in the block of the last look, or before it.
    while start > 0:
        begin = max(start - PROBE_BYTES, 0)
        newline = os.pread(descriptor, start - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        start = begin
    return 0


def outcomes_from(descriptor: int, since: str) -> int:
    """The same for the outcomes of decisions of the time `since` or younger: where the clock was set back between the
    two, an outcome is older than its decision."""
    position = max(start_of(descriptor, since, through_damage=False) - CERTAIN_BYTES, 0)
    while position > 0:
        block = os.pread(descriptor, PROBE_BYTES, position)
        newline = block.find(b"\n") + 1
        if newline or not block:
            return position + newline
        position += len(block)
    return position


def end_of(descriptor: int, until: str, size: int) -> int:
    """A byte where a line ends, within the first `size`, behind which no line is older than `until`."""
    position = size
    while position > 0:
        begin = max(position - PROBE_BYTES, 0)
        if any(ts < until for ts in times_in(os.pread(descriptor, min(PROBE_BYTES + 64, size - begin), begin))):
            break
        position = begin
    while position < size:  # to the end of the line that stands there
        block = os.pread(descriptor, min(PROBE_BYTES, size - position), position)
        newline = block.find(b"\n") + 1
        if newline or not block:
            return position + newline
        position += len(block)
    return size


def span_of(descriptor: int, selection: Selection) -> tuple[int, int]:
    """The bytes of the file that may hold what is meant, by the times that are asked for."""
    start = start_of(descriptor, selection.since) if selection.since else 0
    end = os.fstat(descriptor).st_size
    return start, max(end_of(descriptor, selection.until, end), start) if selection.until else end


def times_in(text: bytes) -> list[str]:
    """The times of the lines in a piece of a log. What a request held cannot pose as one: quotes in it are escaped."""
    return [ts.decode("ascii", "replace") for ts in _TS.findall(text)]


def page(descriptor: int, count: int, selection: Selection, size: int | None = None) -> list[logread.Line]:
    """The last `count` lines that are meant, in the file's order; with `selection.since`, older ones are not read."""
    found: list[logread.Line] = []
    if selection.until is not None:
        size = end_of(descriptor, selection.until, os.fstat(descriptor).st_size if size is None else size)
    older_from: int | None = None  # from this line backwards, all were too old
    for line in logread.from_end(descriptor, size, selection.needles) if count else ():
        if selection.since is not None and (times := times_in(line.text[:200])):
            if times[0] >= selection.since:
                older_from = None
            elif older_from is None:
                older_from = line.offset
            elif older_from - line.offset > CERTAIN_BYTES:
                break
        if selection(line):
            found.append(line)
            if len(found) == count:
                break
    found.reverse()
    return found


def find(log: Path, text: str) -> Read:
    """The decision that `text` means: an id, the beginning of just one, or its short form (`short_id`).

    Raises ImpyardError when there is none, or more than one.
    """
    wanted = text.strip()
    hint = "`impyard decisions` shows ids in its last column"
    if not wanted:
        raise ImpyardError("no decision is named", hint=hint)
    needle = wanted.encode("utf-8", "surrogateescape")
    by_short: dict[str, Read] = {}
    by_beginning: dict[str, Read] = {}
    everything = Selection()
    descriptor = logread.open_log(log)
    if descriptor is None:
        raise ImpyardError(f"there is no decision {text!r}: {log} does not exist", hint="`impyard run` makes some")
    try:
        for line in logread.from_end(descriptor, needles=(needle,)):
            entry = everything.entry(line) if needle in line.text else None
            if entry is None:
                continue
            if entry.id == wanted:  # the newest, should somebody have written it twice
                return Read(entry, line.text)
            for matches, kept in (
                (short_id(entry.id) == wanted, by_short),
                (entry.id.startswith(wanted), by_beginning),
            ):
                if matches and len(kept) <= MOST_NAMED:
                    kept.setdefault(entry.id, Read(entry, line.text))
    finally:
        os.close(descriptor)
    meant = list((by_short or by_beginning).values())
    if not meant:
        raise ImpyardError(f"there is no decision {text!r} in {log}", hint=hint)
    if len(meant) > 1:
        names = ", ".join(visible(read.entry.id) for read in meant[:MOST_NAMED])
        more = " and more" if len(meant) > MOST_NAMED else ""
        raise ImpyardError(f"{text!r} means more than one decision", hint=f"give more of its id: {names}{more}")
    return meant[0]


def short_id(id: str) -> str:
    """The end of an id, which is enough to tell decisions of one project apart but for chance: `09c6.12` of
    `20261129-201824-09c6.12`."""
    return id.rpartition("-")[2] or id
