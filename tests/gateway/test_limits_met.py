"""Each limit of docs/limits.md that no other file meets: one under it passes, one over it is what the table says."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.gateway.conftest import Bed
from tests.gateway.test_floods import ends_within, gateway_with, honest, lines_since
from tests.gateway.test_protocols import Http2, WebSocket
from tests.support.gateway import Reply, read_reply
from tests.support.origin import Pki
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway

LOW = {
    "origin_connections": 1,
    "origin_idle_s": 1.0,
    "connect_s": 1.0,
    "sweep_s": 1.0,
    "head_s": 0.2,
    "half_closed_s": 1.0,
    "backlog": 5,
    "message_fragments": 8,
    "waiting_bytes": 64 << 10,
    "decisions": 10**6,
    "log_bytes": 10**9,
}
ANSWER_S = 5.0
GET = b"GET http://plain.test/pub/x HTTP/1.1\r\nHost: plain.test\r\n\r\n"


@pytest.fixture(scope="module")
def module_low(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Bed]:
    with gateway_with(tmp_path_factory.mktemp("low"), pki, **LOW) as bed:
        yield bed


@pytest.fixture
def low(module_low: Bed) -> Bed:
    module_low.a.clear()
    module_low.plain.clear()
    return module_low


def ask(connection: socket.socket, request: bytes) -> Reply:
    connection.sendall(request)
    return read_reply(connection)


def read_all(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(65536):
            pass


def test_an_idle_connection_to_an_origin_makes_room_for_another(low: Bed) -> None:
    with low.gateway.tls("a.test") as kept:
        assert ask(kept, b"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n").status == 200
        assert low.gateway.get("http://plain.test/pub/x").status == 200  # it took the only place
        assert ask(kept, b"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n").status == 200
    assert (low.a.connections, low.plain.connections) == (2, 1)


def test_a_busy_connection_to_an_origin_makes_room_for_none(low: Bed) -> None:
    with low.gateway.connect() as busy:
        busy.sendall(GET.replace(b"/pub/x", b"/pub/sse"))
        assert busy.recv(10)
        reply = low.gateway.get("https://a.test/pub/x")
        assert reply.status == 502 and "too many connections to origins" in reply.json()["error"]
        assert low.a.connections == 0
    low.plain.release.set()
    assert honest(low, ANSWER_S).status == 200


def test_a_connection_to_an_origin_that_nobody_uses_is_closed(low: Bed, bed: Bed) -> None:
    for each, connections in ((low, 2), (bed, 1)):  # the latter keeps it for longer
        with each.gateway.connect() as kept:
            assert ask(kept, GET).status == 200
            time.sleep(3 if each is low else 0)
            assert ask(kept, GET).status == 200
        assert each.plain.connections == connections


def test_times_are_looked_at_so_often(low: Bed) -> None:
    def begun_head() -> float:
        with low.gateway.connect() as connection:
            connection.sendall(b"GET http://plain.test/")
            return ends_within(connection, 10)

    begun_head()  # ended by a look, just now
    assert 0.7 < begun_head() < 8


def test_so_many_wait_to_be_accepted(low: Bed, bed: Bed) -> None:
    def waiting(each: Bed) -> int:
        folder = os.open(each.gateway.door, os.O_PATH)
        os.kill(each.gateway.process.pid, signal.SIGSTOP)
        ends = [socket.socket(socket.AF_UNIX) for _ in range(30)]
        try:
            for end in ends:
                end.setblocking(False)
            return sum(end.connect_ex(f"/proc/self/fd/{folder}/judge.sock") == 0 for end in ends)
        finally:
            os.kill(each.gateway.process.pid, signal.SIGCONT)
            os.close(folder)
            for end in ends:
                end.close()

    assert 1 <= waiting(low) <= LOW["backlog"] + 2
    assert waiting(bed) == 30
    assert honest(low, ANSWER_S).status == 200


def test_the_streams_of_a_connection_are_a_hundred(low: Bed) -> None:
    for count in (100, 101):
        before = len(low.gateway.decisions())
        client = Http2(low.gateway, "a.test")
        length = (("content-length", "5"),)
        streams = [client.send("/v1/messages", "POST", extra=length, end=False) for _ in range(count)]
        client.send_more(streams[0], b"hello", end=True)
        client.wait(streams[0])
        if count == 100:
            lines = lines_since(low, before, at_least=count)
            assert client.answers[streams[0]][0] == 200
            assert [line["verdict"] for line in lines] == ["allow"] * 100
        else:
            assert ends_within(client.socket, 10) < 5
            assert lines_since(low, before)[-1]["reason"] == "malformed"
        client.vanish()
    assert honest(low, ANSWER_S).status == 200


def test_a_message_has_so_many_fragments(low: Bed) -> None:
    for count, whole in ((8, True), (20, False)):
        client = WebSocket(low, "/pub/ws")
        assert client.status == 101
        pieces = [b"\x02\x81\0\0\0\0a", *[b"\x00\x81\0\0\0\0a"] * (count - 2), b"\x80\x81\0\0\0\0a"]
        for piece in pieces:
            with contextlib.suppress(OSError):
                client.socket.sendall(piece)
            time.sleep(0.02)  # they are counted with each read
        client.read()
        assert client.closed is not whole
        client.close()


@pytest.mark.parametrize("reads", [False, True])
def test_a_box_that_reads_no_refusals_is_read_no_further(low: Bed, reads: bool) -> None:
    request = b"GET http://plain.test/denied HTTP/1.1\r\nHost: plain.test\r\nx: " + b"y" * 1000 + b"\r\n\r\n"
    total, sent = 3000 * len(request), 0
    with low.gateway.connect() as connection:
        if reads:
            threading.Thread(target=read_all, args=(connection,), daemon=True).start()
        connection.settimeout(1.5 if not reads else 20)
        with contextlib.suppress(TimeoutError):
            while sent < total:
                sent += connection.send((request * 64)[sent % len(request) :][: total - sent])
    assert (sent == total) is reads, sent
    assert honest(low, 20).status == 200


# --- a box that closes its sending half ---------------------------------------------------------------------------


@pytest.mark.parametrize("requests", [1, 3])
def test_who_closes_its_sending_half_gets_its_answers(low: Bed, requests: int) -> None:
    with low.gateway.connect() as connection:
        connection.sendall(GET * requests)
        connection.shutdown(socket.SHUT_WR)
        for _ in range(requests):
            assert read_reply(connection).body == b"hello from the origin\n"
        assert connection.recv(1) == b""


def test_inside_of_tls_too(low: Bed) -> None:
    with low.gateway.tls("a.test") as connection:
        connection.sendall(b"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n")
        socket.socket.shutdown(connection, socket.SHUT_WR)
        assert read_reply(connection).status == 200


def test_half_a_request_and_the_end_is_no_request(low: Bed) -> None:
    with low.gateway.connect() as connection:
        connection.sendall(GET + GET[:-2])
        connection.shutdown(socket.SHUT_WR)
        assert read_reply(connection).status == 200
        assert connection.recv(1) == b""
    assert len(low.plain.seen) == 1


def test_who_closed_its_half_and_hears_nothing_is_given_up(low: Bed) -> None:
    count = len(low.gateway.outcomes())
    with low.gateway.connect() as connection:
        connection.sendall(GET.replace(b"/pub/x", b"/pub/silent"))
        connection.shutdown(socket.SHUT_WR)
        assert 0.8 < ends_within(connection, 15) < 10
    assert "closed its side" in str(low.gateway.outcomes(count + 1)[count]["error"])
    assert honest(low, ANSWER_S).status == 200


def test_who_left_is_known_at_once(bed: Bed) -> None:
    with bed.gateway.connect() as connection:
        connection.sendall(GET.replace(b"/pub/x", b"/pub/silent"))
        wait_until(lambda: bed.plain.seen, 10)
    assert "disconnected" in str(bed.gateway.outcomes(1)[0]["error"])
