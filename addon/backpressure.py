"""Bounds on what one connection may keep in memory: a reader stands still while too much of what it read waits.

mitmproxy reads on while a layer waits (for an origin to come up) and while an HTTP/2 peer grants no window; both would
store whatever comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from collections.abc import Callable

from mitmproxy.connection import Connection

from impyard.addon.limits import DEFAULTS

_LOOK_S = 0.25
# How much is read at once: at first, at most, and at least where it turns out to cost much. In CPU seconds of one read:
# what is much, and what is little.
_FIRST_READ, _MOST_READ, _LEAST_READ = 2048, 256 * 1024, 128
# The most of what may change from large to tiny frames in the middle: one read of those takes four times as long.
_MOST_OF_FRAMES = 64 * 1024
_COSTLY_S, _CHEAP_S = 0.005, 0.002
# How long the lane rests after a costly read, by what that took: a third of the loop's time is left to all of them.
_REST = 2
# A piece that passes is held in several forms at once, all together some 2 MiB.
_FREED = 2 * 1024 * 1024


def keep_what_is_freed() -> None:
    """Have the C library keep up to twice `_FREED` of unused memory, instead of asking the kernel again and again.

    glibc takes the size of a large block that is freed for what is needed time and again (mallopt(3), "dynamic mmap
    threshold"); a block that is not written to costs nothing. Without this a fast transfer gives its memory back with
    each piece, and takes a third longer. Elsewhere it does nothing.
    """
    bytes(_FREED)


class Gate:
    """Counts bytes that wait for somebody. `passed` returns once they are few enough.

    messages: how many requests, or answers, have begun in what was read so far.
    """

    def __init__(self, limit: int = DEFAULTS.waiting_bytes) -> None:
        self._limit = limit
        self._waiting = 0
        self.most_read = _MOST_READ  # of whom it holds back, at once
        self.messages = 0
        self.heads = 0  # of HTTP/1, where a message has the connection to itself
        self._open = asyncio.Event()
        self._open.set()

    def set(self, waiting: int) -> None:
        """That many bytes wait now."""
        self._waiting = waiting
        if waiting > self._limit:
            self._open.clear()
        else:
            self._open.set()

    @property
    def is_open(self) -> bool:
        """Whether what waits is within the limit."""
        return self._open.is_set()

    def add(self, count: int) -> None:
        """`count` more (or, if negative, fewer) bytes wait."""
        self.set(self._waiting + count)

    async def passed(self) -> None:
        await self._open.wait()


class Gates:
    """The gates of a client's connection.

    uploads: what the box sent and no origin took yet; the box is then read no further. stalled: by HTTP/2 stream, the
    gate of the origin whose answer the box does not take; the other origins are read on. later: bytes of requests
    behind the one in progress, in HTTP/1.
    """

    def __init__(self, limit: int = DEFAULTS.waiting_bytes) -> None:
        self.uploads = Gate(limit)
        self.stalled: dict[int, Gate] = {}
        self.later = 0


class Lane:
    """One at a time: those whose bytes cost much go through here, with a rest after each.

    Not for what requests cost, of which HTTP/2 may bring several in one read: turns are there for these.

    A frame of nine bytes may cost as much as a whole request. Without this, a few connections full of them would take
    the loop for seconds at a time; with it, all of them together take a third of it, in small pieces.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def enter(self) -> None:
        await self._lock.acquire()

    def leave(self, rest_s: float) -> None:
        """The next one may enter after a rest of that many seconds."""
        asyncio.get_running_loop().call_later(rest_s, self._lock.release)


def _has_left(descriptor: int) -> bool:
    """Whether the other side of a socket closed it, not only its own sending half."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def note_frames(client: Connection, origin: Connection | None = None) -> None:
    """Say that frames come from a client, or from an origin, each of which costs: less is read at once."""
    gates = getattr(client, "gates", None)
    gate = vars(origin).get("gate") if origin is not None else gates.uploads if gates is not None else None
    if gate is not None:
        gate.most_read = _MOST_OF_FRAMES


class GatedReader:
    """A stream reader that waits at a gate before each read, and reads the less the more its bytes cost."""

    def __init__(
        self, reader: asyncio.StreamReader, gate: Gate, lane: Lane, peer: int, gone: Callable[[], None]
    ) -> None:
        """`peer`: the descriptor of the socket, to notice that the other side left while it is not read.

        gone: called at an end after which the other side reads no more either, where the kernel can tell.
        """
        self._reader = reader
        self._peer = peer
        self._gone = gone
        self._gate = gate
        self._lane = lane
        self._size = _FIRST_READ
        self._is_costly = False
        self._began = 0.0
        self._was_full = False
        self._messages = self._heads = 0  # when the last read began
        self._in_lane = False
        self.listens = False  # whether it is the other side that is waited for

    async def read(self, count: int) -> bytes:
        """Some bytes, b"" at the end. `done` is called when they have been worked on.

        count: what the core asks for; it takes as much as it gets, and large pieces cost less.

        Raises ConnectionResetError when the other side leaves while the gate is closed: nobody wants what waits.
        """
        while not self._gate.is_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._gate.passed()
            if not self._gate.is_open and _has_left(self._peer):
                self._gone()
                raise ConnectionResetError
        self.listens = True
        try:
            self._size = min(self._size, self._gate.most_read)
            data = await self._reader.read(self._size)
        except OSError:
            self._gone()  # reset: whoever left did so with something unread
            raise
        finally:
            self.listens = False
        if not data and _has_left(self._peer):
            self._gone()
        if self._is_costly and data:
            await self._lane.enter()
            self._in_lane = True
        self._was_full = len(data) >= self._size
        self._messages, self._heads = self._gate.messages, self._gate.heads
        self._began = time.thread_time()
        return data

    def done(self) -> None:
        """What was read has been worked on."""
        took = time.thread_time() - self._began
        if took > _COSTLY_S:
            self._is_costly = took > _COSTLY_S * max(1, self._gate.messages - self._messages)
            self._size = max(_LEAST_READ, self._size // 4)
        elif took < _CHEAP_S and self._was_full:  # of a few bytes nothing is learned about many
            self._size = min(self._gate.most_read, self._size * 2)
            self._is_costly = self._is_costly and self._size < _FIRST_READ
        elif took < _CHEAP_S and self._is_costly and self._gate.heads > self._heads:
            # Costly was the handshake, say: small messages, which fill no read, would stay in the lane for ever.
            self._size = min(_FIRST_READ, self._size * 2)
            self._is_costly = self._size < _FIRST_READ
        self.leave(took)

    def leave(self, took_s: float = 0.0) -> None:
        """Leave the lane, if it is ours."""
        if self._in_lane:
            self._in_lane = False
            self._lane.leave(_REST * took_s)
