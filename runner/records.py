"""Whether the caller can write down what runs do: in runs/ and the logs in it. It looks, and changes nothing."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.addon.whose import fault

NAMES = ("decisions.jsonl", "outcomes.jsonl", "rotated.jsonl")


def check_records(root: Path) -> None:
    """Raises ImpyardError, with the owner and the command that helps, for a project whose runs/ or logs cannot be read
    and written by the caller. Where there are none yet, the project itself must be writable."""
    runs = root / "runs"
    folder = runs if os.path.lexists(runs) else root
    # It asks the system: a mode says nothing of access lists or of a read-only file system.
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        is_read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        raise _refusal(folder, _os_error(errno.EROFS if is_read_only else errno.EACCES))
    if folder is root:
        return
    for path in (runs / name for name in NAMES):
        try:
            _look(path)
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise _refusal(path, exc) from exc


def _look(path: Path) -> None:
    """Raises OSError for a log that cannot be read and appended to. Nothing is waited for, no link is followed."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not an ordinary file")
    finally:
        os.close(descriptor)


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))  # of the class that belongs to the number


def _refusal(path: Path, exc: OSError) -> ImpyardError:
    reason, remedy = fault(path, exc)
    return ImpyardError(f"cannot read and write {path}: {reason}", hint=remedy)
