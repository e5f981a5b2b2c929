"""Showing a run to somebody who may be gone, or whose terminal stands still: it must not hold up the run's end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from impyard.runner import streams

STALL_S = 5.0  # how long one write may stand still once the box has ended
TICK_S = 1.0


class Showing:
    """Calls what shows things, until nobody can read them any more; `fault` says why then, in words.

    on_fault: told once, whether it was a terminal that stands still.
    """

    def __init__(self, on_fault: Callable[[bool], None]) -> None:
        self.fault: str | None = None
        self._on_fault = on_fault
        self._busy = False
        self._since = 0.0

    def show(self, show: Callable[..., None], *arguments: Any) -> None:
        """Show something, if anybody can read it."""
        if self.fault:
            return
        try:
            self._since, self._busy = time.monotonic(), True
            show(*arguments)
            self._busy = False
        except OSError as exc:
            self._busy = False
            self.fault = _fault_of_output(exc)
            stands_still = isinstance(getattr(exc, "cause", exc), TimeoutError)
            if stands_still:  # what is held back for it would keep this process from ending
                with suppress(OSError):
                    streams.give_up()
            self._on_fault(stands_still)

    def give_up(self) -> None:
        """In a signal handler: raises TimeoutError out of what is being shown, if something is."""
        if self._busy:
            raise TimeoutError("nobody reads the output")

    def give_up_if_stalled(self, ended: float | None) -> None:
        """The same, if a write has stood still for too long since the box ended, `ended` by time.monotonic."""
        if ended and time.monotonic() > max(ended, self._since) + STALL_S:
            self.give_up()


@contextmanager
def ticking(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` each second from a signal handler, which also reaches a main thread that waits in a write."""
    before = signal.signal(signal.SIGALRM, lambda *_: act())
    signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _fault_of_output(exc: OSError) -> str:
    """Why nothing can be shown any more."""
    if isinstance(getattr(exc, "cause", exc), TimeoutError | BrokenPipeError):
        return "nobody reads the output any more"
    return f"the output cannot be written any more ({(exc.strerror or str(exc)).lower()})"
