"""Lines for a person: impyard's own, and behind a bar what the box says, as it comes, broken to the terminal's width.

Everything is printed with its control characters escaped, since a terminal obeys them, and with the bar on each line of
the box's: the first column is impyard's own, so that nobody in the box can speak for it.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TextIO

from impyard.runner.columns import broken, cells, lines_of
from impyard.runner.text import visible

LEAST_COLUMNS = 24  # a terminal that is narrower breaks lines itself
SHOWN_CHARS = 64 * 1024  # of one line, or of one piece of a streamed text
GUTTER = 2  # columns: the bar before what the box says
NEAR = 12  # columns: a cut goes to a blank that is so near
WORD = 20  # columns: so close to the edge a streamed word waits for its end
_CODES = {"dim": "2", "bold": "1", "red": "31", "green": "32"}


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands before a call, a denial or failure, in rules, where something is left out, and before the box's."""

    call: str = "▸"
    no: str = "✗"
    rule: str = "─"
    more: str = "…"
    bar: str = "│"


PLAIN_MARKS = Marks(">", "x", "-", "...", "|")  # for a terminal that is not in UTF-8


class Printer:
    """Prints on `out`. `color` only where a terminal can show it; `width` fixes the columns, else as it is.

    On a terminal lines are broken between words (`wraps`); anywhere else they are left whole, unless a `width` is
    given. OSError from any method means that nobody can read it any more.
    """

    def __init__(self, out: TextIO, *, color: bool, width: int | None = None) -> None:
        self._out = out
        self._color = color
        self._width = width
        self.wraps = width is not None or out.isatty()
        self._start = "\r" if out.isatty() else ""  # over the ^C that a terminal shows
        self._column = 0  # of the cursor, behind streamed text
        self._held = ""  # the beginning of a word near the edge
        self._in_word = False  # the cursor stands behind part of a word
        plain = (out.encoding or "ascii").lower().replace("-", "") not in ("utf8", "utf_8")
        self.marks = PLAIN_MARKS if plain else Marks()

    def columns(self) -> int:
        """How many columns there are; the last of them is left to the cursor."""
        return max(self._width or shutil.get_terminal_size((100, 24)).columns, LEAST_COLUMNS)

    def line(self, text: str, style: str = "", *, cut: bool = False, whole: bool = False, boxed: bool = False) -> None:
        """One line: `cut` to the width, or `whole` whatever the width, or broken between words. `boxed` puts the bar
        before each line: it is the box that speaks."""
        self.end_text()
        shown = visible(text[:SHOWN_CHARS].replace("\t", "    "))
        if len(text) > SHOWN_CHARS:  # what is escaped is looked at letter by letter
            shown += self.marks.more
        room = self.columns() - 1 - (GUTTER if boxed else 0)
        if cut:
            lines = [self.fit(shown, room, at_blank=True)]
        elif whole or not self.wraps:
            lines = [shown]
        else:
            lines = lines_of(shown, room, "" if boxed else "  ")
        for line in lines:
            if boxed:
                line = f"{self.marks.bar} {line}" if line else self.marks.bar
            if self._color and style:
                line = f"\x1b[{_CODES[style]}m{line}\x1b[0m"
            self._out.write(f"{self._start}{line}\n")
        self._out.flush()

    def stream(self, text: str, *, is_end: bool = False) -> None:
        """Show text as it comes. Near the edge a word waits until it is whole, to see whether it fits."""
        room = self.columns() - 1
        begun = self._column > 0 and not self._held and self._in_word
        pieces = re.findall(r"\n| +|[^ \n]+", self._held + text)
        self._held = ""
        for number, piece in enumerate(pieces):
            width = cells(piece)
            is_word = piece[0] not in " \n"
            if is_word and self.wraps and self._column and not (begun and number == 0):
                if number == len(pieces) - 1 and not is_end and width < WORD and self._column + width + WORD > room:
                    self._held = piece
                    break
                if self._column + width > room:
                    self._out.write("\n")
                    self._column = 0
            self._put(piece, room)
            self._in_word = is_word
        self._out.flush()

    def _put(self, piece: str, room: int) -> None:
        """Write a word, blanks or the end of a line, behind the bar; a word that fits no line is broken."""
        if piece == "\n":
            self._out.write("\n" if self._column else f"{self.marks.bar}\n")
            self._column = 0
            return
        if not self._column:
            self._out.write(f"{self.marks.bar} ")
            self._column = GUTTER
        if self.wraps and self._column + cells(piece) > room:
            if piece[0] == " ":
                piece = piece[: max(room - self._column, 0)]
            else:
                first, *rest = broken(piece, room - GUTTER, room - self._column)
                self._out.write(first)
                for line in rest:
                    self._out.write(f"\n{self.marks.bar} {line}")
                    self._column = GUTTER
                piece = ""
                self._column += cells(rest[-1] if rest else first)
        self._out.write(piece)
        self._column += cells(piece)

    def end_text(self) -> None:
        """Streamed text is at its end: what comes next begins a line."""
        if self._held:
            self.stream("", is_end=True)
        if self._column:
            self._out.write("\n")
            self._column = 0

    def fit(self, text: str, room: int, *, at_blank: bool = False) -> str:
        """`text`, escaped, cut at the end to `room` columns; `at_blank` where one is near."""
        shown = visible(text)
        if cells(shown) <= room:
            return shown
        kept, used = "", len(self.marks.more)
        for char in shown:
            used += cells(char)
            if used > room:
                break
            kept += char
        head, blank, tail = kept.rpartition(" ")
        if at_blank and blank and head.strip() and cells(tail) <= NEAR:
            kept = head + blank
        return kept + self.marks.more
