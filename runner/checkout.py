"""What a box must not write of a workspace that is a git checkout: whatever git runs by itself.

git runs the programs that a repository's settings and hooks name, at `git status` already (core.fsmonitor). An agent
may commit, but these files must stay yours: they are mounted read-only. A read-only file in a folder that can be
renamed is worth nothing, so each folder on the way to it is mounted on itself, which the kernel does not let anybody
rename (rename(2), EBUSY). What git would obey and is not there yet is made for the run, empty, and removed after it.

Looks, and makes and removes those places; mounts nothing. A repository that the agent makes itself is not covered, and
git looks into it from the one above when the index names it: see docs/threat-model.md. The summary names it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner.project import check_mountable
from impyard.runner.text import visible

MAX_REPOSITORIES = 64  # each takes some mounts
MAX_SETTINGS_BYTES = 1024 * 1024
MAX_INCLUDED = 32
# git reads settings and hooks from where this file of a repository leads (gitrepository-layout(5)); this is "here".
COMMONDIR = "commondir"
HERE = b".\n"
# Settings with the path of a file that git then obeys. `path` is that of an include; of other sections it does no harm.
_PATH_SETTING = re.compile(
    r"^[ \t]*(?:\[[^\]\n]*\][ \t]*)?(hookspath|path)[ \t]*=[ \t]*(.*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE
)
_WORKTREE_CONFIG = re.compile(r"^[ \t]*(?:\[[^\]\n]*\][ \t]*)?worktreeconfig\b", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Missing:
    """A place that is made for the run: a file with this content, or a folder for None."""

    path: Path
    content: bytes | None = None

    def record(self) -> dict[str, str | None]:
        """For a receipt: what is left should the runner be killed. `from_record` reads it."""
        return {"path": str(self.path), "content": None if self.content is None else self.content.decode()}


def from_record(record: Mapping[str, Any]) -> Missing:
    """A place as it was recorded. Raises ValueError for what is no such record."""
    path, content = record.get("path"), record.get("content")
    if not isinstance(path, str) or not isinstance(content, str | None):
        raise ValueError("no place that was made for a run")
    return Missing(Path(path), None if content is None else content.encode())


@dataclass(slots=True)
class Guard:
    """`shut`: to be mounted read-only; `pinned`: to be mounted on itself, writable; `missing`: of these what is not
    there yet, outermost first; `whole`: repositories that are shut as a whole, so that nobody can commit there."""

    shut: list[Path] = field(default_factory=list)
    pinned: list[Path] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    whole: list[Path] = field(default_factory=list)


def find_guard(workspace: Path, settings: Sequence[Path] = ()) -> Guard:
    """What to guard in `workspace` (resolved). `settings` are the caller's own git settings, which may name hooks that
    lie in the tree of whatever is worked on.

    Raises ImpyardError for a workspace that cannot be guarded.
    """
    shut: dict[Path, Missing | None] = {}
    pinned: set[Path] = set()
    whole: set[Path] = set()
    for number, place in enumerate(_repositories(workspace), 1):
        if number > MAX_REPOSITORIES:
            raise ImpyardError(
                f"the workspace {workspace} holds more than {MAX_REPOSITORIES} git repositories",
                hint="choose a folder with fewer: the settings and hooks of each have to be kept from the agent",
            )
        top = place.parent if place.name == ".git" else place
        repository = _real(place, workspace)
        if place.is_file():
            shut[place] = None
            repository = _real(place.parent / _named_by(place), workspace)
        # That of a worktree has its settings and hooks in the one that it belongs to.
        common = _real(repository / _first_line(repository / COMMONDIR), workspace)
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
        files = [common / "config", common / "config.worktree", repository / "config.worktree", *settings]
        shut.update(_settings_name(files, top, workspace))
    guard = _guard(workspace, shut, pinned)
    guard.whole = sorted(whole)
    return guard


def make(missing: Sequence[Missing]) -> list[Missing]:
    """Make what is missing; returns it in the order in which to `unmake` it. Raises OSError."""
    made: list[Missing] = []
    try:
        for place in missing:
            if place.content is None:
                place.path.mkdir(mode=0o755)
            else:
                with open(
                    os.open(place.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb"
                ) as new:
                    new.write(place.content)
            made.insert(0, place)
    except OSError:
        unmake(made)
        raise
    return made


def unmake(made: Sequence[Missing]) -> list[Path]:
    """Remove what `make` made, as far as it is as it was made; returns what is not."""
    changed = []
    for place in made:
        try:
            if place.content is None:
                place.path.rmdir()
            elif not stat.S_ISREG(os.lstat(place.path).st_mode) or place.path.read_bytes() != place.content:
                changed.append(place.path)
            else:
                place.path.unlink()
        except FileNotFoundError:
            continue
        except OSError:
            changed.append(place.path)
    return changed


def own_settings(homes: Iterable[str], config_home: str) -> list[Path]:
    """Where git reads the machine's settings from, and those of a caller with these `homes` (git-config(1), FILES)."""
    files = [Path("/etc/gitconfig")]
    for home in filter(None, homes):
        files += [Path(home) / ".gitconfig", Path(home) / ".config" / "git" / "config"]
    return [*files, Path(config_home) / "git" / "config"] if config_home else files


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
        if {"HEAD", "objects", "refs"} <= entries.keys():
            yield Path(folder)
            continue
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


