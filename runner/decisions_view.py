"""`impyard decisions`: what the judge decided, read from the log. It only reads, and takes no line on trust."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.runner import logread, outcomes, runs
from impyard.runner.amounts import Whole
from impyard.runner.decision_lines import Entry, Selection, parse
from impyard.runner.outcomes import Row
from impyard.runner.project import find_root
from impyard.runner.text import visible
from impyard.runner.typed import as_typed

OWN_CHECK = "(impyard's own check)"


@click.command()
@click.option("--project", type=click.Path(path_type=Path), help="The project's folder (default: found from here).")
@click.option(
    "--run", "run", metavar="ID", help="Only this run; the beginning of its id will do, `last` is the newest."
)
@click.option("--denied", is_flag=True, help="Only denials.")
@click.option(
    "-n",
    "count",
    metavar="N",
    default=50,
    show_default=True,
    type=Whole(0),
    help="How many, counted from the newest.",
)
@click.option("--all", "everything", is_flag=True, help="Also the checks that impyard makes before an agent starts.")
@click.option("--follow", is_flag=True, help="Go on with each new decision; Ctrl-C ends it, with exit status 0.")
@click.option("--json", "as_json", is_flag=True, help="The log's own lines, as JSON; impyard's checks are among them.")
@click.option(
    "--verify",
    "verifying",
    is_flag=True,
    help="Check the whole log's hash chains against each other and the runs' receipts.",
)
def decisions(
    project: Path | None,
    run: str | None,
    denied: bool,
    count: int,
    everything: bool,
    follow: bool,
    as_json: bool,
    verifying: bool,
) -> int:
    """Show what the judge decided, newest last, and what became of it.

    In a terminal a table; piped, one line per decision with tab-separated fields: time, verdict, method,
    place, reason, rule, id, outcome. The outcome of an allowed request is the status of its answer, or what
    went wrong. With --follow it comes too late for that: a request that fails gets a second line, `failed`.

    What was left out is said on stderr: damaged lines, older ones, impyard's own checks.
    """
    root = find_root(project)
    log = root / "runs" / "decisions.jsonl"
    if verifying and (denied or follow or everything):
        raise click.UsageError("--verify reads the whole log; it goes with --run and --json only")
    unknown = None
    if run is not None:
        try:
            run = runs.resolve(root, run)
        except runs.UnknownRun as exc:
            if not run or not (follow or verifying or _knows(log, run)):
                raise
            unknown = exc
    if verifying:
        from impyard.runner.decisions_check import verify_log  # it loads the judge, which the views do without

        if not verify_log(root, log, run, as_json) and unknown:
            raise unknown
    else:
        selection = Selection(run, denied, own_checks=everything or as_json)
        show(log, selection, count=count, following=follow, as_json=as_json)
    return 0


def show(log: Path, selection: Selection, *, count: int, following: bool, as_json: bool) -> None:
    """Print the last `count` wanted lines of `log`, then, if `following`, each new one until Ctrl-C."""
    descriptor = logread.open_log(log)
    if descriptor is None and not following:
        click.echo(f"no decisions yet: {log} does not exist", err=True)
        return
    size, lines = 0, []
    if descriptor is not None:
        try:
            size = _whole_size(descriptor) if following else os.fstat(descriptor).st_size
            # One more than wanted, to know whether there are older ones.
            lines = logread.last(descriptor, count and count + 1, selection, size, selection.needles)
        finally:
            os.close(descriptor)
    older = len(lines) > count
    rows = rows_of(lines[older:])
    emit = emitter(as_json)
    try:
        failures = outcomes.Failures(outcomes.path_beside(log)) if following and not as_json else None
        if not as_json:
            rows = _joined(log, rows)
        emit(rows)
        warn_of_damage(selection, log)
        if older:
            click.echo(f"only the newest {count}: -n {10 * count} shows more", err=True)
        if following:
            follow_log(log, size, selection, emit, failures, rows)
        elif not rows and not as_json:
            click.echo(_nothing(selection, count), err=True)
    except KeyboardInterrupt:
        if not following:
            raise
        if sys.stderr.isatty():
            click.echo(err=True)  # the cursor stands behind ^C
    if selection.own:
        checks = "1 check" if selection.own == 1 else f"{selection.own} checks"
        click.echo(f"{checks} of impyard's own left out: --all shows them", err=True)


def follow_log(
    log: Path,
    start: int,
    selection: Selection,
    emit: Callable[[list[Row]], None],
    failures: outcomes.Failures | None = None,
    rows: Iterable[Row] = (),
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print each wanted line that comes behind byte `start`, and with `failures` what of it, and of `rows`, came to
    nothing. Ends only by an exception."""

    def pause(seconds: float) -> None:
        if failures is not None and (failed := list(failures.news())):
            emit(failed)
        sleep(seconds)

    def shown(rows: Iterable[Row]) -> None:
        if failures is not None and (failed := list(failures.expect(rows))):
            emit(failed)

    shown(rows)
    for line in logread.follow(log, start, sleep=pause):
        damaged = selection.damaged
        if selection(line):
            fresh = rows_of([line])
            emit(fresh)
            shown(fresh)
        elif selection.damaged > damaged:
            click.echo(f"warning: damaged line at byte {line.offset} of {log}", err=True)


