"""Makes the clone of a project that `run --clone` gives an agent: the tracked files, and a repository of their own.

The repository is made by hand: no remote, no setting of the caller's, one commit (unless the history is asked for).
Files with secrets, and runs/, are not in it. No filter, no hook and no conversion runs: the files are as git stores
them. What the agent got is kept outside of its reach, in runs/<id>/base, for `runs diff` and `runs apply`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner.clone.git import Entry, Project, Scratch, quoted_folders, write_repository
from impyard.runner.project import RunPaths
from impyard.runner.secretfiles.scan import Found, scan, shown
from impyard.runner.text import visible

NAMED = 4
BASE = "base"  # in a run's folder
MAX_IGNORE_BYTES = 256 * 1024
_RUNS = b"runs"
_AGENT = "[user]\n\tname = agent\n\temail = agent@impyard.invalid\n"


@dataclass(frozen=True, slots=True)
class Clone:
    """What is asked for: `changes` takes along what is not committed, `history` the commits before."""

    changes: bool = False
    history: bool = False


def find_project(root: Path, wanted: Clone) -> Project:
    """The project's repository. Raises ImpyardError when there is nothing in it that could be cloned."""
    project = Project(root)
    if project.head is None and not wanted.changes:
        raise ImpyardError(
            f"there is no commit in {project.top} yet, so a clone of it would be empty",
            hint="commit something, or add --with-changes",
        )
    if wanted.history and project.head is None:
        raise ImpyardError("there is no commit yet, and so no history", hint="leave --with-history away")
    if wanted.history and project.prefix:
        raise ImpyardError(
            f"the history is that of all of {project.top}, and the project is a part of it",
            hint=f"leave --with-history away, or run with --project {project.top}",
        )
    return project


def make_clone(
    project: Project, wanted: Clone, paths: RunPaths, allowed: Iterable[Path], note: Callable[[str], None]
) -> dict[str, Any]:
    """Make the clone in the run's workspace, which must not be there yet; what the receipt says of it.

    `allowed` are the files that are shown to the agent on purpose. Raises ImpyardError, and OSError."""
    with Scratch(project.form, [project.objects]) as scratch:
        if os.path.exists(project.common / "shallow"):
            shutil.copyfile(project.common / "shallow", scratch.folder / "shallow")
        start = _start_tree(project, wanted, scratch, note)
        repository = _new_repository(paths.workspace, project, paths)
        index = repository / "index"
        scratch.git("read-tree", start, index=index, doing="read the project's tree")
        _without_runs(scratch, index)
        scratch.git(
            *("checkout-index", "--all", "--index", "--quiet", "--force"),
            index=index,
            work=paths.workspace,
            doing="write the clone's files",
        )
        left_out = _leave_out(scratch, index, paths.workspace, _meant(allowed, project.root, paths.workspace))
        tree = scratch.git("write-tree", index=index).decode().strip()
        commit = _commit(project, wanted, scratch, tree)
        _store(scratch, commit, wanted, paths, repository)
        _set_branch(repository, project.branch, commit)
        if wanted.history and (scratch.folder / "shallow").exists():
            shutil.copyfile(scratch.folder / "shallow", repository / "shallow")
    if left_out:
        names = ", ".join(shown(item.path, paths.workspace) for item in left_out[:NAMED])
        more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
        note(f"not as they are in the clone, as they hold secrets: {names}{more}; `--allow-file PATH` puts one in")
    return {
        "run": paths.id,
        "commit": project.head,
        "branch": project.branch,
        "prefix": project.prefix,
        "base": commit,
        "tree": tree,
        "form": project.form,
        "changes": wanted.changes,
        "history": wanted.history,
        "left_out": [str(item.path.relative_to(paths.workspace)) for item in left_out][:1000],
    }


def uncommitted(project: Project) -> int:
    """How many files are not as they were committed, or are new; a new folder counts once."""
    out = project.git(
        *("status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=all", "--no-renames"),
        *("--", ".", ":(exclude)runs"),
        doing="look for changes",
    )
    return out.count(b"\0")


