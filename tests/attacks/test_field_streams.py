"""Answers that must pass as they come: events, WebSockets, empty bodies, large downloads.

Field notes F15, F23, F25, F26.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import wsproto
import wsproto.events

from tests.attacks.conftest import Mitmdump
from tests.gateway.test_protocols import Http2
from tests.support.gateway import LiveGateway, read_head, read_reply
from tests.support.h2origin import H2Origin
from tests.support.origin import Origin, Pki, Seen

pytestmark = pytest.mark.gateway

POLICY = """\
networkPolicies:
  - host: a.test
    upstream: https://127.0.0.1:{a}
    upstream_ca: {ca}
    policies:
      - {{action: ALLOW, method: [GET, HEAD, POST], path: /pub/.*}}
      - {{action: ALLOW, method: GET, path: /ws/.*, websocket: true}}
      - {{action: ALLOW, method: GET, path: /far, websocket: true}}
"""
FAR = """\
networkPolicies:
  - host: h2.test
    upstream: https://127.0.0.1:{port}
    upstream_ca: {ca}
    policies: [{{action: ALLOW, method: GET, path: /pub/.*}}]
"""


@dataclass
class Streams:
    """A gateway and one origin, whose answers each test writes itself."""

    gateway: LiveGateway
    a: Origin


@pytest.fixture(scope="module")
def module_streams(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Streams]:
    a = Origin(pki.context("a.test"))
    gateway = LiveGateway(tmp_path_factory.mktemp("streams"), POLICY.format(a=a.port, ca=pki.ca_path))
    assert gateway.first.get("event") == "ready", gateway.stderr_path.read_text()
    yield Streams(gateway, a)
    gateway.stop()
    a.close()


@pytest.fixture
def streams(module_streams: Streams) -> Streams:
    module_streams.a.clear()
    for name in ("decisions.jsonl", "outcomes.jsonl"):
        (module_streams.gateway.runs / name).write_text("")
    return module_streams


# -- events (F15) ---------------------------------------------------------------------------------------------------

ONE, TWO = b'data: {"n": 1}\n\n', b'data: {"n": 2}\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


KINDS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "sse": (b"content-type: text/event-stream\r\ntransfer-encoding: chunked", chunk),
    "sse-of-known-length": (b"content-type: text/event-stream\r\ncontent-length: %d" % len(ONE + TWO), bytes),
    "ndjson": (b"content-type: application/x-ndjson\r\ntransfer-encoding: chunked", chunk),
    "chunked-text": (b"content-type: text/plain\r\ntransfer-encoding: chunked", chunk),
    "no-content-type": (b"transfer-encoding: chunked", chunk),
    "until-the-end": (b"content-type: text/event-stream\r\nconnection: close", bytes),
    "gzip": (b"content-type: text/event-stream\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked",
             lambda data: chunk(gzip.compress(data))),
}  # fmt: skip


def events_of(kind: str, origin: Origin) -> Callable[[socket.socket, Seen], None]:
    """An origin that sends one event, and the second once `origin.release` is set."""
    head, wrap = KINDS[kind]

    def answer(connection: socket.socket, seen: Seen) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + wrap(ONE))
        origin.release.wait(20)
        connection.sendall(wrap(TWO) + (chunk(b"") if wrap is not bytes else b""))

    return answer


def wait_for(what: bytes, receive: Callable[[], bytes]) -> bytes:
    """All that came until `what` was in it."""
    came = b""
    while what not in came:
        data = receive()
        assert data, came
        came += data
    return came


@pytest.mark.attack("F15")
@pytest.mark.parametrize("kind", KINDS)
def test_an_event_arrives_before_the_next_is_sent(streams: Streams, kind: str) -> None:
    """The origin holds the second event back until the client has the first: no clock is needed."""
    streams.a.answers["/pub/events"] = events_of(kind, streams.a)
    wrap = KINDS[kind][1]
    with streams.gateway.tls("a.test") as connection:
        connection.sendall(b"GET /pub/events HTTP/1.1\r\nHost: a.test\r\n\r\n")
        read_head(connection)
        wait_for(wrap(ONE).rstrip(), lambda: connection.recv(4096))
        assert [line["verdict"] for line in streams.gateway.decisions()] == ["allow"]
        assert streams.gateway.outcomes() == [], "the end record comes at the end"
        assert not streams.a.release.is_set()
        streams.a.release.set()
        wait_for(wrap(TWO).rstrip(), lambda: connection.recv(4096))
    outcome = streams.gateway.outcomes(1)[0]
    assert (outcome["error"] is None and outcome["bytes_down"] == len(ONE + TWO)) or kind == "gzip"
    assert streams.gateway.get("https://a.test/pub/after").status == 200


@pytest.mark.attack("F15")
@pytest.mark.parametrize("kind", ["sse", "ndjson", "no-content-type"])
def test_an_event_arrives_at_an_http2_client_before_the_next_is_sent(streams: Streams, kind: str) -> None:
    streams.a.answers["/pub/events"] = events_of(kind, streams.a)
    client = Http2(streams.gateway, "a.test")
    stream = client.send("/pub/events")
    client.wait_for_data(stream, ONE)
    assert not streams.a.release.is_set()
    streams.a.release.set()
    client.wait(stream)
    assert client.answers[stream] == (200, ONE + TWO)
    client.close()


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    return found


@pytest.mark.attack("F15", "F25")
def test_events_and_downloads_pass_between_two_http2_ends(tmp_path: Path, pki: Pki, node: str) -> None:
    pki.context("h2.test")
    origin = H2Origin(node, pki.ca_path.with_name("h2.test.pem"))
    gateway = LiveGateway(tmp_path, FAR.format(port=origin.port, ca=pki.ca_path))
    try:
        client = Http2(gateway, "h2.test")
        events = client.send("/pub/trickle", authority="h2.test")
        client.wait_for_data(events, b"data: one\n\n")
        big = client.send("/pub/big?n=3000000", authority="h2.test")
        client.wait(big)
        assert client.answers[big] == (200, b"x" * 3_000_000)
        client.wait(client.send("/pub/release", authority="h2.test"), events)
        assert client.answers[events] == (200, b"data: one\n\ndata: two\n\n")
        client.close()
    finally:
        gateway.stop()
        origin.close()


@pytest.mark.attack("F15", "F23", "F25", "F26", control=True)
def test_control_a_proxy_that_buffers_shows_nothing_until_the_end(tmp_path: Path, pki: Pki) -> None:
    origin = Origin(pki.context("a.test"))
    origin.answers["/pub/events"] = events_of("sse", origin)
    try:
        with Mitmdump(tmp_path, origin.port) as port, socket.create_connection(("127.0.0.1", port), 15) as plain:
            plain.sendall(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n")
            read_head(plain)
            context = ssl.create_default_context(cafile=str(tmp_path / "mitmproxy-ca-cert.pem"))
            with context.wrap_socket(plain, server_hostname="a.test") as connection:
                connection.sendall(b"GET /pub/events HTTP/1.1\r\nHost: a.test\r\n\r\n")
                connection.settimeout(1)
                with pytest.raises(TimeoutError):
                    connection.recv(4096)
                assert len(origin.seen) == 1
                origin.release.set()
                connection.settimeout(10)
                wait_for(TWO, lambda: connection.recv(4096))
    finally:
        origin.release.set()
        origin.close()


# -- WebSockets (F23) -----------------------------------------------------------------------------------------------


class Talk:
    """A WebSocket through the door, event by event."""

    def __init__(self, gateway: LiveGateway, target: str) -> None:
        self._socket = gateway.tls("a.test")
        self._ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._events: deque[wsproto.events.Event] = deque()
        self._socket.sendall(self._ws.send(wsproto.events.Request(host="a.test", target=target)))

    def say(self, event: wsproto.events.Event) -> None:
        self._socket.sendall(self._ws.send(event))

    def hear(self) -> wsproto.events.Event:
        while not self._events:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            self._ws.receive_data(data or None)
            self._events.extend(self._ws.events())
        return self._events.popleft()

    def message(self) -> bytes:
        whole = b""
        while True:
            event = self.hear()
            assert isinstance(event, wsproto.events.BytesMessage), event
            whole += event.data
            if event.message_finished:
                return whole

    def close(self) -> None:
        self._socket.close()


def far_end(react: Callable[[wsproto.WSConnection, wsproto.events.Event], bytes | None]) -> Callable[..., None]:
    """An origin's WebSocket: `react` gives the bytes for each event, None to hang up without a word."""

    def answer(connection: socket.socket, seen: Seen) -> None:
        ws = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
        ws.receive_data(seen.head)
        while True:
            for event in ws.events():
                asked = isinstance(event, wsproto.events.Request)
                data = ws.send(wsproto.events.AcceptConnection()) if asked else react(ws, event)
                if data is None:
                    return
                connection.sendall(data)
            ws.receive_data(connection.recv(1 << 16) or None)

    return answer


