"""Pages of decisions, printed, and the new ones that follow. It only reads, and takes no line on trust."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.decisions import logread, near, outcomes, removed
from impyard.runner.decisions import read as decisions_read
from impyard.runner.decisions.lines import Entry, Selection, parse
from impyard.runner.decisions.logfiles import DAMAGE, Log, rotated
from impyard.runner.decisions.outcomes import Row
from impyard.runner.decisions.read import short_id
from impyard.runner.text import columns_of, counted, visible, wrapped
from impyard.runner.typed import as_typed

BATCH = 200  # rows that are printed at once
MOST_ASKED = 20  # of the newest denials, for one that a rule answers
UNREADABLE = 16 * DAMAGE
OWN_CHECK = "(impyard's own check)"


class _Over(Exception):
    """No more lines are to come."""


def show(
    log: Path,
    selection: Selection,
    *,
    count: int,
    following: bool,
    as_json: bool,
    is_over: Callable[[], bool] | None = None,
) -> None:
    """Print the last `count` wanted lines of `log`, then, if `following`, each new one until Ctrl-C, or until `is_over`
    says that there are no more to come."""
    found = decisions_read.open_for(log, selection)
    if found is None and not following:
        say_nothing(selection, log)
        return
    if found is None:
        _show_page(log, None, 0, [], selection, count, following=True, as_json=as_json, is_over=is_over)
        return
    with found:
        size = _whole_size(found) if following else found.size
        found.on_long = _say_long
        # One more than wanted, to know whether there are older ones.
        lines = decisions_read.page(found, count and count + 1, selection, size)
        _show_page(log, found, size, lines, selection, count, following=following, as_json=as_json, is_over=is_over)


def _show_page(
    log: Path,
    found: Log | None,
    size: int,
    lines: list[logread.Line],
    selection: Selection,
    count: int,
    *,
    following: bool,
    as_json: bool,
    is_over: Callable[[], bool] | None,
) -> None:
    """Print a page, then what comes behind byte `size` of the log."""
    older = len(lines) > count
    rows = rows_of(lines[older:])
    emit = emitter(as_json, selection.proofs)
    try:
        failures = _failures(log, selection) if following and (not as_json or selection.only_failed) else None
        if not as_json:
            rows = _joined(log, rows)
            if selection.only_failed:
                rows = [row for row in rows if row.may_have_failed]
        emit(rows)
        warn_of_damage(selection, log)
        if older:
            click.echo(f"only the newest {count}: -n {10 * count} shows more", err=True)
        if following:
            if not rows and count:
                if is_over is not None and is_over():
                    say_nothing(selection, log)
                else:
                    click.echo(wrapped(_waiting(selection, log), columns_of(sys.stderr), "  "), err=True)
            selection.failed = None  # what comes now may fail yet
            follow_log(log, size, selection, emit, failures, rows, found=found, is_over=is_over)
        elif not rows and not as_json:
            if count == 0:
                click.echo("nothing shown: -n is 0", err=True)
            else:
                say_nothing(selection, log)
    except KeyboardInterrupt:
        if not following:
            raise
        if sys.stderr.isatty():
            click.echo(err=True)  # the cursor stands behind ^C
    say_left_out(selection, counts=not older)  # else it was counted beyond the rows that are shown
    if not as_json and rows and any(row.entry.verdict == "deny" for row in rows):
        _say_next(rows, log.parent.parent, selection.proofs)


def _say_long() -> None:
    if sys.stderr.isatty():
        click.echo("looking through old files for them; --since says how far …", err=True)


def say_left_out(selection: Selection, *, counts: bool = True) -> None:
    """Say on stderr how much of impyard's own was not shown; without `counts` only that it was."""
    parts = [
        f"{counted(count, name) if counts else f'{name}s'} of {whose}"
        for count, name, whose in (
            (selection.own, "check", "impyard's own"),
            (selection.demo, "call", "the demo model"),
        )
        if count
    ]
    if parts:
        text = f"{' and '.join(parts)} left out: --all shows them"
        click.echo(wrapped(text, columns_of(sys.stderr), "  "), err=True)


