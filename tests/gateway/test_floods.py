"""Floods of one run: each has a defined end, its record is no flood, and honest requests are answered meanwhile.

Limits are set low where a test waits for one or opens that many connections; the control beside it has the limit high.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateway.conftest import POLICY, Bed
from tests.gateway.test_protocols import Http2, WebSocket
from tests.support.gateway import LiveGateway, Reply, read_reply
from tests.support.origin import Origin, Pki

pytestmark = pytest.mark.gateway

# An honest request of the same run, while the flood is on; generous, for a machine that is busy itself.
SAME_RUN_S = 5.0
OTHER_RUN_S = 2.0
SMALL = {"connections": 40, "turned_away": 8}
QUICK = {
    "head_s": 1.0,
    "tunnel_s": 1.0,
    "handshake_s": 1.0,
    "idle_s": 1.0,
    "silent_s": 4.0,
    "connect_s": 1.0,
    "establish_s": 1.0,
    "origin_idle_s": 1.0,
    "drain_s": 1.0,
    "drain_bytes": 1 << 20,
    "turn_s": 1.0,
    "sweep_s": 0.1,
    "requests": 4,
}


@contextlib.contextmanager
def gateway_with(root: Path, pki: Pki, **limits: float) -> Iterator[Bed]:
    """A bed whose gateway has other limits."""
    a, plain = Origin(pki.context("a.test", "unknown-ca.test")), Origin()
    policy = POLICY.format(a=a.port, plain=plain.port, ca=pki.ca_path)
    gateway = LiveGateway(root, policy, limits=limits)
    assert gateway.first.get("event") == "ready", (gateway.first, gateway.stderr_path.read_text())
    try:
        yield Bed(gateway, a, plain, policy)
    finally:
        gateway.stop()
        a.close()
        plain.close()


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Bed]:
    """Every time is short, and few requests may be in progress."""
    with gateway_with(tmp_path_factory.mktemp("quick"), pki, **QUICK) as bed:
        yield bed


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Bed]:
    """Few connections."""
    with gateway_with(tmp_path_factory.mktemp("small"), pki, **SMALL) as bed:
        yield bed


def lines_since(bed: Bed, count: int, *, at_least: int = 1) -> list[dict[str, object]]:
    """The decisions after the first `count`, after waiting a moment for `at_least` of them."""
    deadline = time.monotonic() + 5
    while len(lines := bed.gateway.decisions()[count:]) < at_least and time.monotonic() < deadline:
        time.sleep(0.05)
    return lines


def ends_within(connection: socket.socket | PingsAlone, seconds: float) -> float:
    """Read to the connection's end; how long it took."""
    started = time.monotonic()
    connection.settimeout(seconds)
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return time.monotonic() - started


def honest(bed: Bed, bound_s: float) -> Reply:
    """One request; within a bound."""
    started = time.monotonic()
    reply = bed.gateway.get("https://a.test/pub/honest")
    assert time.monotonic() - started < bound_s
    return reply


# --- connections --------------------------------------------------------------------------------------------------


@pytest.mark.attack("127")
def test_the_one_connection_too_many_is_told_so_and_a_flood_of_them_is_one_line_a_second(
    small: Bed, module_bed: Bed
) -> None:
    held = [small.gateway.connect() for _ in range(SMALL["connections"] - 1)]
    assert honest(small, SAME_RUN_S).status == 200  # the last one: the limit itself is not over it
    before, started = len(small.gateway.decisions()), time.monotonic()
    time.sleep(0.1)
    held.append(small.gateway.connect())
    time.sleep(0.1)
    told = 0
    for _ in range(300):
        with small.gateway.connect() as extra:
            extra.settimeout(0.3 if told else 5)
            with contextlib.suppress(OSError):
                extra.sendall(b"GET http://plain.test/pub/x HTTP/1.1\r\nHost: plain.test\r\n\r\n")
                reply = read_reply(extra)
                told += reply.status == 503
                assert "send the request again" in reply.json()["error"]
    assert told > 200
    assert honest(module_bed, OTHER_RUN_S).status == 200  # of another run
    took = time.monotonic() - started
    for connection in held:
        connection.close()
    deadline = time.monotonic() + 5
    while sum(int(str(line.get("times", 1))) for line in lines_since(small, before)) < 300:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    lines = lines_since(small, before)
    assert {line["reason"] for line in lines} == {"busy"}
    assert len(lines) <= took + 3
    assert small.untouched() or len(small.a.seen) == 1
    assert honest(small, SAME_RUN_S).status == 200