def echo(ws: wsproto.WSConnection, event: wsproto.events.Event) -> bytes | None:
    match event:
        case wsproto.events.BytesMessage(data=data, message_finished=finished):
            return ws.send(wsproto.events.BytesMessage(bytes(data), message_finished=finished))
        case wsproto.events.Ping():
            return ws.send(event.response())
        case wsproto.events.CloseConnection():
            return ws.send(event.response()) if event.code != 1006 else None
    return b""


@pytest.mark.attack("F23")
def test_a_websocket_carries_large_messages_and_pings_both_ways(streams: Streams) -> None:
    streams.a.answers["/ws/echo"] = far_end(echo)
    talk = Talk(streams.gateway, "/ws/echo")
    assert isinstance(talk.hear(), wsproto.events.AcceptConnection)
    block = bytes(range(256)) * (2 << 12)
    for _ in range(3):
        talk.say(wsproto.events.BytesMessage(block))
        assert talk.message() == block
    talk.say(wsproto.events.Ping(b"are you there"))
    pong = talk.hear()
    assert isinstance(pong, wsproto.events.Pong) and pong.payload == b"are you there"
    talk.say(wsproto.events.CloseConnection(1000))
    talk.hear()
    talk.close()
    outcome = streams.gateway.outcomes(1)[0]
    assert (outcome["status"], outcome["error"]) == (101, None)
    assert min(outcome["bytes_up"], outcome["bytes_down"]) > 3 * len(block)
    assert [line["verdict"] for line in streams.gateway.decisions()] == ["allow"]


