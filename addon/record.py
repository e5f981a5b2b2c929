"""What a door has decided and what came of it: the lines, the counts, and the news for the runner."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from impyard.addon.decisions import asked_for, told_of
from impyard.addon.errors import LogUnwritable
from impyard.addon.judge import Decision, Verdict
from impyard.addon.log import DecisionLog, OutcomeLog
from impyard.addon.notes import Notes
from impyard.addon.request import Request

UNRECORDED = "the decision could not be recorded, and nothing passes unrecorded"
# Kinds of failures that are counted, and told of at the end: a box that makes up hosts fills no memory.
MAX_KINDS, TOLD_KINDS = 100, 8
MAX_HOST, MAX_ERROR = 253, 300


class Record:
    """Writes both logs, counts, and tells `on_event` of each denial and of a log that cannot be written."""

    def __init__(
        self, decisions: DecisionLog, outcomes: OutcomeLog, on_event: Callable[[dict[str, Any]], None]
    ) -> None:
        self._decisions = decisions
        self._outcomes = outcomes
        self._on_event = on_event
        self.wrote: Callable[[int], None] = lambda size: None  # hears how much each decision adds to the log
        # What may be written down of a request, and of a text about one.
        self.clean: Callable[[Request], Request] = lambda request: request
        self.clean_text: Callable[[str | None], str | None] = lambda text: text
        self._allowed = 0
        self._denied = 0
        self._upstream_errors = 0
        self._bytes_up = 0
        self._bytes_down = 0
        self._injected: Counter[str] = Counter()
        self._failed: Counter[tuple[str, str]] = Counter()  # by host and error; their names are the box's choice

    def decide(self, request: Request, decision: Decision, version: str) -> tuple[Decision, str | None]:
        """Write a decision made under the policy `version`; returns what counts, and its id.

        What cannot be written is denied, and has no id.
        """
        request = self.clean(request)
        try:
            recorded = self._decisions.write(decision, request, version)
            decision_id = recorded.id
            self.wrote(len(recorded.line))
        except LogUnwritable as exc:
            self._on_event({"event": "log-unwritable", "error": exc.message})
            decision = dataclasses.replace(decision, verdict=Verdict.DENY, reason="log-unwritable", hint=UNRECORDED)
            decision_id = None
        if decision.verdict is Verdict.ALLOW:
            self._allowed += 1
            if decision.inject is not None and decision.injected:
                self._injected[decision.inject.credential] += 1
            return decision, decision_id
        self._denied += decision.times
        if decision.reason != "canary":
            more: dict[str, Any] = {"secret": told_of(decision.secret)} if decision.secret is not None else {}
            if decision.reason == "credential-unavailable" and decision.inject is not None:
                more["credential"] = decision.inject.credential
            self._on_event(
                {
                    "event": "denied",
                    "id": decision_id,
                    **asked_for(request),
                    "reason": decision.reason,
                    "at": decision.at,
                    **more,
                }
            )
        return decision, decision_id

    def close(self, notes: Notes, status: int | None, error: str | None, *, client_left: bool = False) -> None:
        """Write the outcome of a forwarded request, once. What its client or we ended is no upstream's error."""
        if notes.closed or notes.decision_id is None:
            return
        notes.closed = True
        self._bytes_up += notes.uploaded
        self._bytes_down += notes.downloaded
        is_upstreams = error is not None and not client_left and not notes.was_refused
        self._upstream_errors += is_upstreams
        ms = round((time.monotonic() - notes.started) * 1000, 1)
        error, redirect = self.clean_text(error), self.clean_text(notes.redirect)
        if error is not None and is_upstreams:
            kind = (self.clean(notes.request).host[:MAX_HOST], error[:MAX_ERROR])
            if kind in self._failed or len(self._failed) < MAX_KINDS:
                self._failed[kind] += 1
        self._outcomes.write(notes.decision_id, status, notes.uploaded, notes.downloaded, ms, error, redirect)

    def totals(self) -> dict[str, Any]:
        """What came through so far, and where the chain of decisions stands."""
        return {
            "decisions": self._decisions.seq,
            "last": self._decisions.last_hash,
            "allowed": self._allowed,
            "denied": self._denied,
            "bytes_up": self._bytes_up,
            "bytes_down": self._bytes_down,
            "upstream_errors": self._upstream_errors,
            "failed": [
                {"host": host, "error": error, "count": count}
                for (host, error), count in self._failed.most_common(TOLD_KINDS)
            ],
            "outcomes": self._outcomes.written,
            "outcomes_lost": self._outcomes.lost,
            "credentials": dict(self._injected),
        }