@pytest.mark.attack("127", control=True)
def test_with_a_high_limit_the_same_flood_is_held_open(module_bed: Bed) -> None:
    held = [module_bed.gateway.connect() for _ in range(300)]
    for connection in held:
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        connection.close()


@pytest.mark.attack("F17")
def test_few_descriptors_mean_few_connections_and_a_word_about_it(tmp_path: Path, pki: Pki) -> None:
    a = Origin(pki.context("a.test", "unknown-ca.test"))
    gateway = LiveGateway(tmp_path, POLICY.format(a=a.port, plain=1, ca=pki.ca_path), descriptors=128)
    try:
        assert gateway.first.get("event") == "ready", gateway.first
        held = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                held.append(gateway.connect())
        time.sleep(0.3)
        for connection in held:
            connection.close()
        time.sleep(0.3)
        assert gateway.get("https://a.test/pub/x").status == 200
        words = gateway.stderr_path.read_text()
        assert "only 128 files may be open at once" in words and "ulimit -n" in words
        assert "Traceback" not in words and len(words.splitlines()) < 10
    finally:
        gateway.stop()
        a.close()


@pytest.mark.attack("F17")
def test_too_few_descriptors_are_a_fault_at_the_start(tmp_path: Path) -> None:
    gateway = LiveGateway(tmp_path, "networkPolicies: []\n", descriptors=64)
    try:
        assert gateway.first == {
            "event": "failed",
            "error": "only 64 files may be open at once, too few for a gateway",
            "hint": "raise the limit before the start: `ulimit -n 4096`",
        }
    finally:
        gateway.stop()


# --- times --------------------------------------------------------------------------------------------------------


def trickle(connection: socket.socket, data: bytes, every_s: float = 0.1) -> None:
    with contextlib.suppress(OSError):
        for number in range(len(data)):
            connection.sendall(data[number : number + 1])
            time.sleep(every_s)


def slow_head(bed: Bed) -> socket.socket:
    connection = bed.gateway.connect()
    threading.Thread(target=trickle, args=(connection, b"GET http://plain.test/pub/x HTTP/1.1\r\n" * 9)).start()
    return connection


def slow_head_in_a_tunnel(bed: Bed) -> socket.socket:
    connection = bed.gateway.tls("a.test")
    connection.sendall(b"GET /pub/x HTTP/1.1\r\nHost: a.t")
    return connection


def slow_method(bed: Bed) -> socket.socket:
    connection = bed.gateway.connect()
    connection.sendall(b"GE")
    return connection


def half_a_hello(bed: Bed) -> socket.socket:
    connection = bed.gateway.tunnel("a.test:443")
    connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    return connection


def silent_tunnel(bed: Bed) -> socket.socket:
    return bed.gateway.tunnel("a.test:443")


@pytest.mark.attack("127")
@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (slow_head, "too-slow"),
        (slow_head_in_a_tunnel, "too-slow"),
        (slow_method, "too-slow"),
        (half_a_hello, "too-slow"),
        (silent_tunnel, "not-http"),
    ],
)
def test_what_is_begun_and_not_ended_is_ended_with_a_line(
    quick: Bed, attempt: Callable[[Bed], socket.socket], reason: str
) -> None:
    before = len(quick.gateway.decisions())
    quick.a.clear()
    with attempt(quick) as connection:
        assert ends_within(connection, 10) < 5
    assert [line["reason"] for line in lines_since(quick, before)] == [reason]
    assert quick.untouched()
    assert honest(quick, SAME_RUN_S).status == 200


