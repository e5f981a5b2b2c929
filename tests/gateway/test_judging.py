"""The verdict through the real door: what the client got, what the log says, what the origin saw."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.gateway.conftest import Bed
from tests.support.gateway import read_head, read_reply
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway


def only_decision(bed: Bed) -> dict[str, object]:
    decisions = bed.gateway.decisions()
    assert len(decisions) == 1, decisions
    return decisions[0]


def test_an_allowed_request_reaches_the_origin_after_its_line_is_written(bed: Bed) -> None:
    lines_when_seen: list[int] = []
    bed.a.on_request = lambda seen: lines_when_seen.append(len(bed.gateway.decisions()))
    try:
        reply = bed.gateway.get("https://a.test/pub/x?q=1")
    finally:
        bed.a.on_request = lambda seen: None
    assert (reply.status, reply.body) == (200, b"hello from the origin\n")
    assert [seen.target for seen in bed.a.seen] == ["/pub/x?q=1"]
    assert lines_when_seen == [1]
    decision = only_decision(bed)
    assert (decision["verdict"], decision["reason"]) == ("allow", "rule")
    assert (decision["host"], decision["path"], decision["query"]) == ("a.test", "/pub/x", "q=1")
    outcome = bed.gateway.outcomes(1)[0]
    assert (outcome["id"], outcome["status"], outcome["bytes_down"], outcome["error"]) == (
        decision["id"],
        200,
        22,
        None,
    )


def test_a_denied_request_is_answered_legibly_and_never_reaches_the_origin(bed: Bed) -> None:
    reply = bed.gateway.get("https://a.test/pub/secret/plans")
    assert reply.status == 403
    answer = reply.json()
    assert answer["error"].startswith("Access denied by egress policy")
    assert (answer["reason"], answer["rule"]) == ("rule", "keep-out")
    assert reply.headers["x-impyard-verdict"] == "deny"
    assert reply.headers["x-impyard-decision"] == only_decision(bed)["id"]
    assert bed.untouched()


@pytest.mark.attack("F08", "F22")
@pytest.mark.parametrize(
    ("url", "method", "reason"),
    [
        ("https://a.test/other", "GET", "no-rule"),
        ("https://a.test/pub/x", "DELETE", "no-rule"),
        ("https://b.test/pub/x", "GET", "unlisted-host"),
        ("https://a.test/pub/../secret", "GET", "ambiguous-path"),
        ("https://a.test/pub/%2e%2e/secret", "GET", "ambiguous-path"),
        ("https://a.test/pub/%zz", "GET", "ambiguous-path"),
        ("https://a.test/pub/%00", "GET", "ambiguous-path"),
        ("https://a.test:8443/pub/x", "GET", "no-rule"),
        ("http://a.test/pub/x", "GET", "no-rule"),
        ("https://a.test/pub/x", "get", "no-rule"),
        ("https://localhost/x", "GET", "private-address"),
        ("http://[::ffff:127.0.0.1]/x", "GET", "unlisted-host"),
    ],
)
def test_denials_and_their_reasons(bed: Bed, url: str, method: str, reason: str) -> None:
    reply = bed.gateway.get(url, method)
    assert reply.status == 403
    assert reply.json()["reason"] == reason, reply.body
    decision = only_decision(bed)
    assert (decision["verdict"], decision["reason"]) == ("deny", reason)
    assert bed.untouched()
    assert bed.gateway.get("https://a.test/pub/after").status == 200


def test_an_address_written_in_the_policy_still_has_to_be_public(bed: Bed) -> None:
    reply = bed.gateway.get(f"http://127.0.0.1:{bed.plain.port}/x")
    assert (reply.status, reply.json()["reason"]) == (403, "private-address")
    assert bed.untouched()


def test_upstream_is_the_way_to_a_local_address_and_keeps_the_judged_name(bed: Bed) -> None:
    reply = bed.gateway.get("https://local-model.test/v1/messages", "POST", body=b"{}")
    assert reply.status == 200
    assert bed.plain.seen[0].header("host") == ["local-model.test"]
    assert only_decision(bed)["upstream"] == f"http://127.0.0.1:{bed.plain.port}"


def test_an_origin_is_verified_by_the_judged_name(bed: Bed) -> None:
    """Control: the same origin is accepted under the name that its certificate holds."""
    reply = bed.gateway.get("https://wrong-name.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert bed.a.seen == []
    assert bed.gateway.get("https://a.test/pub/x").status == 200


def test_an_origin_with_an_unknown_authority_is_refused(bed: Bed) -> None:
    reply = bed.gateway.get("https://unknown-ca.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert bed.a.seen == []


def test_an_answer_that_could_be_read_in_two_ways_is_refused_under_the_decision(bed: Bed) -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    bed.a.answers["/pub/two-ways"] = lambda connection, _: connection.sendall(answer)
    reply = bed.gateway.get("https://a.test/pub/two-ways")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert reply.json()["decision"] == only_decision(bed)["id"]
    assert "not valid HTTP" in reply.json()["message"]
    assert "validate_inbound_headers" not in reply.json()["message"]
    outcome = bed.gateway.outcomes(1)[0]
    assert outcome["status"] is None or outcome["status"] == 200
    assert "not valid HTTP" in str(outcome["error"])


@pytest.mark.parametrize("host", ["gone.test", "no-such-name.invalid"])
def test_an_unreachable_origin_is_told_apart_from_policy(bed: Bed, host: str) -> None:
    reply = bed.gateway.get(f"https://{host}/pub/x")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert reply.headers["x-impyard-verdict"] == "allow"
    assert only_decision(bed)["verdict"] == "allow"
    assert bed.gateway.outcomes(1)[0]["error"]


@pytest.mark.attack("F06")
@pytest.mark.parametrize(
    ("host", "sni", "header", "reason"),
    [
        ("a.test", None, "Host: b.test", "host-mismatch"),
        ("a.test", "b.test", "Host: a.test", "host-mismatch"),
        ("a.test", None, "Host: a.test:8443", "host-mismatch"),
        ("a.test", None, "Host: a.test\r\nHost: b.test", "malformed"),
    ],
)
def test_host_sni_and_authority_must_agree(bed: Bed, host: str, sni: str | None, header: str, reason: str) -> None:
    with bed.gateway.tls(host, sni=sni) as connection:
        connection.sendall(f"GET /pub/x HTTP/1.1\r\n{header}\r\n\r\n".encode())
        reply = read_reply(connection)
    assert reply.status in (400, 403)
    assert only_decision(bed)["reason"] in (reason, "host-mismatch")
    assert bed.untouched()


def test_a_host_header_in_other_case_is_the_same_host(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"GET /pub/x HTTP/1.1\r\nHost: A.Test:443\r\n\r\n")
        assert read_reply(connection).status == 200


@pytest.mark.attack("F07", "82")
def test_each_request_of_a_kept_connection_is_judged(bed: Bed) -> None:
    requests = [b"GET /pub/1", b"POST /pub/2", b"GET /pub/3"]
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"".join(line + b" HTTP/1.1\r\nHost: a.test\r\n\r\n" for line in requests))
        statuses = [read_reply(connection).status for _ in requests]
    assert statuses == [200, 403, 200]
    assert [line["verdict"] for line in bed.gateway.decisions()] == ["allow", "deny", "allow"]
    assert [seen.target for seen in bed.a.seen] == ["/pub/1", "/pub/3"]
    assert bed.a.connections == 1  # the checked connection is used again


@pytest.mark.attack("F05", "26")
def test_raw_bytes_in_a_tunnel_are_closed_and_recorded(bed: Bed) -> None:
    with bed.gateway.tunnel("a.test:443") as connection:
        connection.sendall(b"SSH-2.0-x\r\n")
        assert connection.recv(100) == b""
    decision = only_decision(bed)
    assert (decision["reason"], decision["host"], decision["port"]) == ("not-http", "a.test", 443)
    assert bed.untouched()


@pytest.mark.attack("F19")
def test_connect_alone_dials_nothing(bed: Bed) -> None:
    with bed.gateway.tunnel("a.test:443"):
        pass
    assert bed.untouched()


def test_hop_by_hop_and_override_headers_stay_behind(bed: Bed) -> None:
    headers = (
        "Proxy-Authorization: Basic eDp5\r\nX-HTTP-Method-Override: HEAD\r\nX-Original-URL: /pub/y\r\n"
        "Connection: keep-alive, x-hop\r\nX-Hop: 1\r\nX-Kept: 1\r\n"
    )
    assert bed.gateway.get("https://a.test/pub/x", headers=headers).status == 200
    seen = bed.a.seen[0]
    for name in ("proxy-authorization", "x-http-method-override", "x-original-url", "x-hop"):
        assert seen.header(name) == [], name
    assert seen.header("x-kept") == ["1"]


@pytest.mark.attack("F30")
def test_plain_http_is_judged_by_its_own_entry(bed: Bed) -> None:
    assert bed.gateway.get("http://plain.test/pub/x").status == 200
    assert bed.plain.seen[0].head.startswith(b"GET /pub/x HTTP/1.1\r\n")
    with bed.gateway.tunnel("plain.test:80") as connection:
        connection.sendall(b"GET /pub/y HTTP/1.1\r\nHost: plain.test\r\n\r\n")
        assert read_reply(connection).status == 200
    assert [line["scheme"] for line in bed.gateway.decisions()] == ["http", "http"]


@pytest.mark.attack("F21")
def test_git_gets_its_refusal_as_text(bed: Bed) -> None:
    reply = bed.gateway.get("https://a.test/x.git/info/refs", headers="User-Agent: git/2.39\r\n")
    assert reply.headers["content-type"].startswith("text/plain")
    assert reply.body.startswith(b"Access denied by egress policy")


def test_a_switch_of_protocols_is_not_followed(bed: Bed) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"GET /pub/switch HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\n")
        assert read_reply(connection).status == 403
    assert only_decision(bed)["reason"] == "upgrade"
    bed.gateway.get("https://a.test/pub/switch")  # unasked: the origin's 101 goes nowhere
    assert bed.gateway.outcomes(1)[0]["error"] == "the origin switched protocols unasked"


def test_the_canary_is_denied_and_proves_the_gateway(bed: Bed) -> None:
    reply, proved = bed.gateway.canary()
    assert (reply.status, proved) == (403, True)
    decision = only_decision(bed)
    assert (decision["reason"], decision["id"]) == ("canary", reply.headers["x-impyard-decision"])


@pytest.mark.attack("F21")
def test_curl_sees_the_reason(bed: Bed) -> None:
    curl = shutil.which("curl")
    assert curl
    with bed.gateway.tcp_port() as port:
        base = [curl, "-sS", "-m", "10", "--cacert", str(bed.gateway.authority.cert_path)]
        proxy = ["-x", f"http://127.0.0.1:{port}"]
        ok = subprocess.run([*base, *proxy, "https://a.test/pub/x"], capture_output=True, check=True)
        assert ok.stdout == b"hello from the origin\n"
        http2 = subprocess.run(
            [*base, *proxy, "--http2", "-w", "%{http_version}", "https://a.test/pub/x"], capture_output=True, check=True
        )
        assert http2.stdout == b"hello from the origin\n2"
        denied = subprocess.run([*base, *proxy, "--http2", "https://a.test/nope"], capture_output=True, check=True)
        assert json.loads(denied.stdout)["reason"] == "no-rule"
    assert [line["http"] for line in bed.gateway.decisions()] == ["2.0", "2.0", "2.0"]


@pytest.mark.attack("F35")
def test_a_tunnel_answers_at_once(bed: Bed) -> None:
    """pi's client gives CONNECT ten seconds; nothing about the target may delay it."""
    with bed.gateway.connect() as connection:
        connection.sendall(b"CONNECT no-such-name.invalid:443 HTTP/1.1\r\n\r\n")
        connection.settimeout(1)
        assert read_head(connection).startswith(b"HTTP/1.1 200")


def test_what_people_see_of_a_denial_is_redacted_as_in_the_log(bed: Bed) -> None:
    told = len(bed.gateway.events)
    key = "sk-" + "a1" * 20
    bed.gateway.get(f"https://a.test/denied/{key}/token=geheim")
    wait_until(lambda: len(bed.gateway.events) > told, 5)
    event, line = bed.gateway.events[-1], bed.gateway.decisions()[-1]
    assert event["path"] == line["path"] and key not in json.dumps(event) and "geheim" not in json.dumps(event)
    assert event["path"].startswith("/denied/")
