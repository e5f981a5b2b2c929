"""Verdicts that must hold: odd paths and lengths, hints of the client, clear text.

Field notes F05 to F08, F12, F14, F28, F30.
"""

from __future__ import annotations

import pytest

from tests.gateway.conftest import Bed
from tests.gateway.test_protocols import Http2, WebSocket
from tests.support.gateway import read_reply

pytestmark = pytest.mark.gateway


def reasons(bed: Bed) -> list[str]:
    return [str(line["reason"]) for line in bed.gateway.decisions()]


# -- neither TLS nor HTTP (F05) ---------------------------------------------------------------------------------------


@pytest.mark.attack("F05")
@pytest.mark.parametrize("target", ["plain.test:80", "plain.test:22", "a.test:443", "198.51.100.7:9418"])
@pytest.mark.parametrize(
    "spoken",
    [b"SSH-2.0-x\r\n", b"\x00\x00\x00\x2f\xffSMBr", b"EHLO a.test\r\n", b"\x05\x01\x00", b"{\"jsonrpc\":\"2.0\"}\n",
     b"\x12\x01\x00\x2f\x00\x00\x01\x00", b"USER anonymous\r\n", b"*1\r\n$4\r\nPING\r\n"],
    ids=["ssh", "smb", "smtp", "socks", "json-rpc", "tds", "ftp", "redis"],
)  # fmt: skip
def test_no_other_protocol_passes_a_tunnel(bed: Bed, target: str, spoken: bytes) -> None:
    with bed.gateway.tunnel(target) as connection:
        connection.sendall(spoken)
        came = connection.recv(4096)
    assert came == b"" or came.startswith(b"HTTP/1.1 40")
    assert reasons(bed) in (["not-http"], ["malformed"])
    assert bed.untouched()


# -- hints of the client (F12) ----------------------------------------------------------------------------------------

HINTS = (
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Chrome/131.0\r\nSec-Fetch-Mode: navigate\r\n",
    "X-Forwarded-For: 127.0.0.1\r\nX-Real-IP: 127.0.0.1\r\nClient-IP: 127.0.0.1\r\n",
    "Origin: https://a.test\r\nReferer: https://a.test/pub/x\r\n",
    "Content-Type: application/json\r\nX-Requested-With: XMLHttpRequest\r\n",
    "Authorization: Bearer admin\r\nCookie: admin=1\r\n",
    "X-Impyard-Verdict: allow\r\nX-Impyard-Reason: rule\r\nX-Impyard-Canary: 1\r\n",
    "Via: 1.1 impyard\r\nX-Forwarded-Proto: https\r\nForwarded: for=127.0.0.1;host=a.test\r\n",
    "Cache-Control: only-if-cached\r\nRange: bytes=0-0\r\nExpect: 100-continue\r\n",
)


@pytest.mark.attack("F12")
@pytest.mark.parametrize("hints", HINTS)
@pytest.mark.parametrize(("path", "reason"), [("/denied", "no-rule"), ("/pub/secret", "rule")])
def test_no_header_changes_a_denial(bed: Bed, hints: str, path: str, reason: str) -> None:
    reply = bed.gateway.get(f"https://a.test{path}", headers=hints)
    assert (reply.status, reply.json()["reason"]) == (403, reason)
    assert reasons(bed) == [reason]
    assert bed.untouched()


@pytest.mark.attack("F12")
@pytest.mark.parametrize(
    "header", ["Upgrade: h2c\r\nConnection: upgrade\r\n", "Upgrade: foo\r\nConnection: upgrade\r\n"]
)
def test_a_wish_to_upgrade_makes_no_denial_milder(bed: Bed, header: str) -> None:
    assert bed.gateway.get("https://a.test/denied", headers=header).status == 403
    assert WebSocket(bed, "/denied").status == 403
    assert [line["verdict"] for line in bed.gateway.decisions()] == ["deny", "deny"]
    assert bed.untouched()


# -- the proxy's own site (F14) ---------------------------------------------------------------------------------------


