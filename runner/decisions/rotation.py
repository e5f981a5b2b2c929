"""Old parts of the logs in files of their own: renamed while gateways write, then compressed, and removed if one wants.

A gateway that has the file open writes into the renamed one until it looks, which is before each line. Nothing is lost
by that: a file is compressed only when nobody has it open for writing (`addon/log.py` holds a lock meanwhile), and the
plain one goes when the compressed one was read back and is on the disk. Whatever dies in between, each line is there,
and read once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from impyard.addon.logmarks import TORN
from impyard.addon.newfile import MODE, begin, make_over, opened
from impyard.runner.decisions import packed
from impyard.runner.decisions.filelist import FileList, begun_in
from impyard.runner.decisions.logfiles import Rotated, rotated, rotated_name, stamp_of, time_of
from impyard.runner.decisions.tend import is_due

SETTLED_S = 2.0  # since the last line: longer than a gateway of an earlier version takes from its look to its write
WAIT_S = 30.0  # for files that were just rotated
LEFT_WAIT_S = 3.0  # for what had to wait earlier: a gateway may have it open for months
NICE = 10


class Packed(NamedTuple):
    """A file that was compressed: bytes of its text, and of the file."""

    path: Path
    size: int
    packed_size: int


def logs_of(runs: Path) -> tuple[Path, Path]:
    """The logs, which are rotated together."""
    return runs / "outcomes.jsonl", runs / "decisions.jsonl"


def files_of(runs: Path) -> list[Path]:
    """All files of the logs: those that are written to and the rotated ones. Raises OSError."""
    logs = [log for log in logs_of(runs) if log.exists()]
    return [*logs, *(each.path for log in logs_of(runs) for each in rotated(log))]


def rotate(runs: Path, *, only_due: bool = False) -> list[Path]:
    """Rename the logs, and return the new names; none when there is nothing to rotate, or somebody else is at it.

    Raises OSError.
    """
    now = datetime.now(UTC)
    with _alone(runs) as folder:
        if folder is None or (only_due and not is_due(runs, now)):
            return []
        logs = [log for log in logs_of(runs) if has_lines(log)]
        newest = [time_of(each.stamp) for log in logs for each in rotated(log)[-1:]]
        # Names sort by time, be the clock set back.
        stamp = stamp_of(max([now, *(time + timedelta(milliseconds=1) for time in newest)]))
        names = [log.with_name(f"{log.stem}-{stamp}{log.suffix}") for log in logs]
        if any(rotated_name(log, name.name) is None for log, name in zip(logs, names, strict=True)):
            raise OSError("the name of its newest file is of a time so late that none comes after it")
        for log, name in zip(logs, names, strict=True):
            os.rename(log.name, name.name, src_dir_fd=folder, dst_dir_fd=folder)
            _begin_anew(folder, log.name, os.stat(name.name, dir_fd=folder, follow_symlinks=False))
        os.fsync(folder)
        return names


def _begin_anew(folder: int, name: str, old: os.stat_result) -> None:
    """Begin the new file with owner and mode of the old one, where those are not what whoever writes first gives it.

    Where that cannot be, he makes it all the same.
    """
    mode = stat.S_IMODE(old.st_mode)
    with contextlib.suppress(OSError):
        if (old.st_uid, mode) != (os.fstat(folder).st_uid, MODE) and os.geteuid() in (0, old.st_uid):
            begin(folder, name, old.st_uid, old.st_gid, mode)


def settle(names: list[Path]) -> None:
    """Wait until files that were just renamed may be compressed, if nobody has them open."""
    age = min((time.time() - path.stat().st_mtime for path in names), default=SETTLED_S)
    time.sleep(min(max(SETTLED_S - age, 0.0), SETTLED_S))


def pack_all(runs: Path, *, settled_s: float | None = None) -> Iterator[Packed | Rotated]:
    """Compress the rotated files that nobody writes to; those that must wait are given as they are.

    Raises OSError when one could not be compressed, behind all the others.
    """
    trouble: OSError | None = None
    for log in logs_of(runs):
        for each in rotated(log):
            if each.is_packed:
                continue
            try:
                done = _pack(each, SETTLED_S if settled_s is None else settled_s)
            except OSError as exc:
                trouble = trouble or exc
                continue
            if done is not None:
                yield done
            elif each.path.exists():  # else somebody else compressed it
                yield each
    if trouble is not None:
        raise trouble


def older_than(log: Path, time: datetime) -> list[Rotated]:
    """The files of a log that `remove_before` removes. Raises OSError.

    None is younger than a file that stays: where a chain stood tells nothing of lines before.
    """
    return list(itertools.takewhile(lambda each: each.is_packed and time_of(each.stamp) < time, rotated(log)))


def remove_before(runs: Path, time: datetime) -> list[Path]:
    """Remove what was rotated before this time, and note it, with where the runs' chains stood. Raises OSError."""
    gone = []
    with _alone(runs) as folder:
        # Decisions first: who reads both meanwhile finds the outcomes of all decisions that he finds.
        for log in reversed(logs_of(runs)) if folder is not None else ():
            old = older_than(log, time)
            begun = begun_in(log, old) if log.stem == "decisions" and old else None
            for each in old:
                FileList(runs).removed(each, begun)
                os.unlink(each.path.name, dir_fd=folder)
                gone.append(each.path)
        if folder is not None:
            os.fsync(folder)
    return gone


