"""The table of `impyard runs list`: a run a line, in a pipe with tabs between, in a terminal as wide as that is."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from impyard.runner import runs as runs_
from impyard.runner.columns import cells
from impyard.runner.receipt import mapping, seconds_text
from impyard.runner.text import columns_of, visible, wrapped

HEAD = ("run", "state", "time", "allowed", "denied", "model", "prompt")
COLOURS = {"running": "cyan", "finished": "green", "?": "yellow", "unreadable": "yellow", "lost": "yellow"}
MIN_PROMPT = 20  # columns; else it goes below the line
INDENT = "  "


def print_runs(found: Sequence[runs_.Run]) -> None:
    """Print the runs in their order."""
    rows = [_row(run) for run in found]
    if sys.stdout.isatty():
        _print_table(HEAD, rows)
        return
    for row in rows:
        click.echo("\t".join(row))


def _row(run: runs_.Run) -> tuple[str, ...]:
    decisions = mapping(run.receipt.get("decisions"))
    return (
        run.id,
        visible(run.state),
        seconds_text(run.receipt.get("duration_s")),
        visible(str(decisions.get("allowed", "-"))),
        visible(str(decisions.get("denied", "-"))),
        visible(str(run.receipt.get("model") or "-")),
        visible(str(run.receipt.get("prompt") or "-")),
    )


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """In a terminal; what the run was about comes last, or below its line where that leaves too little room."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    columns = columns_of(sys.stdout) or 80
    room = columns - sum(widths) - 2 * len(widths)
    if room < -2:
        _print_blocks(rows, columns)
        return
    is_beside = room >= MIN_PROMPT
    line = "  ".join(f"{text:<{width}}" for text, width in zip(head, widths, strict=False))
    click.echo(click.style(f"{line}  {head[-1]}" if is_beside else line, bold=True))
    for row in rows:
        shown = [f"{text:<{width}}" for text, width in zip(row, widths, strict=False)]
        shown[1] = click.style(shown[1], fg=COLOURS.get(row[1], "red"))
        prompt = begun(row[-1], room if is_beside else columns - len(INDENT))
        click.echo("  ".join([*shown, prompt] if is_beside else shown).rstrip())
        if not is_beside:
            click.echo(INDENT + prompt)


def _print_blocks(rows: Sequence[Sequence[str]], columns: int) -> None:
    """The same for a narrow terminal: what does not fit in a line goes below it."""
    for id, state, time, allowed, denied, model, prompt in rows:
        click.echo(f"{id}  {click.style(state, fg=COLOURS.get(state, 'red'))}")
        click.echo(wrapped(f"  {time}, {allowed} allowed, {denied} denied, {model}", columns, "  "))
        click.echo(INDENT + begun(prompt, columns - len(INDENT)))


def begun(prompt: str, room: int) -> str:
    """The beginning of a prompt, by which a person knows a run again."""
    if cells(prompt) <= room:
        return prompt
    while cells(prompt) >= room:
        prompt = prompt[:-1]
    return f"{prompt}…"
