"""Decisions summed up by host, method and shape of the path. No printing here.

A million lines are read in some seconds, and memory stays flat whatever a box made up: groups are bounded, and what
came of requests is joined on the way.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from impyard.runner.decisions.lines import OWN_CHECKS, Entry, Selection
from impyard.runner.decisions.logfiles import Log
from impyard.runner.decisions.outcome_stream import Both, Joiner, both
from impyard.runner.decisions.outcomes import Outcome
from impyard.runner.decisions.pathshape import shape
from impyard.runner.decisions.read import PROBE_BYTES, batches, span_of, times_in
from impyard.runner.inchild import in_a_child

MOST_GROUPS = 5_000  # beyond these, paths of a host are one group, and at twice as many all hosts that are new
MOST_PATHS = 20_000  # whose group is remembered
LONG_PATH = 200
PARALLEL_BYTES = 64 << 20  # of a log from which on a second process is worth it
OTHER = "…"
OWN = "impyard's own checks"  # in the place of their hosts, which are others for each run; no host has blanks


class Group:
    """Requests with one host, method and path shape.

    first, last: times of the log. bytes_up, bytes_down: bodies, as far as the outcomes say. id: of the last decision.
    """

    __slots__ = (
        *("allowed", "bytes_down", "bytes_up", "denied", "failed", "first", "host", "id", "last", "method", "path"),
        "reasons",
    )

    def __init__(self, host: str, method: str, path: str) -> None:
        self.host, self.method, self.path = host, method, path
        self.allowed = self.denied = self.failed = self.bytes_up = self.bytes_down = 0
        self.first = self.last = self.id = ""
        self.reasons: Counter[str] = Counter()  # of denials

    @property
    def requests(self) -> int:
        return self.allowed + self.denied

    def add(self, entry: Entry) -> None:
        """Count a decision."""
        ts = entry.ts
        if ts >= self.last:
            self.last, self.id = ts, entry.id
            if not self.first:
                self.first = ts
        elif ts < self.first:  # a clock was set back
            self.first = ts
        if entry.verdict == "allow":
            self.allowed += 1
        else:
            self.denied += entry.times
            if entry.reason in self.reasons or len(self.reasons) < 100:
                self.reasons[entry.reason] += entry.times

    def came(self, outcome: Outcome) -> None:
        """Count what came of one of the requests."""
        self.bytes_up += outcome.bytes_up
        self.bytes_down += outcome.bytes_down
        if outcome.error is not None and outcome.failed:
            self.failed += 1

    def merge(self, other: Group) -> None:
        """Add what another part of the log has of these requests."""
        for name in ("allowed", "denied", "failed", "bytes_up", "bytes_down"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reasons += other.reasons
        self.first = min(filter(None, (self.first, other.first)), default="")
        if other.last >= self.last:
            self.last, self.id = other.last, other.id

    def record(self) -> dict[str, Any]:
        """For JSON and CSV."""
        names = ("host", "method", "path", "allowed", "denied", "failed", "bytes_up", "bytes_down", "first", "last")
        return {name: getattr(self, name) for name in names} | {"reasons": dict(self.reasons), "last_id": self.id}


class Summary:
    """What of the log is meant. unknown: how many allowed requests no outcome was found for.

    span: the bytes of the log that count, which begin and end with a line. outcomes_from: the time of the first.
    """

    def __init__(
        self,
        logs: Both,
        selection: Selection,
        span: tuple[int, int] | None = None,
        outcomes_from: str | None = None,
    ) -> None:
        self._groups: dict[tuple[str, str, str], Group] = {}
        self._by_path: dict[tuple[str, int, str, str], Group] = {}
        self.unknown = 0
        if logs.decisions is None:
            return
        joiner: Joiner[Group] = Joiner(logs.outcomes, outcomes_from or selection.since)
        for entries in batches(logs.decisions, selection, span):
            self._add(entries, selection, joiner)
            for group, outcome in joiner.read(entries):
                group.came(outcome)
        for group, outcome in joiner.rest():
            group.came(outcome)
        self.unknown = joiner.waiting + joiner.given_up

    def merge(self, other: Summary) -> None:
        """Add what another part of the same log has."""
        for group in other._groups.values():
            self._at(group.host, group.method, group.path).merge(group)
        self.unknown += other.unknown

    @property
    def groups(self) -> list[Group]:
        """The hosts with the most requests first, and of each the most frequent."""
        hosts: Counter[str] = Counter()
        for group in self._groups.values():
            hosts[group.host] += group.requests
        return sorted(self._groups.values(), key=lambda group: (-hosts[group.host], group.host, -group.requests))

    def _add(self, entries: list[Entry], selection: Selection, joiner: Joiner[Group]) -> None:
        known, wants, expect = self._by_path, selection.wants, joiner.expect
        for entry in entries:
            if not wants(entry):
                continue
            key = (entry.host, entry.port, entry.method, entry.path)
            is_own = entry.seq <= OWN_CHECKS and entry.is_own_check
            group = self._at(OWN, OTHER, OTHER) if is_own else known.get(key)
            if group is None:
                group = self._group(entry)
                if len(entry.path) <= LONG_PATH:
                    if len(known) >= MOST_PATHS:
                        known.clear()
                    known[key] = group
            group.add(entry)
            if entry.verdict == "allow":
                expect(entry, group)

    def _group(self, entry: Entry) -> Group:
        return self._at(entry.place, entry.method, shape(entry.path))

    def _at(self, *key: str) -> Group:
        """The group of a host, method and shape; where there are too many, one for all that are new."""
        host, method, path = key
        found = self._groups.get((host, method, path))
        if found is None and len(self._groups) >= MOST_GROUPS:
            method = path = OTHER
            found = self._groups.get((host, method, path))
            if found is None and len(self._groups) >= 2 * MOST_GROUPS:
                host = OTHER
                found = self._groups.get((host, method, path))
        if found is None:
            found = self._groups[host, method, path] = Group(host, method, path)
        return found


def summed_up(log: Path, outcomes: Path, selection: Selection) -> Summary:
    """The summary of a log; of a large one, a second process sums up the second half meanwhile.

    Both read what is opened here, so that old files which are removed meanwhile count for neither or for both.
    """
    with both(log, outcomes, selection) as logs:
        halves = _halves(logs.decisions, selection)
        if halves is None:
            return Summary(logs, selection)
        first, second, ts = halves
        with in_a_child(lambda: _second_half(logs, selection, second, ts)) as answer:
            summary = Summary(logs, selection, first)
            other, seen = answer() or _second_half(logs, selection, second, ts)
    summary.merge(other)
    selection.add_counts(seen)
    return summary


def _second_half(logs: Both, selection: Selection, span: tuple[int, int], ts: str) -> tuple[Summary, Selection]:
    mine = selection.uncounted()
    summary = Summary(logs, mine, span, ts)
    summary._by_path.clear()  # it has no use any more, and need not be sent
    return summary, mine


def _halves(found: Log | None, selection: Selection) -> tuple[tuple[int, int], tuple[int, int], str] | None:
    """The bytes of both halves, and the time at which the second begins; None for a log that is not worth it."""
    if found is None:
        return None
    start, end = span_of(found, selection)
    if end - start < PARALLEL_BYTES or len(os.sched_getaffinity(0)) < 2:
        return None
    middle = (start + end) // 2
    block = found.pread(PROBE_BYTES, middle)
    newline = block.find(b"\n") + 1
    times = times_in(block[newline : newline + 200])
    if not newline or not times:
        return None
    return (start, middle + newline), (middle + newline, end), times[0]
