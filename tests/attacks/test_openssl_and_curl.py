"""Attempts with tools whose bytes are well formed: early data of TLS, many streams of one HTTP/2 client, a bomb."""

from __future__ import annotations

import gzip
import socket
import subprocess
import zlib
from pathlib import Path

import pytest

from tests.gateway.conftest import Bed
from tests.support.listening import free_port
from tests.support.origin import Seen
from tests.support.shop import needs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway


def s_client(bed: Bed, port: int, *options: str, say: bytes = b"") -> str:
    """What `openssl s_client` shows of a session with a.test in a tunnel."""
    argv = [needs("openssl"), "s_client", "-proxy", f"127.0.0.1:{port}", "-connect", "a.test:443"]
    argv += ["-servername", "a.test", "-CAfile", str(bed.gateway.authority.cert_path), "-ign_eof", *options]
    done = subprocess.run(argv, input=say, capture_output=True, timeout=30, check=False)
    return (done.stdout + done.stderr).decode("latin-1")


HONEST = b"GET /pub/honest HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"


def test_data_before_the_handshake_is_done_is_not_taken(bed: Bed, tmp_path: Path) -> None:
    """Early data can be played again by who records it. Its control is a server that takes it."""
    session, early = tmp_path / "session", tmp_path / "early"
    early.write_bytes(b"GET /pub/early HTTP/1.1\r\nHost: a.test\r\n\r\n")
    with bed.gateway.tcp_port() as port:
        first = s_client(bed, port, "-sess_out", str(session), say=HONEST)
        assert "hello from the origin" in first
        assert "Max Early Data: 0" in first
        again = s_client(bed, port, "-sess_in", str(session), "-early_data", str(early), say=HONEST)
    assert "Early data was accepted" not in again
    assert "/pub/early" not in [line["path"] for line in bed.gateway.decisions()]
    assert "/pub/early" not in [seen.target for seen in bed.a.seen]
    assert bed.gateway.get("https://a.test/pub/after").status == 200


def test_early_data_is_taken_by_a_server_that_wants_it(tmp_path: Path) -> None:
    """The control: the same client."""
    openssl, session, early = needs("openssl"), tmp_path / "session", tmp_path / "early"
    early.write_bytes(b"early")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=a.test"]
    subprocess.run(
        [openssl, "req", "-x509", *new, "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    address = f"127.0.0.1:{free_port()}"
    serve = [openssl, "s_server", "-accept", address, "-key", key, "-cert", certificate, "-early_data"]
    with subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        try:
            assert server.stdout is not None
            while b"ACCEPT" not in server.stdout.readline():
                assert server.poll() is None
            client = [openssl, "s_client", "-connect", address]
            with subprocess.Popen(
                [*client, "-sess_out", str(session)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
            ) as first:
                try:
                    wait_until(lambda: session.exists() and session.stat().st_size, 20)
                    first.communicate(b"Q\n", 20)  # a session that breaks off is forgotten
                finally:
                    first.kill()
            again = [*client, "-sess_in", str(session), "-early_data", str(early)]
            done = subprocess.run(again, input=b"Q\n", capture_output=True, timeout=20, check=False)
        finally:
            server.kill()
    assert b"Early data was accepted" in done.stdout


@pytest.mark.attack("82")
def test_curl_asks_for_many_at_once_and_each_is_judged(bed: Bed) -> None:
    paths = [f"/pub/{number}" if number % 2 else f"/private/{number}" for number in range(20)]
    with bed.gateway.tcp_port() as port:
        argv = [needs("curl"), "-sS", "-Z", "--http2", "-m", "30", "--path-as-is", "-o", "/dev/null"]
        argv += ["-x", f"http://127.0.0.1:{port}", "--cacert", str(bed.gateway.authority.cert_path)]
        argv += ["-w", "%{url} %{http_code} %{http_version}\n", "-o", "/dev/null"]
        words = [word for path in paths for word in (f"https://a.test{path}", "-o", "/dev/null")]
        done = subprocess.run([*argv, *words], capture_output=True, text=True, timeout=60, check=True)
    expected = {f"https://a.test{path} {200 if path.startswith('/pub') else 403} 2" for path in paths}
    assert {line for line in done.stdout.splitlines() if line} == expected
    assert {seen.target for seen in bed.a.seen} == {path for path in paths if path.startswith("/pub")}
    assert len(bed.gateway.decisions()) == len(paths)


def test_a_bomb_in_an_answer_is_passed_on_as_it_is(bed: Bed) -> None:
    """A gibibyte of zeros in a mebibyte: nobody on the way has a reason to unpack it."""
    part = gzip.compress(bytes(1 << 24))
    bomb = part * 64

    def answer(connection: socket.socket, _seen: Seen) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(bomb)}\r\n\r\n"
        connection.sendall(head.encode() + bomb)

    bed.a.answers["/pub/bomb"] = answer
    assert bed.gateway.get("https://a.test/pub/before").status == 200
    before = bed.gateway.peak_from_now()
    reply = bed.gateway.get("https://a.test/pub/bomb")
    grown = bed.gateway.memory_kib() - before
    assert reply.headers["content-encoding"] == "gzip"
    assert zlib.crc32(reply.body) == zlib.crc32(bomb)
    assert grown < 16 * 1024, f"{grown} KiB"
    assert len(gzip.decompress(part)) * 64 == 1 << 30, "the control: it is a bomb"