@pytest.mark.attack("F23")
@pytest.mark.parametrize("code", [1000, 1009, 1011, 4000, 1006])
def test_the_code_that_a_websocket_was_closed_with_arrives(streams: Streams, code: int) -> None:
    """1006 is no code that is sent, but a connection that ends without one."""

    def hang_up(ws: wsproto.WSConnection, event: wsproto.events.Event) -> bytes | None:
        if isinstance(event, wsproto.events.BytesMessage):
            return ws.send(wsproto.events.CloseConnection(code, "as told")) if code != 1006 else None
        return b""

    streams.a.answers["/ws/close"] = far_end(hang_up)
    talk = Talk(streams.gateway, "/ws/close")
    assert isinstance(talk.hear(), wsproto.events.AcceptConnection)
    talk.say(wsproto.events.BytesMessage(b"close, please"))
    event = talk.hear()
    assert isinstance(event, wsproto.events.CloseConnection) and event.code == code
    talk.close()
    assert len(streams.gateway.outcomes(1)) == 1
    assert streams.gateway.get("https://a.test/pub/after").status == 200


@pytest.mark.attack("F23")
def test_a_denied_websocket_is_answered_before_its_upgrade(streams: Streams) -> None:
    for target in ("/pub/x", "/denied"):
        talk = Talk(streams.gateway, target)
        event = talk.hear()
        assert isinstance(event, wsproto.events.RejectConnection) and event.status_code == 403
        talk.close()
    assert [line["reason"] for line in streams.gateway.decisions()] == ["websocket", "no-rule"]
    assert streams.a.connections == 0


# -- empty bodies (F26) ---------------------------------------------------------------------------------------------

