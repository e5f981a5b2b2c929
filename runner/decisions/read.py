"""All decisions of a log that are meant, oldest first, and the one that an id means.

A log may be huge: memory stays flat. For a page of the newest, `page` reads from the end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from impyard.addon.errors import ImpyardError
from impyard.runner.decisions import logread, removed
from impyard.runner.decisions.lines import Entry, Selection, parse, parse_all
from impyard.runner.decisions.logfiles import Log, Say, open_log
from impyard.runner.project import RUN_ID
from impyard.runner.text import visible

PROBE_BYTES = 1 << 20  # how far apart a log is looked at for where a time begins
# So much of nothing but older lines: before that, no younger ones are looked for. Lines are in the order of time but
# where a clock was set back.
CERTAIN_BYTES = 4 << 20
_TS_BEGIN = b'"ts":'
_TS = re.compile(rb'"ts":\s*"([^"\\]{1,40})"')
MOST_NAMED = 5  # of the decisions that an id may mean
NEAR_BYTES = 256 << 20  # how far before one decision others are looked for that the same words mean
SHORT = 4  # digits of a run in the short form of an id
LONG_RUN = timedelta(days=2)


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
    found = open_for(log, selection)
    if found is None:
        return
    with found:
        start, end = span_of(found, selection)
        yield from logread.forward(found, start, end, selection.needles)


def batches(found: Log, selection: Selection, span: tuple[int, int] | None = None) -> Iterator[list[Entry]]:
    """All decisions of the times that are meant, some hundred at a time, as fast as can be; or those in the bytes
    `span`, which begin and end with a line.

    They are not all meant: `selection.wants` says which are. For the rest as `read`.
    """
    start, end = span or span_of(found, selection)
    for offset, piece in logread.blocks(found, start, end, selection.needles):
        entries = parse_all(piece)
        yield _one_by_one(offset, piece, selection) if entries is None else entries


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


def open_for(log: Path, selection: Selection, say: Say | None = None) -> Log | None:
    """The log, without rotated files that hold nothing of what is meant, for all that their names tell."""
    return open_log(log, since=since_of(selection), until=selection.until, say=say)


def since_of(selection: Selection) -> str | None:
    """A time before which there is nothing that is meant, by what is asked for or by a run's name."""
    began = began_at(selection.run) if selection.run else None
    return max(filter(None, (selection.since, began)), default=None)


