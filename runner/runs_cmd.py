"""`impyard runs`: list, show, resume, stop and prune runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.runner import runs as runs_
from impyard.runner.amounts import Whole
from impyard.runner.lazygroup import Entry, LazyGroup
from impyard.runner.options import named_project, project_option
from impyard.runner.project import find_root
from impyard.runner.runs_facts import print_facts
from impyard.runner.runs_table import print_runs
from impyard.runner.text import visible
from impyard.runner.typed import command_line

# Commands that are imported when they are called; the others are below.
COMMANDS: dict[str, Entry] = {
    "prune": Entry("impyard.runner.prune_cmd:prune", "Remove the folders of ended runs."),
    "rm": Entry("impyard.runner.prune_cmd:rm", "Remove the folders of runs that you name."),
    "diff": Entry("impyard.runner.clone.diff_cmd:diff", "Show what the agent changed in its clone."),
    "apply": Entry("impyard.runner.clone.apply_cmd:apply", "Take over what the agent changed in its clone."),
    "resume": Entry("impyard.runner.resume_cmd:resume", "Go on with a run's session in a fresh box."),
}


@click.group(cls=LazyGroup, entries=COMMANDS, invoke_without_command=True)
@project_option
@click.pass_context
def runs(ctx: click.Context, project: Path | None) -> int:
    """List, show, resume, stop and prune the runs of a project. Without a command: list.

    A run is named by its id, by the beginning or the last four characters of it, or by `last`.

    \b
    impyard runs             the last ones
    impyard runs show last   all that is known of the newest
    """
    ctx.obj = project  # `impyard runs --project X list` means the same as `impyard runs list --project X`
    return int(ctx.invoke(list_command)) if ctx.invoked_subcommand is None else 0


@runs.command("list")
@project_option
@click.option("-n", "count", metavar="N", default=20, show_default=True, type=Whole(1), help="How many, newest last.")
@click.option("--json", "as_json", is_flag=True, help="The receipts as JSON, one per line, each with its `state`.")
def list_command(project: Path | None = None, count: int = 20, as_json: bool = False) -> int:
    """List the runs, newest last.

    Each with its id, state, duration, decisions and model.

    \b
    impyard runs list -n 100                more of them
    impyard runs list --json | jq .prompt   the receipts, for a script
    """
    root = _root(project)
    known = runs_.ids(root)
    found = runs_.look(root, known[:count][::-1])
    if as_json:
        for run in found:
            click.echo(json.dumps({**run.receipt, "run": run.id, "state": run.state}))
        _say_older(len(known), count, named_project(project))
        return 0
    if not found:
        click.echo(f"no runs yet in {root}", err=True)
        return 0
    print_runs(found)
    _say_older(len(known), count, named_project(project))
    return 0


def _say_older(known: int, count: int, project: Path | None) -> None:
    if known > count:
        click.echo(
            f"{known - count} older: {command_line('runs', 'list', '-n', str(known), project=project)}", err=True
        )


@runs.command("show")
@click.argument("run", default="last")
@project_option
@click.option("--json", "as_json", is_flag=True, help="The receipt as it is.")
def show_command(run: str, project: Path | None, as_json: bool) -> int:
    """Show what is known of RUN, else of the newest.

    \b
    impyard runs show                   the newest
    impyard runs show 20260301-101500   the beginning of an id is enough, or its last four characters
    """
    root = _root(project)
    [found] = runs_.look(root, [runs_.resolve(root, run)])
    if as_json:
        if not found.receipt:
            hint = "check its owner and mode" if found.unreadable else "the run ended before it could write one"
            raise ImpyardError(found.fault, hint=hint)
        click.echo(json.dumps({**found.receipt, "state": found.state}, indent=2))
        return 0
    commands = [("look", command_line("decisions", "--run", found.id, project=named_project(project)))]
    if found.receipt.get("clone"):
        for name in ("diff", "apply"):
            commands.append((name, command_line("runs", name, found.id, project=named_project(project))))
    print_facts(found, commands)
    return 0


@runs.command("stop")
@click.argument("run", nargs=-1)
@project_option
@click.option("--all", "every", is_flag=True, help="Every running run of this project.")
def stop_command(run: Sequence[str], project: Path | None, every: bool) -> int:
    """End RUN, and wait for it.

    When the command returns, its box is gone.

    \b
    impyard runs stop last    the newest
    impyard runs stop --all   whatever runs in this project
    """
    root = _root(project)
    if bool(run) == every:
        raise click.UsageError("name the runs to stop, or give --all")
    named = runs_.ids(root) if every else list(dict.fromkeys(runs_.resolve(root, text) for text in run))
    stopped = 0
    for found in runs_.look(root, named):
        if found.doubt:
            raise ImpyardError(found.doubt, hint="without the engine it is not known which boxes run")
        if found.lives:
            runs_.stop(found)
            stopped += 1
            click.echo(f"stopped {found.id}")
        elif found.unreadable and not every:
            raise ImpyardError(found.fault, hint=f"who started {found.id} can stop it, or root")
        elif found.unreadable:
            click.echo(f"warning: left alone: {visible(found.fault)}", err=True)
        elif not every:
            click.echo(f"{found.id} is not running ({visible(found.state)})")
    if every and not stopped:
        click.echo("no run is running")
    return 0


def _root(project: Path | None) -> Path:
    return find_root(named_project(project))
