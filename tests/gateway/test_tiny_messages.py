"""Messages of a WebSocket that are nearly nothing, by the thousand: what is not taken waits where it came from."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import wsproto
import wsproto.events

from tests.bench.processes import cpu_s
from tests.gateway.conftest import Bed
from tests.gateway.test_bounds import push
from tests.gateway.test_protocols import WebSocket
from tests.support.origin import Seen

pytestmark = pytest.mark.gateway

ONE_BYTE = b"\x82\x81\x00\x00\x00\x00x"
NO_BYTE = b"\x82\x80\x00\x00\x00\x00"
THREE_FRAGMENTS = b"\x02\x81\x00\x00\x00\x00x\x00\x80\x00\x00\x00\x00\x80\x81\x00\x00\x00\x00x"
PING = b"\x89\x81\x00\x00\x00\x00x"
OF_THE_ORIGIN = b"\x82\x01x"
COUNT = 2_000_000
# The smallest of so many have six million bytes in all. What is kept is what one piece holds, and buffers.
BOUND_KIB = 4 * 1024
# What the gateway does between an honest request and its answer: three pieces of a flood, and the request.
HONEST_CPU_S = 0.8


def accepted(seen: Seen) -> bytes:
    protocol = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
    protocol.receive_data(seen.head)
    list(protocol.events())
    return protocol.send(wsproto.events.AcceptConnection())


def deaf(connection: socket.socket, seen: Seen) -> None:
    """Takes nothing for as long as a test lasts."""
    connection.sendall(accepted(seen))
    time.sleep(5)


def eats(connection: socket.socket, seen: Seen) -> None:
    connection.sendall(accepted(seen))
    with contextlib.suppress(OSError):
        while connection.recv(1 << 18):
            pass


@contextlib.contextmanager
def measured(bed: Bed) -> Iterator[None]:
    """That the peak of the gateway's memory grows by no more than the bound, and an honest request is answered soon."""
    assert bed.gateway.get("https://a.test/pub/x").status == 200
    before = bed.gateway.peak_from_now()
    yield
    started = cpu_s(bed.gateway.process.pid)
    assert bed.gateway.get("https://a.test/pub/x").status == 200
    assert cpu_s(bed.gateway.process.pid) - started < HONEST_CPU_S
    assert bed.gateway.memory_kib() - before < BOUND_KIB


@pytest.mark.attack("F16", "F23", "127")
@pytest.mark.parametrize("origin", [deaf, eats])
@pytest.mark.parametrize(
    "message", [ONE_BYTE, NO_BYTE, THREE_FRAGMENTS, PING], ids=["one byte", "no byte", "three fragments", "pings"]
)
def test_tiny_messages_of_the_box_wait_outside(
    own_bed: Bed, message: bytes, origin: Callable[[socket.socket, Seen], None]
) -> None:
    own_bed.a.answers["/pub/duplex"] = origin
    client = WebSocket(own_bed, "/pub/duplex")
    assert client.status == 101
    with measured(own_bed):
        total, until = COUNT * len(message), time.monotonic() + 3
        sent = 0
        client.socket.settimeout(0.5)
        with contextlib.suppress(OSError):
            while sent < total and time.monotonic() < until:
                sent += client.socket.send(message * 5000)
        assert sent < total
    client.socket.close()


@pytest.mark.attack("F16", "F23")
@pytest.mark.parametrize("reads", [True, False], ids=["that reads", "that does not"])
def test_tiny_messages_of_an_origin_wait_outside(own_bed: Bed, reads: bool) -> None:
    sent = []

    def spews(connection: socket.socket, seen: Seen) -> None:
        connection.sendall(accepted(seen))
        sent.append(push(connection, OF_THE_ORIGIN * 5000, COUNT * len(OF_THE_ORIGIN)))

    own_bed.a.answers["/pub/duplex"] = spews
    client = WebSocket(own_bed, "/pub/duplex")
    with measured(own_bed):
        until = time.monotonic() + 3
        client.socket.settimeout(0.2)
        while time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                if not reads or not client.socket.recv(1 << 16):
                    time.sleep(0.2)
    client.socket.close()


def test_as_many_as_come_are_passed_on_whole_and_in_order(own_bed: Bed) -> None:
    frames = [bytes([0x82, 0x81, 0, 0, 0, 0, number % 251]) for number in range(3000)]
    got = bytearray()

    def echoes(connection: socket.socket, seen: Seen) -> None:
        connection.sendall(accepted(seen))
        protocol = wsproto.connection.Connection(wsproto.connection.ConnectionType.SERVER)
        while len(got) < len(frames):
            protocol.receive_data(connection.recv(1 << 16))
            for event in protocol.events():
                assert isinstance(event, wsproto.events.BytesMessage)
                got.extend(event.data)
        connection.sendall(protocol.send(wsproto.events.BytesMessage(b"all")))

    own_bed.a.answers["/pub/duplex"] = echoes
    client = WebSocket(own_bed, "/pub/duplex")
    client.socket.sendall(b"".join(frames))
    while not client.received:
        client.read()
    assert client.received == b"all"
    assert bytes(got) == bytes(number % 251 for number in range(3000))
    client.close()
