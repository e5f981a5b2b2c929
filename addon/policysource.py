"""The policy as it is now: read again whenever a file changes, and an error for as long as a file is bad.

What is small is in force with the next look. What takes long to compile is compiled beside the loop, and the policy
before it stays in force meanwhile, for a bounded time.
"""

from __future__ import annotations

import fcntl
import math
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from impyard.addon.errors import Fault, PolicyError
from impyard.addon.policy import MAX_BYTES, Policy, open_file, shown, unreadable
from impyard.addon.policybeside import FAILED, Beside, Budget, Costly, loaded

# A file that changed less than this ago may change again without a new time stamp: kernels stamp files with the time
# of their last tick, up to 10 ms old. It is compared by content until it is older.
_RACY_NS = 100_000_000
# How long a file that is being written, or may be, is left alone before the next look.
_SETTLE_S = 0.005
_ATTEMPTS = 8
# What files may have together to be compiled at once, in some 10 ms as a rule. It is about 300 rules.
AT_ONCE_BYTES = 32 << 10
# Who has not looked for longer than this does not know how old the change is, and waits for the new policy. A gateway
# looks every second (addon/sweep.py).
UNWATCHED_S = 2.0

_Stamp = tuple[int, ...]


class Policies(Protocol):
    """Where the policy comes from, asked for each request."""

    def current(self) -> Policy | PolicyError: ...


class PolicySource:
    """The policy in `paths`, kept up to date.

    paths, root: as for `load_policy`. Costs one stat per file and call while nothing changes.

    Invariant: what `current` gives is what the files held at most UNWATCHED_S and LIMIT_S ago, or an error. A file that
    is missing, unreadable or being written is one at once.
    """

    def __init__(self, paths: Sequence[Path], root: Path | None = None) -> None:
        self.paths = tuple(paths)
        self.root = root
        self._stamps: tuple[_Stamp | None, ...] | None = None
        self._contents: list[tuple[Path, bytes]] | None = None
        self._racy = False
        self._beside = Beside(root)
        self._looked = -math.inf
        self._current: Policy | PolicyError = PolicyError((Fault("policy", 0, 0, "has not been read yet"),))

    @property
    def hash(self) -> str:
        """The hash of the policy in force as of the last `current()`; "" while it is broken."""
        return self._current.hash if isinstance(self._current, Policy) else ""

    def current(self) -> Policy | PolicyError:
        """The policy in force: what the files hold, or the error that keeps it from being used."""
        stamps = tuple(_stamp(path) for path in self.paths)
        if stamps != self._stamps or self._racy:
            self._read(stamps)
        if (news := self._beside.news()) is not None:
            self._current = news
        self._looked = time.monotonic()
        return self._current

    def _read(self, stamps: tuple[_Stamp | None, ...]) -> None:
        contents: list[tuple[Path, bytes]] = []
        faults: list[Fault] = []
        seen: list[_Stamp | None] = []
        for path, stamp in zip(self.paths, stamps, strict=True):
            try:
                read_as, data = _settled(path, fresh=self._stamps is None or stamp not in self._stamps)
                seen.append(read_as)
                contents.append((path, data))
            except _Unsettled:
                seen.append(None)
                faults.append(Fault(shown(path, self.root), 0, 0, "is being written"))
            except OSError as exc:
                seen.append(stamp)
                faults.append(unreadable(path, self.root, exc))
        newest = max((stamp[0] for stamp in seen if stamp), default=0)
        self._racy = time.time_ns() - newest < _RACY_NS
        self._stamps = tuple(seen)
        if faults:
            self._contents = None
            self._beside.drop()
            self._current = PolicyError(tuple(faults), hint="every policy file must be there and readable")
        elif contents != self._contents:
            self._contents = contents
            self._load(contents)

    def _load(self, contents: list[tuple[Path, bytes]]) -> None:
        unwatched = time.monotonic() - self._looked > UNWATCHED_S
        small = sum(len(data) for _, data in contents) <= AT_ONCE_BYTES
        if not unwatched and not small:
            self._beside.load(contents)
            return
        before, self._current = self._current, FAILED
        try:
            self._current = loaded(contents, self.root, None if unwatched else Budget())
        except Costly:
            self._current = before
            self._beside.load(contents)
        else:
            self._beside.drop()


class _Unsettled(Exception):
    """Somebody was writing the file at each attempt to read it."""


def _settled(path: Path, *, fresh: bool) -> tuple[_Stamp, bytes]:
    """The content of a file that nobody was writing meanwhile, with its stamp. Raises OSError and _Unsettled.

    Editors that write in place first empty the file, and the first half of a policy may allow more than the whole.
    fresh: whether the file has changed since it was last read.
    """
    for _ in range(_ATTEMPTS):
        with open_file(path) as file:
            before = os.fstat(file.fileno())
            try:
                alone = _without_writers(file.fileno())
            except BlockingIOError:
                time.sleep(_SETTLE_S)
                continue
            data = file.read(MAX_BYTES + 1)
        if fresh and not alone and time.time_ns() - before.st_mtime_ns < _RACY_NS:
            time.sleep(_SETTLE_S)
        if _stamp(path) == _of(before) and len(data) == min(before.st_size, MAX_BYTES + 1):
            return _of(before), data
        fresh = True
    raise _Unsettled


def _without_writers(fd: int) -> bool:
    """Keeps writers from opening the file until `fd` is closed; raises BlockingIOError while one has it open.

    False where the kernel cannot tell: leases are Linux's (fcntl(2)), for the file's owner, on local file systems.
    """
    try:
        fcntl.fcntl(
            fd, fcntl.F_SETSIG, signal.SIGURG
        )  # who waits to open announces itself; SIGIO would end the process
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        raise
    except (OSError, AttributeError):
        return False
    return True


def _stamp(path: Path) -> _Stamp | None:
    try:
        return _of(os.stat(path))
    except (OSError, ValueError):
        return None


def _of(status: os.stat_result) -> _Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev, status.st_mode
