"""Requests that the box cancels, and requests that wait for their turn at an HTTP/2 origin: what goes there, and what
the gateway keeps meanwhile.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from impyard.addon.limits import DEFAULTS
from tests.gateway.conftest import POLICY, Bed
from tests.gateway.test_bounds import BOUND_KIB, SENT
from tests.gateway.test_costly import cancelled, get_of_allowed
from tests.gateway.test_protocols import Http2
from tests.support.gateway import LiveGateway
from tests.support.h2few import FewAtATime
from tests.support.listening import on_loopback
from tests.support.origin import Origin, Pki
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway

GIVEN_UP = "cancelled by client"
# What an honest request of the same run takes at most, by the clock of a busy machine; without room it is `turn_s`.
HONEST_S = 5.0
assert DEFAULTS.turn_s > HONEST_S
DATA_OF_NO_STREAM = b"\0\0\x05\0\0\0\0\0\0hello"


@pytest.mark.attack("127", "F27")
def test_requests_cancelled_in_the_same_breath_are_recorded_and_go_nowhere(own_bed: Bed) -> None:
    client = Http2(own_bed.gateway, "a.test")
    client.socket.sendall(b"".join(get_of_allowed(stream) + cancelled(stream) for stream in range(1, 101, 2)))
    wait_until(lambda: len(own_bed.gateway.outcomes()) == 50)
    assert [line["verdict"] for line in own_bed.gateway.decisions()] == ["allow"] * 50
    outcomes = own_bed.gateway.outcomes()
    assert all(GIVEN_UP in str(line["error"]) for line in outcomes)
    assert {line["id"] for line in outcomes} == {line["id"] for line in own_bed.gateway.decisions()}
    assert own_bed.untouched()
    client.close()


def test_the_connection_of_who_cancels_a_hundred_at_once_goes_on(own_bed: Bed) -> None:
    """As a browser does that leaves a page. Control of the one above: what is not cancelled is answered."""
    client = Http2(own_bed.gateway, "a.test")
    streams = [client.send("/pub/silent") for _ in range(99)]
    kept = client.send("/pub/x")
    client.wait(kept)
    for stream in streams:
        client.reset_stream(stream)
    after = client.send("/pub/y")
    client.wait(after)
    assert (client.answers[kept][0], client.answers[after][0]) == (200, 200)
    assert len(own_bed.gateway.outcomes(101)) == 101
    client.close()


def test_requests_cancelled_while_their_origin_comes_up_open_no_connections(tmp_path: Path, pki: Pki) -> None:
    a, comes_up, taken = Origin(pki.context("a.test")), threading.Event(), []

    def later(near: socket.socket) -> None:
        taken.append(near)
        comes_up.wait(20)
        far = socket.create_connection(("127.0.0.1", a.port))
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_carry, args=(source, sink), daemon=True).start()

    listening = on_loopback(later)
    gateway = LiveGateway(tmp_path, POLICY.format(a=listening.port, plain=1, ca=pki.ca_path))
    try:
        client = Http2(gateway, "a.test")
        streams = [client.send(f"/pub/{number}") for number in range(20)]
        wait_until(lambda: taken)
        wait_until(lambda: len(gateway.decisions()) == 20)
        for stream in streams:
            client.reset_stream(stream)
        last = client.send("/pub/last-of-all")
        wait_until(lambda: len(gateway.decisions()) == 21)
        comes_up.set()
        client.wait(last)
        assert client.answers[last][0] == 200
        assert (len(taken), [seen.target for seen in a.seen]) == (1, ["/pub/last-of-all"])
        assert len(gateway.outcomes(21)) == 21
        client.close()
    finally:
        gateway.stop()
        listening.close()
        a.close()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


# --- an origin of few streams at a time ------------------------------------------------------------------------------


@dataclass
class Few:
    """A gateway in front of an origin that takes few streams at a time."""

    gateway: LiveGateway
    origin: FewAtATime

    def occupied(self) -> tuple[Http2, int]:
        """A client whose first request takes the origin's only stream."""
        client = Http2(self.gateway, "a.test")
        client.wait(client.send("/pub/first"))  # the gateway knows by now how many streams there are
        first = client.send("/pub/hold")
        wait_until(lambda: self.origin.seen == ["/pub/first", "/pub/hold"])
        return client, first


@pytest.fixture
def few(tmp_path: Path, pki: Pki, request: pytest.FixtureRequest) -> Iterator[Few]:
    streams, grants = getattr(request, "param", (1, True))
    origin = FewAtATime(pki.context("a.test"), streams=streams, grants=grants)
    plain = Origin()
    gateway = LiveGateway(tmp_path, POLICY.format(a=origin.port, plain=plain.port, ca=pki.ca_path))
    try:
        yield Few(gateway, origin)
    finally:
        gateway.stop()
        origin.close()
        plain.close()


