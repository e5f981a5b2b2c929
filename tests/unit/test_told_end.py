"""The layers hear of the end of each connection, also of one whose reader is cancelled while its turn has not come."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import cast

import pytest
from mitmproxy import options as moptions
from mitmproxy.connection import ConnectionState, Server
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.server import ConnectionIO

from impyard.addon.backpressure import Lane
from impyard.addon.dialing import Dialer
from impyard.addon.doorconnection import DoorConnection, DoorMode
from impyard.addon.limits import DEFAULTS


class _Told:
    """Stands where the layers are: remembers what they are told."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def handle_event(self, event: events.Event) -> Iterator[commands.Command]:
        self.events.append(event)
        return iter(())


async def _cancelled_before_its_turn(said: bytes) -> tuple[list[events.Event], DoorConnection, Server]:
    """What is told of an origin that says so much and leaves, when it is given up while others have their turn."""
    ours, theirs = socket.socketpair()
    near, far = socket.socketpair()
    mode = DoorMode(full_spec="door:r1", data="r1", custom_listen_host=None, custom_listen_port=None)
    with theirs, far:
        box = await asyncio.open_connection(sock=ours)
        reader, writer = await asyncio.open_connection(sock=near)
        dialer, lane = Dialer(DEFAULTS, lambda: None), Lane(DEFAULTS)
        door, told = DoorConnection(*box, moptions.Options(), mode, {}, DEFAULTS, dialer, lane), _Told()
        door.layer = cast(layer.Layer, told)
        origin = Server(address=("a.test", 443))
        origin.state = ConnectionState.OPEN
        door.transports[origin] = ConnectionIO(reader=reader, writer=writer)
        turn = vars(door)["_server_event_lock"]
        await turn.acquire()
        reading = asyncio.create_task(door.handle_connection(origin))
        far.sendall(said)
        far.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(5):
            while not vars(turn)["_waiters"]:
                await asyncio.sleep(0)
        reading.cancel("cannot send")
        await asyncio.sleep(0)
        turn.release()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(reading, 5)
        box[1].close()
        return told.events, door, origin


@pytest.mark.parametrize("said", [b"some bytes", b""], ids=["its bytes", "its end"])
def test_the_end_of_a_connection_is_told_that_was_cancelled_while_something_of_it_waited(said: bytes) -> None:
    told, door, origin = asyncio.run(_cancelled_before_its_turn(said))
    assert [type(event) for event in told] == [events.ConnectionClosed]
    assert origin.state is ConnectionState.CLOSED
    assert origin not in door.transports
