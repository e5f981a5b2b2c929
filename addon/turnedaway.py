"""Those who were turned away because the run asks for more at once than it may: counted, and recorded a line a second.

A line for each would let a flood fill the disk.
"""

from __future__ import annotations

import asyncio

from impyard.addon.judge import Decision, Verdict, denial
from impyard.addon.record import Record
from impyard.addon.request import Request

EVERY_S = 1.0


class TurnedAway:
    """The first of a flood is recorded at once; each second from then on, one line says how many more there were."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._more = 0
        self._timer: asyncio.TimerHandle | None = None

    def count(self) -> None:
        """One more was turned away."""
        self._more += 1
        if self._timer is None:
            self._write()

    def flush(self) -> None:
        """Record what was counted since the last line: the door closes."""
        if self._timer is not None:
            self._timer.cancel()
        if self._more:
            self._write()

    def _write(self) -> None:
        self._timer = None
        if not self._more:
            return
        why = denial("busy")
        decision = Decision(Verdict.DENY, why.reason, hint=why.hint, times=self._more)
        self._more = 0
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._write)
        self._record.decide(Request(method="", scheme="", host="", port=0, path="", query=""), decision, "")