@pytest.mark.attack("127", control=True)
def test_with_longer_times_the_same_is_still_open(bed: Bed) -> None:
    attempts = (slow_head, slow_head_in_a_tunnel, slow_method, half_a_hello, silent_tunnel)
    connections = [attempt(bed) for attempt in attempts]
    time.sleep(1.8)
    for connection in connections:
        connection.setblocking(False)
        with pytest.raises((BlockingIOError, ssl.SSLWantReadError)):
            connection.recv(1)
        connection.close()


def nothing_at_all(bed: Bed) -> socket.socket:
    return bed.gateway.connect()


def kept_and_idle(bed: Bed) -> socket.socket:
    connection = bed.gateway.tls("a.test")
    connection.sendall(b"GET /denied HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert read_reply(connection).status == 403
    return connection


class PingsAlone:
    """A connection on which pings go out between reads: TLS takes no two threads at once."""

    def __init__(self, client: Http2) -> None:
        self._client = client

    def __enter__(self) -> PingsAlone:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._client.close()

    def settimeout(self, seconds: float) -> None:
        self._client.socket.settimeout(0.1)
        self._until = time.monotonic() + seconds

    def recv(self, size: int) -> bytes:
        """As of a socket; b"" at its end."""
        while time.monotonic() < self._until:
            try:
                return self._client.socket.recv(size)
            except TimeoutError:
                self._client.ping()
        raise TimeoutError


def pings_alone(bed: Bed) -> PingsAlone:
    client = Http2(bed.gateway, "a.test")
    stream = client.send("/denied")
    client.wait(stream)

    return PingsAlone(client)


@pytest.mark.attack("127")
@pytest.mark.parametrize("attempt", [nothing_at_all, kept_and_idle, pings_alone])
def test_a_connection_that_asks_nothing_is_closed(
    quick: Bed, attempt: Callable[[Bed], socket.socket | PingsAlone]
) -> None:
    before = len(quick.gateway.decisions())
    with attempt(quick) as connection:
        assert ends_within(connection, 10) < 5
    assert all(line["reason"] == "no-rule" for line in quick.gateway.decisions()[before:])


def test_a_chunk_that_does_not_end_is_ended(quick: Bed) -> None:
    count = len(quick.gateway.outcomes())
    with quick.gateway.tls("a.test") as connection:
        connection.sendall(
            b"POST /v1/messages HTTP/1.1\r\nHost: a.test\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n5;x"
        )
        assert ends_within(connection, 10) < 5
    assert "did not come to its end" in str(quick.gateway.outcomes(count + 1)[count]["error"])


def test_a_slow_upload_that_goes_on_is_not_ended(quick: Bed) -> None:
    """Control of the one above: each piece ends in the middle of a chunk's line, yet something came of it."""
    with quick.gateway.tls("a.test") as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: a.test\r\ntransfer-encoding: chunked\r\n\r\n1")
        for _ in range(6):
            time.sleep(0.4)
            connection.sendall(b"\r\nx\r\n1")
        connection.sendall(b"\r\nx\r\n0\r\n\r\n")
        assert read_reply(connection).status == 200


def test_a_silent_origin_is_given_up_and_the_box_hears_of_it(quick: Bed) -> None:
    count = len(quick.gateway.outcomes())
    with quick.gateway.tls("a.test") as connection:
        connection.sendall(b"GET /pub/silent HTTP/1.1\r\nHost: a.test\r\n\r\n")
        started = time.monotonic()
        reply = read_reply(connection)
    assert 3 < time.monotonic() - started < 10
    assert reply.status == 502 and "not a byte in 4 seconds" in reply.json()["error"]
    assert "not a byte" in str(quick.gateway.outcomes(count + 1)[count]["error"])


def test_an_idle_websocket_is_ended(quick: Bed) -> None:
    count = len(quick.gateway.outcomes())
    client = WebSocket(quick, "/pub/ws")
    assert client.status == 101 and client.echo(b"x")
    started = time.monotonic()
    while not client.closed and time.monotonic() - started < 10:
        client.read()
    assert 3 < time.monotonic() - started < 10
    assert "not a byte" in str(quick.gateway.outcomes(count + 1)[count]["error"])


@pytest.mark.parametrize("kind", ["connect", "tls"])
def test_an_origin_that_does_not_come_up_is_named(tmp_path: Path, pki: Pki, kind: str) -> None:
    mute = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = mute.getsockname()[1]
    fillers = []
    if kind == "connect":  # a full backlog: the kernel takes no more
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        time.sleep(0.1)
    gateway = LiveGateway(tmp_path, POLICY.format(a=port, plain=1, ca=pki.ca_path), limits=QUICK)
    try:
        started = time.monotonic()
        reply = gateway.get("https://a.test/pub/x")
        assert time.monotonic() - started < 8
        assert reply.status == 502
        assert ("did not take the connection" if kind == "connect" else "TLS handshake") in reply.json()["error"]
        assert [line["verdict"] for line in gateway.decisions()] == ["allow"]
        assert gateway.outcomes(1)[0]["error"]
    finally:
        gateway.stop()
        mute.close()
        for filler in fillers:
            filler.close()


# --- decisions and requests in progress ---------------------------------------------------------------------------


@pytest.mark.attack("127")
def test_requests_in_progress_are_bounded_and_the_next_is_told_that_it_passes(quick: Bed) -> None:
    quick.a.release.clear()
    held = []
    for _ in range(int(QUICK["requests"])):
        connection = quick.gateway.tls("a.test")
        connection.sendall(b"GET /pub/sse HTTP/1.1\r\nHost: a.test\r\n\r\n")
        connection.recv(10)
        held.append(connection)
    assert quick.gateway.get("https://a.test/denied").status == 403  # a refusal needs no room
    count = len(quick.gateway.outcomes())
    seen = len(quick.a.seen)
    started = time.monotonic()
    reply = quick.gateway.get("https://a.test/pub/x")
    assert reply.status == 503 and reply.headers["retry-after"] == "1"
    assert time.monotonic() - started < QUICK["turn_s"] + 3
    assert len(quick.a.seen) == seen
    assert "in progress" in str(quick.gateway.outcomes(count + 1)[count]["error"])
    threading.Timer(0.2, quick.a.release.set).start()
    assert honest(quick, SAME_RUN_S).status == 200  # it waited for its turn
    for connection in held:
        connection.close()


@pytest.mark.attack("127")
def test_a_flood_of_requests_waits_for_itself(tmp_path: Path, pki: Pki, module_bed: Bed) -> None:
    limits = {"decisions": 50, "decisions_per_s": 50}
    with gateway_with(tmp_path, pki, **limits) as bed:
        over = threading.Event()

        def flood() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError), bed.gateway.tls("a.test") as connection:
                    while not over.is_set():
                        connection.sendall(b"GET /denied HTTP/1.1\r\nHost: a.test\r\n\r\n" * 20)
                        for _ in range(20):
                            assert read_reply(connection).status == 403

        threads = [threading.Thread(target=flood) for _ in range(5)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        time.sleep(1.5)
        for _ in range(3):
            assert honest(bed, SAME_RUN_S).status == 200
            assert honest(module_bed, OTHER_RUN_S).status == 200
        took = time.monotonic() - started
        over.set()
        for thread in threads:
            thread.join(10)
        count = len(bed.gateway.decisions())
        assert count <= 50 + 50 * (took + 3)


@pytest.mark.attack("127", control=True)
def test_without_a_rate_the_same_flood_writes_as_fast_as_it_can(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        started = time.monotonic()
        for _ in range(10):
            connection.sendall(b"GET /denied HTTP/1.1\r\nHost: a.test\r\n\r\n" * 20)
            for _ in range(20):
                assert read_reply(connection).status == 403
        took = time.monotonic() - started
    assert len(bed.gateway.decisions()) == 200 > 50 + 50 * took
