"""Undoing percent codes: how much of a body is decoded."""

from __future__ import annotations

import random

import pytest

from impyard.addon.vault.percent import PercentCodes

SPAN = 300
CODES = PercentCodes(frozenset(b"abcdefgh"), SPAN)


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
