"""The judge itself: made to fail, its policy changed under it, lied to about who asks. Group H."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from impyard.addon.decisions import verify
from tests.gateway.conftest import POLICY, Bed
from tests.gateway.test_protocols import Http2, WebSocket
from tests.support.gateway import LiveGateway, read_head, read_reply
from tests.support.origin import Origin, Pki

pytestmark = pytest.mark.gateway


# -- what it may fail on (109) ----------------------------------------------------------------------------------------

GIANT = b"9" * 5000  # more digits than Python turns into a number
IN_TLS = {
    "lone-surrogate": b"GET /denied/\xed\xa0\x80 HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "lone-surrogate-encoded": b"GET /denied/%ED%A0%80?\\ud800 HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "invalid-utf8": b"GET /denied/\xff\xfe\xc0\xaf HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "surrogate-in-host": b"GET /pub/x HTTP/1.1\r\nHost: a.test\xed\xa0\x80\r\n\r\n",
    "giant-port-in-host": b"GET /pub/x HTTP/1.1\r\nHost: a.test:" + GIANT + b"\r\n\r\n",
    "large-port-in-host": b"GET /pub/x HTTP/1.1\r\nHost: a.test:4294967739\r\n\r\n",
    "digits-of-another-script": "GET /pub/x HTTP/1.1\r\nHost: a.test:٤٤٣\r\n\r\n".encode(),
    "giant-length": b"POST /v1/messages HTTP/1.1\r\nHost: a.test\r\nContent-Length: " + GIANT + b"\r\n\r\n",
    "length-in-another-script": "POST /v1/messages HTTP/1.1\r\nHost: a.test\r\nContent-Length: ٤\r\n\r\n".encode(),
    "giant-chunk": b"POST /denied HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"F" * 5000
    + b"\r\n",
    "giant-version": b"GET /pub/x HTTP/1." + GIANT + b"\r\nHost: a.test\r\n\r\n",
    "empty-host": b"GET /pub/x HTTP/1.1\r\nHost:\r\n\r\n",
    "brackets": b"GET /pub/x HTTP/1.1\r\nHost: [::\r\n\r\n",
    "giant-port-in-target": b"GET https://a.test:" + GIANT + b"/pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "percent-at-the-end": b"GET /denied/% HTTP/1.1\r\nHost: a.test\r\n\r\n",
}
AT_THE_DOOR = {
    "giant-port": b"CONNECT a.test:" + GIANT + b" HTTP/1.1\r\n\r\n",
    "large-port": b"CONNECT a.test:4294967739 HTTP/1.1\r\n\r\n",
    "padded-port": b"CONNECT a.test:0443 HTTP/1.1\r\n\r\n",
    "negative-port": b"CONNECT a.test:-443 HTTP/1.1\r\n\r\n",
    "digits-of-another-script": "CONNECT a.test:٤٤٣ HTTP/1.1\r\n\r\n".encode(),
    "surrogate": b"CONNECT \xed\xa0\x80.test:443 HTTP/1.1\r\n\r\n",
    "absolute-giant-port": b"GET http://a.test:" + GIANT + b"/pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "absolute-surrogate": b"GET http://\xed\xa0\x80/pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "absolute-brackets": b"GET http://[::1/pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
}


def refused_once(bed: Bed, status: int) -> None:
    assert status in (0, 400, 403), status
    lines = bed.gateway.decisions()
    assert [line["verdict"] for line in lines] == ["deny"], lines
    assert lines[0]["reason"] != "judge-error", "it was foreseen, not stumbled over"
    assert bed.untouched()


@pytest.mark.attack("109")
@pytest.mark.parametrize("name", IN_TLS)
def test_what_breaks_a_careless_judge_is_refused(bed: Bed, name: str) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(IN_TLS[name])
        status = read_reply(connection).status
    refused_once(bed, status)


@pytest.mark.attack("109")
@pytest.mark.parametrize("name", AT_THE_DOOR)
def test_what_breaks_a_careless_proxy_is_refused(bed: Bed, name: str) -> None:
    with bed.gateway.connect() as connection:
        connection.sendall(AT_THE_DOOR[name])
        status = read_reply(connection).status
    refused_once(bed, status)


@pytest.mark.attack("109")
@pytest.mark.parametrize(
    ("path", "authority"),
    [("/denied/\udced\udca0\udc80", "a.test"), ("/pub/x", "a.test:" + "9" * 5000), ("/pub/x", "a.test:٤٤٣")],
    ids=["surrogate", "giant-port", "other-digits"],
)
def test_http2_has_no_softer_judge(bed: Bed, path: str, authority: str) -> None:
    client = Http2(bed.gateway, "a.test")
    stream = client.send(path.encode("utf-8", "surrogateescape").decode("latin-1"), authority=authority)
    client.wait(stream)
    refused_once(bed, 0 if stream in client.reset else client.answers[stream][0])
    client.close()


# -- the policy under it (113, 115) -----------------------------------------------------------------------------------


@pytest.mark.attack("113")
@pytest.mark.parametrize(
    "rule",
    [
        "allow: {hosts: [a.test]}",
        "{action: ALLOW, method: GET, path: [/a]}",
        "{action: ALLOW, method: 7, path: /a}",
        "{action: ALLOW, method: GET, path: '(unclosed'}",
        "{action: ALLOW, method: GET, path: '(a)\\1'}",
        "{action: allow, method: GET, path: /a}",
        "{action: ALLOW, method: GET}",
        "{action: ALLOW, method: GET, path: /a, action: DENY}",
        "{action: ALLOW, method: GET, path: /a, websocket: 1}",
        "{action: ALLOW, method: GET, path: /a, max_body: -1}",
        "{action: ALLOW, method: GET, path: /a, query: {x: '('}}",
        "!!python/object/apply:os.system [true]",
        "3",
    ],
)
def test_one_bad_rule_refuses_the_whole_policy(bed: Bed, rule: str) -> None:
    """Control: a good rule in its place leaves the others in force."""
    good = bed.policy.replace("    policies:\n", "    policies:\n      - RULE\n", 1)
    bed.gateway.policy_path.write_text(good.replace("RULE", rule))
    reply = bed.gateway.get("https://a.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (403, "policy-broken")
    assert [line["reason"] for line in bed.gateway.decisions()] == ["policy-broken"]
    assert bed.untouched()
    bed.gateway.policy_path.write_text(good.replace("RULE", "{action: ALLOW, method: GET, path: /a}"))
    assert bed.gateway.get("https://a.test/pub/x").status == 200


@pytest.mark.attack("115")
def test_a_tightened_policy_counts_from_the_next_request_and_what_is_open_goes_on(bed: Bed) -> None:
    """As docs/threat-model.md says of what is open already."""
    with bed.gateway.tls("a.test") as events, bed.gateway.tls("a.test") as kept:
        events.sendall(b"GET /pub/sse HTTP/1.1\r\nHost: a.test\r\n\r\n")
        read_head(events)
        assert b"data: one" in events.recv(4096)
        socket = WebSocket(bed, "/pub/ws")
        assert socket.echo(b"before")
        http2 = Http2(bed.gateway, "a.test")
        number = http2.send("/pub/x")
        http2.wait(number)
        assert http2.answers[number][0] == 200
        kept.sendall(b"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n")
        assert read_reply(kept).status == 200

        bed.gateway.policy_path.write_text("networkPolicies: []\n")
        kept.sendall(b"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n")
        assert read_reply(kept).status == 403
        number = http2.send("/pub/x")
        http2.wait(number)
        assert http2.answers[number][0] == 403
        assert WebSocket(bed, "/pub/ws").status == 403

        assert socket.echo(b"after")
        bed.a.release.set()
        came = b""
        while b"0\r\n\r\n" not in came:
            came += events.recv(4096)
        assert b"data: two" in came
        socket.close()
        http2.close()
    assert [line["reason"] for line in bed.gateway.decisions()][4:] == ["unlisted-host"] * 3


# -- patterns (118) ---------------------------------------------------------------------------------------------------

BLOW_UPS = ("(a+)+", "(a|a)*", "(a|aa)+", "([a-z]+)*", "(.*a){20}", "(a?){40}a{40}")


@pytest.mark.attack("118")
def test_no_pattern_blows_up(tmp_path: Path, pki: Pki) -> None:
    a = Origin(pki.context("a.test"))
    rules = "".join(f"      - {{action: ALLOW, method: GET, path: '/{pattern}z'}}\n" for pattern in BLOW_UPS)
    policy = "networkPolicies:\n  - host: a.test\n    policies:\n" + rules
    gateway = LiveGateway(tmp_path, policy)
    try:
        began = time.monotonic()
        for length in (30, 3000):
            reply = gateway.get(f"https://a.test/{'a' * length}b")
            assert (reply.status, reply.json()["reason"]) == (403, "no-rule")
        assert time.monotonic() - began < 5
    finally:
        gateway.stop()
        a.close()


@pytest.mark.attack("118", control=True)
def test_control_the_same_pattern_takes_a_backtracking_engine_ever_longer() -> None:
    def seconds(length: int) -> float:
        began = time.process_time()
        assert re.fullmatch("/(a+)+z", f"/{'a' * length}b") is None
        return time.process_time() - began

    assert seconds(23) > 8 * seconds(17)  # 64 times, but for the clock


# -- who asks (124, 125) ----------------------------------------------------------------------------------------------

CLAIMS = (
    "Proxy-Authorization: Basic cjI6c2VjcmV0\r\n",
    "Proxy-Authorization: Bearer r2\r\n",
    "X-Impyard-Run: r2\r\nX-Impyard-Decision: r2.1\r\nX-Impyard-Verdict: allow\r\n",
    "X-Run-Id: r2\r\nX-Forwarded-For: 127.0.0.1\r\nVia: 1.1 r2\r\n",
    "Cookie: run=r2\r\nAuthorization: Basic cjI6c2VjcmV0\r\n",
)


@pytest.mark.attack("124", "125")
def test_who_asks_is_the_door_whatever_is_said_through_it(tmp_path: Path, pki: Pki) -> None:
    """Two runs at once with one log. Control: what comes through the other door bears the other name."""
    a = Origin(pki.context("a.test"))
    policy = POLICY.format(a=a.port, plain=1, ca=pki.ca_path)
    one, two = (LiveGateway(tmp_path, policy, run=run) for run in ("r1", "r2"))
    try:
        for claim in CLAIMS:
            for gateway in (one, two):
                connection = gateway.connect()
                connection.sendall(f"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n{claim}\r\n".encode())
                assert read_head(connection).startswith(b"HTTP/1.1 200")
                connection.close()
                for path, status in (("/pub/x", 200), ("/denied", 403)):
                    reply = gateway.get(f"https://a.test{path}", headers=claim)
                    assert reply.status == status
                    if status == 403:
                        assert reply.headers["x-impyard-decision"].startswith(gateway.run + ".")
        lines = one.decisions()
        assert [line["run"] for line in lines] == ["r1", "r1", "r2", "r2"] * len(CLAIMS)
        assert all(line["id"].startswith(line["run"] + ".") for line in lines)
        assert verify((one.runs / "decisions.jsonl").read_bytes().splitlines(keepends=True)) == []
        assert all(not seen.header("proxy-authorization") for seen in a.seen)
        with one.tls("a.test") as connection:
            for claim in CLAIMS:
                connection.sendall(f"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n{claim}\r\n".encode())
                assert read_reply(connection).status == 200
        assert {line["run"] for line in one.decisions()[len(lines) :]} == {"r1"}
    finally:
        one.stop()
        two.stop()
        a.close()
