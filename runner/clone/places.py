"""Your checkout as `runs apply` sees and writes it: by descriptors, with no link followed, one file at a time.

A file is written beside its place and moved over it; what lies there must still be what was looked at. Nothing here
knows git.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.runner.text import visible

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """What lies at a path: `kind` is "none", "file", "link", "folder", "other", "in the way" (a file where a folder is
    needed) or "over a link". `data` is a file's content, or what a link says."""

    kind: str
    data: bytes = b""
    is_program: bool = False
    stamp: Stamp | None = None


def look(root: Path, path: bytes) -> Place:
    """What lies at a path in the folder `root`. Raises OSError for what cannot be read."""
    try:
        with _parent(root, path, make=False) as (folder, name):
            return _look(folder, name)
    except FileNotFoundError:
        return Place("none")
    except _OnTheWay as exc:
        return Place(exc.kind)


def write(root: Path, path: bytes, data: bytes, *, is_program: bool, is_link: bool, before: Stamp | None) -> None:
    """Put a file, or a link, at a path at which `before` was seen. Raises ImpyardError when something else is there by
    now, and OSError."""
    with _parent(root, path, make=True) as (folder, name):
        draft = b".impyard-" + secrets.token_hex(6).encode()
        try:
            if is_link:
                os.symlink(data, draft, dir_fd=folder)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with open(os.open(draft, flags, 0o777 if is_program else 0o666, dir_fd=folder), "wb") as file:
                    file.write(data)
            _check(folder, name, path, before)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)


def remove(root: Path, path: bytes, before: Stamp | None) -> None:
    """Remove a file or link, and the folders that are empty then. Raises as `write` does."""
    with _parent(root, path, make=False) as (folder, name):
        _check(folder, name, path, before)
        os.unlink(name, dir_fd=folder)
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        with _parent(root, path, make=False) as (folder, name):
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError:
                return  # there is more in it


def changed(place: Place, root: Path, path: bytes) -> bool:
    """Whether there is something else by now."""
    try:
        now = look(root, path)
    except OSError:
        return True
    return (now.kind, now.stamp) != (place.kind, place.stamp)


def files_below(root: Path, path: bytes) -> Iterator[bytes]:
    """All that is in a folder, but for folders, by path from `root`."""
    top = os.fsencode(root)
    for folder, _, names in os.walk(top + b"/" + path):
        for name in names:
            yield os.path.relpath(folder + b"/" + name, top)


class _OnTheWay(OSError):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@contextmanager
def _parent(root: Path, path: bytes, *, make: bool) -> Iterator[tuple[int, bytes]]:
    """The folder that a path lies in, opened, and the name in it."""
    *folders, name = path.split(b"/")
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(folder, 0o777, dir_fd=handle)
            try:
                inner = os.open(folder, _FOLDER, dir_fd=handle)
            except NotADirectoryError as exc:  # so says Linux for a link, too
                mode = os.stat(folder, dir_fd=handle, follow_symlinks=False).st_mode
                raise _OnTheWay("over a link" if stat.S_ISLNK(mode) else "in the way") from exc
            os.close(handle)
            handle = inner
        yield handle, name
    finally:
        os.close(handle)


def _look(folder: int, name: bytes) -> Place:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return Place("link", os.readlink(name, dir_fd=folder), stamp=_stamp(status))
    if stat.S_ISDIR(status.st_mode):
        return Place("folder")
    if not stat.S_ISREG(status.st_mode):
        return Place("other")
    with open(os.open(name, _FILE, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        return Place("file", file.read(), bool(status.st_mode & 0o100), _stamp(status))


def _stamp(status: os.stat_result) -> Stamp:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)


def _check(folder: int, name: bytes, path: bytes, before: Stamp | None) -> None:
    try:
        now: Stamp | None = _stamp(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        now = None
    if now != before:
        raise ImpyardError(
            f"{visible(os.fsdecode(path))} has changed meanwhile", hint="nothing of yours is lost; begin anew"
        )
