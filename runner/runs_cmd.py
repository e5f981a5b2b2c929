"""`impyard runs`: list, show, resume, stop and prune runs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from impyard.addon.errors import ImpyardError
from impyard.runner import removal
from impyard.runner import runs as runs_
from impyard.runner.amounts import Number, Whole
from impyard.runner.consent import agrees
from impyard.runner.failures import failure_text, failures_of
from impyard.runner.lazygroup import Entry, LazyGroup
from impyard.runner.options import project_option
from impyard.runner.project import find_root
from impyard.runner.receipt import bytes_text, counts_text, file_text
from impyard.runner.spotted import record_text
from impyard.runner.text import columns_of, counted, duration_text, size_text, unstarred, visible, wrapped
from impyard.runner.typed import as_typed, command_line
from impyard.runner.view import cells

COLOURS = {"running": "cyan", "finished": "green", "?": "yellow", "unreadable": "yellow", "lost": "yellow"}
MAX_DAYS = 36500
MIN_PROMPT = 20  # columns; else it goes below the line
INDENT = "  "
# Broken to a terminal's width; a path is to be copied.
WORDS = ("receipt", "engine", "prompt", "error", "key", "policy", "  secrets", "  failed", "credentials", "authority")
HASHES = ("policy", "image", "authority")  # a terminal shows their beginning; --json and a pipe all of it
_HASH = re.compile(r"\b((?:sha256:)?[0-9a-f]{12})[0-9a-f]{52}\b")


# Commands that are imported when they are called; the others are below.
COMMANDS: dict[str, Entry] = {
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
        _say_older(len(known), count, _named(project))
        return 0
    if not found:
        click.echo(f"no runs yet in {root}", err=True)
        return 0
    rows = [_row(run) for run in found]
    if sys.stdout.isatty():
        _print_table(("run", "state", "time", "allowed", "denied", "model", "prompt"), rows)
    else:
        for row in rows:
            click.echo("\t".join(row))
    _say_older(len(known), count, _named(project))
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
    pairs = [*_facts(found), ("look", command_line("decisions", "--run", found.id, project=_named(project)))]
    if found.receipt.get("clone"):
        for name in ("diff", "apply"):
            pairs.append((name, command_line("runs", name, found.id, project=_named(project))))
    width = max(len(name) for name, _ in pairs)
    columns, start = columns_of(sys.stdout), " " * (width + 2)
    for name, value in pairs:
        if columns and name in HASHES:
            value = _HASH.sub(r"\1…", value)
        lines = wrapped(visible(value), columns - len(start) if columns and name in WORDS else None)
        click.echo(f"{name:<{width}}  " + lines.replace("\n", f"\n{start}"))
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


@runs.command("prune")
@project_option
@click.option("--older-than", "days", type=Number(MAX_DAYS, zero=True), metavar="DAYS", help="Runs that began earlier.")
@click.option("--keep", type=Whole(0), metavar="N", help="All but the N newest.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune_command(project: Path | None, days: float | None, keep: int | None, yes: bool) -> int:
    """Remove the folders of ended runs.

    The workspaces in them go too: what the agents wrote is gone then. With both options, only runs that both would
    remove.

    A running run is never removed, nor are the logs with its decisions: `impyard decisions rotate` is for those.

    \b
    impyard runs prune --keep 10               all but the newest ten
    impyard runs prune --older-than 30 --yes   without a question, for cron
    """
    root = _root(project)
    if days is None and keep is None:
        raise click.UsageError("say which: --older-than DAYS, --keep N, or both")
    candidates = runs_.ids(root)[keep or 0 :]
    found = runs_.look(root, candidates[::-1])
    if days is not None:
        limit = datetime.now(UTC) - timedelta(days=days)
        found = [run for run in found if runs_.started(run) < limit]
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
        return 0
    total = sum(removal.tree_bytes(run.paths.folder) for run in doomed)
    what = f"{counted(len(doomed), 'run')}, {size_text(total)}"
    if not yes:
        if not sys.stdin.isatty():
            raise ImpyardError(
                f"this would remove {what}, workspaces too, and there is nobody to ask", hint="give --yes"
            )
        for run in doomed:
            click.echo(f"  {run.id}  {visible(run.state)}")
        if not agrees(f"remove {what}, workspaces too?"):
            return 1
    for run in doomed:
        _remove(run)
    click.echo(f"removed {what}")
    return 0


def _root(project: Path | None) -> Path:
    return find_root(_named(project))


def _named(project: Path | None) -> Path | None:
    """The project that was named, behind the subcommand or before it."""
    found: Path | None = project or click.get_current_context().obj
    return found


def _remove(run: runs_.Run) -> None:
    try:
        removal.remove_tree(run.paths.folder)
    except OSError as exc:
        raise ImpyardError(
            f"cannot remove {run.paths.folder}: {(exc.strerror or str(exc)).lower()}",
            hint="files of another user are left in it; use `sudo`",
        ) from exc


def _row(run: runs_.Run) -> tuple[str, ...]:
    decisions = _mapping(run.receipt.get("decisions"))
    return (
        run.id,
        visible(run.state),
        _duration(run.receipt.get("duration_s")),
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
        prompt = _begun(row[-1], room if is_beside else columns - len(INDENT))
        click.echo("  ".join([*shown, prompt] if is_beside else shown).rstrip())
        if not is_beside:
            click.echo(INDENT + prompt)


def _print_blocks(rows: Sequence[Sequence[str]], columns: int) -> None:
    """The same for a narrow terminal: what does not fit in a line goes below it."""
    for id, state, time, allowed, denied, model, prompt in rows:
        click.echo(f"{id}  {click.style(state, fg=COLOURS.get(state, 'red'))}")
        click.echo(wrapped(f"  {time}, {allowed} allowed, {denied} denied, {model}", columns, "  "))
        click.echo(INDENT + _begun(prompt, columns - len(INDENT)))


def _begun(prompt: str, room: int) -> str:
    """The beginning of a prompt, by which a person knows a run again."""
    if cells(prompt) <= room:
        return prompt
    while cells(prompt) >= room:
        prompt = prompt[:-1]
    return f"{prompt}…"


def _facts(run: runs_.Run) -> list[tuple[str, str]]:
    """What `show` says, as (name, value); what the receipt does not hold is left out."""
    receipt = run.receipt
    pairs = [("run", run.id), ("state", run.state)]
    if run.fault:
        pairs.append(("receipt", run.fault))
    if run.doubt:
        pairs.append(("engine", run.doubt))
    if receipt.get("prompt"):
        pairs.append(("prompt", str(receipt["prompt"])))
    for name in ("error", "model", "started", "ended"):
        if receipt.get(name):
            pairs.append((name, unstarred(str(receipt[name]))))
    if receipt.get("refused_key"):
        pairs.append(("key", as_typed(str(receipt["refused_key"]))))
    if receipt.get("duration_s") is not None:
        pairs.append(("duration", f"{_duration(receipt['duration_s'])} of {_duration(receipt.get('ceiling_s'))}"))
    if receipt.get("exit_status") is not None:
        pairs.append(("exit status", str(receipt["exit_status"])))
    pairs.append(("workspace", str(receipt.get("workspace") or run.paths.workspace)))
    pairs += [("  file", file_text(_mapping(file))) for file in _sequence(receipt.get("files"))]
    pairs += [("  git", f"{name} is new") for name in _sequence(receipt.get("repositories"))]
    pairs += [("  git", f"{name} is a link") for name in _sequence(receipt.get("links"))]
    pairs += _of_clone(_mapping(receipt.get("clone")))
    for name in ("resumes", "interactive"):
        if value := receipt.get(name):
            pairs.append((name, "yes" if value is True else str(value)))
    transcript = run.paths.terminal_log if receipt.get("interactive") is True else run.paths.stdout
    for name, path in (("transcript", transcript), ("session", run.paths.session)):
        if os.path.exists(path):  # False for what lies in a closed folder
            pairs.append((name, str(path)))
    kept = [_mapping(item) for item in _sequence(receipt.get("kept"))]
    pairs += [("kept back", f"{item.get('path')} ({item.get('kind')}, {item.get('how')})") for item in kept]
    if receipt.get("kept_more"):
        pairs.append(("kept back", f"{receipt['kept_more']} more"))
    pairs += [("shown", f"{path} on purpose") for path in _sequence(receipt.get("shown"))]
    policy = _mapping(receipt.get("policy"))
    if policy:
        names = ", ".join(str(name) for name in _sequence(policy.get("files")))
        pairs.append(("policy", f"{names} {policy.get('hash', '')}".strip()))
    probes = _sequence(receipt.get("probes"))
    if probes:
        good = sum(1 for probe in probes if _mapping(probe).get("ok") is True)
        pairs.append(("probes", f"{good} of {len(probes)} as expected"))
    decisions = _mapping(receipt.get("decisions"))
    if decisions:
        pairs.append(("decisions", counts_text(decisions, _mapping(receipt.get("traffic")))))
        for failure in failures_of(_mapping(receipt.get("traffic"))):
            pairs.append(("  failed", unstarred(failure_text(failure))))
        for host, count in _mapping(decisions.get("denied_hosts")).items():
            pairs.append(("  denied", f"{unstarred(str(host))} ({count})"))
    pairs += [("  secrets", record_text(_mapping(record))) for record in _sequence(receipt.get("secrets"))]
    if used := _mapping(receipt.get("credentials")):
        pairs.append(("credentials", ", ".join(f"{name} ({count})" for name, count in used.items())))
    traffic = _mapping(receipt.get("traffic"))
    if traffic:
        up, down = (bytes_text(traffic.get(key)) for key in ("bytes_up", "bytes_down"))
        pairs.append(("traffic", f"{up} up, {down} down"))
    for name, value in (
        ("image", _mapping(receipt.get("image")).get("id")),
        ("pi", receipt.get("pi")),
        ("authority", receipt.get("ca")),
    ):
        if value:
            pairs.append((name, str(value)))
    return pairs


def _of_clone(clone: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not clone:
        return []
    commit, branch = clone.get("commit"), clone.get("branch")
    what = f"commit {str(commit)[:12]}" if commit else "no commit"
    what += f" of {branch}" if branch else ""
    what += " with uncommitted changes" if clone.get("changes") else ""
    what += ", with its history" if clone.get("history") else ""
    return [("clone", what), *(("  without", f"{name}") for name in _sequence(clone.get("left_out")))]


def _duration(seconds: Any) -> str:
    """`-` for what is no number."""
    return duration_text(seconds) if isinstance(seconds, int | float) else "-"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
