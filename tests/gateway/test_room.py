"""Requests that end in odd ways give back the room that they took: afterwards as many may be in progress as before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.gateway.conftest import Bed
from tests.gateway.test_floods import gateway_with
from tests.gateway.test_protocols import Http2, WebSocket
from tests.support.origin import Pki
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway

REQUESTS = 4
UPLOAD = b"POST %s HTTP/1.1\r\nHost: a.test\r\n%s\r\n\r\n"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Bed]:
    with gateway_with(tmp_path_factory.mktemp("narrow"), pki, requests=REQUESTS, turn_s=1.0, connect_s=2.0) as bed:
        yield bed


def says_and_leaves(data: bytes) -> Callable[[Bed], None]:
    def attempt(bed: Bed) -> None:
        with contextlib.suppress(OSError), bed.gateway.tls("a.test") as connection:
            connection.sendall(data)

    return attempt


def resets_streams(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test")
    for stream in [client.send("/pub/silent") for _ in range(3 * REQUESTS)]:
        client.reset_stream(stream)
    client.vanish()


def leaves_a_websocket(bed: Bed) -> None:
    WebSocket(bed, "/pub/ws").socket.close()


def closes_a_websocket(bed: Bed) -> None:
    WebSocket(bed, "/pub/ws").close()


def asks(url: str) -> Callable[[Bed], None]:
    return lambda bed: (bed.gateway.get(url), None)[1]


STORM = {
    "vanishes": says_and_leaves(b"GET /pub/silent HTTP/1.1\r\nHost: a.test\r\n\r\n"),
    "early": says_and_leaves(UPLOAD % (b"/early", b"content-length: 500000") + bytes(100_000)),
    "over its limit": says_and_leaves(
        UPLOAD % (b"/limited", b"transfer-encoding: chunked") + b"30000\r\n" + bytes(0x30000)
    ),
    "half a body": says_and_leaves(UPLOAD % (b"/v1/messages", b"content-length: 50") + b"abc"),
    "expects": says_and_leaves(UPLOAD % (b"/v1/messages", b"expect: 100-continue\r\ncontent-length: 50")),
    "resets": resets_streams,
    "leaves a WebSocket": leaves_a_websocket,
    "closes a WebSocket": closes_a_websocket,
    "gone": asks("https://gone.test/pub/x"),
    "wrong name": asks("https://wrong-name.test/pub/x"),
    "unresolvable": asks("https://no-such-name.invalid/x"),
    **{path: asks(f"https://a.test/pub/{path}") for path in ("garbage", "cut", "switch", "two-lengths", "last")},
}


@pytest.mark.attack("127")
@pytest.mark.parametrize("attempt", STORM.values(), ids=STORM)
def test_the_room_of_what_ends_oddly_comes_back(narrow: Bed, attempt: Callable[[Bed], None]) -> None:
    narrow.a.clear()
    for _ in range(REQUESTS + 1):
        attempt(narrow)
    with contextlib.ExitStack() as held:
        for _ in range(REQUESTS):
            connection = held.enter_context(narrow.gateway.tls("a.test"))
            connection.sendall(b"GET /pub/sse HTTP/1.1\r\nHost: a.test\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
    narrow.a.release.set()


def test_there_is_room_for_no_more_than_that(narrow: Bed) -> None:
    """Control: one that is kept is missed."""
    narrow.a.clear()
    with contextlib.ExitStack() as held:
        for _ in range(REQUESTS):
            connection = held.enter_context(narrow.gateway.tls("a.test"))
            connection.sendall(b"GET /pub/sse HTTP/1.1\r\nHost: a.test\r\n\r\n")
        wait_until(lambda: len(narrow.a.seen) == REQUESTS, 10)
        assert narrow.gateway.get("https://a.test/pub/x").status == 503
    narrow.a.release.set()
