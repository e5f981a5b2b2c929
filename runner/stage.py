"""A box while it runs: its output, its end, and every way to end it. Threads feed one queue; the run reads it.

Only `Stage` talks to the engine about a box that exists. The ceiling is kept by a thread of its own, so that it holds
although the terminal stands still.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from impyard.runner import engine
from impyard.runner.text import size_text

# Output that waits for the view, each line with what it costs to keep; beyond that the box waits.
MAX_WAITING_BYTES = 64 * 1024 * 1024
LINE_COST_BYTES = 256
# News that wait; those beyond are dropped: the log has them.
MAX_NEWS = 1024
# So long after its end by the runner, what still waits to be shown is passed over.
DRAIN_S = 5.0
# An output that is silent this long after the container has gone has no more to say.
SILENT_S = 5.0
# A longer line is stored but not shown. pi's largest sum up a whole conversation.
SHOWN_LINE_BYTES = 32 * 1024 * 1024
# Of all output; what comes after that is shown, but not stored. pi's sessions hold the same in less.
MAX_STORED_BYTES = 2 * 1024**3
# What is kept of standard error, for the words of a box that did not come up.
LAST_WORDS_BYTES = 4096
# After a polite SIGTERM the relay itself kills the agent within 5 s.
POLITE_S = 7.0
# An engine that says nothing of a box's end so long after it was told to kill it says nothing any more.
END_LIMIT_S = 20.0
# The relay asks the agent to end so long before the ceiling, of a short one only a part (box/pid1.py).
ASKED_BEFORE_S, ASKED_BEFORE_PART = 2.0, 0.1


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the box's standard output, without its newline."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Screen:
    """Bytes for a terminal, as they came out of a box with one. Not to be shown as they are."""

    data: bytes


@dataclass(frozen=True, slots=True)
class News:
    """Something that the gateway said."""

    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Over:
    """All output has been read and the container is gone. `status` is None when the engine could not say."""

    status: int | None


Item = Line | Screen | News | Over


class Stage:
    """A created container, not started yet. `close` it in any case: then it is gone, or ImpyardError says that it is
    not.

    With a `terminal` the first line of its output is the relay's, and what follows is no lines but a Screen's; that is
    not stored here.
    """

    def __init__(self, container: str, stdout: Path, stderr: Path, *, terminal: bool = False) -> None:
        self.container = container
        self._terminal = terminal
        self.ended_by: str | None = None
        self.ceiling_passed = False  # the box lasted until its ceiling, or until it was asked to end for it
        self.storage_error: str | None = None
        self.last_words = b""
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._waiting_bytes = self._waiting_news = 0
        self._over_at: float | None = None
        self._ended_at: float | None = None
        self._lock = threading.Lock()
        self._timers: list[threading.Timer] = []
        self._stdout, self._stderr = stdout, stderr
        self._received = 0
        self._stored = 0
        self._reader_waits = False
        self._output = engine.attach(container, stdin=terminal)
        self._waiter = engine.wait_removed(container)
        self._reader = threading.Thread(target=self._read, daemon=True, name="box-output")
        self._end = threading.Thread(target=self._wait, daemon=True, name="box-end")

    def start(self, ceiling_s: float) -> None:
        """Start the box; it is killed after `ceiling_s` seconds, and at once when `end` was called before."""
        self._asked_at = time.monotonic() + ceiling_s - min(ASKED_BEFORE_S, ASKED_BEFORE_PART * ceiling_s)
        self._reader.start()
        self._end.start()
        self._after(ceiling_s, lambda: self.end("ceiling"))
        engine.start(self.container)
        with self._lock:
            ended = self.ended_by is not None
        if ended:  # the engine does not kill what does not run yet
            engine.kill(self.container)

    def items(self) -> Iterator[Item]:
        """What happens, in order, until the box is over."""
        while True:
            item = self._items.get()
            if isinstance(item, Line | Screen):
                with self._room:
                    self._waiting_bytes -= _cost(item.data)
                    self._room.notify_all()
                if self._ended_at is not None and time.monotonic() > self._ended_at + DRAIN_S:
                    continue
            elif isinstance(item, News):
                with self._room:
                    self._waiting_news -= 1
            yield item
            if isinstance(item, Over):
                return

    def tell(self, event: dict[str, Any]) -> None:
        """Put something in among the `items`; any thread may."""
        with self._room:
            if self._waiting_news >= MAX_NEWS:
                return
            self._waiting_news += 1
        self._items.put(News(event))

    def send(self, data: bytes) -> int:
        """Write to a box with a terminal, as box/terminal.py reads it: see engine.Output."""
        return self._output.send(data)

    def end(self, reason: str, *, politely: bool = False) -> None:
        """End the box; the first reason given is kept. `politely` gives the agent time to store its session.

        A box that is over was not ended by what happens while its last output is shown, unless it is the caller's wish.
        """
        with self._lock:
            if self._over_at is not None and reason != "interrupted":
                return
            is_first = self._ended_at is None
            self.ended_by = self.ended_by or reason
            self._ended_at = self._ended_at or time.monotonic()
        if is_first:
            self._after(END_LIMIT_S + (POLITE_S if politely else 0.0), self._give_up)
        if politely:
            engine.terminate(self.container)
            self._after(POLITE_S, lambda: engine.kill(self.container))
        else:
            engine.kill(self.container)

    @property
    def is_over(self) -> bool:
        """Whether the container is gone; its last output may still wait."""
        return self._over_at is not None

    @property
    def last_phase_since(self) -> float | None:
        """When (time.monotonic()) the box was ended or was over, whichever came first; None while it works."""
        times = [at for at in (self._ended_at, self._over_at) if at is not None]
        return min(times, default=None)

    def close(self) -> None:
        """Make sure that the container is gone. Raises EngineError when it is not."""
        for timer in self._timers:
            timer.cancel()
        try:
            engine.make_gone(self.container)
        finally:
            self._output.close()
            if self._end.ident is None:  # never started: nobody waits
                self._waiter.close()

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        timer = threading.Timer(min(delay_s, threading.TIMEOUT_MAX), action)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _read(self) -> None:
        with open(self._stdout, "ab", buffering=0) as stdout, open(self._stderr, "ab", buffering=0) as stderr:
            line = bytearray()
            first = True
            for stream, data in self._output.chunks():
                self._received += len(data)
                if stream != 1:
                    self.last_words = (self.last_words + data)[-LAST_WORDS_BYTES:]
                    self._store(stderr, data)
                    continue
                if self._terminal and not first:
                    self._pass_on(Screen(data))
                    continue
                *whole, rest = data.split(b"\n")
                for number, piece in enumerate(whole, 1):
                    line += piece
                    self._emit(stdout, line, first)
                    first, line = False, bytearray()
                    if self._terminal:  # what came in one piece with the report is no line of its own
                        rest = b"\n".join([*whole[number:], rest])
                        break
                if self._terminal and not first:
                    self._pass_on(Screen(rest))
                    continue
                line += rest
                if len(line) > SHOWN_LINE_BYTES:
                    self._store(stdout, bytes(line))
                    line = bytearray()
            if line:
                self._emit(stdout, line, first)

    def _emit(self, stdout: BinaryIO, line: bytearray, first: bool) -> None:
        data = bytes(line)
        if not (first and data.startswith(b'{"impyard"')):  # the relay's report is not pi's
            self._store(stdout, data + b"\n")
        self._pass_on(Line(data))

    def _pass_on(self, item: Line | Screen) -> None:
        self._reader_waits = True
        with self._room:
            while self._waiting_bytes and self._waiting_bytes + _cost(item.data) > MAX_WAITING_BYTES:
                self._room.wait()
            self._waiting_bytes += _cost(item.data)
        self._reader_waits = False
        self._items.put(item)

    def _store(self, file: BinaryIO, data: bytes) -> None:
        if self._stored + len(data) > MAX_STORED_BYTES:
            self._stored = MAX_STORED_BYTES  # nothing after a gap either
            limit = size_text(MAX_STORED_BYTES)
            self.storage_error = self.storage_error or f"of the run's output the first {limit} are stored, no more"
            return
        self._stored += len(data)
        try:
            file.write(data)
        except OSError as exc:
            self.storage_error = self.storage_error or f"cannot store the run's output: {exc.strerror}"

    def _give_up(self) -> None:
        """The engine hangs: the run ends without hearing from it. The box goes with its gateway, or at its deadline."""
        with self._lock:
            if self._over_at is not None:
                return
            self._over_at = time.monotonic()
        self.ceiling_passed = self._over_at >= self._asked_at
        self._items.put(Over(None))

    def _wait(self) -> None:
        status = self._waiter.result()
        with self._lock:
            if self._over_at is not None:
                return  # too late
            self._over_at = time.monotonic()
        self.ceiling_passed = self._over_at >= self._asked_at
        received, since = -1, time.monotonic()
        while self._reader.is_alive():
            self._reader.join(timeout=0.2)
            if self._received != received or self._reader_waits:
                received, since = self._received, time.monotonic()
            elif time.monotonic() - since > SILENT_S:
                break
        self._output.close()
        self._items.put(Over(status))


def _cost(line: bytes) -> int:
    return len(line) + LINE_COST_BYTES
