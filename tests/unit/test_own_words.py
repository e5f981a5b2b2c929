"""Whoever does not take what the gateway itself says to it, is read no further: the box, and an origin as well."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest
from mitmproxy import options as moptions
from mitmproxy.connection import Connection, Server
from mitmproxy.proxy.server import ConnectionIO

from impyard.addon.backpressure import Gate, GatedReader, Lane
from impyard.addon.dialing import Dialer
from impyard.addon.doorconnection import DoorConnection, DoorMode
from impyard.addon.limits import Limits

LIMITS = Limits(waiting_bytes=64 * 1024)


async def _is_read_on(of_the_box: bool, said: int) -> tuple[bool, bool]:
    """Whether a side is read on after so many bytes of ours that it did not take, and whether it is once it has."""
    ours, theirs = socket.socketpair()
    near, far = socket.socketpair()
    mode = DoorMode(full_spec="door:r1", data="r1", custom_listen_host=None, custom_listen_port=None)
    dialer, lane = Dialer(LIMITS, lambda: None), Lane(LIMITS)
    with theirs, far:
        reader, writer = await asyncio.open_connection(sock=near if of_the_box else ours)
        other_reader, other = await asyncio.open_connection(sock=ours if of_the_box else near)
        box = (reader, writer) if of_the_box else (other_reader, other)
        door = DoorConnection(*box, moptions.Options(), mode, {}, LIMITS, dialer, lane)
        origin = Server(address=("a.test", 443))
        door.transports[origin] = ConnectionIO(
            reader=other_reader if of_the_box else reader, writer=other if of_the_box else writer
        )
        source: Connection = door.client if of_the_box else origin
        gated = GatedReader(reader, Gate(), lane, writer.get_extra_info("socket").fileno(), lambda: None)
        cast(dict[Any, Any], door._reads)[asyncio.current_task()] = source, gated
        writer.write(bytes(said))
        work = asyncio.ensure_future(_drained(door, asyncio.current_task()))
        done, _ = await asyncio.wait([work], timeout=0.2)
        peer = far if of_the_box else theirs
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        left = said
        while left:
            left -= len(await loop.sock_recv(peer, 1 << 20))
        await asyncio.wait_for(work, 5)
        for each in (writer, other):
            each.close()
        return bool(done), work.done()


async def _drained(door: DoorConnection, reading: asyncio.Task[Any] | None) -> None:
    reads = cast(dict[Any, Any], door._reads)
    reads[asyncio.current_task()] = reads[reading]
    await door.drain_writers()


@pytest.mark.parametrize("of_the_box", [True, False], ids=["box", "origin"])
@pytest.mark.parametrize(("said", "at_once"), [(1000, True), (4 << 20, False)], ids=["a little", "too much"])
def test_who_does_not_listen_is_read_no_further(of_the_box: bool, said: int, at_once: bool) -> None:
    assert asyncio.run(_is_read_on(of_the_box, said)) == (at_once, True)
