"""Text in the columns of a terminal: how many it takes, and where it is broken to fit them."""

from __future__ import annotations

import unicodedata

from impyard.runner.text import wrapped


def cells(text: str) -> int:
    """How many columns a terminal gives to printable text."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


def broken(text: str, room: int, first: int) -> list[str]:
    """`text` cut into lines of `room` columns, the first of them of `first`."""
    lines, used, limit = [""], 0, first
    for char in text:
        width = cells(char)
        if used + width > limit and (lines[-1] or len(lines) == 1):
            lines.append("")
            used, limit = 0, room
        lines[-1] += char
        used += width
    return lines


def lines_of(shown: str, room: int, hanging: str = "") -> list[str]:
    """Lines of at most `room` columns, broken between words, and in a word that is longer: what a terminal breaks by
    itself goes on in its first column. `hanging` goes before each line but the first."""
    lines: list[str] = []
    for line in wrapped(shown, room, hanging, over=False).split("\n"):
        first, *rest = broken(line, room - len(hanging), room) if cells(line) > room else [line]
        lines += [first, *(hanging + more for more in rest)]
    return lines
