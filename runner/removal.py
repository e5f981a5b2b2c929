"""Removes a folder that the box has written into: whatever it holds, nothing outside it is touched.

The box may leave links to anywhere, folders without any permission, and folders nested deeper than a path or a
recursion can go. So every step works on a descriptor, no link is ever followed, and nested folders are moved up
to the top before they are emptied.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: Path) -> None:
    """Remove `folder` and all in it. Raises OSError, with what is left still in place, when something cannot go.

    `folder` itself must be no link (OSError ENOTDIR otherwise).
    """
    parent = os.open(folder.parent, _OPEN_FOLDER)
    try:
        _empty_named(folder.name, parent)
        os.rmdir(folder.name, dir_fd=parent)
    finally:
        os.close(parent)


def empty_tree(folder: Path) -> None:
    """Remove all that is in `folder`, which stays. Raises OSError as `remove_tree` does."""
    parent = os.open(folder.parent, _OPEN_FOLDER)
    try:
        _empty_named(folder.name, parent)
    finally:
        os.close(parent)


def tree_bytes(folder: Path) -> int:
    """The bytes that `folder` takes up on disk; what cannot be read counts as nothing."""
    total = 0
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue
    return total


def _empty_named(name: str, parent: int) -> None:
    top = _open(name, parent)
    try:
        _empty(top)
    finally:
        os.close(top)


def _empty(top: int) -> None:
    """Remove everything in the folder that `top` is open on."""
    number = 0
    while names := os.listdir(top):
        for name in names:
            if not _is_folder(name, top):
                os.unlink(name, dir_fd=top)
                continue
            folder = _open(name, top)
            try:
                for inner in os.listdir(folder):
                    if not _is_folder(inner, folder):
                        os.unlink(inner, dir_fd=folder)
                        continue
                    os.close(_open(inner, folder))  # moving a folder takes permission to write it
                    number = _free_number(top, number)
                    os.rename(inner, f".gone-{number}", src_dir_fd=folder, dst_dir_fd=top)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)


def _free_number(top: int, number: int) -> int:
    while True:
        number += 1
        try:
            os.stat(f".gone-{number}", dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return number


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _open(name: str, parent: int) -> int:
    """A descriptor of the folder `name`, which is given full permissions for its owner first."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            # chmod by name would follow a link that was put there meanwhile; the descriptor's own entry cannot.
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(".", _OPEN_FOLDER, dir_fd=handle)
    finally:
        os.close(handle)
