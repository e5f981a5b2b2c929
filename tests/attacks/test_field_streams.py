"""Answers that must pass as they come: events, and bodies that are empty. Field notes F15 and F26."""

from __future__ import annotations

import functools
import gzip
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.conftest import Mitmdump
from tests.gateway.test_protocols import Http2
from tests.support.gateway import read_head, read_reply
from tests.support.origin import Origin, Pki, Seen
from tests.support.streams import Streams

pytestmark = pytest.mark.gateway

# -- events (F15) -----------------------------------------------------------------------------------------------------

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


# -- empty bodies (F26) -----------------------------------------------------------------------------------------------

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
