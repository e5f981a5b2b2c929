"""Whatever a request holds: its line in the log is one line of plain JSON, bounded, chained, and without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon import redact
from impyard.addon.decisions import MAX_LINE, verify
from impyard.addon.judge import Decision, Nearest, Verdict
from impyard.addon.log import DecisionLog, OutcomeLog
from impyard.addon.reasons import REASONS
from impyard.addon.request import Request
from impyard.runner.decisions import logread
from impyard.runner.decisions.logfiles import open_log
from tests.support.fuzz import examples

PLAIN = Request("GET", "https", "a.test", 443, "/a", "q=1", headers=(("accept", "x"),), host_header="a.test")

# Control bytes, C1, line ends of Unicode, marks that turn the reading direction, halves of surrogate pairs, JSON's own.
odd = st.sampled_from(
    [*map(chr, range(32)), '"', "\\", "\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\u202e", "\u2066", "\ufeff",
     "\ud800", "\udfff", "\U0001f600", '"}\n{"verdict":"allow"}', "\r\n", "\\u0000", "<redacted>", "%0a", "%", "…",
     "\x1b[2J"]
)  # fmt: skip
texts = st.one_of(
    st.lists(odd, max_size=12).map("".join), st.text(max_size=40), st.builds(str.__mul__, odd, st.integers(0, 3000))
)
headers = st.lists(st.tuples(texts, texts), max_size=8).map(tuple)
requests = st.builds(
    Request, texts, texts, texts, st.integers(0, 10**9), texts, texts, texts, headers,
    st.none() | st.integers(0, 2**63),
    texts, texts, texts,
)  # fmt: skip
requests = st.one_of(requests, st.builds(lambda many, size: replace(PLAIN, headers=(("x" * 20, "y" * size),) * many),
                                         st.integers(0, 300), st.integers(0, 1500)))  # fmt: skip
decisions = st.builds(
    Decision, st.sampled_from(Verdict), st.sampled_from(sorted(REASONS)), st.none() | texts, st.none() | texts,
    st.none() | st.builds(Nearest, texts, st.just("path")), texts,
)  # fmt: skip


def lines_of(path: Path) -> list[bytes]:
    """The log as the runner reads it."""
    log = open_log(path)
    assert log is not None
    with log:
        assert [line.text for line in logread.from_end(log)][::-1] == path.read_bytes().split(b"\n")[:-1]
        return list(logread.raw_lines(log))


@contextmanager
def new_log(path: Path) -> Iterator[DecisionLog]:
    path.unlink(missing_ok=True)
    log = DecisionLog(path, "r1")
    try:
        yield log
    finally:
        log.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "decisions.jsonl"


def assert_harmless(line: bytes) -> Any:
    """One line of printable ASCII, not longer than may be, and JSON; the value."""
    assert line.endswith(b"\n")
    assert not re.search(rb"[^ -~]", line[:-1])
    assert len(line) <= MAX_LINE
    return json.loads(line)


@pytest.mark.attack("119", "122")
@examples(60)
@given(made=st.lists(st.tuples(decisions, requests), min_size=1, max_size=6), data=st.data())
def test_any_requests_come_back_as_whole_lines_of_a_whole_chain(
    path: Path, made: list[tuple[Decision, Request]], data: st.DataObject
) -> None:
    with new_log(path) as log:
        recorded = [log.write(decision, request, "sha256:ab") for decision, request in made]
    lines = lines_of(path)
    assert lines == [each.line for each in recorded]
    for (decision, request), line in zip(made, lines, strict=True):
        entry = assert_harmless(line)
        assert (entry["verdict"], entry["reason"]) == (decision.verdict.value, decision.reason)
        assert (entry["port"], entry["body_bytes"]) == (request.port, request.body_bytes)
        assert set(entry) >= {"ts", "id", "run", "seq", "method", "host", "path", "query", "headers", "prev"}
    receipt = {"r1": (log.seq, log.last_hash)}
    assert verify(lines, receipts=receipt) == []
    # And the chain tells of any one change.
    place = data.draw(st.integers(0, len(lines) - 1))
    damaged = data.draw(
        st.sampled_from([[], [lines[place]] * 2, [lines[place].replace(b'"port":', b'"port":1')], [lines[place][:-5]]])
    )
    assert verify([*lines[:place], *damaged, *lines[place + 1 :]], receipts=receipt)


@pytest.mark.attack("119")
@examples(40)
@given(st.from_regex(r"/[!-~]{0,60}", fullmatch=True), st.from_regex(r"[a-z]{1,8}=[0-9]{0,9}", fullmatch=True), headers)
def test_what_holds_no_secret_is_written_as_it_was(path: Path, target: str, query: str, given: Any) -> None:
    request = replace(PLAIN, path=target, query=query, headers=tuple(("x", value) for _, value in given))
    if not redact.is_clean([target, query, *[value for _, value in request.headers]]) or redact.is_secret(
        query.split("=")[0]
    ):
        return
    with new_log(path) as log:
        entry = json.loads(log.write(Decision(Verdict.ALLOW, "rule", "r", "f:1"), request, "").line)
    assert entry["query"] == query
    assert entry["path"] == target or redact.REDACTED in entry["path"]


@pytest.mark.attack("119")
@examples(40)
@given(
    st.none() | st.integers(0, 999), st.integers(0, 2**63), st.integers(0, 2**63), st.floats(0, 1e9), st.none() | texts
)
def test_any_outcome_is_one_harmless_line(
    path: Path, status: int | None, up: int, down: int, ms: float, error: str | None
) -> None:
    path = path.with_name("outcomes.jsonl")
    path.unlink(missing_ok=True)
    log = OutcomeLog(path, "r1")
    log.write("r1.1", status, up, down, ms, error)
    log.close()
    (line,) = lines_of(path)
    entry = assert_harmless(line)
    assert (entry["id"], entry["status"], entry["bytes_up"], entry["bytes_down"]) == ("r1.1", status, up, down)


# --- secrets -------------------------------------------------------------------------------------------------------

letters = st.text("ghjkmpqrstuvwxyzGHJKLMNPQRSTUVWXYZ", min_size=24, max_size=40)
keys = st.one_of(
    letters.map("sk-".__add__),
    letters.map("ghp_".__add__),
    letters.map("github_pat_".__add__),
    letters.map(lambda text: "AKIA" + text.upper()[:16]),
    letters.map(lambda text: "AIza" + (text * 2)[:35]),
    letters.map("sk_live_".__add__),
    letters.map(lambda text: f"eyJ{text[:12]}.{text}.{text[::-1]}"),
)
passwords = letters.map("Hunter-".__add__)


@st.composite
def encodings(draw: st.DrawFn) -> Any:
    """Something that writes a text with some characters percent-encoded, once or twice."""
    mask = draw(st.lists(st.booleans(), min_size=1, max_size=9))
    form = draw(st.sampled_from(["%{:02X}", "%{:02x}", "%25{:02x}"]))
    return lambda text: "".join(form.format(ord(char)) if mask[n % len(mask)] else char for n, char in enumerate(text))


plain = st.just(lambda text: text)
secret_names = st.sampled_from(
    [
        "token",
        "access_token",
        "X-Amz-Signature",
        "api_key",
        "apiKey",
        "client_secret",
        "password",
        "sig",
        "auth",
        "code",
        "jwt",
    ]
)

# Where a key that is known by its look may stand.
LOOKS: list[Any] = [
    lambda key, name, enc: replace(PLAIN, path=f"/bot{enc('/' + key)}/x"),
    lambda key, name, enc: replace(PLAIN, path="/" + enc(key)),
    lambda key, name, enc: replace(PLAIN, query=f"q={enc(key)}"),
    lambda key, name, enc: replace(PLAIN, query=enc(key)),
    lambda key, name, enc: replace(PLAIN, query=f"a=1;{enc(key)}=2&b"),
    lambda key, name, enc: replace(PLAIN, headers=(("x-custom", f"Basic {enc(key)}, x"),)),
    lambda key, name, enc: replace(PLAIN, headers=((enc(key), "x"),)),
    lambda key, name, enc: replace(PLAIN, method=f"GET\t{key}"),
    lambda key, name, enc: replace(PLAIN, host=f"{key}.evil.test"),
    lambda key, name, enc: replace(PLAIN, path="/" + "a" * 4080 + "/" + key),
    lambda key, name, enc: replace(PLAIN, headers=(("x", "b" * 1010 + " " + key),)),
    lambda key, name, enc: replace(PLAIN, http=f"1.1 {key}"),
]
# Where any text is a secret, by what stands before it.
NAMED: list[Any] = [
    lambda key, name, enc: replace(PLAIN, query=f"a=1&{enc(name)}={enc(key)}&b=2"),
    lambda key, name, enc: replace(PLAIN, query=f"a=1;{name}={key};b"),
    lambda key, name, enc: replace(PLAIN, query=f"{name}[]={key}"),
    lambda key, name, enc: replace(PLAIN, query=f"user[{name}]={key}"),
    lambda key, name, enc: replace(PLAIN, headers=((f"X-{name}", enc(key)),)),
    lambda key, name, enc: replace(PLAIN, headers=(("X_Api_Key", key), ("x-ok", "1"), ("x_api_key", key))),
    lambda key, name, enc: replace(PLAIN, headers=(("Referer", f"https://u:{key}@b.test/x"),)),
    lambda key, name, enc: replace(PLAIN, headers=(("Referer", f"https://b.test/x?{name}={enc(key)}"),)),
    lambda key, name, enc: replace(PLAIN, headers=(("Referer", f"https://b.test/x#{name}={key}"),)),
    lambda key, name, enc: replace(PLAIN, headers=(("X-Link", f"</x?a=1&{name}={key}>, <https://u:{key}@c.test/>"),)),
    lambda key, name, enc: replace(PLAIN, query=f"url=https://u:{key}@b.test/"),
    lambda key, name, enc: replace(PLAIN, query=f"url=https%3A%2F%2Fu%3A{key}%40b.test%2F"),
    lambda key, name, enc: replace(PLAIN, query=f"url=https://b.test/?{name}={key}"),
    lambda key, name, enc: replace(PLAIN, query=f"url=https%3A%2F%2Fb.test%2F%3Fa%3D1%26{name}%3D{key}"),
    lambda key, name, enc: replace(PLAIN, path=f"/x;{name}={key}/y"),
    lambda key, name, enc: replace(PLAIN, path=f"/x%3f{name}={key}"),
    lambda key, name, enc: replace(PLAIN, path=f"/proxy/https://u:{key}@b.test/"),
    lambda key, name, enc: replace(PLAIN, host=f"u:{key}@b.test"),
    lambda key, name, enc: replace(PLAIN, path=f"https://u:{key}@b.test/x"),
]


def assert_kept_out(secret: str, line: bytes) -> None:
    """Neither the secret nor half of it, in whatever encoding."""
    text = json.dumps(json.loads(line), ensure_ascii=False)
    for _ in range(4):
        for at in range(0, len(secret) - 15):
            assert secret[at : at + 16].lower() not in text.lower()
        text = unquote(text)


@pytest.mark.attack("F55")
@pytest.mark.parametrize("place", range(len(LOOKS)))
@examples(6)
@given(keys, secret_names, plain | encodings())
def test_a_key_that_shows_itself_is_not_written(path: Path, place: int, key: str, name: str, enc: Any) -> None:
    with new_log(path) as log:
        assert_kept_out(key, log.write(Decision(Verdict.DENY, "no-rule"), LOOKS[place](key, name, enc), "").line)


@pytest.mark.attack("F55")
@pytest.mark.parametrize("place", range(len(NAMED)))
@examples(6)
@given(passwords, secret_names, plain | encodings())
def test_what_is_named_a_secret_is_not_written(path: Path, place: int, key: str, name: str, enc: Any) -> None:
    with new_log(path) as log:
        assert_kept_out(key, log.write(Decision(Verdict.DENY, "no-rule"), NAMED[place](key, name, enc), "").line)


@pytest.mark.attack("F55", control=True)
@pytest.mark.parametrize(("places", "secret"), [(LOOKS[:9], "sk-" + "Gh" * 12), (NAMED, "Hunter-" + "Gh" * 12)])
def test_control_without_redaction_each_of_them_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, places: list[Any], secret: str
) -> None:
    monkeypatch.setattr(redact, "is_secret", lambda name: False)
    monkeypatch.setattr(redact, "is_clean", lambda texts: True)
    monkeypatch.setattr(redact, "_USERINFO", re.compile("(?!)"))
    monkeypatch.setattr(redact, "host", lambda raw, clean: raw)
    for place in places:
        with new_log(path) as log:
            line = log.write(Decision(Verdict.DENY, "no-rule"), place(secret, "token", str), "").line
        with pytest.raises(AssertionError):
            assert_kept_out(secret, line)


@pytest.mark.attack("119", control=True)
def test_control_a_line_of_raw_text_is_not_harmless() -> None:
    for text in ("\x1b[2J", "\u202e", "\x9b", "\u2028", "a\nb", "\x7f"):
        with pytest.raises(AssertionError):
            assert_harmless(b'{"path":"' + text.encode() + b'"}\n')
