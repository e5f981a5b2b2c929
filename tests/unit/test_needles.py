"""Finding many byte strings at once, long ones by their beginnings, and what a watch weighs after many renewals."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.secretwatch import SecretWatch
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.needles import Needles
from tests.support.fuzz import examples

BEGINNING = b"ab" * 79 + b"a"  # a pattern is compared as a whole from its 161st byte on
PIECE = st.sampled_from([BEGINNING, BEGINNING[:-2], b"a", b"b", b"ab", b"x", b"aa"])
TEXT = st.lists(PIECE, min_size=1, max_size=8).map(b"".join)


@examples(300)
@given(st.lists(TEXT, min_size=1, max_size=5), st.lists(TEXT, max_size=6).map(b"".join))
def test_every_pattern_is_found_wherever_it_is(patterns: list[bytes], data: bytes) -> None:
    needles = Needles(patterns)
    found = {(needles.patterns[number], begin, end) for number, begin, end in needles.every(data)}
    expected = {
        (pattern, at, at + len(pattern))
        for pattern in patterns
        for at in range(len(data))
        if data.startswith(pattern, at)
    }
    assert found == expected
    assert bool(expected) <= bool(needles.hits(data))


@examples(300)
@given(
    st.lists(st.sampled_from([b"a", b"ab", b"xab"]) | st.binary(min_size=1, max_size=4), min_size=1, max_size=5),
    st.lists(PIECE | st.sampled_from([byte * size for byte in (b"\xf8", b"\xfb") for size in (1, 63, 64)]), max_size=6),
)
def test_what_fills_a_group_up_is_not_told_and_hides_nothing(patterns: list[bytes], texts: list[bytes]) -> None:
    needles, data = Needles(patterns), b"".join(texts)
    places = {begin for _, begin, _ in needles.every(data)}
    assert {*needles.hits(data)} <= places
    assert bool(needles.hits(data)) == bool(places)


FEW = [f"{first}-{'x9Q_'[number]}realKEYvalue0123".encode() for number, first in enumerate("sk3A")]


def _took(needles: Needles, data: bytes) -> float:
    times = []
    for _ in range(20):
        started = time.thread_time()
        assert not needles.hits(data)
        times.append(time.thread_time() - started)
    return min(times)


def test_a_few_patterns_are_looked_for_in_noise_as_quickly_as_in_nothing() -> None:
    """As in what is compressed: a factor of a hundred and more, where the library looks for single bytes."""
    needles = Needles(FEW)
    assert _took(needles, os.urandom(1 << 20)) < 20 * _took(needles, bytes(1 << 20))


def test_many_patterns_take_little_longer_than_a_few() -> None:
    """A factor of twelve where a group, with what fills it up, is too large for the quick search."""
    noise = os.urandom(1 << 20)
    many = [base64.b64encode(number.to_bytes(2) * 9) for number in range(1000, 65_000, 1000)]
    assert len(many) == 64
    assert _took(Needles(many), noise) < 6 * _took(Needles(FEW), noise)


def a_token() -> str:
    parts = [base64.urlsafe_b64encode(os.urandom(size)).decode().rstrip("=") for size in (60, 1500, 256)]
    return ".".join(parts)


def a_login(name: str) -> Credential:
    return Credential(name=name, kind="oauth", access=a_token(), refresh=a_token()[:200])


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def test_a_watch_does_not_grow_with_each_renewal() -> None:
    others = {name: a_login(name) for name in ("a", "b")}
    watch = SecretWatch(None, lambda: others)
    before = resident_mb()
    took: list[float] = []
    tokens: list[str] = []
    for _ in range(30):
        login = a_login("c")
        tokens.append(login.access)
        started = time.thread_time()
        watch.learn(login)
        watch.tripwire().look(b"nothing", ())
        took.append(time.thread_time() - started)
        stars = watch.mask(login, [login.access]).whole(login.access.encode())
        assert stars == b"*" * len(login.access)
        assert login.access not in (watch.clean_text(f"it said {login.access}") or "")
    assert resident_mb() - before < 40
    assert sorted(took)[15] < 0.1
    assert all(watch.tripwire().look(token.encode(), ()) for token in tokens[-5:]), "the latest are still looked for"


def test_a_key_that_is_a_word_is_masked_in_no_answer() -> None:
    """As local models have: `ollama`. A longer one is a secret."""
    watch = SecretWatch()
    short = Credential("ollama", "api_key", key="ollama")
    assert watch.mask(short, ["ollama"]).whole(b"ollama runs") == b"ollama runs"
    long = Credential("mine", "api_key", key="ollama-9Fq3Zx")
    assert watch.mask(long, [long.key]).whole(long.key.encode()) == b"*" * len(long.key)
