"""A git repository for tests, made and asked with git as its owner uses it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from impyard.runner.clone.make import Clone, find_project, make_clone
from impyard.runner.project import RunPaths
from impyard.runner.receipt import write_json

WHO = {f"GIT_{who}_{what}": "a@b.test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
ALONE = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


def git(folder: Path, *words: str, fine: tuple[int, ...] = (0,), data: bytes | None = None) -> str:
    """git's answer, with no settings but the repository's."""
    env = {**os.environ, **ALONE, **WHO}
    done = subprocess.run(["git", *words], cwd=folder, env=env, input=data, capture_output=True, check=False)
    assert done.returncode in fine, done
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def new_repository(folder: Path, files: dict[str, str], *, form: str = "sha1") -> Path:
    """A repository with these files in one commit, on the branch `main`."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=main", "--template=", f"--object-format={form}")
    commit(folder, files, "first")
    return folder


def commit(folder: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all", "--force", "--", ".", ":(exclude)runs")
    git(folder, "commit", "--quiet", "--allow-empty", f"--message={message}")


def clone_of(
    root: Path, wanted: Clone | None = None, *, allowed: tuple[str, ...] = (), number: int = 1
) -> tuple[RunPaths, list[str]]:
    """A run of this project with a clone, as it is when its box has ended; and what was noted."""
    paths = RunPaths(root, f"20260101-000000-{number:04x}")
    paths.folder.mkdir(parents=True, mode=0o700)
    wanted = wanted or Clone()
    notes: list[str] = []
    made = make_clone(find_project(root, wanted), wanted, paths, [Path(path) for path in allowed], notes.append)
    receipt = {"run": paths.id, "project": str(root), "workspace": str(paths.workspace), "exit_reason": "finished"}
    write_json(paths.receipt, {**receipt, "clone": made})
    return paths, notes
