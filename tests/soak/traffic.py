"""A gateway that serves very many requests: flat memory, flat descriptors, and a whole log at the end."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import wsproto
import wsproto.events

from impyard.addon.decisions import verify
from tests.bench.bed import Bed as Origins
from tests.bench.client import HOST
from tests.bench.table import Row
from tests.soak.bed import verdict
from tests.soak.plan import Plan
from tests.support.gateway import LiveGateway
from tests.support.origin import Origin

# How much more the gateway may have than after the first step, which fills its caches.
BAND_MIB = 16.0
BAND_FILES = 8
IDLE_LIMIT_S = 30.0
LANES = 8
NEW_EVERY = 50  # so many requests on kept connections for one on a new connection
DENIED_EVERY = 4
BIG = 64 * 1024 * 1024
PART = 2 * 1024 * 1024

POLICY = """\
networkPolicies:
  - host: {host}
    port: {port}
    upstream: https://127.0.0.1:{port}
    upstream_ca: {ca}
    policies:
      - {{action: ALLOW, method: [GET, POST], path: '/(small|bytes/[0-9]+|sink)'}}
  - host: ws.test
    upstream: http://127.0.0.1:{ws}
    policies:
      - {{action: ALLOW, method: GET, path: /pub/ws, websocket: true}}
"""


@dataclass(frozen=True, slots=True)
class Size:
    """What the gateway's process holds: resident memory in MiB, open files."""

    mib: float
    files: int


