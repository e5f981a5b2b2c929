"""The agent's own terminal, for `run -i`: made by process 1, which passes its bytes on.

The engine gives the box no terminal: standard output stays what it is in any run, first the report of the probes and
then the agent's. The runner's side comes on standard input as messages, one byte for what it is, four for the length:
`k` and what was typed, `w` and the size (rows and columns, two bytes each).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import termios
import time

from impyard.box.loop import READ, WRITE, Loop

CHUNK = 65536
HEADER = 5
MAX_MESSAGE = 65536
MAX_TYPED = 256 * 1024  # bytes that wait for an agent that does not read; then nothing more is taken in
DRAIN_S = 2.0


class Terminal:
    """A pseudo-terminal between the agent (`slave`) and standard input and output."""

    def __init__(self, loop: Loop, rows: int, columns: int, *, source: int = 0, target: int = 1) -> None:
        self._loop = loop
        self._source, self._target = source, target
        self._master, self.slave = os.openpty()
        self._messages = bytearray()
        self._typed = bytearray()
        self._shown: bytes | memoryview = b""
        self._source_open = True
        self._master_open = True
        self._resize(rows, columns)
        for descriptor in (self._master, source, target):
            os.set_blocking(descriptor, False)

    def serve(self) -> None:
        """Pass bytes on from now on; the agent has the slave's end."""
        os.close(self.slave)
        self._watch()

    def drain(self) -> None:
        """Pass on what the agent left, for as long as somebody takes it; the agent has ended."""
        deadline = time.monotonic() + DRAIN_S
        while self._read_master() and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(OSError):
                select.select([], [self._target], [], left)

    def _watch(self) -> None:
        takes_in = self._source_open and len(self._typed) < MAX_TYPED
        self._loop.watch(self._source, READ if takes_in else 0, self._read_source)
        shows = self._master_open and not self._shown
        events = (READ if shows else 0) | (WRITE if self._typed and self._master_open else 0)
        self._loop.watch(self._master, events, self._serve_master)
        self._loop.watch(self._target, WRITE if self._shown else 0, self._serve_master)

    def _read_source(self) -> None:
        try:
            data = os.read(self._source, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._source_open = bool(data)
        self._messages += data
        while len(self._messages) >= HEADER:
            kind, length = struct.unpack(">cI", self._messages[:HEADER])
            if length > MAX_MESSAGE:
                self._source_open = False  # this is not the runner's way to speak
                break
            if len(self._messages) < HEADER + length:
                break
            content = bytes(self._messages[HEADER : HEADER + length])
            del self._messages[: HEADER + length]
            if kind == b"k":
                self._typed += content
            elif kind == b"w" and length == 4:
                self._resize(*struct.unpack(">HH", content))
        self._serve_master()

    def _serve_master(self) -> None:
        if self._typed:
            with contextlib.suppress(OSError):
                del self._typed[: os.write(self._master, self._typed[:CHUNK])]
        self._read_master()
        self._watch()

    def _read_master(self) -> bool:
        """Pass on one chunk; whether there may be more."""
        if not self._shown:
            try:
                self._shown = os.read(self._master, CHUNK)
            except BlockingIOError:
                return False
            except OSError:  # EIO: nobody has the other end open any more
                self._master_open = False
                return False
        with contextlib.suppress(BlockingIOError):
            try:
                sent = os.write(self._target, self._shown)
            except BlockingIOError:
                raise
            except OSError:
                sent = len(self._shown)  # nobody listens
            self._shown = memoryview(self._shown)[sent:]
        return True

    def _resize(self, rows: int, columns: int) -> None:
        """The kernel tells the agent of it by a SIGWINCH."""
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def take_over(slave: int) -> None:
    """Make the terminal this process's own: its controlling terminal, input, output and error. For the leader of a
    session that has none. Raises OSError."""
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for number in (0, 1, 2):
        os.dup2(slave, number)
