"""The terminal of the person at `run -i`: raw while the box has it, and as it was before in any case.

Keys go to the box as they are, Ctrl-C too. Three times Ctrl-\\ within two seconds ends the run: a UI in the box may
take all other keys. What a killed runner (SIGKILL) leaves, `reset` mends.
"""

from __future__ import annotations

import os
import re
import select
import signal
import struct
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from impyard.addon.errors import WrongUsage

SIZE_UNKNOWN = (24, 80)
CHUNK = 4096
MAX_WAITING = 1024 * 1024  # typed bytes that a box does not take; what is typed then is lost
RETRY_S = 0.05
LAST_WRITE_S = 1.0
# Where the cursor is: answered behind all that was asked before, so what comes next is typed by a person.
LAST_QUESTION, LAST_ANSWER = b"\x1b[6n", re.compile(rb"\x1b\[\d+;\d+R")
ANSWER_S, FIRST_ANSWER_S = 1.5, 0.2  # for one that has answered before, and for one that never has
ANSWER = re.compile(rb"\x1b\[\?[\d;]*[cu]")
END_PRESSES, END_WITHIN_S = 3, 2.0
# Ctrl-\ as a terminal sends it: plain, in kitty's protocol (a press or a repeat; caps and num lock add 64 and 128), and
# as xterm's modifyOtherKeys does.
END_KEY = re.compile(rb"\x1c|\x1b\[92(?::[0-9:]*)?;(?:5|69|133|197)(?::[12])?(?:;[0-9:]*)?u|\x1b\[27;5;92~")

Send = Callable[[bytes], int]


def check_terminal(environ: Mapping[str, str]) -> None:
    """Raises WrongUsage when there is no terminal that a UI could be shown on."""
    hint = '`impyard run "…"` runs the agent on a prompt, without one'
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WrongUsage("-i needs a terminal for input and output", hint=hint)
    if environ.get("TERM", "dumb") in ("dumb", ""):
        raise WrongUsage("-i needs a terminal that can move its cursor, and TERM says that this one cannot", hint=hint)


class UserTerminal:
    """Standard input and output. `enter` it when the box has started, `leave` it in any case."""

    def __init__(self, source: int = 0, target: int = 1) -> None:
        self._source, self._target = source, target
        self._before: list[Any] | None = None
        self._thread: threading.Thread | None = None
        self._handlers: dict[int, Any] = {}
        self._pressed: list[float] = []
        self._closing = False
        self._redraw = False
        self._answered = False

    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        with suppress(OSError):
            found = os.get_terminal_size(self._target)
            if found.lines > 0 and found.columns > 0:
                return min(found.lines, 0xFFFF), min(found.columns, 0xFFFF)
        return SIZE_UNKNOWN

    def enter(self, send: Send, end: Callable[[], None]) -> None:
        """Give the terminal to the box. `send` takes what box/terminal.py reads, as much of it as it can without
        waiting, and says how much; OSError once the box is gone. `end` is called, in another thread, when the person
        ends the run. Raises OSError when the terminal is gone."""
        self._send, self._end = send, end
        # Of its own: when nobody reads what a command prints, standard output is led elsewhere.
        self._out = os.dup(self._target)
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._before = termios.tcgetattr(self._source)
            tty.setraw(self._source, termios.TCSANOW)
        except termios.error as exc:
            raise OSError(*exc.args) from exc
        for number in (signal.SIGWINCH, signal.SIGCONT):
            self._handlers[number] = signal.signal(number, self._on_signal)
        # In the background, a look at the terminal's settings would stop this process for good.
        self._handlers[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self._thread = threading.Thread(target=self._read_keys, daemon=True, name="keys")
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Write what has been filtered. Raises OSError."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._out, view) :]
            except BlockingIOError:  # somebody else who has this terminal made it so
                select.select([], [self._out], [])

    def leave(self, last: bytes = b"", *, asked: bool = False) -> None:
        """Take the terminal back, after writing `last` where that does not block. Safe to call at any time, and twice.

        Answers of the terminal that nobody has read must not be typed into what comes next: they are thrown away, and
        waited for when something was `asked`.
        """
        if self._before is None:
            return
        before, self._before = self._before, None
        self._closing = True
        self._wake()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        with suppress(OSError, ValueError):
            if select.select([], [self._out], [], LAST_WRITE_S)[1]:
                os.write(self._out, last + (LAST_QUESTION if asked else b""))
                if asked:
                    self._await_answers()
        if self._is_ours():
            with suppress(OSError, termios.error):
                termios.tcflush(self._source, termios.TCIFLUSH)
                termios.tcsetattr(self._source, termios.TCSANOW, before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._thread is None or not self._thread.is_alive():
            for handle in (self._wake_reader, self._wake_writer, self._out):
                os.close(handle)

    def _await_answers(self) -> None:
        """Read up to the answer to the last question, for as long as a slow line may take."""
        deadline = time.monotonic() + (ANSWER_S if self._answered else FIRST_ANSWER_S)
        got = b""
        while not LAST_ANSWER.search(got):
            if not select.select([self._source], [], [], max(deadline - time.monotonic(), 0))[0]:
                return
            if not (data := os.read(self._source, CHUNK)):
                return
            got = got[-CHUNK:] + data

    def _is_ours(self) -> bool:
        """Whether this process has the terminal. In the background, its shell has set it its own way."""
        try:
            return os.tcgetpgrp(self._source) == os.getpgrp()
        except OSError:
            return True  # no job control here, as in a test

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._before is None:
            return
        if number == signal.SIGCONT and self._is_ours():  # the shell has set the terminal its own way meanwhile
            with suppress(OSError, termios.error):
                tty.setraw(self._source, termios.TCSANOW)
            self._redraw = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            os.write(self._wake_writer, b"!")

    def _read_keys(self) -> None:
        waiting = bytearray(self._size_message())
        source_open = True
        while not self._closing:
            with suppress(BlockingIOError):
                try:
                    del waiting[: self._send(bytes(waiting)) if waiting else 0]
                except BlockingIOError:
                    raise
                except OSError:
                    return  # the box is gone
            sources = [self._wake_reader, *([self._source] if source_open else [])]
            ready = select.select(sources, [], [], RETRY_S if waiting else None)[0]
            if self._wake_reader in ready:
                with suppress(OSError):
                    os.read(self._wake_reader, CHUNK)
                waiting += self._size_message()
            if self._source in ready:
                try:
                    keys = os.read(self._source, CHUNK)
                except OSError:
                    keys = b""
                source_open = bool(keys)  # at its end a SIGHUP follows
                self._answered = self._answered or ANSWER.search(keys) is not None
                self._look_for_end(keys)
                if keys and len(waiting) < MAX_WAITING:
                    waiting += message(b"k", keys)

    def _size_message(self) -> bytes:
        rows, columns = self.size()
        data = message(b"w", struct.pack(">HH", rows, columns))
        if self._redraw:  # a size that stays the same is no news
            self._redraw = False
            return message(b"w", struct.pack(">HH", rows, max(columns - 1, 1))) + data
        return data

    def _look_for_end(self, keys: bytes) -> None:
        now = time.monotonic()
        self._pressed += [now] * len(END_KEY.findall(keys))
        self._pressed = [at for at in self._pressed if at > now - END_WITHIN_S]
        if len(self._pressed) >= END_PRESSES:
            self._pressed.clear()
            self._end()  # as Ctrl-C does for any other run; again: without patience


def message(kind: bytes, content: bytes) -> bytes:
    """As box/terminal.py reads it."""
    return struct.pack(">cI", kind, len(content)) + content
