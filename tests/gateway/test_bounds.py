"""One client cannot take the gateway's memory, time or descriptors from the others. Bounded loads on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import h2.config
import h2.connection
import h2.settings
import pytest

from tests.gateway.conftest import POLICY, Bed
from tests.gateway.test_protocols import Http2, WebSocket
from tests.support.gateway import LiveGateway, read_reply
from tests.support.origin import Pki

pytestmark = pytest.mark.gateway

MB = 1 << 20
# What a flood of SENT may add to the gateway's peak; each of them was kept whole before there were bounds.
SENT = 64 * MB
BOUND_KIB = 32 * 1024


def push(connection: socket.socket, block: bytes, total: int = SENT) -> int:
    """Send until `total` or until nobody takes it for two seconds; how much went."""
    connection.settimeout(2)
    sent = 0
    with contextlib.suppress(OSError):
        while sent < total:
            sent += connection.send(block)
    return sent


def endless_extension(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"POST /denied HTTP/1.1\r\nHost: a.test\r\ntransfer-encoding: chunked\r\n\r\n5;")
        push(connection, b"x" * 65536)


def endless_connect_body(bed: Bed) -> None:
    with bed.gateway.connect() as connection:
        connection.sendall(b"CONNECT a.test:443 HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;")
        push(connection, b"x" * 65536)


def behind_a_pending_answer(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"GET /pub/sse HTTP/1.1\r\nHost: a.test\r\n\r\n")
        connection.recv(100)
        push(connection, b"x" * 65536)
    bed.a.release.set()


def endless_answer(bed: Bed, kind: str) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.settimeout(2)
        connection.sendall(f"GET /pub/endless-{kind}?n=64000 HTTP/1.1\r\nHost: a.test\r\n\r\n".encode())
        with contextlib.suppress(TimeoutError):  # after a whole answer of ours the connection goes on
            while connection.recv(65536):
                pass
    assert bed.gateway.outcomes(2)[1]["error"]


def endless_answer_head(bed: Bed) -> None:
    endless_answer(bed, "head")


def endless_trailers(bed: Bed) -> None:
    endless_answer(bed, "trailers")


def endless_chunk_line(bed: Bed) -> None:
    endless_answer(bed, "chunk-line")


def download_without_a_window(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test", window=0)
    client.send(f"/pub/big?n={SENT}")
    time.sleep(2)
    client.close()


@pytest.mark.parametrize(
    "flood",
    [
        endless_extension,
        endless_connect_body,
        behind_a_pending_answer,
        endless_answer_head,
        endless_trailers,
        endless_chunk_line,
        download_without_a_window,
    ],
)
def test_a_flood_is_not_kept(bed: Bed, flood: Callable[[Bed], None]) -> None:
    bed.gateway.get("https://a.test/pub/x")
    before = bed.gateway.peak_from_now()
    flood(bed)
    assert bed.gateway.memory_kib() - before < BOUND_KIB
    assert bed.gateway.get("https://a.test/pub/after").status == 200


def test_an_upload_waits_outside_while_its_origin_comes_up(tmp_path: Path, pki: Pki) -> None:
    """The origin takes the connection and never says hello."""
    mute = socket.create_server(("127.0.0.1", 0))
    policy = POLICY.format(a=mute.getsockname()[1], plain=1, ca=pki.ca_path)
    gateway = LiveGateway(tmp_path, policy)
    try:
        before = gateway.peak_from_now()
        with gateway.tls("a.test") as connection:
            head = f"POST /v1/messages HTTP/1.1\r\nHost: a.test\r\ncontent-length: {SENT}\r\n\r\n"
            connection.sendall(head.encode())
            assert push(connection, b"x" * 65536) < SENT
        assert gateway.memory_kib() - before < BOUND_KIB
    finally:
        gateway.stop()
        mute.close()


def grant_nothing(listener: socket.socket, context: ssl.SSLContext) -> None:
    """An HTTP/2 origin that takes requests and not one byte of a body."""
    connection = context.wrap_socket(listener.accept()[0], server_side=True)
    assert connection.selected_alpn_protocol() == "h2"
    protocol = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    protocol.local_settings = h2.settings.Settings(
        client=False, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0}
    )
    protocol.initiate_connection()
    connection.sendall(protocol.data_to_send())
    with contextlib.suppress(OSError):
        while connection.recv(65536):
            pass


def test_an_upload_waits_outside_while_an_http2_origin_grants_no_window(tmp_path: Path, pki: Pki) -> None:
    context = pki.context("a.test")
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=grant_nothing, args=(listener, context), daemon=True).start()
    gateway = LiveGateway(tmp_path, POLICY.format(a=listener.getsockname()[1], plain=1, ca=pki.ca_path))
    try:
        client = Http2(gateway, "a.test")
        stream = client.send("/v1/messages", "POST", end=False)
        before = gateway.peak_from_now()
        assert client.pour(stream, SENT, seconds=4) < SENT
        assert gateway.memory_kib() - before < BOUND_KIB
        client.close()
    finally:
        gateway.stop()
        listener.close()


def test_an_unread_download_does_not_hold_up_the_others_of_its_connection(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test", window=65535)
    big = client.send(f"/pub/big?n={SENT}")
    time.sleep(0.5)  # it stands, with more waiting than the gateway keeps
    small = client.send("/pub/x")
    started = time.monotonic()
    client.wait(small)
    assert client.answers[small][0] == 200
    assert time.monotonic() - started < 3
    assert big not in client.answers
    client.close()


def test_two_that_send_much_at_once_do_not_wait_for_each_other(bed: Bed) -> None:
    """The client sends 16 MiB before it reads, while the origin reads and sends 16 MiB of its own."""
    client = WebSocket(bed, "/pub/duplex")
    assert client.push(bytes(MB), 16)
    deadline = time.monotonic() + 20
    while len(client.received) < 16 * MB and time.monotonic() < deadline:
        client.read()
    assert len(client.received) == 16 * MB
    client.close()
    assert bed.a.seen[-1].body_bytes == 16 * MB


def test_a_tls_hello_in_tiny_records_does_not_stop_the_others(bed: Bed) -> None:
    hello = bytes([1]) + (1 << 20).to_bytes(3, "big") + b"\x03\x03" + bytes(300_000)
    records = b"".join(b"\x16\x03\x01" + struct.pack(">H", 1) + hello[i : i + 1] for i in range(300_000))
    slow: list[float] = []

    def attack() -> None:
        with bed.gateway.tunnel("a.test:443") as connection:
            push(connection, records, len(records))

    attacker = threading.Thread(target=attack)
    attacker.start()
    while attacker.is_alive() or not slow:
        started = time.monotonic()
        assert bed.gateway.get("https://a.test/pub/x").status == 200
        slow.append(time.monotonic() - started)
    attacker.join(10)
    assert max(slow) < 1.0, max(slow)


def test_thousands_of_override_headers_cost_nothing(bed: Bed) -> None:
    headers = "".join(f"X-Original-URL: /pub/{n}\r\n" for n in range(2000))
    started = time.monotonic()
    assert bed.gateway.get("https://a.test/pub/x", headers=headers).status == 431
    assert time.monotonic() - started < 0.5


def test_descriptors_come_back_when_clients_vanish(bed: Bed) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{bed.gateway.process.pid}/fd"))

    bed.gateway.get("https://a.test/pub/x")
    before = descriptors()
    for _ in range(60):
        client = Http2(bed.gateway, "a.test")
        for number in range(4):
            client.send(f"/pub/{number}")
        client.vanish()
    deadline = time.monotonic() + 60
    while descriptors() > before + 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert descriptors() <= before + 3

    def allowed() -> int:
        return sum(line["verdict"] == "allow" for line in bed.gateway.decisions())

    while len(bed.gateway.outcomes(allowed())) != allowed() and time.monotonic() < deadline:
        time.sleep(0.1)  # the last of them may still be under way
    assert len(bed.gateway.outcomes()) == allowed()


def test_no_origin_of_a_flood_was_asked_for_more_than_was_allowed(own_bed: Bed) -> None:
    """Control of this file: a gateway that answers nothing at all would pass the tests above."""
    with own_bed.gateway.tls("a.test") as connection:
        assert isinstance(connection, ssl.SSLSocket)
        connection.sendall(b"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n")
        assert read_reply(connection).status == 200
    assert len(own_bed.a.seen) == 1
