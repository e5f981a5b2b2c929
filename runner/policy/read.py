"""The bytes of policy files for the commands that look at them, and a plain word for what is no file to read.

The gateway has its own way (`addon/policysource.py`), which also waits for whoever is writing.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

from impyard.addon.errors import Fault, PolicyError
from impyard.addon.policy import MAX_BYTES, shown

_KINDS = (
    (stat.S_ISDIR, "is a folder", "name the file in it, as in policies/gateway.yaml"),
    (stat.S_ISFIFO, "is a pipe", "write what comes out of it to a file, and name that"),
    (stat.S_ISSOCK, "is a socket", "name a file"),
    (stat.S_ISCHR, "is a device", "name a file"),
    (stat.S_ISBLK, "is a device", "name a file"),
)


def read_files(paths: Sequence[Path], root: Path | None = None) -> list[tuple[Path, bytes]]:
    """Each path with its content, in order. Never waits, as for a pipe, and reads no more than a policy may have.

    root: below it files are named relative to it. Raises PolicyError with a fault for each that cannot be read.
    """
    found, faults, hints = [], [], []
    for path in paths:
        try:
            found.append((path, _content(path)))
        except _Unfit as exc:
            faults.append(Fault(shown(path, root), 0, 0, exc.what))
            hints.append(exc.hint)
    if faults:
        raise PolicyError(tuple(faults), hint=hints[0])
    return found


class _Unfit(Exception):
    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


def _content(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as exc:
        raise _unreadable(path, exc) from exc
    try:
        found = os.fstat(descriptor)
        for test, what, hint in _KINDS:
            if test(found.st_mode):
                raise _Unfit(what, hint)
        if found.st_size > MAX_BYTES:
            raise _Unfit(
                f"is larger than {MAX_BYTES >> 20} MiB ({found.st_size / (1 << 20):.0f})",
                "is it the right file? 10,000 rules are about 1 MiB",
            )
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    finally:
        os.close(descriptor)


def _unreadable(path: Path, exc: OSError | ValueError) -> _Unfit:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        mode = 0
    for test, what, hint in _KINDS:  # a socket cannot be opened at all
        if mode and test(mode):
            return _Unfit(what, hint)
    why = (exc.strerror or str(exc)) if isinstance(exc, OSError) else "its name holds a zero byte"
    if isinstance(exc, FileNotFoundError):
        return _Unfit("is not there", "check its name; `impyard init` writes a project's own policy")
    return _Unfit(f"cannot be read: {why.lower()}", f"`ls -l {shlex.quote(str(path))}` shows its owner and mode")
