"""`impyard decisions rotate`: new log files are begun, old ones compressed, and removed if that is asked for."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.decisions.logfiles import Rotated, rotated
from impyard.runner.decisions.rotation import logs_of, pack_all, remove_before, rotate, settle
from impyard.runner.decisions.when import When
from impyard.runner.options import project_option
from impyard.runner.project import find_root
from impyard.runner.text import size_text, visible


@click.command("rotate")
@project_option
@click.option("--if-due", is_flag=True, help="Only a log of 64 MiB, or one of 1 MiB that begins 30 days ago.")
@click.option("--keep", type=When(), metavar="TIME", help="Remove compressed files that are older, such as 90d.")
@click.pass_context
def rotate_command(ctx: click.Context, project: Path | None, if_due: bool, keep: str | None) -> int:
    """Begin new log files, and compress the old ones.

    \b
    impyard decisions rotate
    impyard decisions rotate --if-due --keep 90d

    Runs and gateways go on meanwhile; a file that one of them may still write to is compressed the next time. A run
    does the same at its end when the log is due, but removes nothing. Decisions in files that --keep removes are gone;
    the place of each chain is kept, so that `--verify` still checks what comes after.
    """
    runs = find_root(project or ctx.obj) / "runs"
    if not runs.is_dir():
        raise ImpyardError(f"there are no logs: {runs} does not exist", hint="`impyard run` makes some")
    try:
        renamed = rotate(runs, only_due=if_due)
        settle(renamed)
        try:
            for each in pack_all(runs):
                name = visible(each.path.name)
                if isinstance(each, Rotated):
                    click.echo(f"{name}: somebody may still write to it; it is compressed the next time")
                else:
                    click.echo(f"{name}: {size_text(each.size)} in {size_text(each.packed_size)}")
        finally:  # old files are removed on a full disk too
            if keep is not None:
                for path in remove_before(runs, datetime.fromisoformat(keep).astimezone(UTC)):
                    click.echo(f"{visible(path.name)}: removed")
        files = [each.path for log in logs_of(runs) for each in rotated(log)]
        size = sum(path.stat().st_size for path in files if path.exists())
    except OSError as exc:
        where = exc.filename if isinstance(exc.filename, str) else runs
        raise ImpyardError(
            f"cannot rotate the logs, {where}: {(exc.strerror or str(exc)).lower()}",
            hint="they are whole all the same; free some space or mend the permissions",
        ) from exc
    if not renamed:
        click.echo("nothing to rotate: the log is " + ("not due" if if_due else "empty, or somebody else is at it"))
    click.echo(f"{len(files)} rotated {'file' if len(files) == 1 else 'files'}, {size_text(size)}")
    return 0
