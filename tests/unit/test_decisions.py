"""Decisions as lines: whole, bounded, without secrets or control bytes; and the check of their chain."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon import redact
from impyard.addon.decisions import (
    GENESIS,
    MAX_LINE,
    LineFault,
    encode_decision,
    encode_outcome,
    line_hash,
    verify,
)
from impyard.addon.judge import Decision, Nearest, Secret, Verdict
from impyard.addon.request import Request
from impyard.addon.rules import Inject, Upstream
from impyard.addon.vault.templates import READY

REQUEST = Request(
    "POST",
    "https",
    "api.github.com",
    443,
    "/repos/a/b/issues",
    "",
    "2.0",
    (("User-Agent", "curl/8"), ("Authorization", "Bearer abc")),
    512,
)
DENIED = Decision(Verdict.DENY, "no-rule", nearest=Nearest("policies/gateway.yaml:6", "method"))


def encoded(request: Request = REQUEST, decision: Decision = DENIED, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "ts": "2026-11-29T17:03:12.636Z",
        "id": "r.1",
        "run": "r",
        "seq": 1,
        "policy_hash": "sha256:ab",
        "prev": GENESIS,
    }
    return encode_decision(decision=decision, request=request, **(fields | changes))


def line_of(**changes: Any) -> Any:
    return json.loads(encoded(replace(REQUEST, **changes)))


def test_a_line_has_its_keys_in_order() -> None:
    assert encoded() == (
        b'{"ts":"2026-11-29T17:03:12.636Z","id":"r.1","run":"r","seq":1,"verdict":"deny","reason":"no-rule","rule":null,'
        b'"at":null,"nearest":{"at":"policies/gateway.yaml:6","failed":"method"},"policy":"sha256:ab","method":"POST",'
        b'"scheme":"https","host":"api.github.com","port":443,"path":"/repos/a/b/issues","query":"","http":"2.0",'
        b'"headers":{"user-agent":"curl/8","authorization":"<redacted>"},"body_bytes":512,"prev":"'
        + GENESIS.encode()
        + b'"}\n'
    )


def test_an_upstream_is_named_when_there_is_one() -> None:
    allowed = Decision(Verdict.ALLOW, "rule", "x", "y:1", upstream=Upstream("http", "127.0.0.1", 11434))
    assert json.loads(encoded(decision=allowed))["upstream"] == "http://127.0.0.1:11434"
    assert "upstream" not in json.loads(encoded())


NPM = Inject("npm", READY["npm"].variants, "y:1")


def test_a_line_names_what_was_put_on() -> None:
    allowed = Decision(Verdict.ALLOW, "rule", "x", "y:1", inject=NPM, injected=("authorization", "x-key"))
    line = json.loads(encoded(decision=allowed))
    assert (line["credential"], line["injected"]) == ("npm", ["authorization", "x-key"])
    denied = json.loads(encoded(decision=Decision(Verdict.DENY, "credential-unavailable", inject=NPM)))
    assert denied["credential"] == "npm" and "injected" not in denied


@pytest.mark.parametrize("where", ["header x-foo", "path", "query", "host", "body", "message"])
def test_a_line_names_what_was_found_and_where(where: str) -> None:
    found = Decision(Verdict.DENY, "secret-in-request", secret=Secret("npm", "value", where), follows="r.7")
    line = json.loads(encoded(decision=found))
    assert line["secret"] == {"credential": "npm", "kind": "value", "where": where}
    assert line["follows"] == "r.7"


def test_a_line_without_them_has_no_such_keys() -> None:
    assert not {"credential", "injected", "secret", "follows"} & set(json.loads(encoded()))


def test_where_a_secret_was_is_no_way_to_show_it() -> None:
    for name in ("x-sk-ant-api03-notarealkey000000", "x" * 5000, "x[31m"):
        found = Decision(Verdict.DENY, "secret-in-request", secret=Secret("npm", "sentinel", f"header {name}"))
        line = encoded(decision=found)
        where = json.loads(line)["secret"]["where"]
        assert where.startswith("header x") and len(where) < 200 and "notarealkey" not in where
        assert line.isascii() and b"\x1b" not in line


def test_what_was_put_on_and_found_survives_when_the_line_is_cut() -> None:
    names = tuple(f"x-{n}-".ljust(64, "x") for n in range(8))
    decision = Decision(
        Verdict.DENY,
        "secret-in-request",
        rule="r" * 5000,
        at="a" * 5000,
        inject=Inject("n" * 64, NPM.variants, "y:1"),
        injected=names,
        secret=Secret("n" * 64, "sentinel", "header " + "\x7f" * 5000),
        follows="20261129-201744-4ec0.123456789",
    )
    odd = "\x01" * 5000
    headers = tuple((f"h{n}" + odd, odd) for n in range(70))
    line = encoded(replace(REQUEST, path=odd, query=odd, headers=headers, host=odd), decision)
    assert len(line) <= MAX_LINE
    found = json.loads(line)
    assert found["headers"].keys() == {"…"}  # it was cut
    assert (found["credential"], found["injected"]) == ("n" * 64, list(names))
    assert found["secret"]["where"].startswith("header ")
    assert found["follows"] == decision.follows


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "Proxy-Authorization",
        "COOKIE",
        "set-cookie",
        "x-api-key",
        "api-key",
        "x-goog-api-key",
        "x-amz-security-token",
        "X-GitHub-Token",
        "x-client-secret",
        "x-auth",
        "x-session-id",
        "sec-websocket-key",
    ],
)
def test_secret_headers_are_redacted(name: str) -> None:
    assert line_of(headers=((name, "hunter2"),))["headers"] == {name.lower(): "<redacted>"}


@pytest.mark.parametrize("name", ["user-agent", "accept", "content-type", "x-author", "x-keyword", "host", "x-design"])
def test_other_headers_are_kept(name: str) -> None:
    assert line_of(headers=((name, "curl/8"),))["headers"] == {name: "curl/8"}


@pytest.mark.parametrize(
    ("query", "logged"),
    [
        ("a=b&c=d", "a=b&c=d"),
        ("access_token=hunter2&a=b", "access_token=<redacted>&a=b"),
        ("key=hunter2", "key=<redacted>"),
        ("keyword=kept", "keyword=kept"),
        ("X-Amz-Signature=hunter2;X-Amz-Date=kept", "X-Amz-Signature=<redacted>;X-Amz-Date=kept"),
        ("AWSAccessKeyId=hunter2", "AWSAccessKeyId=<redacted>"),
        ("clientSecret=hunter2&userPwd=hunter2", "clientSecret=<redacted>&userPwd=<redacted>"),
        ("%74oken=hunter2", "%74oken=<redacted>"),
        ("%2574oken=hunter2", "%2574oken=<redacted>"),
        ("TOKEN[]=hunter2", "TOKEN[]=<redacted>"),
        ("sig=hunter2&design=kept&author=kept", "sig=<redacted>&design=kept&author=kept"),
        ("token=", "token="),
        ("token", "token"),
        ("a=b=token=c", "a=b=token=c"),
        ("=hunter", "=hunter"),
        ("q=sk-ant-api03-abcdefghijklmnop", "q=<redacted>"),
        ("q=sk%2Dant-api03-abcdefghijklmnop", "q=<redacted>"),
        ("sk-ant-api03-abcdefghijklmnop", "<redacted>"),
        ("q=ghp_abcdefghijklmnopqrstuvwxyz&a=b", "q=<redacted>&a=b"),
    ],
)
def test_secrets_in_a_query_are_redacted_and_names_kept(query: str, logged: str) -> None:
    assert line_of(query=query)["query"] == logged


def test_secrets_are_known_by_their_look_anywhere() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
    line = line_of(path=f"/hooks/{token}/x", headers=(("x-note", f"see {token}"),))
    assert line["path"] == "/hooks/<redacted>/x"
    assert line["headers"] == {"x-note": "see <redacted>"}


def test_addresses_in_headers_lose_their_secrets() -> None:
    referer = "https://user:hunter2@a.test/x?token=hunter2&a=b"
    assert line_of(headers=(("Referer", referer),))["headers"] == {
        "referer": "https://<redacted>@a.test/x?token=<redacted>&a=b"
    }


def test_headers_of_one_name_are_joined() -> None:
    assert line_of(headers=(("Accept", "a"), ("accept", "b")))["headers"] == {"accept": "a, b"}


def test_long_fields_are_cut_and_say_so() -> None:
    line = line_of(path="/" + "p" * 5000, query="q" * 5000, headers=(("x-long", "v" * 2000), ("n" * 200, "v")))
    assert line["path"].endswith("p…(5001 bytes)") and len(line["path"]) == 4096
    assert line["query"].endswith("q…(5000 bytes)") and len(line["query"]) == 4096
    assert line["headers"]["x-long"].endswith("v…(2000 bytes)") and len(line["headers"]["x-long"]) == 1024
    assert max(map(len, line["headers"])) == 128


def test_a_secret_is_not_saved_by_the_cut() -> None:
    secret = "sk-ant-" + "x" * 100
    assert b"xxxxx" not in encoded(replace(REQUEST, path="/" + "p" * 4000 + "/" + secret, headers=()))


def test_too_many_headers_are_counted() -> None:
    headers = line_of(headers=tuple((f"x-{n}", "v") for n in range(100)))["headers"]
    assert len(headers) == 65
    assert headers["…"] == "(36 more)"


def test_a_line_that_is_still_too_long_is_cut_further() -> None:
    line = encoded(replace(REQUEST, headers=tuple((f"x-{n}", "\x01" * 1000) for n in range(64))))
    assert len(line) <= MAX_LINE
    assert re.fullmatch(r"\(64 headers, line of \d+ bytes\)", json.loads(line)["headers"]["…"])


def test_log_injection_stays_one_line() -> None:
    request = replace(
        REQUEST,
        path='/%0a{"verdict":"allow"}\r\n{"verdict":"allow"}',
        headers=(("x", 'a\r\n{"verdict":"allow"}\x1b[2J\x9b2J\u2028\x7f'),),
    )
    line = encoded(request)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert all(0x20 <= byte < 0x7F for byte in line[:-1])
    assert json.loads(line)["headers"]["x"] == 'a\r\n{"verdict":"allow"}\x1b[2J\x9b2J\u2028\x7f'


ANY = st.text(max_size=30) | st.integers(0, 3).flatmap(lambda n: st.just("\x00\ud800é%"[n] * 6000))


@given(
    st.builds(
        Request,
        method=ANY,
        scheme=ANY,
        host=ANY,
        port=st.integers(),
        path=ANY,
        query=ANY,
        http=ANY,
        headers=st.lists(st.tuples(ANY, ANY), max_size=70).map(tuple),
        body_bytes=st.none() | st.integers(),
    ),
    st.builds(
        Decision,
        verdict=st.sampled_from(Verdict),
        reason=st.sampled_from(["rule", "no-rule"]),
        rule=st.none() | ANY,
        at=st.none() | ANY,
        nearest=st.none() | st.builds(Nearest, at=ANY, failed=st.just("path")),
    ),
)
def test_every_decision_is_one_bounded_line_of_plain_json(request: Request, decision: Decision) -> None:
    line = encoded(request, decision)
    assert line.endswith(b"\n") and len(line) <= MAX_LINE
    assert all(0x20 <= byte < 0x7F for byte in line[:-1])
    entry = json.loads(line)
    assert list(entry)[:5] == ["ts", "id", "run", "seq", "verdict"]
    assert entry["verdict"] == decision.verdict.value


@given(st.text(max_size=200))
def test_redaction_never_raises_and_leaves_no_key(raw: str) -> None:
    for made in (redact.text(raw), redact.query(raw), redact.value(raw)):
        assert redact.is_clean([made])


def test_an_outcome_is_a_line() -> None:
    line = encode_outcome(ts="T", id="r.1", run="r", status=200, up=1, down=2, ms=3.14159, error=None)
    assert line == b'{"ts":"T","id":"r.1","run":"r","status":200,"bytes_up":1,"bytes_down":2,"ms":3.1,"error":null}\n'
    long = encode_outcome(ts="T", id="r.1", run="r", status=None, up=0, down=0, ms=0, error="x\n" * 5000)
    assert len(long) < 2500 and long.count(b"\n") == 1


# --- the chain ----------------------------------------------------------------------------------------------------


def chain(run: str, count: int) -> list[bytes]:
    lines: list[bytes] = []
    for seq in range(1, count + 1):
        prev = line_hash(lines[-1]) if lines else GENESIS
        lines.append(encoded(id=f"{run}.{seq}", run=run, seq=seq, prev=prev))
    return lines


def receipt(lines: list[bytes]) -> tuple[int, str]:
    return json.loads(lines[-1])["seq"], line_hash(lines[-1])


def edited(line: bytes) -> bytes:
    assert b'"deny"' in line
    return line.replace(b'"deny"', b'"allow"')


def test_a_whole_chain_has_no_fault() -> None:
    lines = chain("r", 5)
    assert verify(lines) == []
    assert verify(lines, receipts={"r": receipt(lines)}) == []
    assert verify([]) == []


def test_runs_may_be_interleaved() -> None:
    a, b = chain("a", 3), chain("b", 3)
    assert verify([a[0], b[0], b[1], a[1], a[2], b[2]], receipts={"a": receipt(a), "b": receipt(b)}) == []


@pytest.mark.parametrize("place", range(5))
def test_an_edited_line_is_named(place: int) -> None:
    lines = chain("r", 5)
    last = receipt(lines)
    lines[place] = edited(lines[place])
    faults = verify(lines, receipts={"r": last})
    assert [fault.line for fault in faults] == [place + 1]
    assert "edited" in faults[0].what


def test_an_edited_last_line_needs_the_receipt() -> None:
    lines = chain("r", 3)
    last = receipt(lines)
    lines[2] = edited(lines[2])
    assert verify(lines) == []  # nothing after it can vouch for it
    assert verify(lines, receipts={"r": last})[0].line == 3


def test_two_edited_lines_are_both_named() -> None:
    lines = chain("r", 9)
    lines[2], lines[5] = edited(lines[2]), edited(lines[5])
    assert [fault.line for fault in verify(lines)] == [3, 6]


def test_a_line_whose_chain_field_was_edited_is_named() -> None:
    lines = chain("r", 5)
    lines[2] = lines[2].replace(json.loads(lines[2])["prev"].encode(), GENESIS.encode())
    assert [fault.line for fault in verify(lines)] == [3]


@pytest.mark.parametrize("place", range(1, 4))
def test_a_removed_line_is_found(place: int) -> None:
    lines = chain("r", 5)
    del lines[place]
    faults = verify(lines)
    assert faults == [LineFault(place + 1, "1 line of run r missing before it")]


def test_a_removed_first_line_is_found() -> None:
    assert "missing" in verify(chain("r", 3)[1:])[0].what


def test_a_cut_tail_is_found_by_the_receipt() -> None:
    lines = chain("r", 5)
    last = receipt(lines)
    assert verify(lines[:3]) == []
    assert verify(lines[:3], receipts={"r": last}) == [
        LineFault(3, "the end of run r is missing: its receipt counts 5 lines")
    ]
    assert verify([], receipts={"r": last}) == [LineFault(0, "no line of run r: its receipt counts 5")]


def test_lines_after_the_receipt_are_found() -> None:
    lines = chain("r", 5)
    assert [fault.line for fault in verify(lines, receipts={"r": receipt(lines[:3])})] == [5]


def test_reordered_and_repeated_lines_are_found() -> None:
    lines = chain("r", 5)
    lines[1], lines[2] = lines[2], lines[1]
    assert 3 in {fault.line for fault in verify(lines)}
    again = chain("r", 3)
    assert [fault.line for fault in verify([*again, again[1]])] == [4]


def test_torn_and_foreign_lines_are_found() -> None:
    lines = chain("r", 3)
    foreign = [b"\n", b"null\n", b"[]\n", b"{}\n", b'{"run":1,"seq":1,"prev":""}\n', b"\xff\n", b"[" * 100_000 + b"\n"]
    torn = lines[2][:40]
    faults = verify([lines[0], *foreign, lines[1], torn])
    assert [fault.line for fault in faults] == [*range(2, 9), 10, 10]


def test_a_run_that_begins_with_a_foreign_link_is_found() -> None:
    assert "edited" in verify([encoded(prev="sha256:" + "1" * 64)])[0].what


@given(st.lists(st.binary(max_size=60) | st.sampled_from(chain("r", 4)), max_size=8))
def test_verify_never_raises(lines: list[bytes]) -> None:
    assert all(0 <= fault.line <= len(lines) for fault in verify(lines, receipts={"r": (4, "x")}))
