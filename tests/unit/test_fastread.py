"""Reading straight from the socket: nothing is lost or read ahead, others get their turn, no other socket is read."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from impyard.addon.fastread import FastReader

MUCH = 100_000
BODY = os.urandom(3_000_001)


@asynccontextmanager
async def _connected(
    pair: tuple[socket.socket, socket.socket] | None = None,
) -> AsyncIterator[tuple[FastReader, asyncio.StreamReader, asyncio.Transport, socket.socket]]:
    """A reader that has just read much, its parts, and the other side, whose calls do not wait."""
    here, there = pair or socket.socketpair()
    with here, there:
        there.setblocking(False)
        stream, writer = await asyncio.open_connection(sock=here)
        transport = cast(asyncio.Transport, writer.transport)
        reader = FastReader(stream, transport)
        there.sendall(bytes(MUCH))
        taken = await reader.read(MUCH)
        assert len(taken) == MUCH
        yield reader, stream, transport, there
        transport.abort()


async def _all_of(reader: FastReader, count: int = 1 << 18) -> bytes:
    found = bytearray()
    while data := await reader.read(count):
        assert len(data) <= count
        found += data
    return bytes(found)


async def _whole(count: int) -> bytes:
    async with _connected() as (reader, _, _, there):
        found = asyncio.create_task(_all_of(reader, count))
        await asyncio.get_running_loop().sock_sendall(there, BODY)
        there.shutdown(socket.SHUT_WR)
        return await found


@pytest.mark.parametrize("count", [1 << 18, MUCH, 1000])
def test_much_comes_whole_and_in_order_to_its_end(count: int) -> None:
    assert asyncio.run(_whole(count)) == BODY


async def _behind_much() -> None:
    async with _connected() as (reader, stream, transport, there):
        there.sendall(b"x" * MUCH)
        assert await reader.read(1 << 18) == b"x" * MUCH
        there.sendall(b"waits")
        await asyncio.sleep(0)
        assert not transport.is_reading() and not vars(stream)["_buffer"]
        assert await reader.read(1 << 18) == b"waits"


def test_behind_much_nothing_is_read_ahead() -> None:
    asyncio.run(_behind_much())


async def _little_later() -> None:
    async with _connected() as (reader, _, transport, there):
        later = asyncio.create_task(reader.read(1 << 18))
        for _ in range(5):
            await asyncio.sleep(0)
        assert transport.is_reading()
        there.sendall(b"little")
        assert await later == b"little"
        there.close()
        assert await reader.read(1 << 18) == b""


def test_what_comes_later_is_waited_for() -> None:
    asyncio.run(_little_later())


async def _turns() -> int:
    async with _connected() as (reader, _, _, there):
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        running = asyncio.create_task(other())
        for _ in range(20):
            there.sendall(bytes(MUCH))
            assert len(await reader.read(MUCH)) == MUCH
        running.cancel()
        return turns


def test_others_get_a_turn_between_two_reads_of_what_is_there() -> None:
    assert asyncio.run(_turns()) >= 19


async def _reset() -> bool:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    here.setblocking(False)
    async with _connected((here, there)) as (reader, _, transport, _):
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        there.close()
        with pytest.raises(ConnectionResetError):
            await reader.read(1 << 18)
        return transport.is_closing()


def test_a_connection_that_breaks_is_an_error_and_is_over() -> None:
    assert asyncio.run(_reset())


async def _closed_meanwhile() -> bytes:
    async with _connected() as (reader, _, transport, _):
        number = transport.get_extra_info("socket").fileno()
        pending = asyncio.create_task(reader.read(1 << 18))
        await asyncio.sleep(0)  # it waits for its turn
        transport.abort()
        other, its_peer = socket.socketpair()
        with other, its_peer:
            other.sendall(b"of somebody else")
            os.dup2(its_peer.fileno(), number)  # as a new connection may have it
            return await pending


def test_a_closed_connection_does_not_read_what_has_its_descriptor_now() -> None:
    assert asyncio.run(_closed_meanwhile()) == b""
