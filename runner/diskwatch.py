"""Ends a run before its box has filled a disk of this machine: no quota of the engine's holds for a mounted folder.

A file system that belongs to others as well must not be full: the decision log could not be written, nor anything else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.runner.text import counted, size_text

INTERVAL_S = 0.2
# What stays free: the smaller of a fixed amount and a part of the whole, so that small disks can be used too.
FLOOR_BYTES, FLOOR_INODES = 512 * 1024**2, 10_000
FLOOR_PART = 0.01


class DiskWatch:
    """A thread that calls `on_full` once, with words for people, when a file system of `folders` is as good as full."""

    def __init__(self, folders: Iterable[Path], on_full: Callable[[str], None]) -> None:
        self._folders = tuple(folders)
        self._on_full = on_full
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="disk")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Safe to call without a start."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL_S):
            for folder in self._folders:
                if words := shortage(folder):
                    self._on_full(words)
                    return


def shortage(folder: Path) -> str:
    """What the file system of `folder` lacks, in words; "" while it has enough, or cannot say."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    free = found.f_bavail * found.f_frsize
    if free < min(FLOOR_BYTES, FLOOR_PART * found.f_blocks * found.f_frsize):
        return f"the disk with {folder} is full but for {size_text(free)}"
    if found.f_favail < min(FLOOR_INODES, FLOOR_PART * found.f_files):
        return f"the disk with {folder} has room for {counted(found.f_favail, 'more file')} only"
    return ""


def check_room(folders: Iterable[Path]) -> None:
    """Raises ImpyardError when one of these is on a disk that would end the run at once."""
    for folder in folders:
        if words := shortage(folder):
            raise ImpyardError(words, hint="make room there; `impyard runs prune` removes old runs")
