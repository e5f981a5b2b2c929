"""What the door says on HTTP/2 goes out in one piece for each event, and whole before it closes."""

from __future__ import annotations

import ssl
import struct

import pytest

from tests.bench import h2_frames as h2
from tests.gateway.conftest import Bed

pytestmark = pytest.mark.gateway

GET = [(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/pub/x")]


def opened(bed: Bed) -> ssl.SSLSocket:
    connection = bed.gateway.tls("a.test", alpn=("h2",))
    connection.settimeout(20)
    connection.sendall(h2.PREFACE + h2.greeting())
    return connection


def request(stream: int, head: h2.RepeatedHead) -> bytes:
    return h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream, head.block())


def records(connection: ssl.SSLSocket) -> list[list[tuple[int, int, int]]]:
    """Kind, flags and stream of each frame, by the record of TLS that it came in; until all is said."""
    found = []
    while data := connection.recv(65536):  # one record at most
        found.append([(kind, flags, stream) for kind, flags, stream, _ in h2.frames(bytearray(data))])
        if sum(flags & h2.END_STREAM for part in found for kind, flags, _ in part if kind == h2.DATA) == 2:
            break
    return found


def test_head_body_and_end_of_an_answer_come_in_one_record(bed: Bed) -> None:
    head = h2.RepeatedHead(GET)
    with opened(bed) as connection:
        connection.sendall(request(1, head) + request(3, head))
        seen = records(connection)
    for stream in (1, 3):
        (whole,) = [part for part in seen if any(one[2] == stream for one in part)]
        kinds = [kind for kind, _, of in whole if of == stream]
        assert kinds[0] == h2.HEADERS
        assert (h2.DATA, h2.END_STREAM, stream) in whole
    assert len(bed.a.seen) == 2


def test_the_reason_is_said_before_the_connection_closes(bed: Bed) -> None:
    with opened(bed) as connection:
        connection.sendall(h2.frame(h2.PING, 0, 0, b"12345678") + struct.pack(">IBI", 1 << 31 | h2.PING, 0, 0))
        said = bytearray()
        while data := connection.recv(65536):
            said += data
    kinds = [(kind, payload) for kind, _, _, payload in h2.frames(said)]
    assert (h2.PING, b"12345678") in kinds
    assert kinds[-1][0] == h2.GOAWAY
    assert bed.gateway.decisions()[-1]["reason"] == "malformed"