def _named_by(file: Path) -> str:
    """The repository that a `.git` file names (gitrepository-layout(5)); the file itself when it names none."""
    text = _first_line(file)
    return text.removeprefix("gitdir:").strip() if text.startswith("gitdir:") else file.name


def _led_to(repository: Path, workspace: Path) -> dict[Path, Missing | None]:
    """Where links of a repository that is mounted read-only as a whole lead: it must be as safe as they are."""
    targets = [repository / name for name in ("hooks", "config", "config.worktree", "modules", "worktrees")]
    found = [_real(repository / os.readlink(path), workspace) for path in targets if path.is_symlink()]
    return {path: None for path in found if path.exists()}


def _is_regular(repository: Path) -> bool:
    """Whether all that git obeys lies in this folder itself, so that guarding the parts of it is enough."""
    names = ("HEAD", "config", "hooks", "info", "modules", "worktrees", "config.worktree")
    if any((repository / name).is_symlink() for name in names) or os.path.lexists(repository / COMMONDIR):
        return False
    return (
        all((repository / name).is_file() for name in ("HEAD", "config"))
        and all((repository / name).is_dir() for name in ("objects", "refs"))
        and not any((repository / name).is_file() for name in ("hooks", "modules", "worktrees"))
    )


def _parts(repository: Path) -> dict[Path, Missing | None]:
    """What git obeys of a regular repository. A submodule's repository is in `modules`, and one planted there would be
    taken for it; `worktrees` has those of other folders of this machine."""
    parts: dict[Path, Missing | None] = {repository / "config": None}
    for name in ("hooks", "modules"):
        path = repository / name
        parts[path] = None if path.is_dir() else Missing(path)
    if (repository / "worktrees").is_dir():
        parts[repository / "worktrees"] = None
    parts[repository / COMMONDIR] = Missing(repository / COMMONDIR, HERE)
    own = repository / "config.worktree"
    if own.exists():
        parts[own] = None
    elif _WORKTREE_CONFIG.search(_text(repository / "config")):
        parts[own] = Missing(own, b"")
    return parts


def _settings_name(files: Sequence[Path], top: Path, workspace: Path) -> dict[Path, Missing | None]:
    """What the settings in these files name: folders of hooks, and further files with settings."""
    found: dict[Path, Missing | None] = {}
    pending = list(files)
    for file in pending:
        for name, value in _PATH_SETTING.findall(_text(file)):
            value = re.sub(r'\s+[#;].*$|"', "", value)
            if not value or "\0" in value:
                continue
            is_hooks = name.lower() == "hookspath"
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
                made[folder] = Missing(folder)
        if missing := shut[path]:
            made[path] = missing
    guard.pinned = sorted(
        path for path in pinned if path != workspace and path not in inside and not inside.intersection(above(path))
    )
    guard.missing = list(made.values())
    for path in (*guard.shut, *guard.pinned):
        check_mountable(path)
    return guard


def _first_line(file: Path) -> str:
    return _text(file).partition("\n")[0].replace("\0", "").strip()


def _text(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be a pipe that nobody writes to
        with open(descriptor, "rb") as opened:
            return opened.read(MAX_SETTINGS_BYTES).decode("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return ""
