"""Your checkout as `runs apply` sees and writes it: by descriptors, with no link followed, one file at a time.

Files are written beside their places, all of them, before the first is moved to its own; what lies there must still be
what was looked at. What a killed `apply` left of that is known by its name. Nothing here knows git.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.runner.clone.paths import DRAFT
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


NOWHERE = Place("none")


def look(root: Path, path: bytes) -> Place:
    """What lies at a path in the folder `root`. Raises OSError for what cannot be read."""
    try:
        with _parent(root, path, make=False) as (folder, name):
            return _look(folder, name)
    except FileNotFoundError:
        return Place("none")
    except _OnTheWay as exc:
        return Place(exc.kind)


class Drafts:
    """Files as they will be, each in the nearest folder that there is. `mark` is a part of their names: the run's."""

    def __init__(self, root: Path, mark: str) -> None:
        self._root = root
        self._begin = DRAFT + mark.encode() + b"-"
        self._found: dict[bytes, tuple[bytes, bytes]] = {}

    def clear(self, paths: Iterable[bytes]) -> None:
        """Remove those that an `apply` left of these paths when it was killed. Raises OSError."""
        for path in {b""}.union(*(_above(path) for path in paths)):
            with suppress(FileNotFoundError, _OnTheWay), _parent(self._root, path + b"/x", make=False) as (folder, _):
                for name in os.listdir(folder):
                    if os.fsencode(name).startswith(self._begin):
                        os.unlink(name, dir_fd=folder)

    def put(self, path: bytes, data: bytes, *, is_program: bool, is_link: bool) -> None:
        """Write the file, or link, for a path. Raises OSError."""
        where, draft = path, self._begin + secrets.token_hex(6).encode()
        while True:
            where = where.rpartition(b"/")[0]
            try:
                with _parent(self._root, where + b"/x", make=False) as (folder, _):
                    self._found[path] = (where, draft)
                    if is_link:
                        os.symlink(data, draft, dir_fd=folder)
                        return
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    with open(os.open(draft, flags, 0o777 if is_program else 0o666, dir_fd=folder), "wb") as file:
                        file.write(data)
                    return
            except (FileNotFoundError, _OnTheWay):
                if not where:
                    raise

    def move(self, path: bytes, before: Stamp | None) -> None:
        """Put it in its place, at which `before` was seen. Raises ImpyardError when something else is there by now, and
        OSError."""
        where, draft = self._found[path]
        with _parent(self._root, path, make=True) as (folder, name):
            if before is None:
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.rmdir(name, dir_fd=folder)  # what was in it has been removed
            _check(folder, name, path, before)
            with _parent(self._root, where + b"/x", make=False) as (source, _):
                os.rename(draft, name, src_dir_fd=source, dst_dir_fd=folder)
        del self._found[path]

    def discard(self) -> None:
        """Remove those that have not been moved."""
        for where, draft in self._found.values():
            with suppress(OSError), _parent(self._root, where + b"/x", make=False) as (folder, _):
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


def may_remove(root: Path, path: bytes) -> bool:
    """Whether what lies at a path may be removed by this user."""
    with _parent(root, path, make=False) as (folder, _):
        return os.access(".", os.W_OK | os.X_OK, dir_fd=folder)


def is_emptied(root: Path, path: bytes, is_removed: Callable[[bytes], bool]) -> bool:
    """Whether nothing is left of a folder once all that `is_removed` is, and the folders that are empty then. One that
    was empty before stays. Raises OSError."""
    top = os.fsencode(root)
    for folder, inner, names in os.walk(top + b"/" + path, onerror=_raised):
        if not inner and not names and folder != top + b"/" + path:
            return False
        for name in (*(name for name in inner if os.path.islink(folder + b"/" + name)), *names):
            if not is_removed(os.path.relpath(folder + b"/" + name, top)):
                return False
    return True


def _raised(error: OSError) -> None:
    raise error


def _above(path: bytes) -> set[bytes]:
    parts = path.split(b"/")
    return {b"/".join(parts[:depth]) for depth in range(1, len(parts))}


class _OnTheWay(OSError):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@contextmanager
def _parent(root: Path, path: bytes, *, make: bool) -> Iterator[tuple[int, bytes]]:
    """The folder that a path lies in, opened, and the name in it."""
    *folders, name = path.split(b"/")
    folders = [folder for folder in folders if folder]
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