def _say_next(rows: Sequence[Row], root: Path, proofs: Collection[str]) -> None:
    """Say, to a person, what can be done about a denial: about the newest that a rule answers, if there is one."""
    if not sys.stdout.isatty():
        return
    from impyard.runner.policy.remedy import Remedies, Remedy

    denied = [row for row in rows if row.entry.verdict == "deny"]
    # What impyard itself asks is there to be denied.
    theirs = [row for row in denied if not row.entry.is_own_check and row.entry.run not in proofs]
    remedies = Remedies(root) if theirs else None
    able = (row for row in theirs[: -MOST_ASKED - 1 : -1] if remedies and remedies.of(row.line) is Remedy.ALLOW)
    mended = next(able, None)
    id = visible(short_id((mended or (theirs or denied)[-1]).entry.id))
    hint = f"`impyard decisions show {id}` says more of one"
    if mended is not None:
        hint += f", `impyard policy allow {id}` lets it through"
    elif remedies is not None and remedies.is_broken:
        hint += ", `impyard policy check` what is wrong with the policy"
    click.echo(wrapped(as_typed(f"hint: {hint}"), columns_of(sys.stderr), "  "), err=True)


def show_all(log: Path, selection: Selection, *, as_json: bool) -> None:
    """Print all wanted lines of `log`, oldest first, however many they are."""
    emit = emitter(as_json, selection.proofs)
    rows: Iterable[Row]
    if as_json:
        rows = (Row(found.line, found.entry) for found in decisions_read.read(log, selection))
    else:
        from impyard.runner.decisions.outcome_stream import rows_with_outcomes

        rows = rows_with_outcomes(log, outcomes.path_beside(log), selection)
    shown = 0
    for part in itertools.batched(rows, BATCH):
        emit(list(part))
        shown += len(part)
    warn_of_damage(selection, log)
    if not shown and not as_json:
        say_nothing(selection, log)
    say_left_out(selection)


def follow_log(
    log: Path,
    start: int,
    selection: Selection,
    emit: Callable[[list[Row]], None],
    failures: outcomes.Failures | None = None,
    rows: Iterable[Row] = (),
    sleep: Callable[[float], None] = time.sleep,
    found: Log | None = None,
    is_over: Callable[[], bool] | None = None,
) -> None:
    """Print each wanted line that comes behind byte `start` of the file, or of all files of `found`; with `failures`
    also what of it, and of `rows`, came to nothing. Ends by an exception, or when all was read that was there when
    `is_over` said that no more is to come."""
    is_last = False

    def pause(seconds: float) -> None:
        nonlocal is_last
        if failures is not None and (failed := list(failures.news())):
            emit(failed)
        if is_last:
            raise _Over
        if is_over is not None and is_over():
            is_last = True  # lines may have come since this was read
        else:
            sleep(seconds)

    def shown(rows: Iterable[Row]) -> None:
        if failures is not None and (failed := list(failures.expect(rows))):
            emit(failed)

    shown(rows)
    with contextlib.suppress(_Over):
        for line in logread.follow(log, start, log=found, sleep=pause):
            damaged = selection.damaged
            if selection(line):
                fresh = rows_of([line])
                if not selection.only_failed:  # else it is shown when it has
                    emit(fresh)
                shown(fresh)
            elif selection.damaged > damaged:
                click.echo(f"warning: damaged line at byte {line.offset} of {log}", err=True)


def rows_of(lines: Iterable[logread.Line]) -> list[Row]:
    """What the lines hold; damaged ones are left out."""
    return [Row(line.text, entry) for line in lines if (entry := parse(line.text)) is not None]


def _failures(log: Path, selection: Selection) -> outcomes.Failures | None:
    """Follows what becomes of the requests. Where that cannot be read, decisions are shown all the same."""
    try:
        return outcomes.Failures(outcomes.path_beside(log))
    except ImpyardError as exc:
        if selection.only_failed:
            raise
        click.echo(f"warning: what becomes of the requests is not shown: {exc.message}", err=True)
        return None


def _joined(log: Path, rows: list[Row]) -> list[Row]:
    try:
        return outcomes.join(outcomes.path_beside(log), rows)
    except ImpyardError as exc:
        click.echo(f"warning: what became of the requests is not shown: {exc.message}", err=True)
        return rows


def warn_of_damage(selection: Selection, log: Path) -> None:
    """Say on stderr how many damaged lines were met and what kind the first one is."""
    line = selection.first_damage
    if line is None:
        return
    kind = "is no decision" if line.ended else "is half-written: its end is missing"
    count = "1 damaged line" if selection.damaged == 1 else f"{selection.damaged} damaged lines, the first"
    if UNREADABLE in line.text:
        kind, count = (
            "begins a part that cannot be read",
            f"{counted(selection.damaged, 'damaged part')} with any number of lines",
        )
    with decisions_read.open_for(log, selection, say=_already_said) or nullcontext() as found:
        path, byte = found.place(line.offset) if found is not None else (log, line.offset)
    click.echo(f"warning: {count} left out: byte {byte} of {visible(str(path))} {kind}", err=True)
    click.echo(as_typed("hint: `impyard decisions --verify` checks every line"), err=True)