def _start_tree(project: Project, wanted: Clone, scratch: Scratch, note: Callable[[str], None]) -> str:
    """The tree to begin with: what was committed, or what lies in the project, in the form that git would store."""
    if not wanted.changes:
        name = f"{project.head}:{project.prefix}" if project.prefix else f"{project.head}^{{tree}}"
        return project.git("rev-parse", "--verify", name, doing="find what was committed here").decode().strip()
    index = scratch.new_index()
    own = Path(os.fsdecode(project.git("rev-parse", "--git-path", "index", doing="find its index").rstrip(b"\n")))
    if (project.root / own).exists():
        shutil.copyfile(project.root / own, index)
    env = {
        "GIT_INDEX_FILE": str(index),
        "GIT_OBJECT_DIRECTORY": str(scratch.objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted_folders([project.objects]),
    }
    # An `:(exclude)runs` would be an error where runs/ is ignored already.
    ignored = scratch.folder / "ignored"
    runs = re.sub(r"([\\*?\[\]!# ])", r"\\\1", f"{project.prefix}runs/")
    ignored.write_bytes(b"".join(line + b"\n" for line in _lines_of(_own_ignored(project))) + os.fsencode(f"/{runs}\n"))
    setting = f"core.excludesFile={ignored}"
    doing = "take along what is not committed"
    words = ("-c", setting, "add", "--all", "--ignore-errors", "--", ".")
    if project.ask(*words, env=env, doing=doing, fine=(0, 1))[0]:
        left = ("-c", setting, "ls-files", "-z", "--others", "--modified", "--exclude-standard")
        names = sorted(set(project.git(*left, env=env, doing=doing).split(b"\0")) - {b""})
        if not names:
            project.git(*words, env=env, doing=doing)  # it says why
        said = ", ".join(visible(os.fsdecode(name)) for name in names[:NAMED])
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        note(f"not in the clone as they are, as git cannot read them, or takes them for a repository: {said}{more}")
    prefix = [f"--prefix={project.prefix}"] if project.prefix else []
    return project.git("write-tree", *prefix, env=env, doing="take along what is not committed").decode().strip()


def _new_repository(workspace: Path, project: Project, paths: RunPaths) -> Path:
    """The workspace with a repository in it that has no objects yet."""
    workspace.mkdir(mode=0o700)
    repository = workspace / ".git"
    for part in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks"):
        (repository / part).mkdir(parents=True)
    write_repository(repository, project.form, branch=project.branch or "main", settings=_AGENT)
    ignored = _ignored(project)
    (repository / "info" / "exclude").write_bytes(ignored)
    (paths.folder / BASE / "pack").mkdir(parents=True, mode=0o700)
    (paths.folder / BASE / "exclude").write_bytes(ignored)
    return repository


def _ignored(project: Project) -> bytes:
    """What the caller has git leave alone beside the project's own .gitignore: the same counts for the clone."""
    files = [_own_ignored(project), project.common / "info" / "exclude"]
    lines = [line for file in files for line in _lines_of(file)]
    for depth in range(len(Path(project.prefix).parts)):
        # Of the folders above a project that is a part of a repository: those that hold at any depth.
        above = project.top.joinpath(*Path(project.prefix).parts[:depth])
        lines += [line for line in _lines_of(above / ".gitignore") if b"/" not in line.rstrip(b" /")]
    return b"".join(line + b"\n" for line in lines)


def _own_ignored(project: Project) -> Path:
    """The caller's file with what git leaves alone everywhere (gitignore(5))."""
    if own := project.setting("core.excludesFile", "path"):
        return Path(own)
    home = os.environ.get("XDG_CONFIG_HOME") or f"{os.environ.get('HOME', '/nonexistent')}/.config"
    return Path(home) / "git" / "ignore"


def _lines_of(file: Path) -> list[bytes]:
    try:
        with open(file, "rb") as opened:
            return opened.read(MAX_IGNORE_BYTES).splitlines()
    except OSError:
        return []


def _without_runs(scratch: Scratch, index: Path) -> None:
    """The clone has no runs/: what lies there is other runs', and the judge's log."""
    found = scratch.git("ls-files", "-z", "--", _RUNS, index=index).split(b"\0")[:-1]
    scratch.change_index(index, dict.fromkeys(found))


def _meant(allowed: Iterable[Path], root: Path, workspace: Path) -> set[Path]:
    places = {Path(os.path.normpath(root / path)) for path in allowed}
    places |= {Path(os.path.realpath(place)) for place in places}
    return {workspace / place.relative_to(root) for place in places if place.is_relative_to(root)}


def _leave_out(scratch: Scratch, index: Path, workspace: Path, meant: set[Path]) -> list[Found]:
    """Take the files with secrets out of the clone, or the secrets out of the files."""
    left_out, changes = [], dict[bytes, Entry | None]()
    for item in scan([workspace]):
        inner = os.fsencode(item.path.relative_to(workspace))
        if inner.startswith(b".git/") or not meant.isdisjoint((item.path, *item.path.parents)):
            continue
        left_out.append(item)
        if item.clean is None:
            names = scratch.git("ls-files", "-z", "--", inner, index=index).split(b"\0")[:-1]
            for name in names:  # one, or those of a folder
                (workspace / os.fsdecode(name)).unlink(missing_ok=True)
            changes.update(dict.fromkeys(names))
        else:
            is_program = item.path.stat().st_mode & 0o100
            item.path.write_bytes(item.clean)
            changes[inner] = Entry("100755" if is_program else "100644", scratch.put(item.clean))
    scratch.change_index(index, changes)
    return left_out


def _commit(project: Project, wanted: Clone, scratch: Scratch, tree: str) -> str:
    """The commit that the agent begins with."""
    head = project.head
    if wanted.history and head is not None and scratch.git("rev-parse", f"{head}^{{tree}}").decode().strip() == tree:
        return head
    when = b"@0 +0000"
    if head is not None:
        when = scratch.git("show", "--no-patch", "--format=@%ct +0000", head).strip()
    state = "with what was not committed" if wanted.changes else "as committed"
    return (
        scratch.git(
            *("commit-tree", tree, *(["-p", head] if wanted.history and head else [])),
            stdin=f"The project {state}\n\nFrom {head or 'a repository without a commit'}\n".encode(),
            more={f"GIT_{who}_DATE": when.decode() for who in ("AUTHOR", "COMMITTER")},
        )
        .decode()
        .strip()
    )


def _store(scratch: Scratch, commit: str, wanted: Clone, paths: RunPaths, repository: Path) -> None:
    """Put the objects into both repositories. They are copies: whoever has a hard link has the file itself."""
    kept = paths.folder / BASE / "pack"
    objects = scratch.git("rev-list", "--objects", "--no-walk", commit)
    names = b"".join(line.partition(b" ")[0] + b"\n" for line in objects.splitlines())
    pack = ("pack-objects", "--quiet", "--threads=2", "--window=0")
    scratch.git(*pack, kept / "pack", stdin=names, doing="copy the project's objects")
    if wanted.history:
        scratch.git(
            *pack, "--revs", repository / "objects/pack/pack", stdin=f"{commit}\n".encode(), doing="copy the history"
        )
        return
    for file in kept.iterdir():
        shutil.copyfile(file, repository / "objects" / "pack" / file.name)


def _set_branch(repository: Path, branch: str | None, commit: str) -> None:
    file = repository / "refs" / "heads" / (branch or "main")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{commit}\n")


def covered_folders(root: Path) -> Sequence[Found]:
    """The folders of the project's own repository that the box could see: its history stays out of the box."""
    if not any(os.path.lexists(folder / ".git") for folder in (root, *root.parents)):
        return []  # any more: the run goes on with one of before
    found = Project(root).git_folders
    inside = sorted(folder for folder in found if folder.is_relative_to(root) and folder.is_dir() and folder != root)
    return [
        Found(folder, "git's history", True)
        for folder in inside
        if not any(folder != other and folder.is_relative_to(other) for other in inside)
    ]


def words_about_changes(count: int) -> str:
    """What to say of changes that are not in the clone; "" where there are none."""
    if not count:
        return ""
    if count == 1:
        return "1 uncommitted change is not in the clone; --with-changes takes it along"
    return f"{count} uncommitted changes are not in the clone; --with-changes takes them along"
