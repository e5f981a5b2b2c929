"""HTTP/2 and WebSocket through the door: judged like the rest, request by request and message by message."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
import wsproto
import wsproto.events

from tests.gateway.conftest import Bed
from tests.support.gateway import LiveGateway
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway


Pairs = tuple[tuple[str, str], ...]


class Http2:
    """A client for one HTTP/2 connection inside a tunnel; sends what it is told, however odd."""

    def __init__(self, gateway: LiveGateway, host: str, *, window: int | None = None) -> None:
        self._socket: ssl.SSLSocket = gateway.tls(host, alpn=("h2",))
        assert self._socket.selected_alpn_protocol() == "h2"
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self._h2 = h2.connection.H2Connection(config)
        self._h2.initiate_connection()
        self._takes_all = window is None
        if window is not None:
            self._h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
            self._h2.increment_flow_control_window(1 << 30)  # of the connection: streams alone are held back
        self.answers: dict[int, tuple[int, bytes]] = {}
        self.reset: set[int] = set()
        self._begun: dict[int, tuple[int, bytes]] = {}
        self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(OSError):  # the end is seen when reading
            self._socket.sendall(self._h2.data_to_send())

    def _read(self) -> bytes:
        try:
            return self._socket.recv(1 << 16)
        except OSError:
            return b""

    def send(self, path: str, method: str = "GET", *, authority: str = "a.test", extra: Pairs = (),
             body: bytes = b"", end: bool = True) -> int:  # fmt: skip
        stream: int = self._h2.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "https"), (":authority", authority), (":path", path), *extra]
        self._h2.send_headers(stream, head, end_stream=end and not body)
        if body:
            self._h2.send_data(stream, body, end_stream=end)
        self._flush()
        return stream

    def send_more(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """One frame of a body, also an empty one."""
        self._h2.send_data(stream, data, end_stream=end)
        self._flush()

    def pour(self, stream: int, total: int, *, seconds: float, patience: float = 0.2) -> int:
        """Send a body as far as windows and the socket allow; how much went. patience: with the socket, in seconds."""
        sent, deadline = 0, time.monotonic() + seconds
        self._socket.settimeout(patience)
        while sent < total and time.monotonic() < deadline:
            size = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if size:
                self._h2.send_data(stream, bytes(size))
                sent += size
                self._flush()
            else:
                with contextlib.suppress(OSError):
                    self._h2.receive_data(self._socket.recv(65536))
        return sent

    def reset_stream(self, stream: int) -> None:
        self._h2.reset_stream(stream)
        self._flush()

    def ping(self) -> None:
        self._h2.ping(b"12345678")
        self._flush()

    @property
    def socket(self) -> ssl.SSLSocket:
        """What is below it."""
        return self._socket

    def vanish(self) -> None:
        """Close without a word, as a killed process does."""
        raw = self._socket.detach()
        socket.close(raw)

    def wait(self, *streams: int) -> None:
        """Until each stream is answered or reset."""
        self._wait(streams, lambda: set(streams) <= set(self.answers) | self.reset)

    def wait_for_data(self, stream: int, data: bytes) -> None:
        """Until a stream's answer has begun with `data`; its end may be far."""
        self._wait((stream,), lambda: stream in self.reset or self._so_far(stream).startswith(data))

    def _so_far(self, stream: int) -> bytes:
        return (self._begun.get(stream) or self.answers.get(stream) or (0, b""))[1]

    def _wait(self, streams: Iterable[int], done: Callable[[], bool]) -> None:
        while not done():
            data = self._read()
            if not data:
                self.reset |= set(streams)
                return
            for event in self._h2.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    assert event.headers is not None
                    self._begun[event.stream_id] = (int(dict(event.headers)[b":status"]), b"")
                elif isinstance(event, h2.events.DataReceived):
                    code, body = self._begun[event.stream_id]
                    self._begun[event.stream_id] = (code, body + event.data)
                    if self._takes_all:
                        self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    self.answers[event.stream_id] = self._begun.pop(event.stream_id)
                elif isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                    self.reset |= {event.stream_id} if isinstance(event, h2.events.StreamReset) else set(streams)
            self._flush()

    def close(self) -> None:
        self._socket.close()