def _already_said(_path: Path, _what: str) -> None:
    """What is wrong with a rotated file was said when it was read."""


def say_nothing(selection: Selection, log: Path) -> None:
    """Say on stderr that there is nothing to show, and why."""
    gone = removed.words(log, run=selection.run)
    if is_there(log):
        click.echo(nothing(selection), err=True)
        if meant := near.suggestion(selection, log):
            click.echo(f"hint: {meant}", err=True)
        removed.say(log, run=selection.run)
    else:
        text = f"no decisions: {visible(gone)}" if gone else none_yet(log)
        click.echo(wrapped(text, columns_of(sys.stderr), "  "), err=True)


def is_there(log: Path) -> bool:
    """Whether there is any file of a log. One in a folder that cannot be read counts as there."""
    try:
        return os.path.lexists(log) or bool(rotated(log))
    except OSError:
        return True


def none_yet(log: Path) -> str:
    """What to say in a project without any run."""
    return as_typed(f'no decisions yet in {visible(str(log.parent.parent))}; `impyard run "…"` makes some')


def _waiting(selection: Selection, log: Path) -> str:
    """What is waited for where there is nothing to show yet, and how that ends."""
    so_far = nothing(selection) if is_there(log) else none_yet(log)
    if not so_far.endswith(" yet") and is_there(log):
        so_far += " so far"
    return f"{so_far}. Waiting for {'them' if selection.narrows or selection.run else 'the first'}; Ctrl-C ends it"


def nothing(selection: Selection) -> str:
    """What to say where there is nothing to show."""
    kind = "denials" if selection.denied else "decisions"
    whose = f" of run {visible(selection.run)}" if selection.run else ""
    if selection.only_failed:
        return f"no request{whose} was allowed and failed"
    if selection.narrows:
        return f"no {kind}{whose} that these options ask for"
    if selection.own or selection.demo:
        return f"no {kind}{whose} but those of impyard itself"
    return f"no {kind}{whose or ' yet'}"


def _whole_size(log: Log) -> int:
    """The log's size up to its last newline, so that following begins with the line that is being written."""
    last = next(logread.from_end(log), None)
    if last is None:
        return 0
    return last.offset + len(last.text) + 1 if last.ended else last.offset


def emitter(as_json: bool, proofs: Collection[str] = ()) -> Callable[[list[Row]], None]:
    """What prints rows on stdout: as JSON, as a table in a terminal, or as one plain line each. Requests of `proofs`,
    the runs of `impyard prove`, are marked as impyard's own."""
    if as_json:
        return lambda rows: _write(json_line(row.line) for row in rows)
    if not sys.stdout.isatty():
        return lambda rows: _write(plain_line(row, proofs) for row in rows)
    # rich is slow to import, and only a terminal needs it.
    from impyard.runner.decisions.table import Table

    return Table(proofs=proofs).add


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def plain_line(row: Row, proofs: Collection[str] = ()) -> str:
    """One decision as tab-separated fields, nothing shortened, no control character left."""
    entry, came = row.entry, row.outcome.text if row.outcome else ""
    rule, mark = rule_text(entry), OWN_CHECK if entry.is_own_check or entry.run in proofs else ""
    parts = (rule, entry.more, mark) if rule else (mark or "-", entry.more)
    fields = (
        entry.ts,
        row.verdict,
        entry.method,
        entry.url,
        entry.reason,
        ("; " if entry.at else " ").join(filter(None, parts)),
        entry.id,
        came or "-",
    )
    return "\t".join(visible(field) for field in fields)


def rule_text(entry: Entry) -> str:
    """The deciding rule and its place, or the rule that came closest; empty where there is none."""
    if entry.at is not None:
        return f"{entry.at} {entry.rule}" if entry.rule else entry.at
    if entry.nearest is not None:
        return f"closest {entry.nearest.at} ({entry.nearest.failed})"
    return entry.rule or ""


def json_line(text: bytes) -> str:
    """The line as it is in the log; one that holds raw characters that a terminal obeys is written in ASCII escapes."""
    line = text.decode("utf-8", "replace")
    if line.isprintable():
        return line
    # Between its fields there may be blanks of any kind; within a text, JSON takes no raw control character.
    return "".join(char if char.isprintable() else " " if char in "\t\r\n" else json.dumps(char)[1:-1] for char in line)
