"""A table of rich's without the blanks that fill its lines up. Like rich, imported for a terminal only."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Unpadded:
    """For `Console.print`: whoever copies a line from a terminal gets the blanks at its end too."""

    content: Table | Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.content, options, pad=False):
            while line and not line[-1].text.rstrip():
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            yield from line
            yield Segment.line()
