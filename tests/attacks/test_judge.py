"""The judge itself: made to fail, talked over, lied to about who asks, its log written by what it judges. Group H."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.decisions import MAX_LINE, verify
from tests.gateway.conftest import POLICY, Bed, cleared, make_bed
from tests.gateway.test_protocols import Http2, WebSocket
from tests.support.gateway import LiveGateway, read_head, read_reply
from tests.support.origin import Origin, Pki

pytestmark = pytest.mark.gateway

# A gateway with something changed in it before it starts.
CHANGED = """
import sys
from impyard.addon import hooks
{change}
from impyard.addon.__main__ import main
sys.argv = ["x", *sys.argv[1:]]
sys.exit(main())
"""


@pytest.fixture(scope="module")
def module_bed(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Bed]:
    yield from make_bed(tmp_path_factory.mktemp("judge"), pki)


@pytest.fixture
def bed(module_bed: Bed) -> Bed:
    return cleared(module_bed)


def goes_on(bed: Bed) -> None:
    """The next honest request works."""
    assert bed.gateway.get("https://a.test/pub/after").status == 200


# -- what it may fail on (109) --------------------------------------------------------------------------------------

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
    goes_on(bed)


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


# -- the policy under it (112, 113, 115) ----------------------------------------------------------------------------


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
    goes_on(bed)


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


# -- patterns (118) -------------------------------------------------------------------------------------------------

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


# -- the log (119, 122, 130, 131) -----------------------------------------------------------------------------------

INJECTED = '{"verdict":"allow"}'
LOUD = {
    "encoded-line-feed": f"/denied%0a{INJECTED}",
    "encoded-cr-lf": f"/denied%0d%0a{INJECTED}",
    "quotes": f'/denied","verdict":"allow","x":"{INJECTED}',
    "backslashes": "/denied\\\\\\",
    "line-separators": "/denied\xe2\x80\xa8\xe2\x80\xa9\xc2\x85",
    "invalid-utf8": "/denied\xff\xfe",
    "long": "/denied" + "y" * 60_000,
    "long-query": "/denied?q=" + "y" * 60_000,
}


def only_line(bed: Bed) -> dict[str, Any]:
    """The one line of the log, checked as bytes."""
    raw = (bed.gateway.runs / "decisions.jsonl").read_bytes()
    assert raw.count(b"\n") == 1 and raw.endswith(b"\n") and len(raw) <= MAX_LINE
    assert not re.search(rb"[^\x20-\x7e]", raw[:-1])
    line = json.loads(raw)
    assert isinstance(line, dict)
    assert len(raw.split(b'"verdict"')) == 2 or raw.count(b'\\"verdict\\"')
    return line


@pytest.mark.attack("119")
@pytest.mark.parametrize("name", LOUD)
def test_a_target_writes_no_line_of_its_own(bed: Bed, name: str) -> None:
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"GET " + LOUD[name].encode("latin-1") + b" HTTP/1.1\r\nHost: a.test\r\n\r\n")
        assert read_reply(connection).status in (400, 403, 414)
    assert only_line(bed)["verdict"] == "deny"
    assert bed.untouched()
    goes_on(bed)


@pytest.mark.attack("119")
@pytest.mark.parametrize("code", [0x00, 0x07, 0x08, 0x0A, 0x0B, 0x0D, 0x1B, 0x7F, 0x80, 0x9B])
@pytest.mark.parametrize("where", ["path", "header", "host"])
def test_a_control_byte_is_escaped_wherever_it_is(bed: Bed, code: int, where: str) -> None:
    byte = bytes([code])
    parts = {"path": b"/denied", "header": b"x", "host": b"a.test"}
    parts[where] += byte + b"]0;owned"
    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"GET %(path)s HTTP/1.1\r\nUser-Agent: %(header)s\r\nHost: %(host)s\r\n\r\n"
                           % {key.encode(): value for key, value in parts.items()})  # fmt: skip
        assert read_reply(connection).status in (0, 400, 403)  # 0: closed, for what does not begin like HTTP
    assert only_line(bed)["verdict"] == "deny"
    assert bed.untouched()


# The encoder replaced by one that writes what it was told.
NAIVE = """
from urllib.parse import unquote
from impyard.addon import log
log.encode_decision = lambda *, decision, request, **rest: (
    '{"verdict":"%s","path":"%s"}\\n' % (decision.verdict.value, unquote(request.path))).encode()
