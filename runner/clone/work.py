"""What came of a run with a clone, opened to be shown or taken over: what the agent got, and what it left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner import runs as runs_
from impyard.runner.clone.git import Scratch, Tree
from impyard.runner.clone.make import BASE
from impyard.runner.clone.tree import Left, read_left
from impyard.runner.project import RUN_ID, RunPaths

MAX_EXCLUDE_BYTES = 1024**2
_IDS = {"sha1": re.compile(r"[0-9a-f]{40}"), "sha256": re.compile(r"[0-9a-f]{64}")}


@dataclass(frozen=True, slots=True)
class Made:
    """What a receipt says of a clone: see `Receipt.clone`."""

    run: str
    base: str
    tree: str
    form: str
    commit: str | None
    prefix: str
    changes: bool


@dataclass(frozen=True, slots=True)
class Work:
    """`base` is the tree that the agent began with, `tree` the id of what is there now. `workspace` is the clone, to be
    read with care. `busy` is the run that is, or may be, still at work in it. Valid while `opened` is."""

    run: runs_.Run
    made: Made
    workspace: Path
    scratch: Scratch
    base: Tree
    left: Left
    tree: str
    busy: runs_.Run | None = None


@contextmanager
def opened(root: Path, text: str) -> Iterator[Work]:
    """The run that `text` means. Raises ImpyardError when it had no clone, or that is gone."""
    [run] = runs_.look(root, [runs_.resolve(root, text)])
    if not run.receipt:
        raise ImpyardError(run.fault or f"run {run.id} has no receipt", hint="`impyard runs list` shows the runs")
    made = read_made(run.receipt)
    if made is None:
        raise ImpyardError(
            f"run {run.id} had no clone of the project to work on",
            hint='`impyard run --clone "…"` gives the agent one; `impyard runs show` names the workspace of this one',
        )
    paths = RunPaths(root, made.run)  # never where the receipt says: it may have come with the project
    kept = paths.folder / BASE
    for folder in (paths.folder, kept, paths.workspace):
        if folder.is_symlink() or not folder.is_dir():
            raise ImpyardError(f"{folder} is gone, and with it what the agent did", hint="`impyard runs list`")
    busy = _at_work(root, run, made)
    with Scratch(made.form, [kept]) as scratch:
        base = scratch.tree(made.tree)
        left = read_left(paths.workspace, base, _exclude(kept), scratch)
        tree = scratch.write_tree(made.tree, left.changes)
        yield Work(run, made, paths.workspace, scratch, base, left, tree, busy)


def changed_below(work: Work, name: bytes) -> bool:
    """Whether the agent changed a file of this name, or one in a folder of it."""
    return any(path == name or path.startswith(name + b"/") for path in work.left.changes)


def _at_work(root: Path, run: runs_.Run, made: Made) -> runs_.Run | None:
    """The run, or another that has gone on in its workspace, if one may still be at work there."""
    for other in (run, *runs_.look(root, runs_.ids(root))):
        is_here = other.id in (run.id, made.run) or made.run in runs_.needed_by([other])
        if is_here and (other.lives or other.doubt):
            return other
    return None


def read_made(receipt: Mapping[str, Any]) -> Made | None:
    """The clone that a receipt names, each value of the kind that it must be; None where there is none."""
    found = receipt.get("clone")
    if not isinstance(found, dict) or not found:
        return None
    form, prefix, commit = found.get("form"), found.get("prefix"), found.get("commit")
    run, base, tree = (str(found.get(name)) for name in ("run", "base", "tree"))
    ids = [base, tree, *([str(commit)] if commit is not None else [])]
    shape = _IDS.get(str(form))
    if shape is None or not all(shape.fullmatch(item) for item in ids) or not RUN_ID.fullmatch(run):
        return None
    if not isinstance(prefix, str) or prefix.startswith("/") or ".." in prefix.split("/"):
        return None
    return Made(run, base, tree, str(form), commit, prefix, found.get("changes") is True)


def _exclude(kept: Path) -> bytes:
    try:
        with open(kept / "exclude", "rb") as file:
            return file.read(MAX_EXCLUDE_BYTES)
    except OSError:
        return b""
