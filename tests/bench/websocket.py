"""How much longer a message of a WebSocket takes there and back through the gateway than without it."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Iterator

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Request

from tests.bench.bed import Bed, Target
from tests.bench.client import BLOCK_BYTES, HOST, open_tls
from tests.bench.plan import Plan
from tests.bench.rounds import alternate, spread
from tests.bench.table import Row

SIZES = (64, 64 * 1024)
TRIPS = 100
AT_MOST_MS = 3.0


def measure(plan: Plan) -> Iterator[Row]:
    """The median round trip of a round, less that of the same round without a proxy."""
    with Bed() as bed, bed.gateway() as gateway:
        for size in SIZES:
            trip = functools.partial(round_trip_ms, size=size)
            trip(gateway)
            ours, straight = alternate([gateway, bed.direct()], plan.rounds, trip)
            more = spread([a - b for a, b in zip(ours, straight, strict=True)])
            yield Row(
                f"WebSocket, {size} bytes there and back, more than direct",
                f"{more.median:.2f} ms",
                more.text(".2f"),
                f"<= {AT_MOST_MS:.0f} ms",
                more.median <= AT_MOST_MS,
                f"{spread(ours).median:.2f} and {spread(straight).median:.2f} ms; {TRIPS} messages a round",
            )


def round_trip_ms(target: Target, size: int) -> float:
    """The median of some round trips on one WebSocket. Raises OSError when the echo is another one."""
    took = []
    message = bytes(size)
    with open_tls(target.way) as connection:
        end = WSConnection(ConnectionType.CLIENT)
        connection.sendall(end.send(Request(host=f"{HOST}:{target.way.port}", target="/echo")))
        while not any(isinstance(event, AcceptConnection) for event in end.events()):
            _hear(connection, end)
        for _ in range(TRIPS):
            begin = time.perf_counter()
            connection.sendall(end.send(BytesMessage(message)))
            if _answer(connection, end) != size:
                raise OSError("the echo is another one")
            took.append(time.perf_counter() - begin)
    return spread(took).median * 1000


def _answer(connection: socket.socket, end: WSConnection) -> int:
    heard = 0
    while True:
        _hear(connection, end)
        for event in end.events():
            if isinstance(event, BytesMessage):
                heard += len(event.data)
                if event.message_finished:
                    return heard


def _hear(connection: socket.socket, end: WSConnection) -> None:
    data = connection.recv(BLOCK_BYTES)
    if not data:
        raise OSError("the WebSocket was cut")
    end.receive_data(data)
