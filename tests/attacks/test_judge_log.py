"""The log: not written by what it judges, not edited unseen, in order whatever the clock says. Group H."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.decisions import MAX_LINE, verify
from tests.gateway.conftest import POLICY, Bed
from tests.support.gateway import LiveGateway, read_reply
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
def test_an_edited_log_names_its_first_bad_line(own_log: list[bytes], edit: str) -> None:
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


@pytest.fixture(scope="module")
def own_log(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    gateway = LiveGateway(tmp_path_factory.mktemp("log"), "networkPolicies: []\n")
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
