"""Looks after the covers over secret files while a box runs.

A cover is a mount over a path. When a program of this machine replaces the file (most editors save that way), the
kernel takes the cover away in every mount namespace (rename(2) over a mount point, since Linux 3.18), and the box
could read the new file. Nothing can keep the cover on, so the box must end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

INTERVAL_S = 0.1

Identity = tuple[int, int]


class CoverWatch:
    """A thread that calls `on_bare` once, with the path, when one of the covered paths has become another file.

    `paths` are looked at when this is made: make it before the covers are put on.
    """

    def __init__(self, paths: Iterable[Path], on_bare: Callable[[Path], None]) -> None:
        self._found = {path: _identity(path) for path in paths}
        self._on_bare = on_bare
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="covers")

    def start(self) -> None:
        """Begin to look; without paths there is nothing to do."""
        if self._found:
            self._thread.start()

    def stop(self) -> None:
        """End the thread. Safe to call without a start."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

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


def _identity(path: Path) -> Identity | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
