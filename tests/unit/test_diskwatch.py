"""A disk that a box fills is noticed before it is full. (With real disks: tests/box/test_disk.py.)"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner import diskwatch
from impyard.runner.diskwatch import DiskWatch, check_room, shortage

GIB = 1024**3


def disk(size: int, free: int, files: int = 0, files_free: int = 0) -> os.statvfs_result:
    """What the system says of a disk of so many bytes, and files."""
    block = 4096
    return os.statvfs_result(
        (block, block, size // block, free // block, free // block, files, files_free, files_free, 0, 255)
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (disk(1000 * GIB, GIB), ""),
        (disk(1000 * GIB, GIB // 2 - 4096), "full but for 536.9 MB"),
        (disk(20 * GIB, GIB // 4), ""),
        (disk(20 * GIB, GIB // 8), "full but for 134.2 MB"),
        (disk(20 * GIB, 0), "full but for 0 B"),
        (disk(20 * GIB, GIB, 10**7, 20_000), ""),
        (disk(20 * GIB, GIB, 10**7, 9_999), "room for 9999 more files"),
        (disk(20 * GIB, GIB, 1000, 11), ""),
        (disk(20 * GIB, GIB, 1000, 9), "room for 9 more files"),
        (disk(20 * GIB, GIB, 1000, 1), "room for 1 more file only"),
        (disk(20 * GIB, GIB, 0, 0), ""),  # file systems without a table of files
        (disk(0, 0), ""),  # it does not say
    ],
)
def test_what_is_too_little(monkeypatch: pytest.MonkeyPatch, found: Any, words: str) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: found)
    said = shortage(Path("/somewhere"))
    assert (words in said) if words else said == ""
    if words:
        with pytest.raises(ImpyardError, match="disk with /somewhere"):
            check_room([Path("/somewhere")])


def test_a_folder_that_is_not_there_lacks_nothing(tmp_path: Path) -> None:
    assert shortage(tmp_path / "nowhere") == ""


def test_it_tells_once_and_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[str] = []
    heard = threading.Event()

    def hear(words: str) -> None:
        told.append(words)
        heard.set()

    DiskWatch([tmp_path], hear).stop()  # before it was started
    watch = DiskWatch([tmp_path], hear)
    watch.start()
    assert not heard.wait(3 * diskwatch.INTERVAL_S), "the control: this disk has room"
    monkeypatch.setattr(os, "statvfs", lambda _path: disk(20 * GIB, 4096))
    assert heard.wait(10)
    watch.stop()
    assert len(told) == 1 and str(tmp_path) in told[0]
