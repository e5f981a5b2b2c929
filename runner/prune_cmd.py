"""`impyard runs prune` and `impyard runs rm`: remove the folders of ended runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.runner import removal
from impyard.runner import runs as runs_
from impyard.runner.amounts import Whole
from impyard.runner.consent import agrees
from impyard.runner.decisions.when import Age
from impyard.runner.options import named_project, project_option
from impyard.runner.project import find_root
from impyard.runner.runs_table import MIN_PROMPT, begun
from impyard.runner.text import columns_of, counted, size_text, visible


@click.command("prune")
@project_option
@click.option(
    "--older-than",
    "before",
    type=Age(),
    metavar="AGE",
    help="Only runs that began so long ago, such as 90d.",
)
@click.option("--keep", type=Whole(0), metavar="N", help="Only runs that are not among the N newest.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(project: Path | None, before: datetime | None, keep: int | None, yes: bool) -> int:
    """Remove the folders of ended runs.

    The workspaces in them go too: what the agents wrote is gone then. One of --older-than and --keep is needed; with
    both, a run goes when both say so.

    A running run is never removed, nor are the logs with its decisions: `impyard decisions rotate` is for those.

    \b
    impyard runs prune --keep 10                all but the newest ten
    impyard runs prune --older-than 90d --yes   without a question, for cron
    """
    root = find_root(named_project(project))
    if before is None and keep is None:
        raise click.UsageError("say which: --older-than AGE, --keep N, or both")
    candidates = runs_.ids(root)[keep or 0 :]
    found = runs_.look(root, candidates[::-1])
    if before is not None:
        found = [run for run in found if runs_.started(run) < before]
    return _ask_and_remove(root, found, yes=yes)


@click.command("rm")
@click.argument("run", nargs=-1, required=True)
@project_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(run: Sequence[str], project: Path | None, yes: bool) -> int:
    """Remove the folder of each RUN, which has ended.

    The workspace in it goes too: what the agent wrote is gone then. Exit status 1 when one is kept.

    \b
    impyard runs rm 4f3a        the last four characters of an id are enough
    impyard runs rm last --yes  without a question
    """
    root = find_root(named_project(project))
    named = list(dict.fromkeys(runs_.resolve(root, text) for text in run))
    return _ask_and_remove(root, runs_.look(root, named), yes=yes, each=True)


def _ask_and_remove(root: Path, found: Sequence[runs_.Run], *, yes: bool, each: bool = False) -> int:
    """Remove those of `found` that have ended, after a question. The exit status: 1 when the answer is no, and, with
    `each`, when one is kept."""
    doomed = [run for run in found if not run.lives and not run.doubt and not run.unreadable]
    kept = {run.id: "it is running" if run.lives else run.doubt or run.fault for run in found if run not in doomed}
    gone = {run.id for run in doomed}
    needed = runs_.needed_by([run for run in runs_.look(root, runs_.ids(root)) if run.id not in gone])
    for run in doomed:
        if run.id in needed:
            kept[run.id] = f"run {needed[run.id]} goes on in its workspace"
    doomed = [run for run in doomed if run.id not in needed]
    for name, why in kept.items():
        click.echo(f"kept {name}: {visible(why)}", err=True)
    if not doomed:
        click.echo("nothing to remove")
        return 1 if kept and each else 0
    sizes = [removal.tree_bytes(run.paths.folder) for run in doomed]
    what = f"{counted(len(doomed), 'run')}, {size_text(sum(sizes))}"
    if not yes:
        if not sys.stdin.isatty():
            raise ImpyardError(
                f"this would remove {what}, workspaces too, and there is nobody to ask", hint="give --yes"
            )
        _show(doomed, sizes)
        if not agrees(f"remove {what}, workspaces too?"):
            return 1
    for run in doomed:
        _remove(run)
    click.echo(f"removed {what}")
    return 1 if kept and each else 0


def _show(doomed: Sequence[runs_.Run], sizes: Sequence[int]) -> None:
    """What a person knows each run by, and would miss of it."""
    rows = [
        (
            run.id,
            f"{runs_.started(run):%Y-%m-%d %H:%M}",
            size_text(size),
            visible(run.state) + (", changes not applied" if runs_.has_unapplied(run) else ""),
        )
        for run, size in zip(doomed, sizes, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = (columns_of(sys.stdout) or 80) - sum(widths) - 2 * len(widths) - 2
    for run, row in zip(doomed, rows, strict=True):
        prompt = visible(str(run.receipt.get("prompt") or "-"))
        line = "  " + "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
        if room >= MIN_PROMPT:
            click.echo(f"{line}  {begun(prompt, room)}")
        else:
            click.echo(f"{line.rstrip()}\n    {begun(prompt, (columns_of(sys.stdout) or 80) - 4)}")


def _remove(run: runs_.Run) -> None:
    try:
        removal.remove_tree(run.paths.folder)
    except OSError as exc:
        raise ImpyardError(
            f"cannot remove {run.paths.folder}: {(exc.strerror or str(exc)).lower()}",
            hint="files of another user are left in it; use `sudo`",
        ) from exc
