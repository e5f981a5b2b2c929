"""Small parts that read what a stranger wrote: they never fail, and what they make of it is bounded and harmless."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mitmproxy.test import tflow

from impyard.addon import answers
from impyard.addon.judge import Decision, Nearest, Verdict, judge
from impyard.addon.policy import read_policy
from impyard.addon.reasons import REASONS
from impyard.addon.wire import looks_like_http, request_from
from impyard.box import names
from impyard.box.loop import Loop
from impyard.box.pipes import ANSWER_LIMIT, CHUNK, Opening
from impyard.runner import text
from impyard.runner.decisions import lines as decision_lines
from impyard.runner.decisions import logread
from impyard.runner.decisions.logfiles import open_log
from tests.support.fuzz import examples
from tests.support.httpgrammar import AUTHORITIES, DANGEROUS, H2_PATHS, HEADERS, METHODS, streams
from tests.unit.test_answers import RETRIED

# --- names in the box ------------------------------------------------------------------------------------------------

known = st.sampled_from([b"a", b"test", b"A-b", b"localhost", b"a" * 63, b"a" * 64, b"-", b"\x00", b"a.b"])
labels = st.one_of(st.binary(max_size=5), known)
kinds = [b"\x00\x00%s\x00\x01" % kind for kind in (b"\x00\x01", b"\x00\x1c", b"\x00\x10", b"\x00\xff")]
extra = b"\x00\x00\x29\x10\x00\x00\x00\x00\x00\x00\x00"
tails = st.sampled_from([*kinds, b"\xc0\x0c\x00\x01\x00\x01", b"\x00\x00\x01", b"", kinds[0] + extra])
questions = st.builds(
    lambda head, names, tail: struct.pack(">6H", *head) + b"".join(bytes([len(n)]) + n for n in names) + tail,
    st.tuples(st.integers(0, 65535), st.sampled_from([0x0100, 0, 0x8000, 0x2800]), st.sampled_from([1, 1, 1, 0, 2]),
              st.just(0), st.just(0), st.integers(0, 1)),
    st.lists(labels, max_size=6),
    tails,
)  # fmt: skip
HOST = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")


@pytest.mark.attack("22")
@examples(200)
@given(st.one_of(st.binary(max_size=40), questions))
@example(b"")
def test_any_question_gets_one_short_answer_or_none(query: bytes) -> None:
    asked: list[str] = []
    book = names.AddressBook(4)
    reply = names.answer(query, lambda name: asked.append(name) or book.add(name)[0])  # type: ignore[func-returns-value]
    assert all(HOST.fullmatch(name) and len(name) <= 253 for name in asked)  # safe in a CONNECT line
    assert len(asked) <= 1
    if reply is not None:
        assert reply[:2] == query[:2]
        assert reply[2] & 0x80
        assert len(reply) <= len(query) + 16
        if reply[3] & 15 == 0 and struct.unpack(">H", reply[6:8])[0]:
            assert ipaddress.ip_address(reply[-4:]) in ipaddress.ip_network("127.0.0.0/8")


@examples(40)
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=60))
def test_an_address_leads_to_one_name_whatever_is_asked_and_forgotten(steps: list[tuple[str, bool]]) -> None:
    book = names.AddressBook(3, 10, 15)
    for name, forget in steps:
        if forget:
            book.remove(name)
        elif book.find(name) is None:
            address, dropped = book.add(name)
            assert address != dropped
        assert len(book) <= 3
        assert all(book.name_of(found) == each for each in "abcdefgh" if (found := book.find(each)))


# --- the relay's pipe ------------------------------------------------------------------------------------------------


heads = st.sampled_from([b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 403 No\r\n", b"\r\n\r\n", b"x" * 9000])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@examples(40)
@given(st.lists(st.binary(max_size=30) | heads, max_size=6), st.sampled_from([None, "a.test:443", "a.test:80"]))
def test_any_answer_of_the_door_opens_a_pipe_or_ends(folder: Path, parts: list[bytes], target: str | None) -> None:
    path = folder / "door.sock"
    path.unlink(missing_ok=True)
    closed: list[bool] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        client, near = socket.socketpair()
        near.setblocking(False)
        loop = Loop()
        opening = Opening(loop, near, str(path), target, lambda: closed.append(True))
        door, _ = listener.accept()
        with client, door:
            door.settimeout(5)
            if target is not None:
                assert door.recv(CHUNK).startswith(f"CONNECT {target} HTTP/1.1\r\n".encode())
            client.shutdown(socket.SHUT_WR)
            try:
                for part in parts:
                    door.sendall(part)
                    loop.later(0, lambda: None)
                    loop.run(iter([False, True]).__next__)
            except OSError:
                pass
            door.close()
            for _ in range(20):
                loop.later(0.001, lambda: None)
                loop.run(iter([False, True]).__next__)
            received = b""
            client.settimeout(5)
            while data := client.recv(CHUNK):
                received += data
    assert closed == [True]
    assert len(vars(opening)["_answer"]) <= ANSWER_LIMIT + CHUNK
    sent = b"".join(parts)
    assert received == sent[len(sent) - len(received) :]


# --- logs, and what is shown of them ---------------------------------------------------------------------------------

LINE = (
    b'{"ts":"t","id":"r.1","run":"r","verdict":"deny","reason":"no-rule","method":"GET","scheme":"https",'
    b'"host":"a.test","port":443,"path":"/","seq":1,"rule":null,"nearest":{"at":"f:1","failed":"path"}}\n'
)
DAMAGE = [
    LINE,
    LINE[:40],
    LINE[40:],
    b"\n",
    b"\x00" * 50,
    b"[" * 3000,
    b"\xff\xfe",
    b'{"run":{}}\n',
    b"1e999\n",
    b"\r\n",
]
DAMAGE += [LINE.replace(b"443", b"9" * 5000), LINE.replace(b"GET", b"\\ud800"), LINE.replace(b"null", b"[]")]


@pytest.mark.attack("122")
@examples(120)
@given(st.lists(st.sampled_from(DAMAGE), max_size=8), st.sampled_from([None, "r", "\udcff"]), st.booleans())
def test_a_damaged_log_is_read_without_a_traceback(
    folder: Path, parts: list[bytes], run: str | None, denied: bool
) -> None:
    path = folder / "decisions.jsonl"
    path.write_bytes(b"".join(parts))
    log = open_log(path)
    assert log is not None
    with log:
        selection = decision_lines.Selection(run, denied)
        found = logread.last(log, 100, selection, needles=selection.needles)
        for line in found:
            entry = decision_lines.parse(line.text)
            assert entry is not None
            assert text.visible(entry.url).isprintable()
        assert b"".join(logread.raw_lines(log)) in (b"".join(parts), b"")
    tail = logread.Tail(path, 0)
    assert len(list(tail.lines())) <= b"".join(parts).count(b"\n")
    tail.close()


@examples(200)
@given(st.text(st.characters(), max_size=40), st.integers(1, 30))
def test_what_is_shown_has_no_character_that_a_terminal_obeys(raw: str, limit: int) -> None:
    assert all(char.isprintable() for char in text.visible(raw))
    assert text.visible(text.visible(raw)) == text.visible(raw)
    text.visible(raw).encode("utf-8")
    assert len(text.shortened(raw, limit)) <= max(limit, 40)


# --- the gateway's own words -----------------------------------------------------------------------------------------

WORDS = ["timeout", "rate limit", "503", "retry", "connection error", "keep out", "/v1/500", "L", "é", "\u202e"]
WORDS += ["\r\nX: y", "\x00", "a" * 300, "429:", "policies/retry.yaml:6", "/home/me/timeout.yaml:500", "ECONNRESET"]
WORDS += ["\ud800", '"', "\\"]
phrases = st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join)
nearest = st.none() | st.builds(Nearest, phrases, st.sampled_from(["path", "method"]))
reasons = st.sampled_from(sorted(set(REASONS) - {"upstream"}))
denials = st.builds(
    Decision, st.just(Verdict.DENY), reasons, st.none() | phrases, st.none() | phrases, nearest, phrases
)


@examples(200)
@given(denials, st.sampled_from([None, "r.500", "20261129-200000-abcd.429"]), st.sampled_from(["", "git/2", "curl"]))
@example(Decision(Verdict.DENY, "rule", "a", "policies/timeout.yaml:6"), None, "")
def test_no_refusal_makes_pi_try_again_or_breaks_its_head(decision: Decision, id: str | None, agent: str) -> None:
    answer = answers.denial(decision, id, user_agent=agent)
    assert not RETRIED.search(answer.body.decode()), RETRIED.search(answer.body.decode())
    head, _, body = answers.raw_http1(answer).partition(b"\r\n\r\n")
    assert body == answer.body
    assert re.fullmatch(rb"HTTP/1\.1 [0-9]{3} [ -~]+(\r\n[a-z0-9-]+: [ -~]*)+", head)
    if agent != "git/2":
        assert json.loads(body)["reason"] == decision.reason
        assert "/home/me" not in body.decode()


# --- what comes in ---------------------------------------------------------------------------------------------------


@examples(150)
@given(st.one_of(streams(), st.binary(max_size=80)), st.integers(0, 400))
def test_what_begins_like_http_is_never_taken_for_something_else(data: bytes, cut: int) -> None:
    whole, part = looks_like_http(data), looks_like_http(data[:cut])
    assert part is None or cut >= len(data) or part == whole
    assert whole is not False or not re.match(rb"(GET|POST) /[!-~]* HTTP/1.1\r\n", data)


SCHEMES = st.sampled_from([b"https", b"http", b"", b"\xff"])
OPEN = b"networkPolicies: [{host: '*', policies: [{action: ALLOW, method: '*', path: /.*}]}]"


@examples(100)
@given(
    METHODS,
    H2_PATHS,
    st.tuples(AUTHORITIES, AUTHORITIES),
    st.lists(HEADERS, max_size=4),
    SCHEMES,
    st.sampled_from(DANGEROUS),
)
def test_any_flow_is_a_request_that_the_judge_decides(
    method: bytes, path: bytes, names: tuple[bytes, bytes], headers: list[bytes], scheme: bytes, odd: bytes
) -> None:
    authority, host = names
    flow = tflow.tflow()
    data = flow.request.data
    data.method, data.path, data.authority, data.scheme = method, path + odd, authority, scheme
    data.host = host.decode("latin-1")
    data.headers.fields = tuple((name, value) for name, _, value in (header.partition(b":") for header in headers))
    request = request_from(flow, None)
    assert (request.path + "?" + request.query).rstrip("?") == (path + odd).decode("latin-1").rstrip("?")
    policy = read_policy(
        [(Path("f"), b"networkPolicies: [{host: '*', policies: [{action: ALLOW, method: '*', path: /.*}]}]")]
    )
    decision = judge(request, policy)
    if decision.allowed:
        assert not set(request.path + request.query) & set("\r\n\x00 \t")
        assert authority.lower().rstrip(b".").removesuffix(b":443") in (host.lower().rstrip(b"."), b"")
