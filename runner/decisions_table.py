"""Decisions as a table in a terminal. The only part of `impyard decisions` that imports rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from impyard.runner.text import shortened, visible

if TYPE_CHECKING:
    from impyard.runner.decision_lines import Entry
    from impyard.runner.outcomes import Row

# From this width on, the reason, the rule and the decision's id have columns of their own.
WIDE_COLUMNS = 120
# A path may be 4 KiB long, which would push everything else off the screen. `--json` and a pipe show all of it.
PLACE_LIMIT = 240
COLOURS = {"allow": "green", "deny": "bold red"}


class Table:
    """Prints batches of decisions under one heading, in columns that keep their width from batch to batch."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._date = ""
        self._headed = False

    def add(self, rows: list[Row]) -> None:
        """Print `rows`; a line with the date comes before the first and where the day changes."""
        while rows:
            date = rows[0].entry.ts[:10]
            same = next((index for index, row in enumerate(rows) if row.entry.ts[:10] != date), len(rows))
            if date != self._date:
                self._console.print(Text(f"{visible(date)} UTC", style="bold"))
                self._date = date
            self._console.print(self._table(rows[:same]))
            rows = rows[same:]

    def _table(self, rows: list[Row]) -> RichTable:
        width = self._console.width
        wide = width >= WIDE_COLUMNS
        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=not self._headed, width=width)
        self._headed = True
        table.add_column("time", width=8)
        table.add_column("verdict" if wide else "", width=7 if wide else 6)
        table.add_column("method", width=7, overflow="fold")
        if wide:
            table.add_column("host and path", ratio=3, overflow="fold")
            table.add_column("reason", width=15, overflow="fold")
            table.add_column("rule", ratio=2, overflow="fold")
            table.add_column("decision", width=25, overflow="fold")
        else:
            table.add_column("host and path", ratio=3, overflow="fold")
            table.add_column("why", ratio=2, overflow="fold")
        for row in rows:
            table.add_row(*self._row(row, wide))
        return table

    def _row(self, row: Row, wide: bool) -> list[Text]:
        entry = row.entry
        place = Text(shortened(visible(entry.url.removeprefix("https://")), PLACE_LIMIT))
        verdict = Text(visible(row.verdict), style=COLOURS.get(row.verdict, "yellow"))
        head = [Text(visible(entry.ts[11:19])), verdict, Text(visible(entry.method)), place]
        deciding = " ".join(part for part in (_rule(entry, named=wide), entry.led) if part)
        reason, rule = Text(visible(entry.reason)), Text(visible(deciding), style="dim")
        came = Text(f"-> {visible(row.outcome.text)}" if row.outcome else "", style="yellow" if row.failed else "dim")
        if wide:
            said = Text(" ").join(part for part in (rule, came) if part)
            return [*head, reason, said, Text(visible(entry.id), style="dim")]
        return [*head, Text(" ").join(part for part in (reason, rule, came) if part)]


def _rule(entry: Entry, *, named: bool) -> str:
    """Where the deciding rule stands, with what it says if `named`; or which rule came closest."""
    if entry.at is not None:
        return f"{_short(entry.at)} {entry.rule}" if named and entry.rule else _short(entry.at)
    if entry.nearest is not None:
        return f"closest {_short(entry.nearest.at)} ({entry.nearest.failed})"
    return "(own check)" if entry.is_own_check else ""


def _short(at: str) -> str:
    """`policies/gateway.yaml:6` as `gateway.yaml:6`: a run reads one or two files, and width is dear."""
    return at.rsplit("/", 1)[-1]
