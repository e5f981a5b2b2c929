"""Puts an agent's changes into the caller's repository as a commit on a new branch, on top of what it was given.

Only objects and the one new name are written: no file of the checkout, no hook, no filter.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from impyard.addon.errors import ImpyardError
from impyard.runner.clone.commits import read_commits
from impyard.runner.clone.git import Entry, Project
from impyard.runner.clone.work import Work
from impyard.runner.text import visible

HINT = "`impyard runs apply` without --branch brings them together with your checkout"


def check_branch(project: Project, work: Work, name: str, paths: Collection[bytes]) -> None:
    """Raises ImpyardError when there can be no such branch with the changes of `paths`."""
    if project.ask("check-ref-format", "--branch", name, doing="check the name", fine=(0, 1, 128))[0]:
        raise ImpyardError(f"{visible(name)} cannot be the name of a branch", hint="choose another")
    if project.ask("rev-parse", "--verify", "--quiet", f"refs/heads/{name}", doing="look", fine=(0, 1))[0] == 0:
        raise ImpyardError(f"there is a branch {name} already", hint="choose another name, or remove it")
    commit = work.made.commit
    if commit is None or project.ask("cat-file", "-e", f"{commit}^{{commit}}", doing="look", fine=(0, 1, 128))[0]:
        raise ImpyardError("the commit that the clone was made from is not in this repository", hint=HINT)
    given = project.tree(commit)
    other = sorted(path for path in paths if not _same(work.base.get(path), given.get(path)))
    if other:
        raise ImpyardError(
            f"the agent changed what is not in commit {commit[:12]} as it was given: "
            + ", ".join(visible(os.fsdecode(path)) for path in other[:4]),
            hint=HINT,
        )


def make_branch(project: Project, work: Work, name: str, paths: Collection[bytes], prompt: str) -> str:
    """Make the branch; its commit. Call `check_branch` before."""
    commit = str(work.made.commit)
    scratch = work.scratch
    prefix = os.fsencode(project.prefix)
    env = {"GIT_INDEX_FILE": str(scratch.new_index())}

    def git(*words: str, stdin: bytes = b"") -> str:
        return project.git(*words, stdin=stdin, env=env, doing="make the branch", at_top=True).decode().strip()

    # Blobs that only the scratch repository has: into the caller's, so that they stay.
    names = sorted({entry.id for path in paths if (entry := work.left.changes[path]) is not None})
    pack = scratch.git("pack-objects", "--quiet", "--stdout", stdin="".join(f"{one}\n" for one in names).encode())
    if names:
        project.git("unpack-objects", "-q", stdin=pack, doing="store the agent's files")
    git("read-tree", commit)
    gone_first = sorted(paths, key=lambda path: (work.left.changes[path] is not None, path))
    lines = [_line(prefix + path, work.left.changes[path], scratch.hidden) for path in gone_first]
    git("update-index", "-z", "--replace", "--index-info", stdin=b"".join(lines))
    made = git("commit-tree", git("write-tree"), "-p", commit, stdin=_message(work, prompt).encode("utf-8", "replace"))
    git("update-ref", "-m", f"impyard: changes of run {work.run.id}", f"refs/heads/{name}", made, scratch.hidden)
    return made


def _message(work: Work, prompt: str) -> str:
    commits = read_commits(work.workspace, work.made.base, work.made.form).found
    subject = visible(commits[0].subject) if len(commits) == 1 else f"What an agent changed in run {work.run.id}"
    lines = [f"- {visible(commit.subject)[:200]}" for commit in reversed(commits)] if len(commits) > 1 else []
    return "\n".join([subject[:200], "", *lines, *([""] if lines else []), f"Prompt: {prompt}", f"Run: {work.run.id}"])


def _line(path: bytes, entry: Entry | None, hidden: str) -> bytes:
    what = f"0 {hidden}" if entry is None else f"{entry.mode} {entry.id}"
    return what.encode("ascii") + b"\t" + path + b"\0"


def _same(one: Entry | None, other: Entry | None) -> bool:
    return one is other or (one is not None and one.same(other))