def start_of(log: Log, since: str, *, through_damage: bool = True) -> int:
    """A byte where a line begins, before which no line is of the time `since` or younger, for all that is known.

    Not `through_damage`: a byte of any kind, and megabytes without a time in them count as older.
    """
    start = position = log.written_until(since)
    older = 0
    while position > 0 and older < CERTAIN_BYTES:
        position = max(position - PROBE_BYTES, 0)
        # A little more, for a time that stands where two looks meet.
        block = log.pread(PROBE_BYTES + 64, position)
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
        newline = log.pread(start - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        start = begin
    return 0


def outcomes_from(log: Log, since: str) -> int:
    """The same for the outcomes of decisions of the time `since` or younger: where the clock was set back between the
    two, an outcome is older than its decision."""
    position = max(start_of(log, since, through_damage=False) - CERTAIN_BYTES, 0)
    while position > 0:
        block = log.pread(PROBE_BYTES, position)
        newline = block.find(b"\n") + 1
        if newline or not block:
            return position + newline
        position += len(block)
    return position


def end_of(log: Log, until: str, size: int) -> int:
    """A byte where a line ends, within the first `size`, behind which no line is older than `until`."""
    position = size
    while position > 0:
        begin = max(position - PROBE_BYTES, 0)
        if any(ts < until for ts in times_in(log.pread(min(PROBE_BYTES + 64, size - begin), begin))):
            break
        position = begin
    while position < size:  # to the end of the line that stands there
        block = log.pread(min(PROBE_BYTES, size - position), position)
        newline = block.find(b"\n") + 1
        if newline or not block:
            return position + newline
        position += len(block)
    return size


def span_of(log: Log, selection: Selection) -> tuple[int, int]:
    """The bytes of the log that may hold what is meant, by the times that are asked for."""
    start = start_of(log, selection.since) if selection.since else 0
    end = log.size
    return start, max(end_of(log, selection.until, end), start) if selection.until else end


def times_in(text: bytes) -> list[str]:
    """The times of the lines in a piece of a log. What a request held cannot pose as one: quotes in it are escaped."""
    return [ts.decode("ascii", "replace") for ts in _TS.findall(text)]


def page(log: Log, count: int, selection: Selection, size: int | None = None) -> list[logread.Line]:
    """The last `count` lines that are meant, in the file's order; with `selection.since`, older ones are not read."""
    found: list[logread.Line] = []
    if selection.failed is not None:  # there are no more of them, and the rest of a long log need not be read
        count = min(count, len(selection.failed))
    if selection.until is not None:
        size = end_of(log, selection.until, log.size if size is None else size)
    older_from: int | None = None  # from this line backwards, all were too old
    for line in logread.from_end(log, size, selection.needles) if count else ():
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

    Of ids in the short form, those are told apart that are near the newest of them: `NEAR_BYTES` before it. Raises
    ImpyardError when there is none, or more than one.
    """
    wanted = text.strip()
    hint = "`impyard decisions` shows ids in its last column"
    if not wanted:
        raise ImpyardError("no decision is named", hint=hint)
    meant = _meant(log, wanted)
    if not meant and (gone := removed.words(log)):
        raise ImpyardError(f"there is no decision {text!r} any more, or there never was", hint=gone)
    if meant is None:
        raise ImpyardError(f"there is no decision {text!r}: {log} does not exist", hint="`impyard run` makes some")
    if not meant:
        raise ImpyardError(f"there is no decision {text!r} in {log}", hint=hint)
    if len(meant) > 1:
        names = ", ".join(visible(read.entry.id) for read in meant[:MOST_NAMED])
        more = " and more" if len(meant) > MOST_NAMED else ""
        raise ImpyardError(f"{text!r} means more than one decision", hint=f"give more of its id: {names}{more}")
    return meant[0]


def _meant(log: Path, wanted: str) -> list[Read] | None:
    """What an id may mean; None without a log. Where a run's beginning says when, old files are looked at first there,
    and not at all for what is older."""
    run, _, seq = wanted.rpartition(".")
    began = began_at(run)
    if began is None and seq.isdecimal() and len(run) == SHORT:
        runs = [name for name in _names(log.parent) if RUN_ID.fullmatch(name) and name.endswith(f"-{run}")]
        found = [read for name in runs[:MOST_NAMED] for read in _meant(log, f"{name}.{seq}") or ()]
        if found:
            return found
    if began is not None and (found := _of_times(log, wanted, began, _later(began, LONG_RUN)) or []):
        return found
    return _of_times(log, wanted, began, None)


def _of_times(log: Path, wanted: str, since: str | None, until: str | None) -> list[Read] | None:
    needle = wanted.encode("utf-8", "surrogateescape")
    by_short: dict[str, Read] = {}
    by_beginning: dict[str, Read] = {}
    everything = Selection()
    found = open_log(log, since=since, until=until)
    if found is None:
        return None
    first: int | None = None
    with found:
        for line in logread.from_end(found, needles=(needle,)):
            entry = everything.entry(line) if needle in line.text else None
            if first is not None and first - line.offset > NEAR_BYTES:
                break
            if entry is None:
                continue
            if entry.id == wanted:  # the newest, should somebody have written it twice
                return [Read(entry, line.text)]
            for matches, kept in (
                (short_id(entry.id) == wanted, by_short),
                (entry.id.startswith(wanted), by_beginning),
            ):
                if matches and len(kept) <= MOST_NAMED:
                    kept.setdefault(entry.id, Read(entry, line.text))
                    first = line.offset if first is None else first
    return list((by_short or by_beginning).values())


def began_at(run: str) -> str | None:
    """When a run began, as the log writes times, if its name says so: `20261129-201824-4ec0` or
    `gateway-20261129-201824-4ec0`."""
    name = run.removeprefix("gateway-")
    if not RUN_ID.fullmatch(name):
        return None
    day, time = name[:8], name[9:15]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}T{time[:2]}:{time[2:4]}:{time[4:]}.000Z"


def _later(ts: str, by: timedelta) -> str | None:
    try:
        return (datetime.fromisoformat(ts) + by).isoformat(timespec="milliseconds")[:-6] + "Z"
    except (ValueError, OverflowError):
        return None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def short_id(id: str) -> str:
    """The end of an id, which is enough to tell decisions of one project apart but for chance: `09c6.12` of
    `20261129-201824-09c6.12`."""
    return id.rpartition("-")[2] or id