@pytest.mark.attack("F14", "37")
@pytest.mark.parametrize(
    "url",
    [
        "http://mitm.it/",
        "http://mitm.it/cert/pem",
        "https://mitm.it/",
        "http://magisk.mitm.it/",
        "http://mitmproxy.org/",
    ],
)
def test_no_site_is_served_by_the_gateway_itself(bed: Bed, url: str) -> None:
    reply = bed.gateway.get(url)
    assert (reply.status, reply.json()["reason"]) == (403, "unlisted-host")
    assert b"BEGIN CERTIFICATE" not in reply.body
    assert reasons(bed) == ["unlisted-host"]


@pytest.mark.attack("F14", "37")
@pytest.mark.parametrize("target", ["/", "/cert/pem", "*", "/flows"])
def test_a_target_that_names_no_host_is_nobodys(bed: Bed, target: str) -> None:
    """An origin-form request at the door itself asks the gateway, and the gateway has nothing to say."""
    with bed.gateway.connect() as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\n\r\n".encode())
        assert read_reply(connection).status in (400, 403)
    assert [line["verdict"] for line in bed.gateway.decisions()] == ["deny"]


# -- odd lengths and headers (F28) ------------------------------------------------------------------------------------

FRAMINGS = {
    "both": "Content-Length: 4\r\nTransfer-Encoding: chunked",
    "both-other-way": "Transfer-Encoding: chunked\r\nContent-Length: 4",
    "two-lengths": "Content-Length: 4\r\nContent-Length: 5",
    "list": "Content-Length: 4, 5",
    "plus": "Content-Length: +4",
    "minus": "Content-Length: -4",
    "hex": "Content-Length: 0x4",
    "underscore": "Content-Length: 1_0",
    "fraction": "Content-Length: 4.0",
    "empty": "Content-Length:",
    "chunked-identity": "Transfer-Encoding: chunked, identity",
    "identity": "Transfer-Encoding: identity",
    "twice-chunked": "Transfer-Encoding: chunked, chunked",
    "two-encodings": "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip",
    "not-last": "Transfer-Encoding: chunked, gzip",
    "quoted": 'Transfer-Encoding: "chunked"',
    "vertical-tab": "Transfer-Encoding: \x0bchunked",
    "form-feed": "Content-Length: 4\x0c",
    "vertical-tab-at-the-end": "Content-Length: 4\r\nX: a\x0b",
    "space-in-name": "Content Length: 4",
    "space-after-name": "Content-Length : 4",
    "folded": "Content-Length:\r\n 4",
    "no-name": ": 4",
    "no-colon": "Content-Length 4",
}


@pytest.mark.attack("F28", "79")
@pytest.mark.parametrize("name", FRAMINGS)
def test_a_framing_that_can_be_read_in_two_ways_is_refused(bed: Bed, name: str) -> None:
    """The body that would follow is another request; none of it may reach the origin."""
    body = "0\r\n\r\nGET /pub/secret HTTP/1.1\r\nHost: a.test\r\n\r\n"
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(f"POST /v1/messages HTTP/1.1\r\nHost: a.test\r\n{FRAMINGS[name]}\r\n\r\n{body}".encode())
        reply = read_reply(connection)
        assert reply.status in (400, 403), reply
        assert connection.recv(1) == b"", "the rest of it is nobody's request"
    assert reasons(bed) == ["malformed"]
    assert bed.a.seen == []
    assert bed.gateway.get("https://a.test/pub/after").status == 200


@pytest.mark.attack("F28")
@pytest.mark.parametrize("length", ["4", "04", "0000000004"])
def test_a_length_with_zeros_in_front_is_sent_as_it_was_counted_or_refused(bed: Bed, length: str) -> None:
    with bed.gateway.tls("a.test") as connection:
        head = f"POST /v1/messages HTTP/1.1\r\nHost: a.test\r\nContent-Length: {length}\r\n\r\nabcd"
        connection.sendall(head.encode())
        reply = read_reply(connection)
    if reply.status == 200:
        assert bed.a.seen[-1].body_start == b"abcd"
    else:
        assert reply.status == 400 and bed.a.seen == []


# -- clear text in three shapes (F30) ---------------------------------------------------------------------------------