"""


@pytest.mark.attack("119", "122", control=True)
def test_control_a_log_without_escapes_is_written_by_what_it_logs(tmp_path: Path) -> None:
    gateway = LiveGateway(tmp_path, "networkPolicies: []\n", fault=CHANGED.format(change=NAIVE))
    try:
        assert gateway.get(f"https://a.test/denied%0a{INJECTED}%0a").status == 403
        lines = (gateway.runs / "decisions.jsonl").read_text().splitlines()
        assert json.loads(lines[1]) == {"verdict": "allow"}
    finally:
        gateway.stop()


def chained(gateway: LiveGateway) -> list[str]:
    """What `verify` finds wrong with the log."""
    return [str(fault) for fault in verify((gateway.runs / "decisions.jsonl").read_bytes().splitlines(keepends=True))]


@pytest.mark.attack("122")
@pytest.mark.parametrize("edit", ["change", "delete", "swap", "forge"])
def test_an_edited_log_names_its_first_bad_line(bed: Bed, own_log: list[bytes], edit: str) -> None:
    lines = list(own_log)
    if edit == "change":
        lines[2] = lines[2].replace(b'"deny"', b'"allow"')
    elif edit == "delete":
        del lines[2]
    elif edit == "swap":
        lines[2], lines[3] = lines[3], lines[2]
    else:
        lines.insert(2, lines[2].replace(b'"deny"', b'"allow"'))
    assert verify(own_log) == []
    faults = verify(lines)
    assert faults and faults[0].line in (3, 4)


@pytest.fixture
def own_log(tmp_path: Path) -> list[bytes]:
    gateway = LiveGateway(tmp_path, "networkPolicies: []\n")
    try:
        for number in range(5):
            gateway.get(f"https://a.test/{number}")
    finally:
        gateway.stop()
    return (gateway.runs / "decisions.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.attack("122")
def test_a_log_whose_tail_was_cut_differs_from_its_receipt(own_log: list[bytes]) -> None:
    last = "sha256:" + hashlib.sha256(own_log[-1].rstrip(b"\n")).hexdigest()
    receipts = {"r1": (len(own_log), last)}
    assert verify(own_log, receipts=receipts) == []
    assert verify(own_log[:-1], receipts=receipts) != []


@pytest.mark.attack("130")
def test_a_gateway_that_is_killed_takes_the_door_along_and_no_second_one_passes_for_it(
    tmp_path: Path, pki: Pki
) -> None:
    """A run has one gateway: the runner starts none anew, and counts that begin again show in the log."""
    a = Origin(pki.context("a.test"))
    policy = POLICY.format(a=a.port, plain=1, ca=pki.ca_path)
    first = LiveGateway(tmp_path, policy)
    for _ in range(3):
        assert first.get("https://a.test/pub/x").status == 200
    assert chained(first) == []
    first.kill()
    with pytest.raises(OSError):
        first.get("https://a.test/pub/x")
    assert len(a.seen) == 3
    assert LiveGateway(tmp_path, policy).first["event"] == "failed", "the dead one's door is in the way"
    for name in ("judge.sock", "life.sock"):
        (first.door / name).unlink()
    second = LiveGateway(tmp_path, policy)
    try:
        assert second.get("https://a.test/pub/x").status == 200
        assert any("line 4" in fault or "line=4" in fault for fault in chained(second)), chained(second)
    finally:
        second.stop()
        a.close()


@pytest.mark.attack("131")
def test_a_clock_that_is_set_back_changes_neither_order_nor_durations(tmp_path: Path, pki: Pki) -> None:
    a = Origin(pki.context("a.test"))
    moved = tmp_path / "moved"
    change = (
        "import os, time, datetime\nreal = time.time\n"
        f"time.time = lambda: real() - (3600 if os.path.exists({str(moved)!r}) else 0)\n"
        "from impyard.addon import log\nwhen = log.now\n"
        f"log.now = lambda: '2020-01-01T00:00:00.000Z' if os.path.exists({str(moved)!r}) else when()\n"
    )
    policy = POLICY.format(a=a.port, plain=1, ca=pki.ca_path)
    gateway = LiveGateway(tmp_path, policy, fault=CHANGED.format(change=change))
    assert gateway.first.get("event") == "ready", gateway.stderr_path.read_text()
    try:
        assert gateway.get("https://a.test/pub/x").status == 200
        moved.touch()
        assert gateway.get("https://a.test/pub/x").status == 200
        assert gateway.get("https://a.test/denied").status == 403
        lines = gateway.decisions()
        assert [line["seq"] for line in lines] == [1, 2, 3]
        assert lines[1]["ts"] < lines[0]["ts"], "the clock was moved"
        assert chained(gateway) == []
        assert all(0 <= outcome["ms"] < 60_000 for outcome in gateway.outcomes(2))
        gateway.policy_path.write_text("networkPolicies: []\n")
        assert gateway.get("https://a.test/pub/x").status == 403, "a change of the policy is seen all the same"
    finally:
        gateway.stop()
        a.close()


# -- who asks (124, 125) --------------------------------------------------------------------------------------------

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
        assert chained(one) == []
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
