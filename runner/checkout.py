"""What a box must not write of a workspace that is a git checkout: whatever git runs by itself.

git runs the programs that a repository's settings and hooks name, at `git status` already (core.fsmonitor). An agent
may commit, but these files must stay yours: they are mounted read-only. A read-only file in a folder that can be
renamed is worth nothing, so each folder on the way to it is mounted on itself, which the kernel does not let anybody
rename (rename(2), EBUSY). What git would obey and is not there yet is made for the run, empty, and removed after it.

Only looks: places.py makes and removes, and the box's mounts shut. A repository that the agent makes itself is not
covered, and git looks into it from the one above when the index names it: see docs/threat-model.md. The summary names
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.runner.gitsettings import first_line, has_worktree_settings, named_paths, text_of_file
from impyard.runner.places import HERE, Missing, is_as_made
from impyard.runner.project import check_mountable
from impyard.runner.text import visible

MAX_REPOSITORIES = 64  # each takes some mounts
MAX_INCLUDED = 32
# git reads settings and hooks from where this file of a repository leads (gitrepository-layout(5)); this is "here".
COMMONDIR = "commondir"
# What git obeys in folders: a submodule's repository is in `modules`, and one planted there would be taken for it; the
# old `remotes` and `branches` say where a name leads that the settings do not know, and a push runs the hooks there.
FOLDERS = ("hooks", "modules", "remotes", "branches")
ALTERNATES = "objects/info/alternates"


@dataclass(slots=True)
class Guard:
    """`shut`: to be mounted read-only; `pinned`: to be mounted on itself, writable; `missing`: of these what is not
    there yet, outermost first; `whole`: repositories that are shut as a whole, so that nobody can commit there;
    `apart`: folders whose `.git` names a repository outside of the workspace, so that nobody can commit either."""

    shut: list[Path] = field(default_factory=list)
    pinned: list[Path] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    whole: list[Path] = field(default_factory=list)
    apart: list[Path] = field(default_factory=list)


def find_guard(
    workspace: Path, settings: Sequence[Path] = (), hold: Callable[[Path, bool], None] = lambda *_: None
) -> Guard:
    """What to guard in `workspace` (resolved). `settings` are the caller's own git settings, which may name hooks that
    lie in the tree of whatever is worked on. `hold` is called with the top folder of each repository before it is
    looked at, and whether it is above the workspace: see `Holds`.

    Raises ImpyardError for a workspace that cannot be guarded.
    """
    shut: dict[Path, Missing | None] = {}
    pinned: set[Path] = set()
    whole: set[Path] = set()
    apart: list[Path] = []
    for folder in workspace.parents:
        if os.path.lexists(place := folder / ".git"):
            hold(folder, True)
            shut.update(
                _settings_name(_settings_files(*_repository_and_common(place, workspace), settings), folder, workspace)
            )
    for number, place in enumerate(_repositories(workspace), 1):
        if number > MAX_REPOSITORIES:
            raise ImpyardError(
                f"the workspace {workspace} holds more than {MAX_REPOSITORIES} git repositories",
                hint="choose a folder with fewer: the settings and hooks of each have to be kept from the agent",
            )
        top = place.parent if place.name == ".git" else place
        hold(top, False)
        repository, common = _repository_and_common(place, workspace)
        if place.is_file():
            shut[place] = None
            if repository.is_dir() and not repository.is_relative_to(workspace):
                apart.append(top)
        for part in {repository, common}:
            if not part.is_dir() or not part.is_relative_to(workspace):
                continue  # out of the box's reach, or nowhere
            if _is_regular(part):
                pinned.add(part)
                shut.update(_parts(part))
            else:
                shut[part] = None
                whole.add(part)
                shut.update(_led_to(part, workspace))
        shut.update(_settings_name(_settings_files(repository, common, settings), top, workspace))
    if workspace in shut:
        raise ImpyardError(
            f"the workspace {workspace} as a whole must be kept from the agent: git takes hooks or settings from it",
            hint="choose another workspace, or see core.hooksPath in git's settings",
        )
    guard = _guard(workspace, shut, pinned)
    guard.whole, guard.apart = sorted(whole), sorted(apart)
    return guard


def _repositories(workspace: Path) -> Iterator[Path]:
    """Each `.git`, whatever it is, and each bare repository. Links are not followed."""
    pending = [str(workspace)]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as found:
                entries = {entry.name: entry for entry in found}
        except OSError:
            continue
        # A worktree may lie in a bare repository, and any folder may look like one: git looks for a .git first.
        if {"HEAD", "objects", "refs"} <= entries.keys():
            yield Path(folder)
        for name, entry in entries.items():
            if name == ".git":
                yield Path(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)


def _real(path: Path, workspace: Path) -> Path:
    """`path`, resolved. Raises ImpyardError when it leads over a link in the workspace, which an agent could turn."""
    plain, real = Path(os.path.normpath(path)), Path(os.path.realpath(path))
    if plain != real and plain.is_relative_to(workspace):
        raise ImpyardError(
            f"git follows a link at {visible(str(plain))}, which an agent could turn elsewhere",
            hint="put what it leads to in its place, or choose another workspace",
        )
    return real


def _repository_and_common(place: Path, workspace: Path) -> tuple[Path, Path]:
    """The repository that is, or is named by, this `.git`; and where its settings and hooks are: that of a worktree has
    them in the one that it belongs to."""
    repository = _real(place.parent / _named_by(place) if place.is_file() else place, workspace)
    return repository, _real(repository / first_line(repository / COMMONDIR), workspace)


def _settings_files(repository: Path, common: Path, more: Sequence[Path]) -> list[Path]:
    return [common / "config", common / "config.worktree", repository / "config.worktree", *more]


def _named_by(file: Path) -> str:
    """The repository that a `.git` file names (gitrepository-layout(5)); the file itself when it names none."""
    text = first_line(file)
    return text.removeprefix("gitdir:").strip() if text.startswith("gitdir:") else file.name


def _led_to(repository: Path, workspace: Path) -> dict[Path, Missing | None]:
    """Where links of a repository that is mounted read-only as a whole lead: it must be as safe as they are."""
    targets = [repository / name for name in ("config", "config.worktree", "worktrees", ALTERNATES, *FOLDERS)]
    found = [_real(repository / os.readlink(path), workspace) for path in targets if path.is_symlink()]
    return {path: None for path in found if path.exists()}


def _is_regular(repository: Path) -> bool:
    """Whether all that git obeys lies in this folder itself, so that guarding the parts of it is enough."""
    names = ("HEAD", "config", "info", "worktrees", "config.worktree", "objects", "objects/info", ALTERNATES, *FOLDERS)
    if any((repository / name).is_symlink() for name in names):
        return False
    commondir = Missing(repository / COMMONDIR, HERE)
    if os.path.lexists(commondir.path) and not is_as_made(commondir):
        return False
    return (
        all((repository / name).is_file() for name in ("HEAD", "config"))
        and all((repository / name).is_dir() for name in ("objects", "refs"))
        and not any((repository / name).is_file() for name in ("worktrees", "objects/info", *FOLDERS))
    )


def _parts(repository: Path) -> dict[Path, Missing | None]:
    """What git obeys of a regular repository: see FOLDERS; `worktrees` has those of other folders of this machine, and
    the repositories that ALTERNATES names are looked into at a fetch, by their own settings."""
    parts: dict[Path, Missing | None] = {repository / "config": None}
    for name in FOLDERS:
        path = repository / name
        parts[path] = None if path.is_dir() else Missing(path)
    parts[repository / ALTERNATES] = (
        None if (repository / ALTERNATES).exists() else Missing(repository / ALTERNATES, b"")
    )
    if (repository / "worktrees").is_dir():
        parts[repository / "worktrees"] = None
    parts[repository / COMMONDIR] = Missing(repository / COMMONDIR, HERE)
    own = repository / "config.worktree"
    if own.exists():
        parts[own] = None
    elif has_worktree_settings(text_of_file(repository / "config")):
        parts[own] = Missing(own, b"")
    return parts


def _settings_name(files: Sequence[Path], top: Path, workspace: Path) -> dict[Path, Missing | None]:
    """What the settings in these files name: folders of hooks, and further files with settings."""
    found: dict[Path, Missing | None] = {}
    pending = list(files)
    for file in pending:
        for is_hooks, value in named_paths(text_of_file(file)):
            path = _real((top if is_hooks else file.parent) / os.path.expanduser(value), workspace)
            if is_hooks and path.name == "_":
                path = path.parent  # husky's hooks there run what lies beside them
            found[path] = None if path.exists() else Missing(path, None if is_hooks else b"")
            if not is_hooks and path not in pending and len(pending) < MAX_INCLUDED:
                pending.append(path)
    return found


def _guard(workspace: Path, shut: dict[Path, Missing | None], pinned: set[Path]) -> Guard:
    """All of it in order. What lies in something shut needs no mount, and must not be made writable by one; each folder
    on the way to the rest is pinned."""
    inside = {path for path in shut if path.is_relative_to(workspace) and path != workspace}
    guard = Guard()
    made: dict[Path, Missing] = {}

    def above(path: Path) -> list[Path]:
        return [folder for folder in path.parents if folder.is_relative_to(workspace) and folder != workspace]

    for path in sorted(inside):
        if inside.intersection(above(path)):
            continue
        guard.shut.append(path)
        pinned = pinned.union(above(path))
        for folder in reversed(above(path)):
            if not folder.exists():
                made[folder] = Missing(folder, is_way=True)
        if missing := shut[path]:
            made[path] = missing
    guard.pinned = sorted(
        path for path in pinned if path != workspace and path not in inside and not inside.intersection(above(path))
    )
    guard.missing = list(made.values())
    for path in (*guard.shut, *guard.pinned):
        check_mountable(path)
    return guard