class Traffic:
    """A gateway and clients of every kind. `made` counts the requests, `wrong` is what was not as it must be."""

    def __init__(self, gateway: LiveGateway, port: int) -> None:
        self.gateway = gateway
        self.port = port
        self.made = 0
        self.wrong: list[str] = []
        self._lanes: list[ssl.SSLSocket] = []

    def size(self) -> Size:
        """After the gateway has become idle: what is still on its way out is no leak."""
        pid = self.gateway.process.pid
        files, since = -1, time.monotonic()
        deadline = since + IDLE_LIMIT_S
        while time.monotonic() < min(deadline, since + 1.0):
            if (now := len(os.listdir(f"/proc/{pid}/fd"))) != files:
                files, since = now, time.monotonic()
            time.sleep(0.05)
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
        return Size(kib / 1024, files)

    # -- HTTP/1.1 -----------------------------------------------------------------------------------------------------

    def kept(self, count: int) -> None:
        """Requests on connections that are kept, one of DENIED_EVERY denied; now and then one on a new connection."""
        good, bad = self._head("GET", "/small"), self._head("GET", "/denied")
        while len(self._lanes) < LANES:
            self._lanes.append(self._tls())
        left = dict.fromkeys(range(LANES), count // LANES)
        poll = select.epoll()
        lanes = {lane.fileno(): number for number, lane in enumerate(self._lanes)}
        sent = [0] * LANES
        buffers = [b""] * LANES
        for lane in self._lanes:
            lane.settimeout(30)
            poll.register(lane.fileno(), select.EPOLLIN)
            lane.sendall(good)
        try:
            while left:
                events = poll.poll(30)
                if not events:
                    raise OSError("the gateway does not answer any more")
                for file, _ in events:
                    number = lanes[file]
                    buffers[number] += self._lanes[number].recv(65536)
                    status, whole = _answer(buffers[number])
                    if not whole:
                        continue
                    buffers[number] = b""
                    was_denied = sent[number] % DENIED_EVERY == DENIED_EVERY - 1
                    self._expect(status, 403 if was_denied else 200, "on a kept connection")
                    sent[number] += 1
                    left[number] -= 1
                    if self.made % NEW_EVERY == 0:
                        self.fresh(1)
                    if left[number] <= 0:
                        del left[number]
                        poll.unregister(file)
                        continue
                    will_be_denied = sent[number] % DENIED_EVERY == DENIED_EVERY - 1
                    self._lanes[number].sendall(bad if will_be_denied else good)
        finally:
            poll.close()

    def fresh(self, count: int) -> None:
        """Requests on connections of their own."""
        for _ in range(count):
            with self._tls() as connection:
                connection.sendall(self._head("GET", "/small"))
                self._expect(_read(connection), 200, "on a new connection")

    # -- HTTP/2 -------------------------------------------------------------------------------------------------------

    def streams(self, count: int, *, at_once: int = 16) -> None:
        """Requests on one HTTP/2 connection, some at the same time."""
        with self._tls("h2") as connection:
            protocol = _h2_client()
            open_streams: dict[int, int] = {}
            begun = ended = 0
            while ended < count:
                while begun < count and len(open_streams) < at_once:
                    stream = protocol.get_next_available_stream_id()
                    denied = begun % DENIED_EVERY == 0
                    open_streams[stream] = 403 if denied else 200
                    protocol.send_headers(stream, self._pseudo("/denied" if denied else "/small"), end_stream=True)
                    begun += 1
                connection.sendall(protocol.data_to_send())
                for event in _h2_events(connection, protocol):
                    if isinstance(event, h2.events.ResponseReceived):
                        self._expect(int(dict(event.headers)[b":status"]), open_streams[event.stream_id], "in HTTP/2")
                    elif isinstance(event, h2.events.StreamEnded):
                        del open_streams[event.stream_id]
                        ended += 1
                    elif isinstance(event, h2.events.StreamReset):
                        raise OSError(f"a stream was reset after {ended}")

    def half_aborted(self, count: int) -> None:
        """HTTP/2 connections with two requests each; every other one goes away in the middle of a body."""
        for number in range(count):
            with self._tls("h2") as connection:
                protocol = _h2_client()
                aborts = number % 2
                streams = (1, 3)
                protocol.send_headers(1, self._pseudo("/small"), end_stream=True)
                protocol.send_headers(3, self._pseudo(f"/bytes/{BIG}" if aborts else "/small"), end_stream=True)
                connection.sendall(protocol.data_to_send())
                pending = set(streams[: 1 if aborts else 2])
                while pending:
                    for event in _h2_events(connection, protocol):
                        if isinstance(event, h2.events.StreamEnded):
                            pending.discard(event.stream_id)
                self.made += len(streams)

    # -- bodies and WebSockets ----------------------------------------------------------------------------------------

    def transfers(self, count: int) -> None:
        """Downloads and uploads whose client goes away in the middle."""
        for number in range(count):
            with self._tls() as connection, contextlib.suppress(ConnectionError, ssl.SSLError):
                if number % 2:
                    connection.sendall(self._head("GET", f"/bytes/{BIG}"))
                    got = 0
                    while got < PART and (data := connection.recv(65536)):
                        got += len(data)
                else:
                    connection.sendall(self._head("POST", "/sink", BIG) + bytes(PART))
            self.made += 1

    def websockets(self, count: int) -> None:
        """WebSockets that echo some messages; every other one goes away without a word."""
        for number in range(count):
            with self.gateway.tls("ws.test") as connection:
                client = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
                connection.sendall(client.send(wsproto.events.Request(host="ws.test", target="/pub/ws")))
                echoes = 0
                while echoes < 3:
                    client.receive_data(connection.recv(65536) or None)
                    for event in client.events():
                        if isinstance(event, wsproto.events.AcceptConnection | wsproto.events.BytesMessage):
                            echoes += isinstance(event, wsproto.events.BytesMessage)
                            connection.sendall(client.send(wsproto.events.BytesMessage(bytes(1000))))
                        elif not isinstance(event, wsproto.events.Ping):
                            raise OSError(f"no WebSocket: {event}")
                if number % 2:
                    connection.sendall(client.send(wsproto.events.CloseConnection(1000)))
            self.made += 1

    def close(self) -> None:
        """Leave, and see that the log holds every request, in order and whole."""
        for lane in self._lanes:
            lane.close()
        self.gateway.stop()
        with (self.gateway.runs / "decisions.jsonl").open("rb") as log:
            lines = 0

            def counted() -> Iterator[bytes]:
                nonlocal lines
                for line in log:
                    lines += 1
                    yield line

            self.wrong += [f"the log, line {fault.line}: {fault.what}" for fault in list(verify(counted()))[:5]]
        if lines != self.made:
            self.wrong.append(f"{self.made} requests, but {lines} lines")
        words = self.gateway.stderr_path.read_text()  # that a handshake was cut short is a warning, and no fault
        if "Traceback" in words or " ERROR " in words:
            self.wrong.append(f"the gateway said: {words[:500]}")

    def _tls(self, *alpn: str) -> ssl.SSLSocket:
        return self.gateway.tls(HOST, self.port, alpn=alpn)

    def _head(self, method: str, path: str, length: int = 0) -> bytes:
        more = f"content-length: {length}\r\n" if length else ""
        return f"{method} {path} HTTP/1.1\r\nhost: {HOST}:{self.port}\r\nuser-agent: soak\r\n{more}\r\n".encode()

    def _pseudo(self, path: str) -> list[tuple[str, str]]:
        return [(":method", "GET"), (":scheme", "https"), (":authority", f"{HOST}:{self.port}"), (":path", path)]

    def _expect(self, status: int, wanted: int, where: str) -> None:
        self.made += 1
        if status != wanted and len(self.wrong) < 20:
            self.wrong.append(f"{status} instead of {wanted} {where}")


@contextlib.contextmanager
def traffic() -> Iterator[Traffic]:
    """A gateway with its origins."""
    with Origins() as origins:
        root = origins.folder / "soak"
        root.mkdir()
        sockets = Origin()
        policy = POLICY.format(host=HOST, port=origins.port, ca=origins.origin_ca, ws=sockets.port)
        gateway = LiveGateway(root, policy, ca=origins.folder / "ca")
        try:
            assert gateway.first.get("event") == "ready", (gateway.first, gateway.stderr_path.read_text())
            yield Traffic(gateway, origins.port)
        finally:
            gateway.kill()
            sockets.close()


def all_kinds(here: Traffic, plan: Plan) -> list[tuple[str, Size]]:
    """Every kind of traffic in the plan's amounts; what the gateway held after each step."""
    sizes: list[tuple[str, Size]] = []

    def note(what: str) -> None:
        sizes.append((what, size := here.size()))
        print(f"  {here.made:>9} requests, {what}: {size.mib:.1f} MiB, {size.files} files", file=sys.stderr, flush=True)

    def once(share: int) -> None:
        here.streams(plan.streams // share)
        here.half_aborted(plan.connections // share)
        here.transfers(plan.transfers // share)
        here.websockets(plan.transfers // share)

    here.kept(plan.step // 2)
    once(10)  # a bit of everything comes first: it fills what is filled once
    note("the first step")
    here.streams(plan.streams)
    note("HTTP/2 on one connection")
    here.half_aborted(plan.connections)
    note("HTTP/2 connections, half aborted")
    here.transfers(plan.transfers)
    note("transfers aborted")
    here.websockets(plan.transfers)
    note("WebSockets")
    while here.made < plan.requests:
        here.kept(min(plan.step, plan.requests - here.made))
        note("HTTP/1.1")
    return sizes


def outside_band(sizes: list[tuple[str, Size]]) -> list[str]:
    """The steps after which the gateway held more than it may."""
    _, first = sizes[0]
    return [
        f"{what}: {size.mib:.1f} MiB, {size.files} files, after the first step {first.mib:.1f} MiB, {first.files} files"
        for what, size in sizes[1:]
        if size.mib > first.mib + BAND_MIB or size.files > first.files + BAND_FILES
    ]


def measure(plan: Plan) -> Iterator[Row]:
    """One gateway for all of it."""
    began = time.monotonic()
    with traffic() as here:
        sizes = all_kinds(here, plan)
        here.close()
    wrong = here.wrong + outside_band(sizes)
    memory, files = [size.mib for _, size in sizes], [size.files for _, size in sizes]
    yield verdict(
        "requests through one gateway",
        str(here.made),
        wrong,
        f"+{BAND_MIB:.0f} MiB, +{BAND_FILES} files",
        f"{here.made / (time.monotonic() - began):.0f}/s; the log verifies",
    )
    yield Row("  its memory in MiB", f"{memory[-1]:.1f}", f"{min(memory):.1f}-{max(memory):.1f}")
    yield Row("  its open files", str(files[-1]), f"{min(files)}-{max(files)}")


def _answer(buffer: bytes) -> tuple[int, bool]:
    """Status of the answer in a buffer, and whether it is whole."""
    head, empty, body = buffer.partition(b"\r\n\r\n")
    if not empty:
        return 0, False
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return int(head.split(b" ", 2)[1]), len(body) >= length


def _read(connection: socket.socket) -> int:
    buffer = b""
    while True:
        data = connection.recv(65536)
        if not data:
            return 0
        buffer += data
        status, whole = _answer(buffer)
        if whole:
            return status


def _h2_client() -> h2.connection.H2Connection:
    protocol = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    protocol.initiate_connection()
    protocol.increment_flow_control_window(1 << 24)
    return protocol


def _h2_events(connection: ssl.SSLSocket, protocol: h2.connection.H2Connection) -> list[h2.events.Event]:
    data = connection.recv(65536)
    if not data:
        raise OSError("the gateway ended an HTTP/2 connection")
    events = protocol.receive_data(data)
    for event in events:
        if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
            protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
    if out := protocol.data_to_send():
        connection.sendall(out)
    return list(events)
