"""`impyard decisions rotate`: new log files are begun, old ones compressed, and removed if that is asked for."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.consent import agrees
from impyard.runner.decisions import logread
from impyard.runner.decisions.logfiles import Rotated, only, rotated, time_of
from impyard.runner.decisions.read import times_in
from impyard.runner.decisions.rotation import has_lines, logs_of, older_than, pack_all, remove_before, rotate, settle
from impyard.runner.decisions.tend import is_due
from impyard.runner.decisions.when import Age
from impyard.runner.options import project_option
from impyard.runner.project import find_root
from impyard.runner.text import counted, size_text, visible


@click.command("rotate")
@project_option
@click.option("--if-due", is_flag=True, help="Only a log of 64 MiB, or one of 1 MiB that begins 30 days ago.")
@click.option(
    "--older-than", "before", type=Age(), metavar="AGE", help="Remove files so old too, such as 90d; it asks."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def rotate_command(ctx: click.Context, project: Path | None, if_due: bool, before: datetime | None, yes: bool) -> int:
    """Begin new log files, and compress the old ones.

    \b
    impyard decisions rotate
    impyard decisions rotate --older-than 90d
    impyard decisions rotate --if-due --older-than 90d --yes --project ~/work   # for cron

    Runs and gateways go on meanwhile; a file that one of them still uses is compressed the next time. A run does the
    same at its end when the log is due, but removes nothing.

    --older-than removes compressed files that were begun anew so long ago, also when nothing is due. Their decisions
    are gone; the place of each chain is kept, so that `--verify` still checks what comes after. With --if-due, nothing
    is said in a pipe or by cron when there was nothing to do, be it in a project without any run.
    """
    runs = find_root(project or ctx.obj) / "runs"
    quiet = if_due and not sys.stdout.isatty()
    if not runs.is_dir() and if_due:  # a project without a run, for which cron asks all the same
        if not quiet:
            click.echo(f"nothing to rotate: {visible(str(runs))} does not exist yet")
        return 0
    if not runs.is_dir():
        raise ImpyardError(f"there are no logs: {runs} does not exist", hint="`impyard run` makes some")
    if before is not None and not yes and not sys.stdin.isatty():
        raise ImpyardError("--older-than removes decisions, and there is nobody to ask", hint="give --yes")
    try:
        renamed = rotate(runs, only_due=if_due)
        if not renamed and not quiet:
            click.echo(f"nothing to rotate: {_why_not(runs, if_due)}")
        settle(renamed)
        removed = 0
        try:
            _compress(runs, quiet)
        finally:  # old files are removed on a full disk too
            if before is not None:
                removed = _remove(runs, before, yes)
        files = [each.path for log in logs_of(runs) for each in rotated(log)]
        size = sum(path.stat().st_size for path in files if path.exists())
    except OSError as exc:
        where = exc.filename if isinstance(exc.filename, str) else runs
        raise ImpyardError(
            f"cannot rotate the logs, {where}: {(exc.strerror or str(exc)).lower()}",
            hint="they are whole all the same; free some space or mend the permissions",
        ) from exc
    if files and (renamed or removed or not quiet):
        click.echo(f"in all: {counted(len(files), 'old file')}, {size_text(size)}")
    return 0


def _why_not(runs: Path, if_due: bool) -> str:
    """Why nothing was rotated. Raises OSError."""
    if if_due and not is_due(runs, datetime.now(UTC)):
        return "the log is not due"
    return "somebody else is at it" if any(map(has_lines, logs_of(runs))) else "the log is empty"


def _compress(runs: Path, quiet: bool) -> None:
    for each in pack_all(runs):
        name = visible(each.path.name)
        if not isinstance(each, Rotated):
            click.echo(f"{name}: {size_text(each.size)} in {size_text(each.packed_size)}")
        elif not quiet:
            click.echo(f"{name}: a run or a gateway may still use it; it is compressed the next time")


def _remove(runs: Path, before: datetime, yes: bool) -> int:
    """Remove what was rotated before this time, if that is agreed to. How many files went. Raises OSError."""
    files = [each for log in logs_of(runs) for each in older_than(log, before)]
    if not files:
        if sys.stdout.isatty():
            click.echo(f"nothing to remove: no compressed file is older than {before:%Y-%m-%d %H:%M} UTC")
        return 0
    if not yes and not agrees(f"remove {_described(files)}?"):
        return 0
    sizes = {each.path: each.path.stat().st_size for each in files}
    # Of those that were shown: one that was compressed since stays for the next time.
    newest = max(time_of(each.stamp) for each in files)
    gone = remove_before(runs, min(before, newest + timedelta(milliseconds=1)))
    for path in gone:
        click.echo(f"{visible(path.name)}: removed")
    freed = sum(sizes.get(path, 0) for path in gone)
    click.echo(f"removed {counted(len(gone), 'file')}, {size_text(freed)}")
    return len(gone)


def _described(files: list[Rotated]) -> str:
    """How many files these are, how many decisions are in them, and from when to when they were written."""
    size = size_text(sum(each.path.stat().st_size for each in files))
    lines, began = 0, ""
    for each in files:
        if each.path.name.startswith("decisions-") and (found := only(each.path)) is not None:
            with found:
                began = began or next(iter(times_in(found.pread(1000, 0))), "")
                lines += sum(piece.count(b"\n") for _, piece in logread.blocks(found, 0, found.size))
    until = max(time_of(each.stamp) for each in files).astimezone(UTC)
    first, last = visible(began[:10]), f"{until:%Y-%m-%d}"
    span = f"of {last}" if first == last else f"from {first} to {last}" if first else f"until {last}"
    return f"{counted(len(files), 'file')}, {size}, with {counted(lines, 'decision')} {span}, for good"
