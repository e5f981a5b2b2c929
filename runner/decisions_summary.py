"""Decisions summed up by host, method and shape of the path. No printing here.

A million lines are read in some seconds, and memory stays flat whatever a box made up: groups are bounded, and what
came of requests is joined on the way.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from impyard.runner.decision_lines import Entry, Selection
from impyard.runner.decisions_read import batches
from impyard.runner.outcome_stream import Joiner, joined
from impyard.runner.outcomes import Outcome
from impyard.runner.pathshape import shape

MOST_GROUPS = 5_000  # beyond these, paths of a host are one group, and at twice as many all hosts that are new
MOST_PATHS = 20_000  # whose group is remembered
LONG_PATH = 200
OTHER = "…"


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

    def record(self) -> dict[str, Any]:
        """For JSON and CSV."""
        names = ("host", "method", "path", "allowed", "denied", "failed", "bytes_up", "bytes_down", "first", "last")
        return {name: getattr(self, name) for name in names} | {"reasons": dict(self.reasons), "last_id": self.id}


class Summary:
    """All that `log` has of what is meant. unknown: how many allowed requests no outcome was found for."""

    def __init__(self, log: Path, outcomes: Path, selection: Selection) -> None:
        self._groups: dict[tuple[str, str, str], Group] = {}
        self._by_path: dict[tuple[str, int, str, str], Group] = {}
        self.unknown = 0
        joiner: Joiner[Group] = joined(outcomes, selection.since)
        try:
            for entries in batches(log, selection):
                self._add(entries, selection, joiner)
                for group, outcome in joiner.read(entries):
                    group.came(outcome)
            for group, outcome in joiner.rest():
                group.came(outcome)
            self.unknown = joiner.waiting + joiner.given_up
        finally:
            joiner.close()

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
            group = known.get(key)
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
        key = (entry.place, entry.method, shape(entry.path))
        if key not in self._groups and len(self._groups) >= MOST_GROUPS:
            key = (entry.place, OTHER, OTHER)
            if key not in self._groups and len(self._groups) >= 2 * MOST_GROUPS:
                key = (OTHER, OTHER, OTHER)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(*key)
        return group