def rows_of(lines: Iterable[logread.Line]) -> list[Row]:
    """What the lines hold; damaged ones are left out."""
    return [Row(line.text, entry) for line in lines if (entry := parse(line.text)) is not None]


def _joined(log: Path, rows: list[Row]) -> list[Row]:
    try:
        return outcomes.join(outcomes.path_beside(log), rows)
    except ImpyardError as exc:
        click.echo(f"warning: what became of the requests is not shown: {exc.message}", err=True)
        return rows


def _knows(log: Path, run: str | None) -> bool:
    """Whether the log has a decision of this run at all, be it one of impyard's own checks."""
    selection = Selection(run, denied=False, own_checks=True)
    descriptor = logread.open_log(log)
    if descriptor is None:
        return False
    try:
        return bool(logread.last(descriptor, 1, selection, needles=selection.needles))
    finally:
        os.close(descriptor)


def warn_of_damage(selection: Selection, log: Path) -> None:
    """Say on stderr how many damaged lines were met and what kind the first one is."""
    line = selection.first_damage
    if line is None:
        return
    kind = "is no decision" if line.ended else "is half-written: its end is missing"
    count = "1 damaged line" if selection.damaged == 1 else f"{selection.damaged} damaged lines, the first"
    click.echo(f"warning: {count} left out: byte {line.offset} of {log} {kind}", err=True)
    click.echo(as_typed("hint: `impyard decisions --verify` checks every line"), err=True)


def _nothing(selection: Selection, count: int) -> str:
    if count == 0:
        return "nothing shown: -n is 0"
    kind = "denials" if selection.denied else "decisions"
    return f"no {kind}" + (f" of run {visible(selection.run)}" if selection.run else " yet")


def _whole_size(descriptor: int) -> int:
    """The file's size up to its last newline, so that following begins with the line that is being written."""
    last = next(logread.from_end(descriptor), None)
    if last is None:
        return 0
    return last.offset + len(last.text) + 1 if last.ended else last.offset


def emitter(as_json: bool) -> Callable[[list[Row]], None]:
    """What prints rows on stdout: as JSON, as a table in a terminal, or as one plain line each."""
    if as_json:
        return lambda rows: _write(json_line(row.line) for row in rows)
    if not sys.stdout.isatty():
        return lambda rows: _write(plain_line(row) for row in rows)
    # rich is slow to import, and only a terminal needs it.
    from impyard.runner.decisions_table import Table

    return Table().add


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def plain_line(row: Row) -> str:
    """One decision as tab-separated fields, nothing shortened, no control character left."""
    entry, came = row.entry, row.outcome.text if row.outcome else ""
    fields = (
        entry.ts,
        row.verdict,
        entry.method,
        entry.url,
        entry.reason,
        ("; " if entry.at else " ").join(part for part in (rule_text(entry), entry.more) if part),
        entry.id,
        came or "-",
    )
    return "\t".join(visible(field) for field in fields)


def rule_text(entry: Entry) -> str:
    """The deciding rule and its place, or the rule that came closest, or a mark, or `-`."""
    if entry.at is not None:
        return f"{entry.at} {entry.rule}" if entry.rule else entry.at
    if entry.nearest is not None:
        return f"closest {entry.nearest.at} ({entry.nearest.failed})"
    return entry.rule or (OWN_CHECK if entry.is_own_check else "-")


def json_line(text: bytes) -> str:
    """The line as it is in the log; one that holds raw characters that a terminal obeys is written in ASCII escapes."""
    line = text.decode("utf-8", "replace")
    if line.isprintable():
        return line
    return json.dumps(json.loads(line), separators=(",", ":"), ensure_ascii=True)
