"""Looks after the covers over secret files while a box runs.

A cover is a mount over a path. When a program of this machine replaces the file (most editors save that way), the
kernel takes the cover away in every mount namespace (rename(2) over a mount point, since Linux 3.18), and the box
could read the new file. Nothing can keep the cover on, so the box must end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from impyard.addon.errors import ImpyardError

INTERVAL_S = 0.1
_SPARE_FILES = 64  # that this process may open besides

Identity = tuple[int, int]


class CoverWatch:
    """A thread that calls `on_bare` once, with the path, when one of the covered paths has become another file.

    `paths` are looked at when this is made: make it before the covers are put on. They are held until `stop`, without
    being opened for reading: a file system gives the number of a file that is gone to the next one. Raises
    ImpyardError when there are more than this process may hold.
    """

    def __init__(self, paths: Iterable[Path], on_bare: Callable[[Path], None]) -> None:
        paths = list(paths)
        _make_room(len(paths))
        with contextlib.ExitStack() as held:
            try:
                self._found = {path: _hold(path, held) for path in paths}
            except OSError as exc:
                if exc.errno == errno.EMFILE:
                    raise _too_many(len(paths)) from exc
                raise
            self._held = held.pop_all()
        self._on_bare = on_bare
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="covers")

    def start(self) -> None:
        """Begin to look; without paths there is nothing to do."""
        if self._found:
            self._thread.start()

    def stop(self) -> None:
        """End the thread, and let the paths go. Safe to call without a start, and twice."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._held.close()

    def bare_path(self) -> Path | None:
        """The first path that is another file than at the beginning. One that went away is remembered as gone: what
        comes in its place is bare."""
        for path, before in self._found.items():
            now = _identity(path)
            if now is None:
                self._found[path] = None
            elif now != before:
                return path
        return None

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL_S):
            if (path := self.bare_path()) is not None:
                self._on_bare(path)
                return


def _hold(path: Path, held: contextlib.ExitStack) -> Identity | None:
    """What `path` is now, kept from being freed; None where there is nothing."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    held.callback(os.close, descriptor)
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _make_room(count: int) -> None:
    """Let this process hold `count` files more than it might so far.

    What it holds cannot be counted: /proc/self/fd does not list the numbers that the kernel has reserved for threads
    that wait in accept(2). All of it is within the limit of before, so more than that many more are never needed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and len(os.listdir("/proc/self/fd")) + count + _SPARE_FILES > hard:
        raise _too_many(count)
    if soft != resource.RLIM_INFINITY:
        wanted = soft + count
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def _too_many(count: int) -> ImpyardError:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return ImpyardError(
        f"{count} files must be kept from the box, and this process may hold {limit}",
        hint="raise its limit (`ulimit -Hn`), or choose a smaller project",
    )


def _identity(path: Path) -> Identity | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
