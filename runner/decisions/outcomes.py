"""What became of allowed requests, read from runs/outcomes.jsonl and joined to decisions by their id."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from impyard.runner.decisions import logread
from impyard.runner.decisions.logfiles import open_log
from impyard.runner.decisions.read import outcomes_from
from impyard.runner.failures import error_words

if TYPE_CHECKING:
    from impyard.runner.decisions.lines import Entry

# Decisions whose outcome is waited for while following; of more, the oldest are given up.
MOST_OPEN = 10_000
MOST_FAILED = 200_000  # that are kept to choose decisions by
_ID = re.compile(rb'"id":\s*"((?:[^"\\]|\\.)*)"')
# The gateway itself ended it: a denial of its own, which follows, says so.
_DENIED_LATER = re.compile(r"secret-in-request: |[a-z-]+: judged again before it went\Z")


# No body is larger, and no request takes longer: a line that says so is damage.
type Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
type Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The fields of an outcome line that are shown."""

    ts: str
    id: str
    status: int | None = None
    error: str | None = None
    bytes_up: Size = 0
    bytes_down: Size = 0
    ms: Milliseconds | None = None
    redirect: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the request came to nothing, though not because the gateway denied it after all."""
        return self.error is not None and not _DENIED_LATER.match(self.error)

    @property
    def text(self) -> str:
        """The status of the answer, or what kept it from coming, or both when it broke off."""
        parts = [str(self.status)] if self.status is not None else []
        if self.error is not None:
            parts.append(error_words(self.error))
        return ": ".join(parts)


class Row(NamedTuple):
    """A decision to be shown: its line in the log, what the line holds, and what came of the request, if known."""

    line: bytes
    entry: Entry
    outcome: Outcome | None = None

    @property
    def failed(self) -> bool:
        return self.outcome is not None and self.outcome.failed

    @property
    def may_have_failed(self) -> bool:
        """Whether nothing else is known of what one of several outcomes calls failed."""
        return self.outcome is None or self.outcome.failed

    @property
    def verdict(self) -> str:
        """The judge's, but `failed` for what it allowed and came to nothing."""
        return "failed" if self.failed else self.entry.verdict


_DECODER = msgspec.json.Decoder(Outcome)


def path_beside(decisions: Path) -> Path:
    """Where the outcomes of a decision log are."""
    return decisions.with_name("outcomes.jsonl")


def join(path: Path, rows: list[Row]) -> list[Row]:
    """The rows with their outcomes as far as `path` has them, of several the first. What is older than the oldest row
    is not read, but for a clock that was set back.

    Raises ImpyardError when the file cannot be read; one that is missing has no outcomes.
    """
    wanted = {row.entry.id for row in rows if row.entry.verdict == "allow"}
    since = min((row.entry.ts for row in rows), default="")
    log = open_log(path, since=since) if wanted else None
    if log is None:
        return rows
    ids = {json.dumps(id)[1:-1].encode() for id in wanted}
    found: dict[str, Outcome] = {}
    with log:
        start = outcomes_from(log, since)
        for _, piece in logread.blocks(log, start, log.size):
            if ids.isdisjoint(_ID.findall(piece)):
                continue
            for line in piece.split(b"\n"):
                outcome = parse(line)
                if outcome is not None and outcome.id in wanted:
                    found.setdefault(outcome.id, outcome)
            if len(found) == len(wanted):
                break
    return [row._replace(outcome=found.get(row.entry.id)) for row in rows]


def failures(path: Path, since: str | None = None) -> Collection[str]:
    """The ids of requests that came to nothing, the newest `MOST_FAILED`; of decisions from `since` on.

    Raises ImpyardError when the file cannot be read; one that is missing has none.
    """
    log = open_log(path, since=since)
    found: OrderedDict[str, None] = OrderedDict()
    if log is None:
        return found
    needle = b'"error":"'  # of a request that did not fail it is null
    with log:
        start = outcomes_from(log, since) if since else 0
        for _, piece in logread.blocks(log, start, log.size, (needle,)):
            at = piece.find(needle)
            while at >= 0:
                begin, end = piece.rfind(b"\n", 0, at) + 1, piece.find(b"\n", at)
                end = len(piece) if end < 0 else end
                outcome = parse(piece[begin:end])
                if outcome is not None and outcome.failed:
                    put(found, outcome.id, None, MOST_FAILED)
                at = piece.find(needle, end)
    return found


class Failures:
    """Follows the outcomes from now on, for the rows that are shown: which of them came to nothing."""

    def __init__(self, path: Path) -> None:
        start = path.stat().st_size if path.is_file() else 0
        self._tail = logread.Tail(path, start)
        self._open: OrderedDict[str, Row] = OrderedDict()
        self._early: OrderedDict[str, Outcome] = OrderedDict()  # their decision is in the log, but was not read yet

    def expect(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Wait for the outcomes of these rows; yields those that are known to have failed already."""
        for row in rows:
            if row.entry.verdict != "allow" or row.outcome is not None:
                continue
            if (outcome := self._early.pop(row.entry.id, None)) is not None:
                yield row._replace(outcome=outcome)
            else:
                put(self._open, row.entry.id, row)

    def news(self) -> Iterator[Row]:
        """The rows whose failure has been written since. Raises ImpyardError when the file cannot be read."""
        for line in self._tail.lines():
            outcome = parse(line.text)
            if outcome is None:
                continue
            row = self._open.pop(outcome.id, None)
            if not outcome.failed:
                continue
            if row is not None:
                yield row._replace(outcome=outcome)
            else:
                put(self._early, outcome.id, outcome)

    def close(self) -> None:
        self._tail.close()


def put[T](held: OrderedDict[str, T], key: str, value: T, most: int = MOST_OPEN) -> None:
    """Keep `value`; of more than `most`, the oldest goes."""
    held[key] = value
    if len(held) > most:
        held.popitem(last=False)


def parse(text: bytes) -> Outcome | None:
    """The outcome that a line holds, or None when the line is damaged."""
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def parse_all(text: bytes) -> list[Outcome] | None:
    """The outcomes of whole lines; None when one is damaged."""
    try:
        return _DECODER.decode_lines(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
