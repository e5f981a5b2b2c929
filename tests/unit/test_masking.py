"""Masking of real values in answers."""

from __future__ import annotations

import base64
import json
import os
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.vault.masking import Mask
from tests.support.fuzz import examples

KEY = b"sk-ant-api03-T4x9wKzQ7mB2"
ODD = 'pa/ss"w<o>rd&=1+é'
SMALL = st.text(alphabet="ab", min_size=6, max_size=9).map(str.encode)


def in_pieces(mask: Mask, data: bytes, cuts: list[int]) -> bytes:
    stream, found, begin = mask.stream(), b"", 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        found += stream.feed(data[begin:cut])
        begin = cut
    return found + stream.end()


def test_a_value_becomes_as_many_stars() -> None:
    assert Mask([KEY]).whole(b"<" + KEY + b"|" + KEY + b">") == b"<" + b"*" * 25 + b"|" + b"*" * 25 + b">"


def test_what_holds_no_value_stays_the_same_object() -> None:
    text = b"sk-ant-api03-T4x9wKzQ7mB, sk-ant-api03-T4x9wKzQ7mB3" * 100

    assert Mask([KEY]).whole(text) is text
    # A piece of a big answer is not copied either.
    assert Mask([KEY]).stream().feed(text) is text


def test_values_that_overlap_are_masked_as_a_whole() -> None:
    mask = Mask([b"abcdefgh", b"fghijkl"])

    assert mask.whole(b"<abcdefghijkl>") == b"<************>"
    assert in_pieces(mask, b"<abcdefghijkl>", list(range(20))) == b"<************>"


def test_a_value_that_begins_with_another_is_masked_to_its_end() -> None:
    assert Mask([b"abcdefgh", b"abcdefghijkl"]).whole(b"abcdefghijklm") == b"************m"


def test_the_rest_of_a_value_stays_masked_when_it_might_have_been_the_beginning_of_another() -> None:
    mask = Mask([b"abcdeab", b"abxyzabx"])

    assert in_pieces(mask, b"abcdeab!", [7]) == b"*******!"


@pytest.mark.parametrize(
    "written",
    [
        json.dumps(ODD)[1:-1],
        json.dumps(ODD, ensure_ascii=False)[1:-1],
        json.dumps(ODD)[1:-1].replace("/", "\\/"),
        json.dumps(ODD)[1:-1].replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        "pa/ss&quot;w&lt;o&gt;rd&amp;=1+é",
        quote(ODD),
        quote(ODD, safe=""),
        quote(ODD, safe="").lower(),
    ],
)
def test_escaped_values_are_masked(written: str) -> None:
    masked = Mask([ODD.encode()]).whole(f"[{written}]".encode())

    assert masked == b"[" + b"*" * len(written.encode()) + b"]"


@pytest.mark.parametrize("before", range(3))
def test_values_in_base64_are_masked_but_for_what_their_neighbours_share(before: int) -> None:
    encoded = base64.b64encode(b"x" * before + KEY + b"tail")
    masked = Mask([KEY]).whole(encoded)

    assert len(masked) == len(encoded) and masked.count(b"*") >= len(KEY) * 4 // 3 - 1


def test_short_values_are_left_alone() -> None:
    assert not Mask([b"admin", b""])
    assert Mask([b"admin"]).whole(b"administrator") == b"administrator"


def test_an_event_is_not_held_back() -> None:
    stream = Mask([KEY]).stream()
    event = b'data: {"delta":"a task for the desk"}\n\n'

    assert [stream.feed(event) for _ in range(3)] == [event] * 3


def test_only_what_may_begin_a_value_is_held_back() -> None:
    stream = Mask([KEY]).stream()

    assert stream.feed(b"one sk-") == b"one "
    assert stream.feed(b"two ") == b"sk-two "
    assert stream.feed(b"sk-ant-api03-") == b""
    assert stream.feed(b"T4x9wKzQ7mB2.") == b"*" * 25 + b"."
    assert stream.end() == b""


def test_what_was_held_back_comes_at_the_end() -> None:
    stream = Mask([KEY]).stream()

    assert stream.feed(b"ask") == b"a" and stream.end() == b"sk"


@examples(300)
@given(
    st.lists(SMALL, min_size=1, max_size=3),
    st.text(alphabet="ab*", max_size=60).map(str.encode),
    st.lists(st.integers(0, 60)),
)
def test_any_chunking_gives_the_same_as_the_whole(values: list[bytes], data: bytes, cuts: list[int]) -> None:
    mask = Mask(values)

    assert in_pieces(mask, data, cuts) == mask.whole(data)


@examples(150)
@given(st.lists(SMALL, min_size=1, max_size=3), st.text(alphabet="ab*", max_size=60).map(str.encode))
def test_no_value_is_left_and_nothing_else_is_changed(values: list[bytes], data: bytes) -> None:
    masked = Mask(values).whole(data)
    covered = set()
    for value in values:
        covered |= {at + n for at in range(len(data)) if data.startswith(value, at) for n in range(len(value))}

    assert masked == bytes(42 if at in covered else byte for at, byte in enumerate(data))


def test_a_stream_in_single_bytes_costs_no_more_than_a_share_per_byte() -> None:
    mask = Mask([KEY, b"eyJ" + base64.b64encode(bytes(1500))])
    started = time.process_time()
    stream = mask.stream()
    for _ in range(20_000):
        stream.feed(b"e")

    assert time.process_time() - started < 5


def test_random_bytes_pass_unchanged() -> None:
    mask, data = Mask([KEY]), os.urandom(10 << 20)

    assert mask.whole(data) is data
