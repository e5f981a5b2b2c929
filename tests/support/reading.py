"""How much this process reads: a measure that no busy machine changes, unlike the time that reading takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

# Modules that are loaded meanwhile, and some for whatever else this process does.
ROOM = 32 << 20


@contextlib.contextmanager
def reads_little() -> Iterator[None]:
    """Fails when more than `ROOM` bytes were read in the block, from whatever file or pipe (proc_pid_io(5), rchar)."""
    before = _read()
    yield
    assert (more := _read() - before) <= ROOM, f"{more} bytes were read"


def _read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))
