"""What is cheap to send and costly to work on: frames, fragments, chunks, certificates. Others are answered meanwhile.

Each flood runs for a second or two from several connections, while honest requests of the same run are made; memory is
that of the gateway's peak.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from impyard.addon.limits import DEFAULTS, MIB
from impyard.addon.tls import GatewayTls
from impyard.certs.authority import ensure_authority
from tests.bench.processes import cpu_s
from tests.gateway.conftest import Bed
from tests.gateway.test_bounds import BOUND_KIB
from tests.gateway.test_protocols import Http2, WebSocket
from tests.support.gateway import read_reply

pytestmark = pytest.mark.gateway

# What the gateway may do, in CPU seconds, between an honest request of the same run and its answer. On a machine that
# does nothing else it is the same by the clock.
BOUND_S = 3.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def h2(bed: Bed) -> ssl.SSLSocket:
    connection = bed.gateway.tls("a.test", alpn=("h2",))
    connection.sendall(PREFACE + frame(4, 0, 0, b""))
    return connection


def get_of_allowed(stream: int) -> bytes:
    """The frame of a whole request that the policy allows."""
    return frame(1, 5, stream, b"\x82\x87\x04\x06/pub/x\x41\x06a.test")


def cancelled(stream: int) -> bytes:
    return frame(3, 0, stream, struct.pack(">I", 8))


HEAD = b"\x82\x87\x84\x41\x06a.test"  # GET https / of a.test


def pings(bed: Bed) -> None:
    with h2(bed) as connection:
        pour(connection, frame(6, 0, 0, b"12345678") * 1000)


def settings(bed: Bed) -> None:
    with h2(bed) as connection:
        pour(connection, frame(4, 0, 0, struct.pack(">HI", 3, 100)) * 1000)


def empty_data(bed: Bed) -> None:
    with h2(bed) as connection:
        connection.sendall(frame(1, 4, 1, b"\x83\x87\x84\x41\x06a.test"))
        pour(connection, frame(0, 0, 1, b"") * 1000)


def continuations(bed: Bed) -> None:
    with h2(bed) as connection:
        connection.sendall(frame(1, 0, 1, HEAD))
        pour(connection, frame(9, 0, 1, b"\x00\x01x\x7f\x81\x7f" + b"y" * 16000))


def bomb(bed: Bed) -> None:
    """One big header in the table, named again and again by one byte each."""
    with h2(bed) as connection:
        big = b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000
        pour(connection, b"".join(frame(1, 5, n, HEAD + (big if n == 1 else b"") + b"\xbe" * 15000) for n in (1, 3)))


def rapid_resets(bed: Bed) -> None:
    reset_each(bed, lambda stream: frame(1, 5, stream, HEAD))


def rapid_resets_of_allowed(bed: Bed) -> None:
    reset_each(bed, get_of_allowed)


def reset_each(bed: Bed, request: Callable[[int], bytes]) -> None:
    with h2(bed) as connection:
        for first in range(1, 4000, 40):
            block = b"".join(request(stream) + cancelled(stream) for stream in range(first, first + 40, 2))
            if not pour(connection, block, times=1):
                return


def one_byte_chunks(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: a.test\r\ntransfer-encoding: chunked\r\n\r\n")
        pour(connection, b"1\r\nx\r\n" * 2000)


def one_byte_fragments(bed: Bed) -> None:
    client = WebSocket(bed, "/pub/duplex")
    pour(client.socket, (b"\x00\x81\x00\x00\x00\x00x") * 2000)


def one_byte_messages(bed: Bed) -> None:
    pour(WebSocket(bed, "/pub/duplex").socket, b"\x82\x81\x00\x00\x00\x00x" * 2000)


def tiny_pings(bed: Bed) -> None:
    client = WebSocket(bed, "/pub/duplex")
    pour(client.socket, (b"\x89\x81\x00\x00\x00\x00x") * 2000)


def names(bed: Bed) -> None:
    for number in range(40):
        with contextlib.suppress(OSError):
            bed.gateway.tls(f"n{threading.get_ident()}-{number}.test").close()


def bad_heads(bed: Bed) -> None:
    with contextlib.suppress(OSError):
        for _ in range(100):
            with bed.gateway.connect() as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n")
                connection.recv(1000)


def pour(connection: socket.socket, block: bytes, times: int = 100, seconds: float = 1.5) -> bool:
    """Send and do not read; whether the other side still took it at the end."""
    connection.settimeout(seconds)
    deadline = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        for _ in range(times):
            connection.sendall(block)
            if time.monotonic() > deadline:
                break
        return True
    return False


FLOODS = [
    pings,
    settings,
    empty_data,
    continuations,
    bomb,
    rapid_resets,
    rapid_resets_of_allowed,
    one_byte_chunks,
    one_byte_fragments,
    one_byte_messages,
    tiny_pings,
    names,
    bad_heads,
]


def drained(bed: Bed) -> None:
    """A denied upload whose sender does not stop."""
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"POST /denied HTTP/1.1\r\nHost: a.test\r\ncontent-length: 999999999999\r\n\r\n")
        pour(connection, bytes(1 << 16), times=1 << 20, seconds=1.5)


@pytest.mark.attack("127", "128", "85", "F27", "F04")
@pytest.mark.parametrize("flood", [*FLOODS, drained])
def test_a_flood_keeps_no_memory_and_holds_up_nobody_for_long(bed: Bed, flood: Callable[[Bed], None]) -> None:
    gateway = bed.gateway
    assert gateway.get("https://a.test/pub/x").status == 200
    before = gateway.peak_from_now()
    threads = [threading.Thread(target=flood, args=(bed,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    costs: list[float] = []
    while any(thread.is_alive() for thread in threads) or not costs:
        started = cpu_s(gateway.process.pid)
        with gateway.connect() as connection:
            connection.settimeout(60)
            connection.sendall(b"GET http://plain.test/denied HTTP/1.1\r\nHost: plain.test\r\n\r\n")
            assert read_reply(connection).status == 403
        costs.append(cpu_s(gateway.process.pid) - started)
        time.sleep(0.02)
    for thread in threads:
        thread.join(20)
    assert max(costs) < BOUND_S, costs
    assert gateway.memory_kib() - before < BOUND_KIB
    assert gateway.get("https://a.test/pub/x").status == 200


ENDED = [pings, settings, empty_data, continuations]


@pytest.mark.attack("127")
@pytest.mark.parametrize("flood", ENDED)
def test_frames_that_carry_nothing_end_the_connection_with_a_line(bed: Bed, flood: Callable[[Bed], None]) -> None:
    flood(bed)
    deadline = time.monotonic() + 10
    while "too-large" not in [line["reason"] for line in bed.gateway.decisions()]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert bed.untouched()


@pytest.mark.attack("127", control=True)
def test_as_many_pings_as_a_client_may_send_are_answered(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test")
    for _ in range(500):
        client.ping()
    stream = client.send("/pub/x")
    client.wait(stream)
    assert client.answers[stream][0] == 200
    client.close()


@pytest.mark.attack("85", "F04")
@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_denied_upload_is_taken_no_further_than_its_limit(bed: Bed, version: str) -> None:
    block, limit = bytes(1 << 16), DEFAULTS.drain_bytes
    if version == "2":
        client = Http2(bed.gateway, "a.test")
        stream = client.send("/denied", "POST", end=False)
        client.wait(stream)
        assert client.answers[stream][0] == 403
        client.pour(stream, 2 * limit, seconds=60)
        client.wait(client.send("/pub/x"))
        assert len(client.answers) == 1  # the connection has ended
        client.close()
    else:
        with bed.gateway.tls("a.test") as connection:
            connection.sendall(b"POST /denied HTTP/1.1\r\nHost: a.test\r\ncontent-length: 999999999999\r\n\r\n")
            assert read_reply(connection).status == 403
            sent = 0
            with contextlib.suppress(OSError):
                while sent < 2 * limit:
                    connection.sendall(block)
                    sent += len(block)
            assert limit - 16 * MIB < sent < limit + 16 * MIB
    ends = ["no-rule"] if version == "1.1" else ["no-rule", "too-large"]
    assert [line["reason"] for line in bed.gateway.decisions()] == ends
    assert bed.untouched()


@pytest.mark.attack("128")
def test_the_certificates_of_many_names_are_not_kept(tmp_path: Path) -> None:
    """Below the TLS hook, so that many names take a second."""
    tls = GatewayTls(ensure_authority(tmp_path))
    first = tls._context_for("n0.test")
    assert tls._context_for("n0.test") is first  # control: the last ones are kept
    for number in range(1, 500):
        tls._context_for(f"n{number}.test")
    assert tls._context_for.cache_info().currsize == 100
    assert tls._context_for("n0.test") is not first
