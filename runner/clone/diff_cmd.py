"""`impyard runs diff`: what an agent changed in its clone of the project."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.clone.commits import read_commits
from impyard.runner.clone.patchview import coloured, page, pager_of, shown_line
from impyard.runner.clone.work import Work, changed_below, opened
from impyard.runner.options import named_project, project_option
from impyard.runner.project import find_root
from impyard.runner.streams import OutputError
from impyard.runner.text import counted, visible
from impyard.runner.typed import as_typed, command_line

NAMED = 10
_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--find-renames", "--submodule=short")


@click.command("diff")
@click.argument("run", default="last")
@click.argument("paths", nargs=-1)
@project_option
@click.option("--stat", "stat", is_flag=True, help="Only how much changed in which file.")
@click.option("--name-only", is_flag=True, help="Only the names of the changed files.")
def diff(run: str, paths: Sequence[str], project: Path | None, stat: bool, name_only: bool) -> int:
    """Show what the agent changed in the clone of RUN, else of the newest: committed or not, new files too.

    It is the difference to what the agent was given. PATHS limit it to files and folders. Off a terminal it is a patch,
    as `git apply` takes it.

    \b
    impyard runs diff last --stat
    impyard runs diff 20261130-101500 src/
    """
    project = named_project(project)
    root = find_root(project)
    if stat and name_only:
        raise click.UsageError("--stat and --name-only are two views; choose one")
    with opened(root, run) as work:
        kind = ("--stat=1000",) if stat else ("--name-only",) if name_only else ("--patch", "--full-index", "--binary")
        on_terminal = sys.stdout.isatty()
        if stat and on_terminal:
            kind = (f"--stat={os.get_terminal_size(sys.stdout.fileno()).columns}",)
        if on_terminal and not stat and not name_only:
            kind = ("--patch",)
        words = ("-c", "core.quotePath=false", "diff", *_DIFF, *kind, work.made.tree, work.tree, "--", *paths)
        lines = _lines(work, words)
        if not on_terminal:
            _write(lines)
            _say_unchanged(work, paths)
            _say_what_is_missing(work)
            return 0
        plain = stat or name_only
        found = map(_plain, lines) if plain else coloured(lines)
        show = _with_head([] if name_only else heading(work), found)
        page(show, "" if plain else pager_of(root), color=not os.environ.get("NO_COLOR"))
        _say_unchanged(work, paths)
        _say_what_is_missing(work)
        if work.left.changes and not plain:
            click.echo(f"take it over: {command_line('runs', 'apply', work.run.id, project=project)}", err=True)
    return 0


def heading(work: Work) -> list[str]:
    """The commits that the agent made, as lines for a terminal."""
    commits = read_commits(work.workspace, work.made.base, work.made.form)
    lines = [click.style(f"run {work.run.id}", bold=True) + ("" if work.left.changes else ": nothing changed")]
    for commit in commits.found[:NAMED]:
        words = f"{visible(commit.subject)[:200]} ({visible(commit.author)[:60]}, {commit.when})"
        lines.append(f"{click.style('commit ' + commit.id[:10], fg='yellow')} {words}")
    if len(commits.found) > NAMED:
        lines.append(f"and {counted(len(commits.found) - NAMED, 'commit')} before")
    elif not commits.complete:
        lines.append("the agent's commits cannot all be read; what follows does not need them")
    if work.left.changes and commits.complete:  # a tree's id stands for all files in it
        newest = commits.found[0] if commits.found else None
        if newest is None or newest.tree != work.tree:
            lines.append("not all of it is committed there" if newest else "none of it is committed there")
    return [*lines, ""]


def _lines(work: Work, words: Sequence[str]) -> Iterator[bytes]:
    process = work.scratch.start(*words)
    assert process.stdout is not None
    try:
        yield from process.stdout
        if process.wait() != 0:
            raise ImpyardError("git cannot show the difference", hint=as_typed("`impyard doctor` checks git"))
    finally:
        process.kill()
        process.communicate()


def _write(lines: Iterator[bytes]) -> None:
    try:
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except OSError as exc:
        raise OutputError(exc) from exc


def _plain(line: bytes) -> str:
    return shown_line(line.rstrip(b"\n"))


def _with_head(head: Sequence[str], lines: Iterator[str]) -> Iterator[str]:
    yield from head
    yield from lines


def _say_unchanged(work: Work, paths: Sequence[str]) -> None:
    """Which of the paths that were named have no part in the difference, on standard error."""
    for path in paths:
        name = os.fsencode(os.path.normpath(path))
        is_pattern = bool(set(path) & set("*?[:"))  # git's own way to name many
        is_all = name == b"." and bool(work.left.changes)
        if not is_pattern and not is_all and not changed_below(work, name):
            click.echo(f"the run did not change {visible(path)}", err=True)


def _say_what_is_missing(work: Work) -> None:
    """What lies in the clone and is not in the difference, on standard error."""
    for path, why in list(work.left.out.items())[:NAMED]:
        click.echo(f"left out: {visible(os.fsdecode(path))}: {why}", err=True)
    if len(work.left.out) > NAMED:
        click.echo(f"left out: {len(work.left.out) - NAMED} more", err=True)
    if work.left.ignored:
        what = counted(work.left.ignored, "file or folder", "files and folders")
        click.echo(f"left out: {what} that git ignores", err=True)
    if work.busy:
        who = "the run" if work.busy.id == work.run.id else f"run {work.busy.id}"
        state = "is still" if work.busy.lives else "may still be"
        click.echo(f"{who} {state} at work: this is what is there now", err=True)