EMPTY = (
    ("GET", "/pub/204", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ("GET", "/pub/304", b"HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n"),
    ("GET", "/pub/304-length", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5000000\r\n\r\n"),
    ("HEAD", "/pub/head", b"HTTP/1.1 200 OK\r\ncontent-length: 5000000\r\n\r\n"),
    ("HEAD", "/pub/head-chunked", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
    ("GET", "/pub/zero", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    ("GET", "/pub/zero-chunked", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("POST", "/pub/post", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
)


def answers(streams: Streams) -> None:
    for _, path, raw in EMPTY:
        streams.a.answers[path] = functools.partial(send, raw)


def send(raw: bytes, connection: socket.socket, seen: Seen) -> None:
    connection.sendall(raw)


@pytest.mark.attack("F26")
def test_empty_bodies_are_prompt_and_leave_the_connection_usable(streams: Streams) -> None:
    answers(streams)
    with streams.gateway.tls("a.test") as connection:
        connection.settimeout(5)
        for method, path, raw in EMPTY:
            length = "Content-Length: 0\r\n" if method == "POST" else ""
            connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: a.test\r\n{length}\r\n".encode())
            reply = read_reply(connection, head_only=method == "HEAD")
            assert (reply.status, reply.body) == (int(raw.split()[1]), b""), path
    assert [outcome["error"] for outcome in streams.gateway.outcomes(len(EMPTY))] == [None] * len(EMPTY)


@pytest.mark.attack("F26")
def test_empty_bodies_over_http2_as_well(streams: Streams) -> None:
    answers(streams)
    client = Http2(streams.gateway, "a.test")
    numbers = [client.send(path, method) for method, path, _ in EMPTY]
    client.wait(*numbers)
    assert [client.answers[number] for number in numbers] == [(int(raw.split()[1]), b"") for _, _, raw in EMPTY]
    client.close()


# -- large downloads (F25) ------------------------------------------------------------------------------------------

LINK_BYTES_PER_S = 12_500_000
LINK_DELAY_S = 0.02
DOWNLOADED = 4_000_000
# A window of 64 KiB, HTTP/2's own, lets a seventh through on this line.
SHARE = 0.5


class Link:
    """A TCP relay to a port, with the delay and the width of a long line: what a small HTTP/2 window would starve."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        under_way: deque[tuple[float, bytes]] = deque()
        some = threading.Semaphore(0)

        def deliver() -> None:
            with contextlib.suppress(OSError):
                while some.acquire():
                    at, data = under_way.popleft()
                    time.sleep(max(0.0, at - time.monotonic()))
                    if not data:
                        sink.shutdown(socket.SHUT_WR)
                        return
                    sink.sendall(data)

        threading.Thread(target=deliver, daemon=True).start()
        free = 0.0
        data = b"x"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            free = max(free, time.monotonic()) + len(data) / LINK_BYTES_PER_S
            under_way.append((free + LINK_DELAY_S, data))
            some.release()
            time.sleep(max(0.0, free - time.monotonic()))

    def close(self) -> None:
        self._listener.close()


def fetched(*words: str) -> float:
    """How fast curl downloads by HTTP/2, in bytes per second."""
    show = ["-o", "/dev/null", "-w", "%{http_version} %{size_download} %{speed_download}"]
    done = subprocess.run(["curl", "-sS", "-m", "60", "--http2", *show, *words], capture_output=True, check=True)
    version, size, speed = done.stdout.split()
    assert (version, int(size)) == (b"2", DOWNLOADED)
    return float(speed)


@pytest.mark.attack("F25")
def test_a_large_http2_download_over_a_long_line_is_not_starved(tmp_path: Path, pki: Pki, node: str) -> None:
    """Beside the same download without a gateway, in turns."""
    pki.context("h2.test")
    origin = H2Origin(node, pki.ca_path.with_name("h2.test.pem"))
    link = Link(origin.port)
    gateway = LiveGateway(tmp_path, FAR.format(port=link.port, ca=pki.ca_path))
    target = f"/pub/big?n={DOWNLOADED}"
    there = ["--cacert", str(pki.ca_path), "--resolve", f"h2.test:{link.port}:127.0.0.1"]
    try:
        with gateway.tcp_port() as port:
            here = ["--cacert", str(gateway.authority.cert_path), "-x", f"http://127.0.0.1:{port}"]
            shares: list[float] = []
            while len(shares) < 4 and max(shares, default=0) < SHARE:  # what else runs here may slow one of them down
                direct = fetched(*there, f"https://h2.test:{link.port}{target}")
                shares.append(fetched(*here, f"https://h2.test{target}") / direct)
        assert max(shares) >= SHARE, shares
    finally:
        gateway.stop()
        link.close()
        origin.close()