def _pack(each: Rotated, settled_s: float) -> Packed | None:
    """The file, compressed; None when somebody may still write to it. Raises OSError, and then it is as it was."""
    with opened(each.path.parent) as folder:
        return _pack_in(folder, each.path, settled_s)


def _pack_in(folder: int, path: Path, settled_s: float) -> Packed | None:
    target = path.with_name(f"{path.name}.gz")
    draft = f".{target.name}"
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        source = os.open(path.name, flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))
        if time.time() - status.st_mtime < settled_s:
            return None
        try:
            fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        if (there.st_dev, there.st_ino) != (status.st_dev, status.st_ino):
            return None  # somebody else compressed it before we had the lock
        if status.st_size and os.pread(source, 1, status.st_size - 1) != b"\n":
            os.write(source, TORN)
        size = os.fstat(source).st_size
        try:
            packed_size = _write_draft(source, size, folder, draft, status)
            if os.fstat(source).st_size != size:
                return None
            os.rename(draft, target.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            _remove(folder, draft)
        FileList(path.parent).packed(target.name, size)
        os.fsync(folder)
        os.unlink(path.name, dir_fd=folder)
        return Packed(target, size, packed_size)
    finally:
        os.close(source)


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _write_draft(source: int, size: int, folder: int, draft: str, status: os.stat_result) -> int:
    """Compress into a new file with the owner and mode of the old one, and read it back. The bytes of the new one."""
    _remove(folder, draft)
    target = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        packed.pack(source, size, target)
        make_over(target, status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))
        os.fsync(target)
        offset = 0
        try:
            for block in packed.blocks(target, packed.read_index(target)):
                if os.pread(source, len(block), offset) != block:
                    raise packed.Damaged("another text")
                offset += len(block)
        except packed.Damaged as exc:
            raise OSError(f"{draft} is not what was written to it: {exc}") from exc
        if offset != size:
            raise OSError(f"{draft} is not what was written to it")
        return os.fstat(target).st_size
    finally:
        os.close(target)


@contextlib.contextmanager
def _alone(runs: Path) -> Iterator[int | None]:
    """The folder's descriptor, when nobody else rotates or removes in the block. Raises OSError where there are no
    locks."""
    with opened(runs) as folder:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield folder


def has_lines(log: Path) -> bool:
    """Whether there is anything in a log that is an ordinary file. Raises OSError."""
    try:
        status = os.stat(log, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def main(runs: Path, wait_s: float = WAIT_S) -> None:
    """Compress what was rotated, as soon as it is settled."""
    os.nice(NICE)
    deadline = time.monotonic() + wait_s
    while _some_wait(runs) and time.monotonic() < deadline:
        time.sleep(SETTLED_S / 2)


def _some_wait(runs: Path) -> bool:
    """Compress all that can be; whether something must wait."""
    waiting = 0
    with contextlib.suppress(OSError):
        for each in pack_all(runs):
            waiting += isinstance(each, Rotated)
    return waiting > 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
