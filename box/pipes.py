"""Bytes between a program in the box and the door: both ways, with backpressure and half-close.

Nothing here looks into what is sent; whether it may pass is decided behind the door.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from impyard.box.loop import READ, WRITE, Loop

CHUNK = 65536
ROUNDS = 4  # chunks that one side may move before the others get their turn
DOOR_RETRY_S = 0.02
DOOR_TRIES = 250  # 5 s of a full queue at the door
ANSWER_LIMIT = 16384  # bytes of an answer to CONNECT, far more than the gateway sends


class Pipe:
    """Copies between two connected non-blocking sockets until both have ended, then closes both and calls `on_close`.

    At most one chunk per direction waits in memory: a side is read only while the other takes what it got.
    """

    def __init__(self, loop: Loop, left: socket.socket, right: socket.socket, on_close: Callable[[], None]) -> None:
        self._loop = loop
        self._sides = (_Side(left), _Side(right))
        self._on_close = on_close
        self._open = True

    def start(self, to_left: bytes = b"") -> None:
        """Begin copying; `to_left` goes to the left side before all else."""
        left, right = self._sides
        left.pending = to_left
        for side, other in ((left, right), (right, left)):
            side.handler = lambda side=side, other=other: self._ready(side, other)  # type: ignore[misc]
        self._ready(left, right)

    def _ready(self, side: _Side, other: _Side) -> None:
        if not self._open:
            return
        try:
            side.flush()
            for _ in range(ROUNDS):
                if side.ended or other.pending:
                    break
                data = side.socket.recv(CHUNK)
                if data:
                    other.pending = data
                    other.flush()
                else:
                    side.ended = True
        except BlockingIOError:
            pass
        except OSError:
            self._close()
            return
        for this, that in ((side, other), (other, side)):
            this.finish(that.ended)
        if side.ended and other.ended and not side.pending and not other.pending:
            self._close()
            return
        for this, that in ((side, other), (other, side)):
            events = (0 if this.ended or that.pending else READ) | (WRITE if this.pending else 0)
            if events != this.events:
                this.events = events
                self._loop.watch(this.socket.fileno(), events, this.handler)

    def _close(self) -> None:
        self._open = False
        for side in self._sides:
            self._loop.watch(side.socket.fileno(), 0, side.handler)
            side.socket.close()
        self._on_close()


class _Side:
    """One end of a pipe. pending: bytes to write to it. ended: nothing more to read from it. events: those watched."""

    __slots__ = ("ended", "events", "finished", "handler", "pending", "socket")

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.pending: bytes | memoryview = b""
        self.ended = False
        self.finished = False
        self.events = 0
        self.handler: Callable[[], None] = _nothing

    def flush(self) -> None:
        while self.pending:
            try:
                sent = self.socket.send(self.pending)
            except BlockingIOError:
                return
            self.pending = memoryview(self.pending)[sent:]

    def finish(self, source_ended: bool) -> None:
        """Pass the end of the other side on, once all that came before it is written."""
        if source_ended and not self.pending and not self.finished:
            self.finished = True
            with contextlib.suppress(OSError):  # the peer may be gone already
                self.socket.shutdown(socket.SHUT_WR)


class Opening:
    """Connects a client to the door; with `target` ("name:port") asks the gateway for a tunnel to it first."""

    def __init__(
        self, loop: Loop, client: socket.socket, door: str, target: str | None, on_close: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._client = client
        self._path = door
        self._target = target
        self._on_close = on_close
        self._tries = 0
        self._answer = b""
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._connect()

    def _connect(self) -> None:
        try:
            self._door.connect(self._path)
        except BlockingIOError:  # the queue at the door is full
            self._tries += 1
            if self._tries > DOOR_TRIES:
                self._give_up()
            else:
                self._loop.later(DOOR_RETRY_S, self._connect)
            return
        except OSError:
            self._give_up()
            return
        if self._target is None:
            Pipe(self._loop, self._client, self._door, self._on_close).start()
            return
        request = f"CONNECT {self._target} HTTP/1.1\r\nHost: {self._target}\r\n\r\n".encode("ascii")
        try:
            self._door.sendall(request)  # a new socket's buffer takes it whole
        except OSError:
            self._give_up()
            return
        self._loop.watch(self._door.fileno(), READ, self._read_answer)

    def _read_answer(self) -> None:
        try:
            data = self._door.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._answer += data
        head, end, rest = self._answer.partition(b"\r\n\r\n")
        if not end and data and len(self._answer) <= ANSWER_LIMIT:
            return
        self._loop.watch(self._door.fileno(), 0, self._read_answer)
        status = head.split(b" ", 2)[1:2]
        if end and status == [b"200"]:
            Pipe(self._loop, self._client, self._door, self._on_close).start(rest)
        elif end and self._target is not None and self._target.endswith(":80"):
            # The client speaks plain HTTP, so the refusal itself can be read by it.
            Pipe(self._loop, self._client, self._door, self._on_close).start(self._answer)
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._door.close()
        self._client.close()
        self._on_close()


def _nothing() -> None:
    """The handler of a side that is not watched yet."""
