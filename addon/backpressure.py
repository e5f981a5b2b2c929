"""Bounds on what one connection may keep in memory: a reader stands still while too much of what it read waits.

mitmproxy reads on while a layer waits (for an origin to come up) and while an HTTP/2 peer grants no window; both would
store whatever comes.
"""

from __future__ import annotations

import asyncio

from impyard.addon.limits import DEFAULTS


class Gate:
    """Counts bytes that wait for somebody. `passed` returns once they are few enough."""

    def __init__(self, limit: int = DEFAULTS.waiting_bytes) -> None:
        self._limit = limit
        self._waiting = 0
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
    gate of the origin whose answer the box does not take; the other origins are read on.
    """

    def __init__(self, limit: int = DEFAULTS.waiting_bytes) -> None:
        self.uploads = Gate(limit)
        self.stalled: dict[int, Gate] = {}


class GatedReader:
    """A stream reader that waits at a gate before each read."""

    def __init__(self, reader: asyncio.StreamReader, gate: Gate) -> None:
        self._reader = reader
        self._gate = gate

    async def read(self, count: int) -> bytes:
        await self._gate.passed()
        return await self._reader.read(count)