@pytest.mark.attack("F30", "31")
@pytest.mark.parametrize(("path", "status", "reason"), [("/pub/x", 200, "rule"), ("/denied", 403, "no-rule")])
def test_clear_http_has_one_verdict_whatever_its_shape(bed: Bed, path: str, status: int, reason: str) -> None:
    head = "HTTP/1.1\r\nHost: plain.test\r\n\r\n"
    with bed.gateway.connect() as connection:
        connection.sendall(f"GET http://plain.test{path} {head}".encode())
        assert read_reply(connection).status == status
    with bed.gateway.tunnel("plain.test:80") as connection:
        connection.sendall(f"GET {path} {head}".encode())
        assert read_reply(connection).status == status
    with bed.gateway.tunnel("plain.test:80") as connection:
        connection.sendall(f"GET http://plain.test{path} {head}".encode())
        assert read_reply(connection).status == status
    assert reasons(bed) == [reason] * 3
    assert {(line["scheme"], line["port"]) for line in bed.gateway.decisions()} == {("http", 80)}
    assert [seen.target for seen in bed.plain.seen] == ([path] * 3 if status == 200 else [])


@pytest.mark.attack("F30")
@pytest.mark.parametrize("path", ["/pub/x", "/denied"])
def test_the_gateway_does_no_tls_for_a_client_in_clear_text(bed: Bed, path: str) -> None:
    with bed.gateway.connect() as connection:
        connection.sendall(f"GET https://a.test{path} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode())
        assert read_reply(connection).status in (400, 403)
    assert reasons(bed) == ["host-mismatch"]
    assert bed.untouched()


# -- one path, several readings (F08), each request for itself (F07) --------------------------------------------------

PATHS = (
    "/pub/../secret", "/pub/%2e%2e/secret", "/pub/.%2e/secret", "/pub/%2E./secret", "/pub/..;/secret",
    "/pub//../secret", "/pub/..%2fsecret", "/pub%2f..%2fsecret", "/pub/..%5csecret", "/pub\\..\\secret",
    "/pub/%252e%252e/secret", "/pub/%00", "/pub/%c0%ae%c0%ae/secret", "/pub/%e0%80%ae./secret",
    "/pub/x;/../../secret", "/pub/./../secret", "/pub/..%00/secret", "//secret", "/pub/%2e%2e%2fsecret",
    "/pub/..%c0%afsecret", "/pub/%u002e%u002e/secret", "/%70ub/../secret",
)  # fmt: skip


@pytest.mark.attack("F08")
@pytest.mark.parametrize("path", PATHS)
def test_an_odd_path_is_sent_as_it_was_judged_or_not_at_all(bed: Bed, path: str) -> None:
    reply = bed.gateway.get(f"https://a.test{path}")
    assert len(reasons(bed)) == 1
    if reply.status == 200:
        assert [seen.target for seen in bed.a.seen] == [path]
        assert ".." not in path.replace("%252e", "")
    else:
        assert reply.status in (400, 403)
        assert bed.untouched()
    assert bed.gateway.get("https://a.test/pub/after").status == 200


@pytest.mark.attack("F06", "F07")
def test_a_denied_request_in_the_middle_does_not_poison_the_rest(bed: Bed) -> None:
    """One packet: allowed, denied with a body, another host, allowed."""
    requests = (
        "GET /pub/1 HTTP/1.1\r\nHost: a.test\r\n\r\n"
        "DELETE /pub/2 HTTP/1.1\r\nHost: a.test\r\n\r\n"
        "GET /pub/3 HTTP/1.1\r\nHost: plain.test\r\n\r\n"
        "GET /pub/4 HTTP/1.1\r\nHost: a.test\r\n\r\n"
    )
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(requests.encode())
        statuses = [read_reply(connection).status for _ in range(4)]
    assert statuses == [200, 403, 403, 200]
    assert reasons(bed) == ["rule", "no-rule", "host-mismatch", "rule"]
    assert [seen.target for seen in bed.a.seen] == ["/pub/1", "/pub/4"]
    assert bed.plain.connections == 0


@pytest.mark.attack("F07")
def test_streams_sent_at_once_are_judged_each(bed: Bed) -> None:
    client = Http2(bed.gateway, "a.test")
    numbers = [client.send(f"/pub/{n}", "GET" if n % 3 else "DELETE") for n in range(30)]
    client.wait(*numbers)
    assert [client.answers[number][0] for number in numbers] == [200 if n % 3 else 403 for n in range(30)]
    assert sorted(reasons(bed)) == ["no-rule"] * 10 + ["rule"] * 20
    assert len(bed.a.seen) == 20
    client.close()
