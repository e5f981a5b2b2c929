"""Which files a folder has gained or changed between two looks. No link is followed, not even one in its place."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# A box may make any number of files and folders; a look at them must end, and fit into memory.
MAX_ENTRIES = 200_000
MAX_TARGET = 200  # characters that are kept of where a link leads
# What makes a folder a repository for git, whatever its name is.
BARE_REPOSITORY = {"HEAD", "objects", "refs"}
# Where git writes in a repository, beside the files in it.
GITS_FOLDERS = {"info", "logs", "objects", "refs"}


@dataclass(frozen=True, slots=True)
class GainedFile:
    """A new or changed file: path relative to the folder, size in bytes, whether it was there before, and for a link
    the beginning of what it says."""

    path: str
    bytes: int
    changed: bool
    target: str | None = None

    def record(self) -> dict[str, Any]:
        """For a receipt; only a link has a `target` there."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(slots=True)
class Snapshot:
    """`files`: relative path to (size, time of change in ns, inode). `repositories`: relative paths of each `.git` and
    each bare repository. `links`: relative path of each link, to the beginning of what it says. `closed`: relative
    paths of folders that cannot be read, in which git can work all the same when it is told the names. `shared`: how
    many files have a name outside of the folder too (hard links), as far as that can be told. `complete` is false when
    the folder holds more than is looked at."""

    files: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    repositories: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    shared: int = 0
    complete: bool = True


def snapshot(folder: Path, most: int = MAX_ENTRIES) -> Snapshot:
    """What is in a folder, `most` entries at most; what cannot be read is left out."""
    found = Snapshot()
    pending = [""]
    seen = 0
    names: Counter[tuple[int, int]] = Counter()  # that are not found yet, of files with several
    while pending and found.complete:
        inner = pending.pop()
        missing = set(BARE_REPOSITORY)
        try:
            handle = os.open(folder / inner, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except PermissionError:
            found.closed.add(inner or ".")
            continue
        except OSError:
            continue
        try:
            with os.scandir(handle) as entries:
                for entry in entries:
                    seen += 1
                    if seen > most:
                        found.complete = False
                        break
                    relative = f"{inner}/{entry.name}" if inner else entry.name
                    missing.discard(entry.name)
                    if entry.name == ".git":
                        found.repositories.add(relative)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(relative)
                    else:
                        status = entry.stat(follow_symlinks=False)
                        if entry.is_symlink():
                            found.links[relative] = os.readlink(entry.name, dir_fd=handle)[:MAX_TARGET]
                        if status.st_nlink > 1:
                            inode = (status.st_dev, status.st_ino)
                            names[inode] = names.get(inode, status.st_nlink) - 1
                        found.files[relative] = (status.st_size, status.st_mtime_ns, status.st_ino)
        except OSError:
            continue
        if not missing and inner.rpartition("/")[2] != ".git":  # in a .git, too: others may name it by its path
            found.repositories.add(inner or ".")
    if found.complete:
        found.shared = sum(left > 0 for left in names.values())
    return found


def gained(before: Snapshot, after: Snapshot) -> list[GainedFile]:
    """The new and changed files, in the order of their paths. git's own files are not counted."""
    return [
        GainedFile(path, state[0], path in before.files, after.links.get(path))
        for path, state in sorted(after.files.items())
        if before.files.get(path) != state and not path.startswith(".git/") and "/.git/" not in path
    ]


def new_repositories(before: Snapshot, after: Snapshot) -> list[str]:
    """The repositories that were not there before, and folders that may be one: their hooks and settings are the
    agent's. In order."""
    return sorted(_outermost((after.repositories - before.repositories) | (after.closed - before.closed)))


def new_links(before: Snapshot, after: Snapshot) -> list[str]:
    """The links that came into a repository, or lead elsewhere now: git writes where they lead. In order."""
    found = []
    for path in after.links:
        if before.files.get(path) == after.files[path]:
            continue
        parts = path.split("/")
        inside_git = ".git" in parts[:-1]
        for depth in range(len(parts)):
            folder = "/".join(parts[:depth]) or "."
            is_own = depth == len(parts) - 1 or parts[depth] in GITS_FOLDERS
            if inside_git or (folder in before.repositories | after.repositories and is_own):
                found.append(path)
                break
    return sorted(found)


def _outermost(paths: Set[str]) -> set[str]:
    return {path for path in paths if not any(path.startswith(f"{other}/") for other in paths if other != path)}
