"""Which files a folder has gained or changed between two looks. Links are not followed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# A box may make any number of files; a look at them must end.
MAX_FILES = 200_000

Snapshot = dict[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class GainedFile:
    """A new or changed file: path relative to the folder, size in bytes, and whether it was there before."""

    path: str
    bytes: int
    changed: bool


def snapshot(folder: Path) -> Snapshot:
    """Relative path to (size, time of change in ns, inode) of each file; what cannot be read is left out."""
    found: Snapshot = {}
    pending = [""]
    while pending and len(found) < MAX_FILES:
        inner = pending.pop()
        try:
            with os.scandir(folder / inner) as entries:
                for entry in entries:
                    relative = f"{inner}/{entry.name}" if inner else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(relative)
                    else:
                        status = entry.stat(follow_symlinks=False)
                        found[relative] = (status.st_size, status.st_mtime_ns, status.st_ino)
        except OSError:
            continue
    return found


def gained(before: Snapshot, after: Snapshot) -> list[GainedFile]:
    """The new and changed files, in the order of their paths. git's own files are not counted."""
    return [
        GainedFile(path, state[0], path in before)
        for path, state in sorted(after.items())
        if before.get(path) != state and not path.startswith(".git/") and "/.git/" not in path
    ]
