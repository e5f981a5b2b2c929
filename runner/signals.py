"""Ctrl-C, Ctrl-\\, SIGTERM and a closed terminal, at every stage of a run.

While a run is prepared, a signal raises `Interrupted` in the main thread; while it runs, it is handed to the main loop;
while it is taken down, it is noted and changes nothing, so that nothing is left behind.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupted(BaseException):
    """A signal while the run was being prepared. No Exception: nothing but the run itself may catch it."""


class Signals:
    """Use as a context manager in the main thread; handlers are put back at the end.

    A signal that was ignored from the start (`nohup`, a shell's background job) stays ignored.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before: dict[int, Any] = {}
        self._shielded = 0
        self._deliver: Callable[[int], None] | None = None
        self._raising = True

    def __enter__(self) -> Signals:
        for number in HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_exc: object) -> None:
        for number, handler in self._before.items():
            # Who ends a run by Ctrl-\ may hold it down, and this process has its exit status yet to say.
            held = number == signal.SIGQUIT and number in self.received
            signal.signal(number, signal.SIG_IGN if held else handler)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Hold a signal back until the block is done: for a step that must not stop half-way."""
        self._shielded += 1
        try:
            yield
        finally:
            self._shielded -= 1
        self._raise_if_due()

    def deliver_to(self, receiver: Callable[[int], None]) -> None:
        """From now on call `receiver`, which must be safe to call between any two instructions."""
        self._deliver, self._raising = receiver, False
        for number in self.received:
            receiver(number)

    def note_only(self) -> None:
        """From now on a signal changes nothing: the run is being taken down."""
        self._deliver, self._raising = None, False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(number)
        if self._deliver is not None:
            self._deliver(number)
        else:
            self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self.received and self._raising and not self._shielded:
            self._raising = False  # once: what follows is taking down
            raise Interrupted
