"""Outcomes beside decisions, both read from the oldest on: which of them belong together, with memory that stays flat.

An outcome is written after its decision, but there is no order among them: an answer may take a second or an hour.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.decisions import logread
from impyard.runner.decisions.lines import Entry, Selection
from impyard.runner.decisions.logfiles import Log, open_log
from impyard.runner.decisions.outcomes import Outcome, Row, parse, parse_all, put
from impyard.runner.decisions.read import batches, open_for, outcomes_from, since_of

# Decisions whose outcome is waited for. When there are twice as many, the older half is given up: their requests run
# for very long, or the gateway was killed before it could write what came of them.
MOST_OPEN = 50_000
# Rows stay in order, so those behind one whose outcome is far off have to wait. No more than so many: then it goes
# without, as for a request that is still under way.
MOST_WAITING = 10_000
MOST_RUNS = 20_000  # whose last decision is known


class Joiner[T]:
    """Takes decisions as they come, each with something of the caller's, and gives that back with its outcome."""

    def __init__(self, log: Log | None, since: str | None = None) -> None:
        """log: stays the caller's, who closes it. since: the time of the first decision."""
        self.given_up = 0
        self._open: dict[str, T] = {}
        self._seen: dict[str, int] = {}  # the number of the last decision that was read, by run
        # Outcomes that were passed over, since the time said that their decision had been: a clock was set back.
        self._early: OrderedDict[str, Outcome] = OrderedDict()
        self._ready: list[tuple[T, Outcome]] = []  # the same, once their decision came
        self._ahead: list[Outcome] = []  # read already, of decisions that are still to come; last one first
        self._batches: Iterator[list[Outcome]] = iter(())
        if log is not None:
            self._batches = _batches(log, outcomes_from(log, since) if since else 0)

    def expect(self, entry: Entry, owner: T) -> None:
        """Wait for the outcome of this decision."""
        if self._early and (outcome := self._early.pop(entry.id, None)) is not None:
            self._ready.append((owner, outcome))
        else:
            self._open[entry.id] = owner

    def read(self, entries: list[Entry]) -> Iterator[tuple[T, Outcome]]:
        """What came of the decisions that are waited for, as far as these, which are the last that were read.

        To be called with all that were read, in their order, be they meant or not.
        """
        if len(self._seen) > MOST_RUNS:
            self._seen.clear()
        if len(self._open) > 2 * MOST_OPEN:
            for id in list(itertools.islice(self._open, MOST_OPEN)):
                del self._open[id]
            self.given_up += MOST_OPEN
        self._seen |= {entry.run: entry.seq for entry in entries}
        return self._until(entries[-1].ts if entries else "")

    def rest(self) -> Iterator[tuple[T, Outcome]]:
        """What came of the others, once all decisions were read."""
        return self._until(None)

    @property
    def waiting(self) -> int:
        """How many decisions have no outcome yet."""
        return len(self._open)

    def _until(self, ts: str | None) -> Iterator[tuple[T, Outcome]]:
        """The outcomes up to the first whose decision is still to come; with None all."""
        waiting = self._open
        if self._ready:
            yield from self._ready
            self._ready.clear()
        while ts is not None or waiting:
            if not self._ahead:
                self._ahead = next(self._batches, [])[::-1]
                if not self._ahead:
                    return
            ahead = self._ahead
            while ahead:
                if ts is None and not waiting:
                    return
                outcome = ahead[-1]
                owner = waiting.pop(outcome.id, None)
                if owner is not None:
                    ahead.pop()
                    yield owner, outcome
                    continue
                run, _, seq = outcome.id.rpartition(".")
                seen = self._seen.get(run)
                if ts is not None and (seen is None or not seq.isdecimal() or int(seq[:18]) > seen):
                    # Its decision was not read yet, or it is not in the log at all: that must not hold up the others.
                    if (outcome.ts > ts or seen is not None) and len(waiting) <= MOST_OPEN:
                        return
                    put(self._early, outcome.id, outcome)
                ahead.pop()


class Both(NamedTuple):
    """The logs of decisions and of outcomes, open for reading; None for one that there is not."""

    decisions: Log | None
    outcomes: Log | None


@contextlib.contextmanager
def both(log: Path, outcome_log: Path, selection: Selection) -> Iterator[Both]:
    """Both logs for what is meant, as they are now. Where the outcomes cannot be read none are known, and that is said.

    Those are opened first, as `rotate --older-than` removes them last: each decision has its outcome, whatever goes
    meanwhile.
    """
    try:
        came = open_log(outcome_log, since=since_of(selection))
    except ImpyardError as exc:
        click.echo(f"warning: what became of the requests is not shown: {exc.message}", err=True)
        came = None
    with came or nullcontext(), open_for(log, selection) or nullcontext() as found:
        yield Both(found, came)


def _batches(log: Log, start: int) -> Iterator[list[Outcome]]:
    """The outcomes up to the log's present end; damaged lines are left out."""
    for _, piece in logread.blocks(log, start, log.size):
        outcomes = parse_all(piece)
        if outcomes is None:
            outcomes = [outcome for line in piece.split(b"\n") if (outcome := parse(line)) is not None]
        if outcomes:
            yield outcomes


def rows_with_outcomes(log: Path, outcome_log: Path, selection: Selection) -> Iterator[Row]:
    """The decisions that are meant, oldest first, with what came of them as far as that is known."""
    with both(log, outcome_log, selection) as (found, came):
        if found is not None:
            yield from _rows(found, Joiner(came, selection.since), selection)


def _rows(found: Log, joiner: Joiner[_Waiting], selection: Selection) -> Iterator[Row]:
    waiting: deque[_Waiting] = deque()
    for entries in batches(found, selection):
        for entry in entries:
            if selection.wants(entry):
                waits = _Waiting(entry, entry.verdict == "allow")
                waiting.append(waits)
                if waits.waits:
                    joiner.expect(entry, waits)
        for waits, outcome in joiner.read(entries):
            waits.outcome, waits.waits = outcome, False
        while waiting and (not waiting[0].waits or len(waiting) > MOST_WAITING):
            row = waiting.popleft().row
            if not selection.only_failed or row.may_have_failed:
                yield row
    for waits, outcome in joiner.rest():
        waits.outcome = outcome
    yield from (each.row for each in waiting if not selection.only_failed or each.row.may_have_failed)


class _Waiting:
    """A decision that is to be printed; waits: as soon as its outcome is known."""

    __slots__ = ("entry", "outcome", "waits")

    def __init__(self, entry: Entry, waits: bool) -> None:
        self.entry, self.waits = entry, waits
        self.outcome: Outcome | None = None

    @property
    def row(self) -> Row:
        return Row(b"", self.entry, self.outcome)
