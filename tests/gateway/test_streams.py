"""Bodies in both directions: as they come, with flat memory, and never held up by the one who answers early."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
import threading
import time
from pathlib import Path

import h2.connection
import pytest

from tests.gateway.conftest import Bed, make_bed
from tests.support.gateway import LiveGateway, read_head, read_reply
from tests.support.origin import Pki

pytestmark = pytest.mark.gateway

MB = 1 << 20
# What a stream of any size may add to the gateway's peak. A gateway that buffers needs the whole body.
FLAT_KIB = 24 * 1024


@pytest.mark.attack("F15")
def test_the_first_event_arrives_before_the_second_is_sent(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"GET /pub/sse HTTP/1.1\r\nHost: a.test\r\n\r\n")
        read_head(connection)
        connection.settimeout(3)
        assert b"data: one" in connection.recv(4096)
        assert not bed.a.release.is_set()
        bed.a.release.set()
        rest = b""
        while b"0\r\n\r\n" not in rest:
            rest += connection.recv(4096)
        assert b"data: two" in rest


def test_a_large_download_passes_whole_with_flat_memory(bed: Bed) -> None:
    bed.gateway.get("https://a.test/pub/x")
    before = bed.gateway.peak_from_now()
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"GET /pub/big?n=%d HTTP/1.1\r\nHost: a.test\r\n\r\n" % (200 * MB))
        assert len(read_reply(connection).body) == 200 * MB
    assert bed.gateway.memory_kib() - before < FLAT_KIB
    assert bed.gateway.outcomes(2)[1]["bytes_down"] == 200 * MB


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_large_upload_passes_unchanged_with_flat_memory(bed: Bed, chunked: bool) -> None:
    bed.gateway.get("https://a.test/pub/x")
    before = bed.gateway.peak_from_now()
    block = bytes(range(256)) * 4096
    with bed.gateway.tls("a.test") as connection:
        framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % (100 * MB)
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: a.test\r\n" + framing + b"\r\n\r\n")
        for _ in range(100):
            connection.sendall(b"%x\r\n%s\r\n" % (len(block), block) if chunked else block)
        if chunked:
            connection.sendall(b"0\r\nx-trailer: unjudged\r\n\r\n")
        assert read_reply(connection).status == 200
    seen = bed.a.seen[-1]
    assert seen.body_bytes == 100 * MB
    assert seen.digest == hashlib.sha256(block * 100).hexdigest()
    assert bed.gateway.memory_kib() - before < FLAT_KIB
    assert bed.gateway.outcomes(2)[1]["bytes_up"] == 100 * MB


@pytest.mark.attack("F03", "F04")
@pytest.mark.parametrize("expect", [False, True], ids=["plain", "expect-continue"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_denied_upload_is_answered_before_its_body(bed: Bed, chunked: bool, expect: bool) -> None:
    before = bed.gateway.peak_from_now()
    framing = "transfer-encoding: chunked" if chunked else f"content-length: {500 * MB}"
    wish = "Expect: 100-continue\r\n" if expect else ""
    with bed.gateway.tls("a.test") as connection:
        started = time.monotonic()
        connection.sendall(f"POST /denied HTTP/1.1\r\nHost: a.test\r\n{wish}{framing}\r\n\r\n".encode())
        reply = read_reply(connection)
        assert time.monotonic() - started < 1
        assert (reply.status, reply.headers["connection"]) == (403, "close")
        block = bytes(MB)
        try:
            for _ in range(100):  # a client that goes on sending is neither stored nor stalled
                connection.sendall(b"%x\r\n%s\r\n" % (len(block), block) if chunked else block)
        except OSError:
            pass
    assert bed.gateway.memory_kib() - before < FLAT_KIB
    assert [line["verdict"] for line in bed.gateway.decisions()] == ["deny"]
    assert bed.untouched()
    assert bed.gateway.get("https://a.test/pub/after").status == 200


@pytest.mark.attack("F03")
@pytest.mark.parametrize("rest", [b"nonsense\r\n", b"5\r\nabcdefg\r\n", b"-1\r\n", b""])
def test_a_denied_upload_whose_body_breaks_off_ends_in_order(bed: Bed, rest: bytes) -> None:
    """The break arrives while the refusal is being made: nothing may fall over."""
    before = len(bed.gateway.stderr_path.read_text())
    with bed.gateway.connect() as connection:
        head = b"POST http://plain.test/no HTTP/1.1\r\nHost: plain.test\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + rest)
        connection.shutdown(socket.SHUT_WR)
        assert read_reply(connection).status in (0, 403)
    assert [(line["verdict"], line["reason"]) for line in bed.gateway.decisions()] == [("deny", "no-rule")]
    assert bed.untouched()
    assert bed.gateway.get("https://a.test/pub/x").status == 200
    assert "Traceback" not in bed.gateway.stderr_path.read_text()[before:]


@pytest.mark.attack("95")
def test_an_upload_over_its_rules_limit_is_denied_by_its_length(bed: Bed) -> None:
    reply = bed.gateway.get("https://a.test/limited", "POST", body=bytes(100_001))
    assert (reply.status, reply.json()["reason"]) == (403, "body-limit")
    assert bed.untouched()
    assert bed.gateway.get("https://a.test/limited", "POST", body=bytes(100_000)).status == 200


@pytest.mark.attack("85", "95")
def test_an_upload_that_grows_over_its_limit_is_cut(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"POST /limited HTTP/1.1\r\nHost: a.test\r\ntransfer-encoding: chunked\r\n\r\n")
        connection.sendall(b"%x\r\n%s\r\n" % (200_000, bytes(200_000)))
        assert read_reply(connection).status == 413
    assert "max_body" in str(bed.gateway.outcomes(1)[0]["error"])
    assert all(seen.body_bytes <= 100_000 for seen in bed.a.seen)


def test_an_origin_that_answers_early_ends_the_upload(bed: Bed) -> None:
    """The origin answers at once and reads nothing more, while the client would send 500 MB."""
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"POST /early?s=3 HTTP/1.1\r\nHost: a.test\r\ncontent-length: %d\r\n\r\n" % (500 * MB))
        started = time.monotonic()
        connection.setblocking(False)
        received = b""
        while not received.endswith(b"enoug") and time.monotonic() - started < 10:
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                connection.send(bytes(1 << 14))
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                received += connection.recv(1 << 16)
        assert received.startswith(b"HTTP/1.1 413 ")
        assert time.monotonic() - started < 2
    assert bed.gateway.get("https://a.test/pub/after").status == 200


def test_a_client_that_leaves_stops_the_download(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"GET /pub/big?n=%d HTTP/1.1\r\nHost: a.test\r\n\r\n" % (1000 * MB))
        connection.recv(1000)
    outcome = bed.gateway.outcomes(1)[0]
    assert outcome["error"]
    assert int(str(outcome["bytes_down"])) < 100 * MB


@pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
def test_a_client_that_leaves_is_no_failure_and_an_origin_that_is_gone_is(tmp_path: Path, pki: Pki, alpn: str) -> None:
    with contextlib.contextmanager(make_bed)(tmp_path, pki) as bed:
        with bed.gateway.tls("a.test", alpn=(alpn,)) as connection:
            if alpn == "h2":
                client = h2.connection.H2Connection()
                client.initiate_connection()
                names = {
                    ":method": "GET",
                    ":scheme": "https",
                    ":authority": "a.test",
                    ":path": f"/pub/big?n={1000 * MB}",
                }
                for stream in (1, 3):
                    client.send_headers(stream, list(names.items()), end_stream=True)
                connection.sendall(client.data_to_send())
                while not bed.a.seen:
                    connection.recv(1000)
                client.reset_stream(1)
                connection.sendall(client.data_to_send())
                bed.gateway.outcomes(1)
            else:
                connection.sendall(b"GET /pub/big?n=%d HTTP/1.1\r\nHost: a.test\r\n\r\n" % (1000 * MB))
                connection.recv(1000)
        assert all(line["error"] for line in bed.gateway.outcomes(2 if alpn == "h2" else 1))
        assert bed.gateway.get("https://gone.test/pub/x").status == 502
        closed = bed.gateway.stop()
        assert (closed["event"], closed["upstream_errors"]) == ("closed", 1)
        (failed,) = closed["failed"]
        assert (failed["host"], failed["count"]) == ("gone.test", 1)
        assert "Connect call failed" in failed["error"]


@pytest.mark.parametrize("path", ["/pub/garbage", "/pub/cut"])
def test_a_broken_answer_is_an_upstream_failure(bed: Bed, path: str) -> None:
    reply = bed.gateway.get(f"https://a.test{path}")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert bed.gateway.outcomes(1)[0]["error"]
    assert bed.gateway.get("https://a.test/pub/after").status == 200


def test_trailers_of_an_answer_do_no_harm(bed: Bed) -> None:
    assert bed.gateway.get("https://a.test/pub/trailers").body == b"body"


@pytest.mark.attack("F26")
def test_answers_without_a_body_leave_the_connection_usable(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        for method, path in (("GET", "/pub/empty"), ("HEAD", "/pub/x"), ("GET", "/pub/x")):
            connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode())
            assert read_reply(connection, head_only=method == "HEAD").status in (200, 204)


def test_a_redirect_is_judged_anew(bed: Bed) -> None:
    reply = bed.gateway.get("https://a.test/pub/redirect")
    assert reply.headers["location"] == "https://b.test/x"
    assert bed.gateway.get("https://b.test/x").status == 403


@pytest.mark.attack("F05")
def test_a_tunnel_in_which_nobody_speaks_is_closed_and_recorded(bed: Bed) -> None:
    with bed.gateway.tunnel("a.test:25") as connection:
        connection.settimeout(20)
        assert connection.recv(10) == b""
    decision = bed.gateway.decisions()[0]
    assert (decision["reason"], decision["port"]) == ("not-http", 25)


def test_many_at_once_are_all_recorded_once(bed: Bed) -> None:
    def work(gateway: LiveGateway, results: list[int]) -> None:
        with gateway.tls("a.test") as connection:
            for number in range(20):
                path = "/pub/x" if number % 2 else "/denied"
                connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode())
                results.append(read_reply(connection).status)

    results: list[int] = []
    threads = [threading.Thread(target=work, args=(bed.gateway, results)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (results.count(200), results.count(403)) == (100, 100)
    assert sorted(line["seq"] for line in bed.gateway.decisions()) == sorted(
        range(bed.gateway.decisions()[0]["seq"], bed.gateway.decisions()[0]["seq"] + 200)
    )
