r"""How `--help` is laid out: within the terminal, however narrow, and no word is broken.

click's own keeps to 50 columns at least, breaks lines at hyphens (`--older-` `than`), and leaves the lines of a block
of examples (`\b`) as they are.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence

import click

LEAST_COLUMNS = 30
NARROW = 60  # columns: below, what an option means stands under it
HYPHEN = "\u2011"  # at which nothing breaks a line; it becomes a `-` in the end


class Formatter(click.HelpFormatter):
    """click's, for any width."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        if width is None:
            width = max(min(shutil.get_terminal_size().columns, max_width or 80) - 2, LEAST_COLUMNS)
        super().__init__(indent_increment, width, max_width)

    def write_text(self, text: str) -> None:
        """Paragraphs, those of examples among them."""
        for number, paragraph in enumerate(re.split(r"\n{2,}", text.strip("\n"))):
            if number:
                self.write_paragraph()
            first, _, lines = paragraph.partition("\n")
            if first == "\b":
                self.write(self._examples(lines.split("\n")))
            else:
                super().write_text(_kept(paragraph))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Two columns; where they are too narrow, the second goes below the first."""
        rows = [(first, _kept(second)) for first, second in rows]
        super().write_dl(rows, col_max if self.width >= NARROW else min(col_max, 6), col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(HYPHEN, "-")

    def _examples(self, lines: Sequence[str]) -> str:
        """Commands, each with a remark behind two blanks: in a column, else below."""
        indent = " " * self.current_indent
        room = self.width - self.current_indent
        if all(len(line) <= room for line in lines):
            return "".join(f"{indent}{line}".rstrip() + "\n" for line in lines)
        return "".join(f"{part}\n" for line in lines for part in self._example(line))

    def _example(self, line: str) -> Iterator[str]:
        command, _, remark = line.strip().partition("  ")
        if line[:1] == " ":  # the remark of the line above goes on
            command, remark = "", line.strip()
        for text, first, further in ((command, 0, 2), (remark.strip(), 4, 4)):
            yield from textwrap.wrap(
                text,
                self.width,
                initial_indent=" " * (self.current_indent + first),
                subsequent_indent=" " * (self.current_indent + further),
                break_long_words=False,
                break_on_hyphens=False,
            )


def _kept(text: str) -> str:
    return re.sub(r"-(?=\S)", HYPHEN, text)
