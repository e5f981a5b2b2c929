"""`impyard runs apply`: takes over what an agent changed in its clone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.clone import places as cloneplaces
from impyard.runner.clone.batch import Batch
from impyard.runner.clone.branch import check_branch, make_branch
from impyard.runner.clone.git import Project
from impyard.runner.clone.held import held_back
from impyard.runner.clone.merge import IN_THE_WAY, NOT_COMMITTED, OTHER, Plan, Step, make_plan
from impyard.runner.clone.paths import LINK
from impyard.runner.clone.work import Work, changed_below, opened
from impyard.runner.options import named_project, project_option
from impyard.runner.project import find_root
from impyard.runner.receipt import write_json
from impyard.runner.text import columns_of, counted, visible, wrapped
from impyard.runner.times import now
from impyard.runner.typed import command_line

SHOWN = 200
LETTERS = {"add": ("A", "green"), "change": ("M", "yellow"), "delete": ("D", "red"), "merge": ("M", "cyan")}


@click.command("apply")
@click.argument("run", default="last")
@project_option
@click.option("--take", multiple=True, metavar="PATH", help="Also this change that is held back. May be given again.")
@click.option("--branch", metavar="NAME", help="Make a commit on a new branch instead of changing your files.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def apply(run: str, project: Path | None, take: Sequence[str], branch: str | None, yes: bool) -> int:
    """Take over what the agent changed in the clone of RUN, else of the newest: into your files, all of it or nothing.

    What you have committed since is kept: both changes are brought together. Files with changes that you have not
    committed are not touched. Some changes are held back until you name them: what git obeys, the policy, names of
    files with secrets, links that lead out. Your index, hooks and filters are left alone.

    \b
    impyard runs apply last
    impyard runs apply 20261130-101500 --branch agent/tests --yes
    """
    project = named_project(project)
    root = find_root(project)
    with opened(root, run) as work:
        if work.busy:
            state = "is still at work" if work.busy.lives else f"may still be at work: {work.busy.doubt}"
            raise ImpyardError(
                f"run {work.busy.id} {state}", hint=f"wait for its end, or `impyard runs stop {work.busy.id}`"
            )
        names = _names(take, work)
        repository = Project(root)
        if repository.prefix != work.made.prefix or repository.form != work.made.form:
            raise ImpyardError("the repository is another than the clone was made from", hint="`impyard runs diff`")
        if branch is not None:
            return _to_branch(work, repository, names, branch, yes=yes)
        try:
            cloneplaces.Drafts(root, work.run.id).clear(work.left.changes)
        except OSError as exc:
            why = (exc.strerror or str(exc)).lower()
            raise ImpyardError(f"cannot remove what an `apply` before has left: {why}", hint="mend that") from exc
        plan = make_plan(work, repository, names)
        again = command_line("runs", "apply", work.run.id, project=project)
        return _to_files(work, repository, plan, again, yes=yes)


def _to_files(work: Work, repository: Project, plan: Plan, again: str, *, yes: bool) -> int:
    if plan.refused:
        for path, why in sorted(plan.refused.items())[:SHOWN]:
            click.echo(f"{_shown(path)}: {why}", err=True)
        count = len(plan.refused)
        branch = f"`{again} --branch NAME` makes a commit of the agent's that git can merge"
        can_go = {NOT_COMMITTED, IN_THE_WAY, OTHER}.issuperset(plan.refused.values())
        raise ImpyardError(
            f"{count} of the agent's changes cannot be brought together with your files; nothing was changed",
            hint=f"put yours away (commit or stash) and try again; or {branch}" if can_go else branch,
        )
    for step in plan.steps[:SHOWN]:
        click.echo(_line(step))
    if len(plan.steps) > SHOWN:
        click.echo(f"  and {len(plan.steps) - SHOWN} more: {again.replace(' apply ', ' diff ')} --stat")
    _say_held(work, plan.held)
    if not plan.steps:
        if plan.same:
            _record(work)
        click.echo("you have all of it already" if plan.same else "there is nothing to take over")
        return 0
    if not _agreed(f"apply this to {visible(str(repository.root))}?", yes=yes):
        return 1
    drafts = cloneplaces.Drafts(repository.root, work.run.id)
    try:
        _prepare(work, repository, plan, drafts)
        _carry_out(repository.root, plan.steps, drafts)
    finally:
        drafts.discard()
    _record(work)
    made = counted(len(plan.steps), "change is", "changes are")
    click.echo(f"{made} made; `git status` and `git diff` show them")
    return 0


def _to_branch(work: Work, repository: Project, take: Collection[bytes], branch: str, *, yes: bool) -> int:
    held = held_back(work, repository, take)
    paths = [path for path in sorted(work.left.changes) if path not in held]
    check_branch(repository, work, branch, paths)
    for path in paths[:SHOWN]:
        entry = work.left.changes[path]
        kind = "delete" if entry is None else "change" if path in work.base else "add"
        letter, colour = LETTERS[kind]
        click.echo(f"  {click.style(letter, fg=colour)} {_shown(path)}")
    if len(paths) > SHOWN:
        click.echo(f"  and {len(paths) - SHOWN} more")
    _say_held(work, held)
    if not paths:
        click.echo("there is nothing to take over")
        return 0
    if not _agreed(f"make the branch {branch} in {visible(str(repository.top))}?", yes=yes):
        return 1
    made = make_branch(repository, work, branch, paths, visible(str(work.run.receipt.get("prompt") or "")))
    _record(work)
    click.echo(f"branch {branch} is at {made[:12]}; `git merge {branch}` takes it over, `git log -p {branch}` shows it")
    return 0


def _record(work: Work) -> None:
    """Say in the receipt that this was done, for who removes the run later. Nothing else rests on it."""
    run = work.run
    with suppress(OSError):
        write_json(run.paths.receipt, {**run.receipt, "clone": {**run.receipt["clone"], "applied": now()}})


def _names(take: Sequence[str], work: Work) -> list[bytes]:
    names = [os.fsencode(os.path.normpath(path)) for path in take]
    for name in names:
        if not changed_below(work, name):
            raise ImpyardError(
                f"--take {_shown(name)}: the agent changed nothing there",
                hint=f"name a path as `impyard runs diff {work.run.id} --name-only` shows it",
            )
    return names


def _say_held(work: Work, held: dict[bytes, tuple[str, bool]]) -> None:
    columns = columns_of(sys.stderr)
    lines = []
    for path, (why, by_name) in sorted(held.items())[:SHOWN]:
        how = f"--take {_shown(path)} takes it" if by_name else "--branch NAME takes it"
        lines.append(f"held back: {_shown(path)}: {why}; {how}")
    lines += [f"left out: {_shown(path)}: {why}" for path, why in list(work.left.out.items())[:SHOWN]]
    for line in lines:
        click.echo(click.style(wrapped(line, columns, "  "), fg="yellow"), err=True)


def _line(step: Step) -> str:
    letter, colour = LETTERS[step.kind]
    remarks = [step.remark] if step.remark else []
    if step.kind == "merge":
        remarks.insert(0, "merged with yours")
    note = f"  ({'; '.join(remarks)})" if remarks else ""
    return f"  {click.style(letter, fg=colour)} {_shown(step.path)}{note}"


def _agreed(question: str, *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ImpyardError("there is nobody to ask whether to do this", hint="give --yes")
    if click.confirm(question):
        return True
    click.echo("nothing was changed")
    return False


def _content(work: Work, repository: Project, step: Step, checked_out: Batch) -> bytes:
    """What to write: as git would check it out by your settings, but for filters, which such a file has none of."""
    if step.entry is None:
        return b""
    if not step.converts or step.entry.mode == LINK:
        return work.scratch.content(step.entry.id)
    return checked_out.content(step.entry.id, os.fsencode(repository.prefix) + step.path)


def _prepare(work: Work, repository: Project, plan: Plan, drafts: cloneplaces.Drafts) -> None:
    """Write all drafts, and look whether each change can be made: all of it, or nothing."""
    root = repository.root
    others = [work.scratch.objects, *work.scratch.others]
    gone = {step.path for step in plan.steps if step.entry is None}
    step = plan.steps[0]
    try:
        with Batch(partial(repository.start, others=others), filters=True) as checked_out:
            for step in plan.steps:
                if step.entry is not None:
                    mode = step.entry.mode
                    data = _content(work, repository, step, checked_out)
                    drafts.put(step.path, data, is_program=mode == "100755", is_link=mode == LINK)
                elif not cloneplaces.may_remove(root, step.path):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        for step in plan.steps:
            is_full = step.seen.kind == "folder" and not cloneplaces.is_emptied(root, step.path, gone.__contains__)
            if is_full or cloneplaces.changed(step.seen, root, step.path):
                raise ImpyardError(f"{_shown(step.path)} has changed meanwhile; nothing was changed", hint="begin anew")
    except OSError as exc:
        why = (exc.strerror or str(exc)).lower()
        raise ImpyardError(f"cannot write {_shown(step.path)}: {why}; nothing was changed", hint="mend that") from exc


def _carry_out(root: Path, steps: Sequence[Step], drafts: cloneplaces.Drafts) -> None:
    done = 0
    step = steps[0]
    try:
        for step in sorted(steps, key=lambda one: one.entry is not None):
            if step.entry is None:
                cloneplaces.remove(root, step.path, step.place.stamp)
            else:
                drafts.move(step.path, step.place.stamp)
            done += 1
    except (OSError, ImpyardError) as exc:
        why = exc.message if isinstance(exc, ImpyardError) else (exc.strerror or str(exc)).lower()
        raise ImpyardError(
            f"stopped at {_shown(step.path)}: {why}; {done} of {len(steps)} changes are made",
            hint="mend that and apply again: what is made already is left alone",
        ) from exc


def _shown(path: bytes) -> str:
    return visible(os.fsdecode(path))
