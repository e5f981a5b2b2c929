"""Decisions as a table in a terminal. The only part of `impyard decisions` that imports rich, but for the summary."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from impyard.runner.decisions.read import short_id
from impyard.runner.decisions.unpadded import Unpadded
from impyard.runner.text import columns_of, cut, unstarred, visible, wants_plain

if TYPE_CHECKING:
    from impyard.runner.decisions.lines import Entry
    from impyard.runner.decisions.outcomes import Row

# From this width on, why a decision was made, by which rule, and what came of it have columns of their own; below it,
# they stand under the place.
WIDE_COLUMNS = 120
GAP = 2
TIME, VERDICT, METHOD, REASON, ANSWER = 8, 6, 7, 13, 6  # VERDICT: `failed`, which may come after all others
MOST_VERDICT, MOST_REASON, MOST_ANSWER, MOST_ID = 7, 22, 24, 25  # columns, however long what is in them may be
LEAST_PLACE, LEAST_RULE = 30, 16
LEAST_ROOM = 16  # of the place below that width; with less, a decision took dozens of lines, and has no columns
# A path may be 4 KiB long, which would push everything else off the screen. `--json` and a pipe show all of it.
PLACE_LIMIT = 240
COLOURS = {"allow": "green", "deny": "bold red"}


class Cells(NamedTuple):
    """What is shown of a decision, ready for a terminal. reason is empty where the rule says it all."""

    time: str
    verdict: Text
    method: str
    place: Text
    reason: str
    rule: str
    answer: Text
    id: str


class Table:
    """Prints batches of decisions under one heading, in columns that keep their width from batch to batch."""

    def __init__(self, console: Console | None = None, proofs: Collection[str] = ()) -> None:
        """proofs: the runs of `impyard prove`, whose requests are marked as impyard's own."""
        colours: Literal["auto"] | None = None if wants_plain() else "auto"  # NO_COLOR alone would leave bold and dim
        # Without a height, rich takes a terminal that is dumb for one of 80 columns.
        self._console = console or Console(
            highlight=False, color_system=colours, width=columns_of(sys.stdout), height=25
        )
        self._proofs = proofs
        self._date = ""
        self._headed = False
        self._widths: dict[str, int] = {}

    def add(self, rows: list[Row]) -> None:
        """Print `rows`; a line with the date comes before the first and where the day changes."""
        while rows:
            date = rows[0].entry.ts[:10]
            same = next((index for index, row in enumerate(rows) if row.entry.ts[:10] != date), len(rows))
            cells = [_cells(row, self._proofs) for row in rows[:same]]
            if not self._widths or self._are_outgrown(cells):
                self._widths = self._fitting([_cells(row, self._proofs) for row in rows])
            if date != self._date:
                self._console.print(Text(f"{visible(date)} UTC", style="bold"))
                self._date = date
            if self._widths["place"] < LEAST_ROOM:
                for row in cells:
                    self._console.print(Unpadded(_in_one_line(row)))
            else:
                self._console.print(Unpadded(self._wide(cells) if self._is_wide else self._narrow(cells)))
            self._headed = True
            rows = rows[same:]

    @property
    def _is_wide(self) -> bool:
        return self._console.width >= WIDE_COLUMNS

    def _are_outgrown(self, rows: list[Cells]) -> bool:
        """Whether a row of those that come later needs wider columns, such as the first that failed."""
        most = {"reason": MOST_REASON, "answer": MOST_ANSWER} if self._is_wide else {}
        return any(
            min(len(getattr(row, name)), limit) > self._widths[name] for row in rows for name, limit in most.items()
        )

    def _fitting(self, rows: list[Cells]) -> dict[str, int]:
        """The columns' widths, by what the first rows need, none less than before; what is over goes to the place."""

        def widest(name: str, least: int, most: int) -> int:
            needed = (len(getattr(row, name)) for row in rows)
            return min(max([least, self._widths.get(name, 0), *needed]), most)

        widths = {
            "time": TIME,
            "verdict": widest("verdict", VERDICT, MOST_VERDICT),
            "method": METHOD,
            "id": widest("id", 8, MOST_ID),
        }
        if self._is_wide:
            widths["verdict"] = MOST_VERDICT
            widths["reason"] = widest("reason", REASON, MOST_REASON)
            widths["answer"] = widest("answer", ANSWER, MOST_ANSWER)
        room = max(self._console.width - sum(widths.values()) - GAP * len(widths), 1)
        if self._is_wide:
            room -= GAP
            place, rule = (max((len(getattr(row, name)) for row in rows), default=0) for name in ("place", "rule"))
            least_rule = min(rule, max(room // 2, LEAST_RULE))
            widths["place"] = max(min(place, room - least_rule), LEAST_PLACE)
            widths["rule"] = max(room - widths["place"], 1)
            spare = widths["rule"] - max(rule, LEAST_RULE)
            if spare > 0:  # so that longer paths which are still to come find room
                widths["place"] += spare
                widths["rule"] -= spare
        else:
            widths["place"] = room
        return widths

    def _started(self) -> RichTable:
        return RichTable(
            box=None,
            pad_edge=False,
            padding=(0, GAP, 0, 0),
            show_header=not self._headed,
            width=self._console.width,
        )

    def _wide(self, rows: list[Cells]) -> RichTable:
        table = self._started()
        names = {"place": "host and path", "answer": "answer"}
        for name in ("time", "verdict", "method", "place", "reason", "rule", "answer", "id"):
            table.add_column(names.get(name, name), width=self._widths[name], overflow="fold")
        for row in rows:
            reason, rule, id = Text(row.reason), Text(row.rule, style="dim"), Text(row.id, style="dim")
            table.add_row(row.time, row.verdict, Text(row.method), row.place, reason, rule, row.answer, id)
        return table

    def _narrow(self, rows: list[Cells]) -> RichTable:
        table = self._started()
        heads = {"time": "time", "verdict": "", "method": "method", "place": "host and path, why", "id": "id"}
        for name, head in heads.items():
            table.add_column(head, width=self._widths[name], overflow="fold")
        for row in rows:
            why = _why(row)
            if len(why) > 1 and sum(map(len, why)) + GAP <= self._widths["place"]:
                why = [Text(", ", style="dim").join(why)]
            parts = [row.place, *why]
            table.add_row(row.time, row.verdict, Text(row.method), Text("\n").join(parts), Text(row.id, style="dim"))
        return table


def _in_one_line(row: Cells) -> Text:
    """All of a decision behind each other, in the order of the columns, for the terminal to break."""
    parts = (Text(row.time), row.verdict, Text(row.method), row.place, *_why(row), Text(row.id, style="dim"))
    return Text(" ").join(part for part in parts if part)


def _why(row: Cells) -> list[Text]:
    """The reason and the rule, and the answer, as far as there are any."""
    # A rule that decided is not named as the reason: its place says it.
    why = (" " if row.rule.startswith("(") else ": ").join(part for part in (row.reason, row.rule) if part)
    answer = Text.assemble(("answer: ", "dim"), row.answer) if row.answer else Text()
    return [part for part in (Text(why, style="dim"), answer) if part]


def _cells(row: Row, proofs: Collection[str]) -> Cells:
    entry = row.entry
    mark = "(own check)" if entry.is_own_check or entry.run in proofs else ""
    # A line of its own for the mark of a cut, which would else be broken like the letters around it.
    place = "\n".join(filter(None, cut(visible(unstarred(entry.url).removeprefix("https://")), PLACE_LIMIT)))
    deciding = ("; " if entry.at else " ").join(part for part in (_rule(entry), entry.more, mark) if part)
    return Cells(
        visible(entry.ts[11:19]),
        Text(visible(row.verdict), style=COLOURS.get(row.verdict, "yellow")),
        visible(entry.method),
        Text(place),
        "" if entry.at is not None and entry.reason == "rule" else visible(entry.reason),
        visible(deciding),
        Text(visible(row.outcome.text) if row.outcome else "", style="yellow" if row.failed else "green"),
        visible(short_id(entry.id)),
    )


def _rule(entry: Entry) -> str:
    """Where the deciding rule stands and what it says; or which rule came closest."""
    if entry.at is not None:
        return f"{_short(entry.at)} {_named(entry.rule)}" if entry.rule else _short(entry.at)
    if entry.nearest is not None:
        return f"closest {_short(entry.nearest.at)} ({entry.nearest.failed})"
    return ""


def _named(rule: str) -> str:
    """A rule by its name as such, since it may be called like a credential; one without a name says what it does."""
    return rule if rule.startswith(("ALLOW ", "DENY ")) else f"rule {rule}"


def _short(at: str) -> str:
    """`policies/gateway.yaml:6` as `gateway.yaml:6`: a run reads one or two files, and width is dear."""
    return at.rsplit("/", 1)[-1]
