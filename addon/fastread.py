"""Reading a connection: by asyncio, and straight from the socket while much comes.

asyncio's reader takes two rounds of the loop for each piece, and copies it twice. It must not know what the bytes are.
"""

from __future__ import annotations

import asyncio
import os
import socket

# Behind a piece of that size the next one is there already, or soon. Usual requests are smaller.
_MUCH = 64 * 1024


class FastReader:
    """Stands in for the stream reader of a connection that nobody else reads. transport: what feeds it."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.Transport) -> None:
        self._reader = reader
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._comes_much = False
        self._is_paused = False  # by us; invariant: the reader holds nothing then

    async def read(self, count: int) -> bytes:
        """Some bytes, `count` at most, b"" at the end. Raises OSError when the connection broke."""
        data = b""
        if self._comes_much and self._paused():
            await asyncio.sleep(0)  # others get their turn
            data = self._straight(count)
        if not data:
            self._resume()
            data = await self._reader.read(count)
        self._comes_much = len(data) >= _MUCH
        return data

    def _straight(self, count: int) -> bytes:
        """What is in the socket; b"" when that is nothing, or its end, which asyncio finds, too."""
        if self._transport.is_closing():
            return b""
        try:
            # Of a socket that was closed this is -1, not a number that another connection may have by then.
            return os.read(self._socket.fileno(), count)
        except BlockingIOError:
            return b""
        except OSError:
            self._transport.abort()  # as asyncio does
            raise

    def _paused(self) -> bool:
        """Have asyncio read no more; whether it does not, and has handed on all that it has read."""
        if not self._is_paused and not vars(self._reader)["_buffer"] and self._transport.is_reading():
            self._transport.pause_reading()
            self._is_paused = True
        return self._is_paused

    def _resume(self) -> None:
        if self._is_paused:
            self._transport.resume_reading()
            self._is_paused = False
