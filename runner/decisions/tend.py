"""Whether it is time to begin new log files, and having that done beside a run or a gateway. Cheap while it is not."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import impyard

LARGE_BYTES = 64 << 20
OLD = timedelta(days=30)
SMALL_BYTES = 1 << 20  # less than this is not old enough for a file of its own
_PLAIN = re.compile(r"(?:decisions|outcomes)-[0-9TZ.]{20}\.jsonl")
_TS = re.compile(rb'\{"ts":"([0-9TZ:.-]{10,30})"')


def is_due(runs: Path, now: datetime) -> bool:
    """Whether the decisions are so many, or the oldest of some megabytes so old, that a new file is begun."""
    try:
        handle = os.open(runs / "decisions.jsonl", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size < SMALL_BYTES:
            return False
        first = _TS.match(os.pread(handle, 100, 0))
        return status.st_size >= LARGE_BYTES or (
            first is not None and first[1].decode() < (now.astimezone(UTC) - OLD).isoformat()
        )
    finally:
        os.close(handle)


def _some_are_plain(runs: Path) -> bool:
    """Whether a rotated file is not compressed yet."""
    try:
        return any(_PLAIN.fullmatch(name) for name in os.listdir(runs))
    except OSError:
        return False


def tend(runs: Path) -> None:
    """Rotate the logs if that is due, and have them compressed by a process of its own, which is not waited for. It
    also takes what had to wait earlier, because somebody had it open.

    What fails is left for the next time: the logs are whole either way.
    """
    due = is_due(runs, datetime.now(UTC))
    if not due and not _some_are_plain(runs):
        return
    from impyard.runner.decisions.rotation import LEFT_WAIT_S, WAIT_S, rotate

    with contextlib.suppress(OSError, RuntimeError):  # the latter where there may be no more threads
        renamed = due and rotate(runs, only_due=True)
        if renamed or not due:
            wait_s = WAIT_S if renamed else LEFT_WAIT_S
            paths = [str(Path(impyard.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
            packing = subprocess.Popen(
                [sys.executable, "-P", "-m", "impyard.runner.decisions.rotation", str(runs.absolute()), f"{wait_s:g}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
            # A gateway runs for months: it must not leave one dead process for each time.
            threading.Thread(target=packing.wait, name="packing", daemon=True).start()
