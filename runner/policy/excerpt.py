"""One line of a file with a caret under a place in it, for a terminal of any width."""

from __future__ import annotations

from unicodedata import category, east_asian_width

from impyard.runner.text import visible

MARGIN = 30  # characters that are kept in front of the place, in a line that is too long
ROOM = 100  # where there is no terminal


def excerpt(line: str, column: int, columns: int | None) -> list[str]:
    """The line, shortened around the place if need be, and a line with a caret below it. column counts from 1."""
    room = max((columns or ROOM) - 4, 20)
    before, after = line[: column - 1], line[column - 1 :]
    head = _shown(before)
    if _width(head) + min(_width(_shown(after)), 10) > room:
        head = "…" + _shown(before[-MARGIN:])
        while _width(head) > room - 10:
            head = "…" + head[2:]
    else:
        indent = len(head) - len(head.lstrip())
        head = head if _width(head) + 20 < room else "…" + head[indent:]
    tail = _shown(after.rstrip())
    while _width(head + tail) > room and tail:
        tail = tail[: -max(2, (_width(head + tail) - room) // 2)] + "…" if len(tail) > 2 else ""
    return [f"    {head}{tail}".rstrip(), "    " + " " * _width(head) + "^"]


def _shown(text: str) -> str:
    """As it is printed: a tab is one blank, what a terminal would obey is escaped."""
    return visible(text.replace("\t", " "))


def _width(text: str) -> int:
    return sum(0 if category(char) in ("Mn", "Me") else 2 if east_asian_width(char) in "WF" else 1 for char in text)
