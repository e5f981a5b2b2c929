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

from impyard.addon.destination import carrier
from impyard.addon.fastread import FastReader
from impyard.addon.limits import DEFAULTS, Limits
from impyard.addon.turns import Bucket

_LOOK_S = 0.25
_RECORD = 16 * 1024 + 512  # of TLS (RFC 8446, 5.2), with what is around it
# How much is read at once: at first, at most, and at least where it turns out to cost much. In CPU seconds of one read:
# what is much, and what is little.
_FIRST_READ, _MOST_READ, _LEAST_READ = 2048, 256 * 1024, 128
# The most of what may change from large to tiny frames in the middle: one read of those takes four times as long.
_MOST_OF_FRAMES = 64 * 1024
_COSTLY_S, _CHEAP_S = 0.005, 0.002
# What one request, or one answer, may cost more: some three times the usual, as a busy machine makes all cost more.
_MESSAGE_S = 0.0015
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

    messages: how many requests, or answers, have begun in what was read so far, in HTTP of either version, less those
    that were cancelled. Not the messages of a WebSocket: nothing limits how many of them come.
    opened: False if the last read was a part of a record of TLS, which says nothing about what is in there.
    """

    def __init__(self, limit: int = DEFAULTS.waiting_bytes) -> None:
        self._limit = limit
        self._waiting = 0
        self.most_read = _MOST_READ  # of whom it holds back, at once
        self.messages = 0
        self.opened = True
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

    A frame of nine bytes may cost as much as a whole request. Without this, a few connections full of them would take
    the loop for seconds at a time; with it, all of them together take a third of it, in small pieces.

    Invariant: what a read cost is held against what it brought, and nothing else counts: not what the loop did for
    other connections in between. Above `_COSTLY_S` (or as much for each 64 KiB) it is excused only by requests or
    answers that began in it, each for `_MESSAGE_S`. Messages that excuse something, or take a connection out of the
    lane, are counted for all connections together, and no more of them count than requests may be decided. So whoever
    puts costly bytes between cheap requests gets three tenths of the loop for it at most (after a start of one and a
    half seconds), with what the requests cost in it. Reads below `_COSTLY_S` take turns with those of everybody.
    """

    def __init__(self, limits: Limits = DEFAULTS) -> None:
        self._lock = asyncio.Lock()
        self._excuses = Bucket(limits.decisions, limits.decisions_per_s)

    async def enter(self) -> None:
        await self._lock.acquire()

    def leave(self, rest_s: float) -> None:
        """The next one may enter after a rest of that many seconds."""
        asyncio.get_running_loop().call_later(rest_s, self._lock.release)

    def excuses(self, messages: int) -> bool:
        """Whether that many messages count: some do, and not too many did lately."""
        if not messages or self._excuses.wait_s():
            return False
        self._excuses.spend(messages)
        return True


def _has_left(descriptor: int) -> bool:
    """Whether the other side of a socket closed it, not only its own sending half."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


def gate_of_client(client: Connection) -> Gate | None:
    """The gate that holds a client back; None for a client of other people's mitmproxy."""
    gates: Gates | None = getattr(client, "gates", None)
    return gates.uploads if gates is not None else None


def gate_of_origin(origin: Connection) -> Gate | None:
    """The gate that holds an origin back, or the proxy in front of it."""
    gate: Gate | None = vars(carrier(origin)).get("gate")
    return gate


def note_frames(gate: Gate | None) -> None:
    """Say that frames come through a gate, each of which costs: less is read at once."""
    if gate is not None:
        gate.most_read = _MOST_OF_FRAMES


def note_unopened(gate: Gate | None) -> None:
    """Say that nothing of what came through a gate could be looked at yet."""
    if gate is not None:
        gate.opened = False


def note_message(gate: Gate | None) -> None:
    """Say that a request, or an answer, has begun in what came through a gate."""
    if gate is not None:
        gate.messages += 1


def note_cancelled(gate: Gate | None) -> None:
    """Say that a request that came through a gate was taken back: it excuses nothing, being free to make."""
    if gate is not None:
        gate.messages -= 1


class GatedReader:
    """A stream reader that waits at a gate before each read, and reads the less the more its bytes cost."""

    def __init__(
        self,
        reader: asyncio.StreamReader | FastReader,
        gate: Gate,
        lane: Lane,
        peer: int,
        gone: Callable[[], None],
        aside: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`peer`: the descriptor of the socket, to notice that the other side left while it is not read.

        gone: called at an end after which the other side reads no more either, where the kernel can tell. aside:
        how much CPU time was spent so far, beside its reads, on what this client sent or is to get.
        """
        self._reader = reader
        self._peer = peer
        self._gone = gone
        self._aside = aside
        self._aside_s = 0.0  # when data was read
        self._gate = gate
        self._lane = lane
        self._size = _FIRST_READ
        self._is_costly = False
        self._began = 0.0
        self._read = 0  # by the last read
        self._was_full = False
        self._messages = 0  # when the work on that began
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
        self._read, self._was_full = len(data), len(data) >= self._size
        self._aside_s = self._aside()
        self.begin()
        return data

    def begin(self) -> None:
        """The work on what was read begins: what the loop did since then was mostly the work of others."""
        self._messages = self._gate.messages
        self._gate.opened = True
        self._began = time.thread_time()

    def done(self) -> None:
        """What was read has been worked on."""
        took = time.thread_time() - self._began + self._aside() - self._aside_s
        messages = max(self._gate.messages - self._messages, 0)
        if took > _COSTLY_S:
            self._size = max(_LEAST_READ, self._size // 4)
            self._is_costly = not self._is_excused(took, messages)
        else:
            full = took < _CHEAP_S and self._was_full  # of a few bytes nothing is learned about many
            cheap = full and self._gate.opened
            if full:
                # The work on a record of TLS begins when all of it is there, however small the pieces are: up to that
                # a read may grow unseen.
                most = self._gate.most_read if cheap else max(self._size, _RECORD)
                self._size = min(self._gate.most_read, most, self._size * 2)
            if self._is_costly and ((cheap and self._size >= _FIRST_READ) or self._lane.excuses(messages)):
                self._is_costly = False
        self.leave(took)  # with a rest after cheap ones, too: half of a flood's reads are cheap, being small

    def _is_excused(self, took: float, messages: int) -> bool:
        """Whether a read that took over `_COSTLY_S` is no reason to enter the lane, or to stay there."""
        if took <= _COSTLY_S * self._read / _MOST_OF_FRAMES:
            return True
        return took <= _COSTLY_S + _MESSAGE_S * messages and self._lane.excuses(messages)

    def leave(self, took_s: float = 0.0) -> None:
        """Leave the lane, if it is ours."""
        if self._in_lane:
            self._in_lane = False
            self._lane.leave(_REST * took_s)
