"""Real values that come back from the host that they were put on for: stars in the box. The control is a gateway that
masks nothing, by a planted fault."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import socket
from collections.abc import Iterator

import pytest
from wsproto.events import BytesMessage

from tests.gateway.test_protocols import WebSocket
from tests.support.gateway import read_head
from tests.support.keybed import KEY, KeyBed, entry, key_bed
from tests.support.origin import Pki, Seen

pytestmark = pytest.mark.gateway

STARS = b"*" * len(KEY)
REAL = KEY.encode()
BASIC = base64.b64encode(f"me:{KEY}".encode())
ENTRIES = [
    entry("bound.test", "{credential: key, template: anthropic}"),
    entry("basic.test", '{credential: key, headers: {authorization: "Basic {b64:me:{key}}"}}'),
    entry("other.test"),
    entry(
        "plainly.test", '{credential: key, headers: {x-api-key: "k {key}", accept: text/plain, x-version: v1-2-3-4}}'
    ),
]
HOSTS = ["bound.test", "basic.test", "other.test", "plainly.test"]
BARE = """
import sys
from impyard.addon import secretwatch
from impyard.addon.vault.masking import Mask
secretwatch.SecretWatch.mask = lambda *_: Mask([])
from impyard.addon.__main__ import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def masking(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[KeyBed]:
    with key_bed(tmp_path_factory.mktemp("masking"), pki, *ENTRIES, hosts=HOSTS) as bed:
        yield bed


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[KeyBed]:
    with key_bed(tmp_path_factory.mktemp("bare"), pki, *ENTRIES, hosts=HOSTS, fault=BARE) as bed:
        yield bed


@pytest.fixture
def bed(masking: KeyBed) -> Iterator[KeyBed]:
    """Whatever an origin answered, no real value is in what the gateway wrote, printed or told."""
    masking.clear()
    yield masking
    written = [path.read_text() for path in masking.gateway.runs.glob("*.jsonl")]
    for text in (*written, masking.words(), json.dumps(masking.gateway.events)):
        assert KEY not in text and BASIC.decode() not in text


def answered(bed: KeyBed, answer: bytes, host: str = "bound.test") -> bytes:
    """All bytes that the box gets when the origin answers so, and then closes."""
    bed.origin.answers["/pub/own"] = lambda connection, seen: connection.sendall(answer)
    with bed.gateway.tls(host) as connection:
        connection.sendall(f"GET /pub/own HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        found = b""
        with contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                found += data
        return found


def whole(body: bytes, head: bytes = b"content-type: application/json\r\n") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)


def in_chunks(body: bytes, size: int, trailer: bytes = b"") -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n"


def joined(answer: bytes) -> bytes:
    """An answer without the sizes of its chunks."""
    return re.sub(rb"\r\n[0-9a-f]+\r\n", b"", answer)


ANSWERS: dict[str, bytes] = {
    "JSON": whole(b'{"headers": {"x-api-key": "%s"}}' % REAL),
    "no content type": whole(REAL, b""),
    "any content type": whole(b"\0" * 99 + REAL, b"content-type: image/png\r\n"),
    "a large body": whole(b"x" * 100_000 + REAL + b"y" * 100_000),
    "single bytes": in_chunks(b"<" + REAL + b">", 1),
    "chunks": in_chunks(REAL * 9, 20),
    "a header": whole(b"", b"x-echo: <%s>\r\n" % REAL),
    "a name of a header": whole(b"", b"x-%s: 1\r\n" % REAL),
    "a redirect": b"HTTP/1.1 302 Found\r\nlocation: https://other.test/?k=%s\r\ncontent-length: 0\r\n\r\n" % REAL,
    "the status line": b"HTTP/1.1 400 not %s\r\ncontent-length: 0\r\n\r\n" % REAL,
    "a trailer": in_chunks(b"body", 9, b"x-late: %s\r\n" % REAL),
    "a status line that is none": b"HTTP/1.1 x%s\r\n\r\n" % REAL,
    "a header that is none": b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % REAL,
    "a header that may not be": b"HTTP/1.1 200 OK\r\nx@%s: 1\r\ncontent-length: 0\r\n\r\n" % REAL,
    "lengths that differ": b"HTTP/1.1 200 OK\r\ncontent-length: %s\r\n\r\n" % REAL,
}


# HTTP/1 clients get no trailers, and of what cannot be read nothing is quoted.
NEVER_SHOWN = ("a trailer", "a status line that is none", "a header that is none", "lengths that differ")


@pytest.mark.parametrize("way", ANSWERS)
def test_a_real_value_in_an_answer_is_masked(bed: KeyBed, bare: KeyBed, way: str) -> None:
    masked = joined(answered(bed, ANSWERS[way]))
    assert masked.startswith(b"HTTP/1.1 ")
    assert REAL not in masked
    assert REAL[8:30] not in masked

    shown = joined(answered(bare, ANSWERS[way]))
    if way not in NEVER_SHOWN:
        assert REAL in shown


def test_a_masked_body_keeps_its_length(bed: KeyBed) -> None:
    masked = answered(bed, whole(b"<" + REAL + b">"))
    assert masked.endswith(b"<" + STARS + b">")
    assert b"content-length: %d\r\n" % (len(STARS) + 2) in masked


def test_what_was_put_on_in_base64_is_masked_too(bed: KeyBed, bare: KeyBed) -> None:
    echo = whole(b'{"authorization": "Basic %s"}' % BASIC)
    assert b"Basic " + b"*" * len(BASIC) in answered(bed, echo, "basic.test")
    assert BASIC in answered(bare, echo, "basic.test")


def test_another_hosts_answers_are_left_alone(bed: KeyBed) -> None:
    """Nothing was put on for it, so what it says it knows from elsewhere."""
    assert REAL in answered(bed, whole(REAL), "other.test")


def test_events_are_not_held_back(bed: KeyBed) -> None:
    def events(connection: socket.socket, seen: Seen) -> None:
        def send(data: bytes) -> None:
            connection.sendall(b"%x\r\n%s\r\n" % (len(data), data))

        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        send(b"data: a task for the desk\n\n")
        bed.origin.release.wait(10)
        send(b"data: " + REAL[:20])
        send(REAL[20:] + b"\n\n")
        connection.sendall(b"0\r\n\r\n")

    bed.origin.answers["/pub/own"] = events
    with bed.gateway.tls("bound.test") as connection:
        connection.sendall(b"GET /pub/own HTTP/1.1\r\nhost: bound.test\r\n\r\n")
        read_head(connection)
        connection.settimeout(5)
        assert b"data: a task for the desk\n\n" in connection.recv(4096)
        assert not bed.origin.release.is_set()
        bed.origin.release.set()
        rest = b""
        while b"0\r\n\r\n" not in rest:
            rest += connection.recv(4096)
    assert rest.count(b"*") == len(STARS)
    assert b"sk-ant" not in rest


def test_messages_of_a_websocket_are_masked(bed: KeyBed, bare: KeyBed) -> None:
    def echoed(each: KeyBed) -> bytes:
        client = WebSocket(each, "/pub/ws", host="bound.test")
        client.echo(b"<" + STARS + b">")
        client.received = b""
        client.socket.settimeout(5)
        client.socket.sendall(client._ws.send(BytesMessage(b"<" + REAL + b">")))
        while len(client.received) < len(STARS) + 2 and not client.closed:
            client.read()
        return client.received

    assert echoed(bed) == b"<" + STARS + b">"
    assert echoed(bare) == b"<" + REAL + b">"


def handshaken(connection: socket.socket, seen: Seen, frames: bytes) -> None:
    """Say yes to a WebSocket, and then `frames`."""
    (key,) = seen.header("sec-websocket-key")
    accepted = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest())
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-accept: " + accepted + b"\r\n\r\n" + frames
    )


