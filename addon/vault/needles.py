"""Finding any of many byte strings in one pass, and the ways in which a secret value may be spelled.

Knows nothing of credentials, hosts or requests.
"""

from __future__ import annotations

import base64
import functools
import html
import json
from collections.abc import Iterable, Sequence
from itertools import batched

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

# The search with processor instructions for many bytes at once is used for up to 64 patterns and for the kind
# "leftmost": 60 patterns in 100 kB take 12 us, where an automaton of all takes 250 us or more. The rest of that room is
# for fillers.
_GROUP = 60
# Of a longer pattern its beginning is searched for, and then compared: what a search weighs is the sum of its patterns,
# and tokens of some kilobytes come in ten spellings each.
_LONG = 160
# With fewer than four kinds of first, or of rare, bytes in a group the library looks for those bytes instead, which
# takes a hundred times as long in what is compressed or in base64. These make for more kinds. They are of bytes that
# are in no UTF-8, so that they overlap nothing that is looked for, and long, so that a text full of them has few.
_FILLERS = tuple(bytes([byte]) * 64 for byte in range(0xF8, 0xFC))
_IN_FILLERS = bytes(range(0xF8, 0xFC))


class Needles:
    """The patterns of one search. None may be empty."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self.patterns: Sequence[bytes] = tuple(dict.fromkeys(patterns))
        self._beginnings: dict[bytes, list[int]] = {}
        for number, pattern in enumerate(self.patterns):
            self._beginnings.setdefault(pattern[:_LONG], []).append(number)

    # Each is made at its first use: some searches need but one of the two, and most find nothing, ever.

    @functools.cached_property
    def _groups(self) -> list[tuple[BytesAhoCorasick, int]]:
        """With how many patterns each has; what it tells beyond is a filler."""
        # Alike beginnings in one group make for fewer of them in the others.
        groups = batched(sorted(self._beginnings), _GROUP)
        return [
            (BytesAhoCorasick(group + _fillers(group), matchkind=MatchKind.LeftmostFirst), len(group))
            for group in groups
        ]

    @functools.cached_property
    def _all(self) -> BytesAhoCorasick:
        return BytesAhoCorasick(tuple(self._beginnings), implementation=Implementation.ContiguousNFA)

    @functools.cached_property
    def _numbers(self) -> list[list[int]]:
        return list(self._beginnings.values())

    def hits(self, data: bytes) -> list[int]:
        """Where patterns may begin, unsorted. One that overlaps another that is told may be left out."""
        found: list[int] = []
        for group, size in self._groups:
            if hits := group.find_matches_as_indexes(data):
                found += [start for number, start, _ in hits if number < size]
        return found

    def every(self, data: bytes) -> list[tuple[int, int, int]]:
        """Every pattern in `data`, overlapping ones too: its number, where it begins and where it ends."""
        found: list[tuple[int, int, int]] = []
        for beginning, begin, end in self._all.find_matches_as_indexes(data, overlapping=True):
            for number in self._numbers[beginning]:
                pattern = self.patterns[number]
                if len(pattern) == end - begin or data.startswith(pattern, begin):
                    found.append((number, begin, begin + len(pattern)))
        return found


def _fillers(group: Sequence[bytes]) -> tuple[bytes, ...]:
    """The fillers for a group; none where one might overlap a pattern, and hide it."""
    return () if any(byte in _IN_FILLERS for pattern in group for byte in pattern) else _FILLERS


def spellings(value: str) -> list[str]:
    """How a value is written in plain text, JSON, JavaScript and HTML; mostly that is one and the same."""
    in_json = json.dumps(value)[1:-1]
    in_utf8 = json.dumps(value, ensure_ascii=False)[1:-1]
    found = [value, in_json, in_utf8]
    found += [text.replace("/", "\\/") for text in (in_json, in_utf8)]
    found += [_for_scripts(text) for text in (in_json, in_utf8)]
    found += [html.escape(value), html.escape(value, quote=False)]
    return list(dict.fromkeys(found))


def _for_scripts(in_json: str) -> str:
    """As encoders write JSON that may stand inside HTML."""
    return in_json.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def in_base64(value: bytes) -> list[tuple[int, bytes]]:
    """The characters that stand for `value` alone inside a longer base64 text, with how many bytes came before it.

    For 0, 1 and 2 bytes before it, modulo three, and for both alphabets where they differ. Those characters that the
    neighbours of the value have a part in are left out.
    """
    found: dict[bytes, int] = {}
    for before in range(3):
        whole = base64.b64encode(bytes(before) + value)
        text = whole[-(-before * 8 // 6) : (before + len(value)) * 8 // 6]
        found.setdefault(text, before)
        found.setdefault(text.translate(_URL_SAFE), before)
    return [(before, text) for text, before in found.items()]


_URL_SAFE = bytes.maketrans(b"+/", b"-_")
