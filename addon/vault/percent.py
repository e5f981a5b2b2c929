"""Undoing percent-encoding in a body, where it may hide something, at a cost that the body cannot drive up.

Knows nothing of what is looked for but of which bytes it is made, and how long it may be.
"""

from __future__ import annotations

import binascii
import itertools
from collections.abc import Collection, Iterator

import re2

_FEW = 64  # codes that are looked at one by one; where there are more, all is decoded in one go
_HEX = b"0123456789abcdefABCDEF"

# The decoder for "quoted-printable" does the same with "=" for "%", in C. What it treats in its own ways is out of its
# reach meanwhile: as bytes that never occur in UTF-8, in which everything is that is looked for.
_TO_QUOTED = bytes.maketrans(b"%=\r\n", b"=\xfe\xfd\xfc")
_FROM_QUOTED = bytes.maketrans(b"=\xfe\xfd\xfc", b"%=\r\n")
_GAP = b"\xfb"


def decoded(data: bytes) -> bytes:
    """`data` with its percent codes undone, once. Of the rest only bytes that are in no UTF-8 may change."""
    if b"%%" in data:
        # The decoder would take two for one sign and leave the code that begins with the second as it is. Twice, for
        # three of them in a row.
        data = data.replace(b"%%", b"%" + _GAP + b"%").replace(b"%%", b"%" + _GAP + b"%")
    if b"%3" in data:
        # Decoded it would look like a sign that was none of a code.
        data = data.replace(b"%3D", b"=").replace(b"%3d", b"=")
    # The decoder drops a sign at the very end.
    quoted = data.translate(_TO_QUOTED) + _GAP
    return binascii.a2b_qp(quoted).translate(_FROM_QUOTED, _GAP)


class PercentCodes:
    """The codes that could stand for a byte of what is looked for.

    alphabet: its bytes. shortest: how many it has at least. span: how long it may be when it is encoded in any way.
    """

    def __init__(self, alphabet: Collection[int], shortest: int, span: int) -> None:
        self._span = span
        self._beside = shortest - 1  # with one of its bytes as a code
        bytes_ = {*alphabet, ord("%")}
        self._encoded = bytes(bytes_.union(_HEX))
        codes = {a + b for byte in bytes_ for a in _either(byte >> 4) for b in _either(byte & 15)}
        first: dict[bytes, list[bytes]] = {}
        for code in sorted(codes):
            first.setdefault(code[:1], []).append(code[1:])
        kinds = b"|".join(digit + b"[" + b"".join(rest) + b"]" for digit, rest in first.items())
        self._pattern = re2.compile(b"%(?:" + kinds + b")")

    def pieces(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """The parts of `data` around such codes, decoded, and whether `data` ends there. No more than `data` in sum."""
        places = [found.start() for found in itertools.islice(self._pattern.finditer(data), _FEW + 1)]
        if len(places) > _FEW:
            yield decoded(data[max(0, places[0] - self._span) :]), True
            return
        places = [place for place in places if self._is_among_enough(data, place)]
        yield from ((decoded(piece), last) for piece, last in around(data, places, self._span))

    def _is_among_enough(self, data: bytes, place: int) -> bool:
        """Whether a code has so many bytes beside it, of those that what is looked for is encoded in.

        What is compressed has five codes in a MiB by chance, and none of them has: to decode and search around each
        would take half as long as the search through all.
        """
        before, after = data[max(0, place - self._beside) : place], data[place + 3 : place + 3 + self._beside]
        missing = len(before.rstrip(self._encoded)) + len(after.lstrip(self._encoded))
        return len(before) + len(after) - missing >= self._beside


def around(data: bytes, places: list[int], span: int) -> Iterator[tuple[bytes, bool]]:
    """The parts of `data` within `span` bytes of any of the places, each byte once, and whether `data` ends there."""
    begin = end = -1
    for place in sorted(places):
        if begin >= 0 and place - span <= end:
            end = place + span
            continue
        if begin >= 0:
            yield data[begin:end], False
        begin, end = max(0, place - span), place + span
    if begin >= 0:
        yield data[begin:end], end >= len(data)


def _either(digit: int) -> tuple[bytes, ...]:
    lower = _HEX[digit : digit + 1]
    return (lower,) if digit < 10 else (lower, lower.upper())
