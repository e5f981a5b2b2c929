"""Many requests on one connection: what goes on at once, and what has to wait for its turn in the loop."""

from __future__ import annotations

import socket

import pytest

from tests.gateway.conftest import Bed
from tests.support.gateway import read_reply

pytestmark = pytest.mark.gateway

ALLOWED = b"GET /pub/%d HTTP/1.1\r\nHost: a.test\r\n\r\n"
DENIED = b"GET /denied/%d HTTP/1.1\r\nHost: a.test\r\n\r\n"
POST = b"POST /v1/messages HTTP/1.1\r\nHost: a.test\r\ncontent-length: 5\r\n\r\nhello"


def test_requests_in_one_write_are_each_judged_and_answered_in_order(bed: Bed) -> None:
    said = b"".join((DENIED if number % 3 == 1 else ALLOWED) % number for number in range(30))
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(said)
        statuses = [read_reply(connection).status for _ in range(30)]
    assert statuses == [403 if number % 3 == 1 else 200 for number in range(30)]
    assert [seen.target for seen in bed.a.seen] == [f"/pub/{number}" for number in range(30) if number % 3 != 1]
    lines = bed.gateway.decisions()
    assert [line["path"] for line in lines] == [
        f"/denied/{number}" if number % 3 == 1 else f"/pub/{number}" for number in range(30)
    ]
    assert len(bed.gateway.outcomes(20)) == 20


def test_a_request_that_is_sent_behind_a_body_waits_for_its_answer(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(POST + POST + ALLOWED % 1)
        assert [read_reply(connection).status for _ in range(3)] == [200, 200, 200]
    assert [seen.body_start for seen in bed.a.seen] == [b"hello", b"hello", b""]
    assert bed.a.connections == 1


@pytest.mark.attack("127")
def test_very_many_refused_requests_in_one_write_neither_nest_nor_keep_the_loop(bed: Bed) -> None:
    """Each is answered in a turn of its own: else the second would be read inside of the first, and so on."""
    count = 1200
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"".join(DENIED % number for number in range(count)))
        statuses = [read_reply(connection).status for _ in range(count)]
    assert statuses == [403] * count
    assert bed.untouched()
    assert bed.gateway.stderr_path.read_text() == ""


def test_plain_requests_in_a_tunnel_are_judged_one_by_one(bed: Bed) -> None:
    with bed.gateway.tunnel("plain.test:80") as connection:
        for number in range(3):
            connection.sendall(b"GET /pub/%d HTTP/1.1\r\nHost: plain.test\r\n\r\n" % number)
            assert read_reply(connection).status == 200
        connection.sendall(b"GET /other HTTP/1.1\r\nHost: plain.test\r\n\r\n")
        assert read_reply(connection).status == 403
        connection.sendall(b"GET /pub/last HTTP/1.1\r\nHost: plain.test\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        assert read_reply(connection).status == 200
        assert connection.recv(1) == b""
    assert [seen.target for seen in bed.plain.seen] == ["/pub/0", "/pub/1", "/pub/2", "/pub/last"]


@pytest.mark.parametrize("first", [ALLOWED % 0, DENIED % 0], ids=["allowed", "denied"])
def test_a_tunnel_ends_when_the_box_or_the_gateway_ends_it(bed: Bed, first: bytes) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(first)
        read_reply(connection)
        connection.sendall(ALLOWED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") % 1)
        assert read_reply(connection).status == 200
        assert connection.recv(1) == b""
