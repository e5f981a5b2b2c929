"""What one side says and the other would hear differently: the origin gets the judged request, or nothing."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.gateway.conftest import POLICY, Bed
from tests.gateway.test_protocols import Http2, WebSocket
from tests.support.gateway import LiveGateway, read_reply
from tests.support.listening import free_port
from tests.support.origin import Origin, Pki

pytestmark = pytest.mark.gateway


def ask(bed: Bed, raw: bytes, *, alpn: tuple[str, ...] = ()) -> int:
    """The status that raw bytes in a tunnel to a.test get; 0 for a closed connection."""
    with bed.gateway.tls("a.test", alpn=alpn) as connection:
        connection.sendall(raw)
        return read_reply(connection).status


@pytest.mark.parametrize(
    "header",
    [
        b"X: a\rContent-Length: 0",
        b"X: a\x00b",
        b"X: a\x0bb",
        b"X: a\x7fb",
        b"Cookie: a=b\rTransfer-Encoding: chunked",
        b"X: a\r\n Transfer-Encoding: chunked",
        b"X: a\r\n\tfolded",
    ],
)
def test_a_header_that_some_origin_would_split_is_refused(bed: Bed, header: bytes) -> None:
    """Control: the same request with an ordinary value, tab included, passes."""
    request = b"POST /v1/messages HTTP/1.1\r\nHost: a.test\r\n%s\r\nContent-Length: 20\r\n\r\nDELETE /x HTTP/1.1\r\n"
    assert ask(bed, request % header) == 400
    assert [(line["verdict"], line["reason"]) for line in bed.gateway.decisions()] == [("deny", "malformed")]
    assert bed.untouched()
    assert ask(bed, request % b"X: a\tb") == 200


def test_an_empty_frame_does_not_end_the_body_at_the_origin(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test")
    stream = client.send("/v1/messages", "POST", end=False)
    for part in (b"first", b"", b"DELETE /x HTTP/1.1\r\n\r\n"):
        client.send_more(stream, part)
    client.send_more(stream, b"", end=True)
    client.wait(stream)
    assert client.answers[stream][0] == 200
    assert [seen.body_start for seen in bed.a.seen] == [b"firstDELETE /x HTTP/1.1\r\n\r\n"]
    client.close()


@pytest.mark.parametrize(
    ("request_line", "host"),
    [
        ("GET /pub/x HTTP/1.0", ""),
        ("GET https://a.test/pub/x HTTP/1.1", ""),
        ("GET /pub/x HTTP/1.1", "Host: A.tesT.:443\r\n"),
        ("GET https://a.test/pub/x HTTP/1.1", "Host: a.test\r\n"),
    ],
)
def test_the_origin_gets_the_judged_host_in_one_spelling(bed: Bed, request_line: str, host: str) -> None:
    status = ask(bed, f"{request_line}\r\n{host}\r\n".encode())
    if status == 200:
        assert [seen.header("host") for seen in bed.a.seen] == [["a.test"]]
        assert bed.a.seen[0].target == "/pub/x"
    else:
        assert bed.untouched()
    assert status == 200 or not host


@pytest.mark.parametrize("version", ["HTTP/2.0", "HTTP/1.7", "HTTP/0.9", "HTTP/3"])
def test_a_version_that_is_not_spoken_is_refused(bed: Bed, version: str) -> None:
    for alpn in ((), ("http/1.1", "h2")):
        assert ask(bed, f"GET /pub/x {version}\r\nHost: a.test\r\n\r\n".encode(), alpn=alpn) in (0, 400)
    assert {line["verdict"] for line in bed.gateway.decisions()} == {"deny"}
    assert bed.untouched()


def test_the_box_cannot_speak_to_an_origin_by_its_list_of_protocols(tmp_path: Path, pki: Pki) -> None:
    context: ssl.SSLContext = pki.context("a.test")
    context.set_alpn_protocols(["secret-word", "http/1.1"])
    origin = Origin(context)
    gateway = LiveGateway(tmp_path, POLICY.format(a=origin.port, plain=1, ca=pki.ca_path))
    try:
        with gateway.tls("a.test", alpn=("secret-word", "http/1.1")) as connection:
            connection.sendall(b"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n")
            assert read_reply(connection).status == 200
        assert origin.alpn == ["http/1.1"]
    finally:
        gateway.stop()
        origin.close()


def test_an_interim_answer_is_not_the_answer(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        for path, body in (("/pub/interim", b"final"), ("/pub/x", b"hello from the origin\n")):
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode())
            reply = read_reply(connection)
            assert (reply.status, reply.body) == (200, body)
    assert [line["status"] for line in bed.gateway.outcomes(2)] == [200, 200]


@pytest.mark.attack("F22")
def test_an_invalid_answer_is_the_origins_fault_in_both_versions(bed: Bed) -> None:
    reply = bed.gateway.get("https://a.test/pub/two-lengths")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    client = Http2(bed.gateway, "a.test")
    stream = client.send("/pub/two-lengths")
    client.wait(stream)
    status, body = client.answers[stream]
    assert status == 502
    assert b'"reason": "upstream"' in body
    assert b"mitmproxy" not in body
    client.close()


def test_control_frames_of_a_websocket_count_against_its_limit(bed: Bed) -> None:
    client = WebSocket(bed, "/pub/ws")
    assert client.echo(b"x" * 1000)
    client.ping(b"y" * 120, 2000)
    assert not client.echo(b"z")
    client.close()
    outcome = bed.gateway.outcomes(1)[0]
    assert "max_body" in str(outcome["error"])
    assert int(str(outcome["bytes_up"])) > 100_000


@pytest.mark.attack("F28")
def test_a_malformed_request_is_recorded_with_the_tunnels_target(bed: Bed) -> None:
    ask(bed, b"POST /x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
    line = bed.gateway.decisions()[0]
    assert (line["host"], line["port"], line["scheme"]) == ("a.test", 443, "https")


def test_a_policy_outside_of_the_project_does_not_tell_the_box_where(tmp_path: Path, pki: Pki) -> None:
    home = tmp_path / "home-of-somebody"
    home.mkdir()
    (home / "mine.yaml").write_text(POLICY.format(a=1, plain=1, ca=pki.ca_path))
    project = tmp_path / "project"
    project.mkdir()
    gateway = LiveGateway(project, "networkPolicies: []\n", policies=[home / "mine.yaml"])
    try:
        for url in ("https://a.test/pub/secret", "https://a.test/other"):
            reply = gateway.get(url)
            assert reply.status == 403
            assert b"mine.yaml:L" in reply.body
            assert b"home-of-somebody" not in reply.body
        assert "home-of-somebody" in str(gateway.decisions()[0]["at"])
    finally:
        gateway.stop()


def test_a_failure_does_not_tell_the_box_an_address(bed: Bed) -> None:
    body = bed.gateway.get("https://gone.test/pub/x").body
    assert b"gone.test could not be reached" in body
    assert b"127.0.0.1" not in body
    assert "127.0.0.1" in str(bed.gateway.outcomes(1)[0]["error"])  # control: the record has it


def test_an_origin_that_is_back_is_asked_again_on_the_same_connection(tmp_path: Path, pki: Pki) -> None:
    context = pki.context("a.test")
    port = free_port()
    gateway = LiveGateway(tmp_path, POLICY.format(a=port, plain=1, ca=pki.ca_path))
    request = b"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n"
    try:
        with gateway.tls("a.test") as connection:
            connection.sendall(request)
            assert read_reply(connection).status == 502
            back = Origin(context, port=port)
            connection.sendall(request)
            assert read_reply(connection).status == 200
            back.close()
    finally:
        gateway.stop()
