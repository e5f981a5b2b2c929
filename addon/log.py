"""The two logs of a run. A decision that cannot be written raises; an outcome that cannot be written is counted.

Several gateways append to one file: each line is one `write` to a descriptor opened for appending. Somebody may rename
that file at any time: what is written until that is noticed is in the renamed one. While it is open for writing it has
a shared lock, so that who compresses renamed files knows when nobody writes any more.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from impyard.addon.decisions import GENESIS, encode_decision, encode_outcome, line_hash
from impyard.addon.errors import LogUnwritable
from impyard.addon.judge import Decision
from impyard.addon.logmarks import TORN
from impyard.addon.newfile import open_appended
from impyard.addon.request import Request
from impyard.addon.whose import fault

_OPENINGS = 5  # of a file that is renamed meanwhile
# Long for one write of one line to the page cache.
_WRITE_LIMIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Recorded:
    """A decision as it stands in the log. id: "<run>.<seq>". seq: from 1. line: its bytes, newline included."""

    id: str
    seq: int
    line: bytes


class _AppendFile:
    """A file that is only ever appended to, opened at the first line and again when it is no longer at its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._identity = (0, 0)
        self._torn = False

    def append(self, line: bytes) -> None:
        """Writes all of `line` in one call; raises OSError when it is not certain to be in the file."""
        self._open()
        data = TORN + line if self._torn else line
        written = os.write(self._fd, data)
        if written != len(data):
            self._torn = self._torn or written > 0
            raise OSError(f"only {written} of {len(data)} bytes could be written")
        self._torn = False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        if self._fd >= 0:
            try:
                there = os.stat(self.path, follow_symlinks=False)
                if (there.st_dev, there.st_ino) == self._identity:
                    return
            except FileNotFoundError:
                pass
            self.close()
            self._torn = False
        for _ in range(_OPENINGS):
            fd = open_appended(self.path)
            status = os.fstat(fd)
            if _hold(fd) and _is_at(self.path, status):
                self._fd, self._identity = fd, (status.st_dev, status.st_ino)
                self._torn = _is_torn(fd)
                return
            os.close(fd)  # it was renamed between the two, and may be compressed by now
        raise OSError("another process has locked it, or takes it away again and again")


def _hold(fd: int) -> bool:
    """Lock the file together with others who write to it; False when somebody has it alone."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: nobody can have the file alone, so nobody compresses it
    return True


def _is_at(path: Path, status: os.stat_result) -> bool:
    """Whether this is known to be the file at its path."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (status.st_dev, status.st_ino)


def _is_torn(fd: int) -> bool:
    """Whether the file ends in half a line: a gateway was killed in the middle of a write, or the machine went down.

    Another gateway's write that is only under way looks the same for a moment.
    """
    try:
        reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # it may be written, but not read
    try:
        before = -1
        while (size := os.fstat(reader).st_size) and os.pread(reader, 1, size - 1) not in (b"\n", b""):
            if size == before:
                return True
            before = size
            time.sleep(_WRITE_LIMIT_S)
        return False
    finally:
        os.close(reader)


class DecisionLog:
    """The decisions of one run. Nothing may be forwarded whose `write` has not returned.

    seq, last_hash: of the last line that was written; 0 and GENESIS before the first.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.run = run
        self.seq = 0
        self.last_hash = GENESIS
        self._file = _AppendFile(path)

    def write(self, decision: Decision, request: Request, policy_hash: str) -> Recorded:
        """Appends the decision. Raises LogUnwritable, and then the chain stands where it stood before."""
        seq = self.seq + 1
        id = f"{self.run}.{seq}"
        line = encode_decision(
            ts=now(),
            id=id,
            run=self.run,
            seq=seq,
            decision=decision,
            request=request,
            policy_hash=policy_hash,
            prev=self.last_hash,
        )
        try:
            self._file.append(line)
        except OSError as exc:
            reason, remedy = fault(self._file.path, exc)
            raise LogUnwritable(
                f"{self._file.path}: the decision log cannot be written: {reason}",
                hint=f"{remedy}; until then every request is denied",
            ) from exc
        self.seq, self.last_hash = seq, line_hash(line)
        return Recorded(id, seq, line)

    def close(self) -> None:
        self._file.close()


class OutcomeLog:
    """What came of forwarded requests. written: how many lines. lost: how many could not be; that never fails a
    request."""

    def __init__(self, path: Path, run: str) -> None:
        self.run = run
        self.written = self.lost = 0
        self._file = _AppendFile(path)

    def write(
        self,
        id: str,
        status: int | None,
        up: int,
        down: int,
        ms: float,
        error: str | None,
        redirect: str | None = None,
    ) -> None:
        """Appends one outcome, for the decision with this id. Never raises for what the disk does."""
        line = encode_outcome(
            ts=now(), id=id, run=self.run, status=status, up=up, down=down, ms=ms, error=error, redirect=redirect
        )
        try:
            self._file.append(line)
            self.written += 1
        except OSError:
            self.lost += 1

    def close(self) -> None:
        self._file.close()


def now() -> str:
    """The time in RFC 3339, UTC with milliseconds: "2026-11-29T17:03:12.636Z"."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