CONTROL = {"a ping": (9, b""), "a pong": (10, b""), "a reason to close": (8, b"\x03\xf0")}


@pytest.mark.parametrize("way", CONTROL)
def test_control_frames_of_a_websocket_are_masked(bed: KeyBed, bare: KeyBed, way: str) -> None:
    code, begin = CONTROL[way]
    said = begin + b"not this one: <" + REAL + b">"

    def framed(each: KeyBed) -> bytes:
        frames = bytes((0x80 | code, len(said))) + said + b"\x81\x04done\x88\x00"
        each.origin.answers["/pub/ws"] = lambda connection, seen: handshaken(connection, seen, frames)
        with each.gateway.tls("bound.test") as connection:
            connection.sendall(
                b"GET /pub/ws HTTP/1.1\r\nhost: bound.test\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
                b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            read_head(connection)
            connection.settimeout(5)
            found = b""
            with contextlib.suppress(OSError):
                while not (found.endswith(b"\x88\x00") or (code == 8 and found.endswith(b">"))):
                    if not (data := connection.recv(4096)):
                        break
                    found += data
            return found

    assert said.replace(REAL, STARS) in framed(bed)
    assert said in framed(bare)


def test_what_the_policy_says_by_itself_is_no_secret(bed: KeyBed) -> None:
    """Its own words in a header are not taken for a value of the credential."""
    body = b'{"content-type": "text/plain", "version": "v1-2-3-4", "key": "%s"}' % REAL
    answer = answered(bed, whole(body, b"content-type: text/plain\r\n"), "plainly.test")
    assert body.replace(REAL, STARS) in answer
    assert b"content-type: text/plain\r\n" in answer
    assert bed.origin.seen[-1].header("x-version") == ["v1-2-3-4"]
