"""`impyard decisions --summary`: printed for people, pipes and spreadsheets."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from impyard.runner.decisions import outcomes
from impyard.runner.decisions.lines import Selection
from impyard.runner.decisions.summary import OWN, Group, summed_up
from impyard.runner.decisions.view import say_left_out, say_nothing, warn_of_damage
from impyard.runner.text import columns_of, counted, size_text, visible, wants_plain, wrapped

if TYPE_CHECKING:
    from rich.text import Text

PAGE = 50
WIDE_COLUMNS = 120  # from here on the times stand beside the counts, below it under the path
# In a pipe and as CSV, in the order of the table.
FIELDS = ("host", "method", "path", "allowed", "failed", "denied", "bytes_up", "bytes_down", "first", "last")
MOST_REASONS = 3  # of a group's denials that are named
MOST_PATH = 200  # columns
MOST_METHOD, LEAST_PATH, GAP = 7, 16, 2
NUMBERS = ("allowed", "failed", "denied", "up", "down")
COLOURS = {"allowed": "green", "failed": "yellow", "denied": "bold red"}


def show_summary(log: Path, selection: Selection, *, count: int | None, as_json: bool, as_csv: bool) -> None:
    """Print the groups, those of the hosts with the most requests first; `count` of them, or a terminal's page."""
    summary = summed_up(log, outcomes.path_beside(log), selection)
    every = summary.groups
    columns = None if as_json or as_csv else columns_of(sys.stdout)
    groups = every[: PAGE if count is None and columns else count]
    if as_json:
        for group in groups:
            click.echo(json.dumps(group.record()))
    elif as_csv:
        from impyard.runner.decisions.csv_out import write_table

        heads = (*FIELDS, "reasons", "last_id")
        write_table(heads, ([*_fields(group), _reasons(group), group.id] for group in groups))
    elif columns:
        if groups:
            _print(groups, columns)
    else:
        for group in groups:
            click.echo("\t".join(visible(str(field)) for field in (*_fields(group), _reasons(group) or "-", group.id)))
    warn_of_damage(selection, log)
    if not every:
        say_nothing(selection, log)
    else:
        _say_total(every, summary.unknown, len(groups))
    say_left_out(selection)


def _fields(group: Group) -> list[object]:
    return [getattr(group, name) for name in FIELDS]


def _reasons(group: Group) -> str:
    """Why requests were denied, the most frequent first."""
    named = group.reasons.most_common(MOST_REASONS)
    more = [f"{len(group.reasons) - MOST_REASONS} more"] if len(group.reasons) > MOST_REASONS else []
    return ", ".join([*(name for name, _ in named), *more])


def _say_total(groups: Sequence[Group], unknown: int, shown: int) -> None:
    allowed, denied, failed, up, down = (
        sum(getattr(group, name) for group in groups)
        for name in ("allowed", "denied", "failed", "bytes_up", "bytes_down")
    )
    hosts = len({group.host for group in groups} - {OWN})
    parts = [f"{allowed} allowed" + (f" ({failed} failed)" if failed else ""), f"{denied} denied"]
    parts += [counted(hosts, "host"), f"{size_text(up)} up, {size_text(down)} down"]
    lines = [f"in all {', '.join(parts)}"]
    if unknown:
        lines.append(f"of {counted(unknown, 'allowed request')} it is not known what came")
    if shown < len(groups):
        lines.append(f"{shown} of {len(groups)} kinds of request: -n all shows the others")
    for line in lines:
        click.echo(wrapped(line, columns_of(sys.stderr), "  "), err=True)


def _print(groups: Sequence[Group], columns: int) -> None:
    # rich is slow to import, and only a terminal needs it.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from impyard.runner.decisions.unpadded import Unpadded

    wide = columns >= WIDE_COLUMNS
    console = Console(highlight=False, width=columns, height=25, color_system=None if wants_plain() else "auto")
    rows = [(group.host, _row(group, wide)) for group in groups]
    heads = ["method", "path", "allowed", *(["failed"] if wide else []), "denied", "up", "down"]
    heads += ["first (UTC)", "last (UTC)"] if wide else []
    widths = [max(len(head), *(len(row[at]) for _, row in rows)) for at, head in enumerate(heads)]
    widths[0] = min(widths[0], MOST_METHOD)
    widths[1] = max(columns - sum(widths) + widths[1] - GAP * len(widths), LEAST_PATH)

    def table(heading: bool = False) -> Table:
        made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=heading)
        for head, width in zip(heads, widths, strict=True):
            made.add_column(head, width=width, overflow="fold", justify="right" if head in NUMBERS else "left")
        return made

    console.print(Unpadded(table(heading=True)))
    for host, of_host in itertools.groupby(rows, lambda row: row[0]):
        console.print(Text(visible(host), style="bold"))
        part = table()
        for _, row in of_host:
            part.add_row(*row)
        console.print(Unpadded(part))


def _row(group: Group, wide: bool) -> list[Text]:
    from rich.text import Text

    path = visible(group.path)
    path = path if len(path) <= MOST_PATH else path[: MOST_PATH - 1] + "…"
    below = [] if wide else [_span(group.first, group.last)]
    if group.failed and not wide:
        below.append(f"{group.failed} failed")
    if group.denied:
        below.append(f"denied: {visible(_reasons(group))}")
    cells = [Text(visible(group.method)), Text.assemble(path, ("".join(f"\n{text}" for text in below), "dim"))]
    for name in ("allowed", *(["failed"] if wide else []), "denied"):
        value = getattr(group, name)
        cells.append(Text(str(value) if value else "-", style=COLOURS[name] if value else "dim"))
    cells += [Text(size_text(size) if group.allowed else "-") for size in (group.bytes_up, group.bytes_down)]
    if wide:
        cells += [Text(_minute(group.first), style="dim"), Text(_minute(group.last), style="dim")]
    return cells


def _minute(ts: str) -> str:
    return visible(ts[:16]).replace("T", " ")


def _span(first: str, last: str) -> str:
    """From when to when, in few columns: the hours of one day, else the days."""
    if first[:16] == last[:16]:
        return _minute(first)
    if first[:10] == last[:10]:
        return visible(f"{first[:10]} {first[11:16]} to {last[11:16]}")
    return visible(f"{first[:10]} to {last[:10]}")
