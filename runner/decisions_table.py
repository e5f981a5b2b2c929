"""Decisions as a table in a terminal. The only part of `impyard decisions` that imports rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from impyard.runner.text import cut, unstarred, visible

if TYPE_CHECKING:
    from impyard.runner.decision_lines import Entry
    from impyard.runner.outcomes import Row

# From this width on, the reason, the rule and the decision's id have columns of their own.
WIDE_COLUMNS = 120
# From this width on, the rule gets at least as much as the path, and RULE_COLUMNS.
EVEN_COLUMNS = 150
RULE_COLUMNS = 48  # "gateway.yaml:8 ALLOW POST /v1/messages -> 200"
WHY_COLUMNS = 24  # "gateway.yaml:123 -> 200" and one
GAP = 2
MOST_REASON = 22  # columns: credential-unavailable
TIME, VERDICT, METHOD, REASON, DECISION = 8, 7, 7, 15, 25  # what the longest of each takes
# A path may be 4 KiB long, which would push everything else off the screen. `--json` and a pipe show all of it.
PLACE_LIMIT = 240
COLOURS = {"allow": "green", "deny": "bold red"}


class Table:
    """Prints batches of decisions under one heading, in columns that keep their width from batch to batch."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._date = ""
        self._headed = False
        self._reason = 0  # the width of its column

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
        table = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=not self._headed, width=width)
        self._headed = True
        self._reason = self._reason or max(REASON, *(min(len(row.entry.reason), MOST_REASON) for row in rows))
        fixed = (TIME, VERDICT, METHOD, self._reason, DECISION) if wide else (TIME, VERDICT - 1, METHOD)
        room = width - sum(fixed) - GAP * (len(fixed) + 1)
        last = max(room // 2, RULE_COLUMNS) if width >= EVEN_COLUMNS else room * 2 // 5
        if not wide:
            last = max(last, min(WHY_COLUMNS, room // 2))
        table.add_column("time", width=TIME)
        table.add_column("verdict" if wide else "", width=fixed[1])
        table.add_column("method", width=METHOD, overflow="fold")
        table.add_column("host and path", width=max(room - last, 1), overflow="fold")
        if wide:
            table.add_column("reason", width=self._reason, overflow="fold")
        table.add_column("rule" if wide else "why", width=max(last, 1), overflow="fold")
        if wide:
            table.add_column("decision", width=DECISION, overflow="fold")
        for row in rows:
            table.add_row(*self._row(row, wide, max(last, 1)))
        return table

    def _row(self, row: Row, wide: bool, last: int) -> list[Text]:
        entry = row.entry
        # A line of its own for the mark of a cut, which would else be broken like the letters around it.
        place = Text("\n".join(filter(None, cut(visible(unstarred(entry.url).removeprefix("https://")), PLACE_LIMIT))))
        verdict = Text(visible(row.verdict), style=COLOURS.get(row.verdict, "yellow"))
        head = [Text(visible(entry.ts[11:19])), verdict, Text(visible(entry.method)), place]
        deciding = ("; " if entry.at else " ").join(part for part in (_rule(entry, named=wide), entry.more) if part)
        reason, rule = Text(visible(entry.reason)), Text(visible(deciding), style="dim")
        came = Text(f"-> {visible(row.outcome.text)}" if row.outcome else "", style="yellow" if row.failed else "dim")
        if wide:
            return [*head, reason, self._with(rule, came, last), Text(visible(entry.id), style="dim")]
        if entry.at is None or entry.reason != "rule":  # else the rule's place says it
            rule = Text(": " if entry.secret else " ").join(part for part in (reason, rule) if part)
        return [*head, self._with(rule, came, last)]

    def _with(self, rule: Text, came: Text, width: int) -> Text:
        """Both in a column of this width; what came of it is not torn apart at the end of a line."""
        if not rule or not came:
            return rule or came
        end = rule.wrap(self._console, width, overflow="fold")[-1].cell_len
        return Text("\n" if end + 1 + came.cell_len > width else " ").join((rule, came))


def _rule(entry: Entry, *, named: bool) -> str:
    """Where the deciding rule stands, with what it says if `named`; or which rule came closest."""
    if entry.at is not None:
        return f"{_short(entry.at)} {_named(entry.rule)}" if named and entry.rule else _short(entry.at)
    if entry.nearest is not None:
        return f"closest {_short(entry.nearest.at)} ({entry.nearest.failed})"
    return "(own check)" if entry.is_own_check else ""


def _named(rule: str) -> str:
    """A rule by its name as such, since it may be called like a credential; one without a name says what it does."""
    return rule if rule.startswith(("ALLOW ", "DENY ")) else f"rule {rule}"


def _short(at: str) -> str:
    """`policies/gateway.yaml:6` as `gateway.yaml:6`: a run reads one or two files, and width is dear."""
    return at.rsplit("/", 1)[-1]
