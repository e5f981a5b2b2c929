"""Undoing percent codes: how much of a body is decoded."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.vault.percent import PercentCodes
from tests.support.fuzz import examples

SPAN = 300
CODES = PercentCodes(frozenset(b"abcdefgh"), 1, SPAN)
SHORTEST = 7
KEY_TEXT = string.ascii_letters + string.digits + "-_"
KEY_BYTES = frozenset(KEY_TEXT.encode())
KEY_CODES = PercentCodes(KEY_BYTES, SHORTEST, SPAN)


def test_signs_that_begin_no_code_are_not_decoded() -> None:
    """As in what is compressed, where every 256th byte is one: only what is around a code is worth it."""
    noise = random.Random(1).randbytes(1 << 20).replace(b"%6", b"..").replace(b"%25", b"...")
    assert noise.count(b"%") > 3000
    assert list(CODES.pieces(noise)) == []
    data = noise[: 1 << 19] + b"%61%62c" + noise[1 << 19 :]
    ((piece, last),) = CODES.pieces(data)
    assert b"abc" in piece
    assert (len(piece) < 3 * SPAN, last) == (True, False)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 66, 500])
def test_every_code_is_decoded_however_many_there_are(count: int) -> None:
    data = (b"." * 700 + b"%61%%62%zz%25") * count
    found = b"".join(piece for piece, _ in CODES.pieces(data))
    assert found.count(b"a%b%zz%") == count
    assert sum(len(piece) for piece, _ in CODES.pieces(data)) <= len(data)


def test_whether_the_data_ends_with_a_piece_is_told() -> None:
    assert [last for _, last in CODES.pieces(b"%61" + b"." * 1000 + b"%62")] == [False, True]
    assert [last for _, last in CODES.pieces(b"%61" * 200)] == [True]


def test_codes_that_stand_in_noise_by_chance_are_not_decoded() -> None:
    noise = random.Random(2)
    pieces = [noise.randbytes(1 << 17) for _ in range(64)]
    by_chance = PercentCodes(KEY_BYTES, 1, SPAN)
    assert sum(1 for piece in pieces for _ in by_chance.pieces(piece)) > 30
    assert [found for piece in pieces for found in KEY_CODES.pieces(piece)] == []


@st.composite
def encoded(draw: st.DrawFn) -> tuple[bytes, bytes, int]:
    """Something as short as can be looked for, how it is encoded, and how often."""
    text = draw(st.text(KEY_TEXT, min_size=SHORTEST, max_size=SHORTEST + 3)).encode()
    shown, times = text, draw(st.integers(1, 2))
    for _ in range(times):
        chosen = draw(st.sets(st.integers(0, len(shown) - 1), min_size=1))
        case = draw(st.sampled_from([b"%%%02x", b"%%%02X"]))
        shown = b"".join(case % byte if at in chosen else bytes([byte]) for at, byte in enumerate(shown))
    return text, shown, times


# NUL and "." are of nothing that is looked for; a sign, or a half of a code, must hide nothing beside it.
BESIDE = st.lists(st.sampled_from([b"\0", b".", b"%", b"%4", b"%00", b"\xff" * 400, b"x", b"\n"]), max_size=4).map(
    b"".join
)


@examples(300)
@given(encoded(), BESIDE, BESIDE)
def test_what_is_looked_for_is_decoded_whatever_is_beside_it(
    case: tuple[bytes, bytes, int], before: bytes, after: bytes
) -> None:
    text, shown, times = case
    # Half a code in front of it would be one with its first characters.
    readings = [before.rstrip(b"%4") + b"." + shown + after]
    for _ in range(times):
        readings += [piece for reading in readings for piece, _ in KEY_CODES.pieces(reading)]
    assert any(text in reading for reading in readings)