@pytest.mark.attack("F07", "82")
def test_streams_of_one_connection_are_judged_each(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test")
    streams = [client.send("/pub/1"), client.send("/pub/2", "POST", body=b"x"), client.send("/pub/3")]
    client.wait(*streams)
    assert [client.answers[stream][0] for stream in streams] == [200, 403, 200]
    assert sorted(seen.target for seen in bed.a.seen) == ["/pub/1", "/pub/3"]
    assert sorted(str(line["verdict"]) for line in bed.gateway.decisions()) == ["allow", "allow", "deny"]
    client.close()


@pytest.mark.attack("F06", "41")
@pytest.mark.parametrize(
    ("authority", "extra"),
    [("b.test", ()), ("a.test", (("host", "b.test"),)), ("a.test:8443", ())],
    ids=["other-authority", "host-beside-it", "other-port"],
)
def test_an_authority_that_differs_is_denied(bed: Bed, authority: str, extra: tuple[tuple[str, str], ...]) -> None:
    client = Http2(bed.gateway, "a.test")
    stream = client.send("/pub/x", authority=authority, extra=extra)
    client.wait(stream)
    assert stream in client.reset or client.answers[stream][0] in (400, 403)
    assert [line["verdict"] for line in bed.gateway.decisions()] == ["deny"]
    assert bed.untouched()
    client.close()


def test_a_denied_upload_is_answered_before_its_body(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test")
    stream = client.send("/denied", "POST", body=b"begin", end=False)
    started = time.monotonic()
    client.wait(stream)
    assert time.monotonic() - started < 1
    assert client.answers[stream][0] == 403
    other = client.send("/pub/x")  # the connection goes on
    client.wait(other)
    assert client.answers[other][0] == 200
    client.close()


def test_an_allowed_upload_arrives_whole(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test")
    stream = client.send("/v1/messages", "POST", body=b"x" * 16000)
    client.wait(stream)
    assert client.answers[stream][0] == 200
    assert bed.a.seen[-1].body_bytes == 16000
    client.close()


class HasGateway(Protocol):
    """A bed of any kind."""

    @property
    def gateway(self) -> LiveGateway: ...


class WebSocket:
    """A client for one WebSocket."""

    def __init__(
        self, bed: HasGateway, path: str, *, host: str = "a.test", headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        self._socket = bed.gateway.tls(host)
        self._ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        asked = wsproto.events.Request(host=host, target=path, extra_headers=list(headers))
        self._socket.sendall(self._ws.send(asked))
        self.closed = False
        self.status = 101
        self.received = b""
        self.read()

    @property
    def socket(self) -> ssl.SSLSocket:
        """What is below it."""
        return self._socket

    def read(self) -> None:
        """Take in what has come."""
        data = b""
        with contextlib.suppress(OSError):
            data = self._socket.recv(1 << 16)
        self._ws.receive_data(data or None)
        for event in self._ws.events():
            if isinstance(event, wsproto.events.RejectConnection):
                self.status = event.status_code
            elif isinstance(event, wsproto.events.BytesMessage):
                self.received += bytes(event.data)
            elif isinstance(event, wsproto.events.CloseConnection):
                self.closed = True

    def echo(self, data: bytes) -> bool:
        """Whether `data` comes back."""
        self.received = b""
        try:
            self._socket.sendall(self._ws.send(wsproto.events.BytesMessage(data)))
            while self.received != data and not self.closed:
                self.read()
        except OSError:
            return False
        return self.received == data

    def push(self, data: bytes, times: int) -> bool:
        """Send messages without reading; whether all went within ten seconds each."""
        self._socket.settimeout(10)
        try:
            for _ in range(times):
                self._socket.sendall(self._ws.send(wsproto.events.BytesMessage(data)))
        except OSError:
            return False
        return True

    def ping(self, data: bytes, times: int) -> None:
        """Unasked pongs, which nobody answers."""
        with contextlib.suppress(OSError):
            for _ in range(times):
                self._socket.sendall(self._ws.send(wsproto.events.Pong(data)))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(self._ws.send(wsproto.events.CloseConnection(code=1000)))
            self.read()
        self._socket.close()


@pytest.mark.attack("F23")
def test_a_websocket_with_a_rule_passes_both_ways_and_is_counted(bed: Bed) -> None:
    client = WebSocket(bed, "/pub/ws")
    assert client.status == 101
    assert client.echo(b"x" * 1000)
    assert client.echo(b"y" * 2000)
    client.close()
    outcome = bed.gateway.outcomes(1)[0]
    assert outcome["status"] == 101
    for direction in ("bytes_up", "bytes_down"):  # frames and all
        assert 3000 < int(str(outcome[direction])) < 3100
    assert len(bed.gateway.decisions()) == 1


@pytest.mark.attack("F23", "91")
def test_a_websocket_over_its_limit_is_cut(bed: Bed) -> None:
    client = WebSocket(bed, "/pub/ws")
    assert client.echo(b"x" * 60000)
    assert not client.echo(b"x" * 60000)
    assert bed.a.seen[-1].body_bytes == 60000
    assert "max_body" in str(bed.gateway.outcomes(1)[0]["error"])


@pytest.mark.parametrize("rest", [b"", b"and no more"])
def test_a_client_that_stops_its_upload_after_the_answer_ends_nothing_else(bed: Bed, rest: bytes) -> None:
    client = Http2(bed.gateway, "a.test")
    length = (("content-length", "100000"),)
    denied = client.send("/nowhere", "POST", extra=length, body=b"the beginning", end=False)
    client.wait(denied)
    client.send_more(denied, rest, end=True)
    allowed = client.send("/pub/x")
    client.wait(allowed)
    client.close()
    assert (client.answers[denied][0], client.answers[allowed][0]) == (403, 200)
    assert [line["reason"] for line in bed.gateway.decisions()] == ["no-rule", "rule"]


def test_an_upload_that_stops_before_its_answer_is_a_fault(bed: Bed) -> None:
    """The control: an origin would wait for the rest."""
    client = Http2(bed.gateway, "a.test")
    stream = client.send("/v1/messages", "POST", extra=(("content-length", "100000"),), body=b"begun", end=False)
    wait_until(bed.gateway.decisions)
    client.send_more(stream, b"", end=True)
    wait_until(lambda: len(bed.gateway.decisions()) == 2)
    client.close()
    assert [line["reason"] for line in bed.gateway.decisions()] == ["rule", "malformed"]