@pytest.mark.attack("127", "F16", "F17")
def test_requests_cancelled_while_they_wait_take_no_room_and_go_nowhere(few: Few) -> None:
    client, first = few.occupied()
    count = 2 * DEFAULTS.requests
    for turn in range(count // 64):
        streams = [client.send(f"/pub/{turn}") for _ in range(64)]
        for stream in streams:
            client.reset_stream(stream)
    wait_until(lambda: len(few.gateway.outcomes()) == 1 + count)
    started = time.monotonic()
    assert few.gateway.get("http://plain.test/pub/honest").status == 200
    assert time.monotonic() - started < HONEST_S
    few.origin.release.set()
    last = client.send("/pub/last")
    client.wait(first, last)
    assert (client.answers[first][0], client.answers[last][0]) == (200, 200)
    assert few.origin.seen == ["/pub/first", "/pub/hold", "/pub/last"]
    client.close()


@pytest.mark.attack("F16")
@pytest.mark.parametrize("few", [(10, False)], indirect=True, ids=["that grants no window"])
def test_uploads_that_wait_for_their_turn_wait_outside(few: Few) -> None:
    client = Http2(few.gateway, "a.test")
    streams = [client.send("/v1/messages", "POST", end=False) for _ in range(20)]
    wait_until(lambda: len(few.origin.seen) == 20)  # those beyond ten have a connection of their own
    before = few.gateway.peak_from_now()
    sent = sum(client.pour(stream, SENT // 10, seconds=1, patience=0.5) for stream in streams[10:])
    assert sent < SENT // 2
    assert few.gateway.memory_kib() - before < BOUND_KIB // 2
    client.vanish()


def test_uploads_at_once_to_an_origin_of_one_stream_do_not_wait_for_each_other(few: Few) -> None:
    """What waits is read no further, so one that waits behind another of its connection would wait for ever."""
    client, first = few.occupied()
    streams = [client.send("/v1/messages", "POST", end=False) for _ in range(3)]
    wait_until(lambda: len(few.origin.seen) == 5)
    piece, pieces = bytes(16_000), 2 * DEFAULTS.waiting_bytes // 16_000
    for _ in range(pieces):
        for stream in streams:
            client.send_more(stream, piece)
    for stream in streams:
        client.send_more(stream, b"", end=True)
    client.wait(*streams)
    assert [client.answers[stream][0] for stream in streams] == [200] * 3
    assert few.origin.body_bytes == 3 * pieces * len(piece)
    assert first not in client.answers
    client.close()


def test_requests_that_wait_hear_of_the_end_of_their_connection(few: Few) -> None:
    client, first = few.occupied()
    waiting = client.send("/v1/messages", "POST", body=b"asked only once", extra=(("content-length", "15"),))
    wait_until(lambda: len(few.gateway.decisions()) == 3)
    few.origin.connections[0].shutdown(socket.SHUT_RDWR)
    client.wait(first, waiting)
    assert client.answers[waiting][0] == 502
    assert few.origin.seen[1] == "/pub/hold" and "/v1/messages" not in few.origin.seen
    client.close()


@pytest.mark.parametrize("few", [(10, True)], indirect=True, ids=["of ten streams"])
def test_an_upload_that_its_origin_resets_takes_no_other_request_with_it(few: Few) -> None:
    client, first = few.occupied()
    upload = client.send("/early", "POST", end=False)
    wait_until(lambda: len(few.origin.seen) == 3)
    client.send_more(upload, b"begun")
    client.wait(upload)
    assert client.answers[upload][0] == 502
    few.origin.release.set()
    client.wait(first)
    assert client.answers[first][0] == 200
    client.close()


@pytest.mark.parametrize("few", [(10, False)], indirect=True, ids=["that grants no window"])
def test_a_box_is_read_on_after_its_upload_waited_for_an_origin_that_broke_the_protocol(few: Few) -> None:
    client = Http2(few.gateway, "a.test")
    upload = client.send("/v1/messages", "POST", end=False)
    wait_until(lambda: few.origin.seen)
    assert client.pour(upload, SENT, seconds=5, patience=0.5) > DEFAULTS.waiting_bytes
    few.origin.last_words = DATA_OF_NO_STREAM
    client.wait(upload)
    assert client.answers[upload][0] == 502
    few.origin.last_words = b""
    after = client.send("/pub/after")
    client.wait(after)
    assert client.answers[after][0] == 200
    client.close()


@pytest.mark.parametrize("few", [(1, False)], indirect=True, ids=["that grants no window"])
def test_a_body_that_is_answered_before_there_is_a_window_for_it_takes_no_place(few: Few) -> None:
    client = Http2(few.gateway, "a.test")
    for _ in range(2):  # the first takes the window of the connection
        upload = client.send("/limited", "POST", extra=(("content-length", "60000"),), end=False)
        for piece in range(4):
            client.send_more(upload, bytes(15000), end=piece == 3)
        client.wait(upload)
        assert client.answers[upload][0] == 200
    after = client.send("/pub/after")
    client.wait(after)
    assert client.answers[after][0] == 200
    client.close()
