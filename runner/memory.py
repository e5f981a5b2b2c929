"""Refuses a run that this machine has no memory for: else the kernel would end it, or something beside it, later on."""

from __future__ import annotations

import re
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.runner.text import size_text

# What a run takes before its agent has done anything: docs/performance.md, "Many runs at once", and some to spare.
NEEDED_BYTES = 200 * 1024**2
MEMINFO = Path("/proc/meminfo")


def check_memory(meminfo: Path = MEMINFO) -> None:
    """Raises ImpyardError when there is too little for one run more, by what the kernel says (proc(5))."""
    try:
        found = dict(re.findall(r"^(MemAvailable|SwapFree): +(\d+) kB$", meminfo.read_text("ascii"), re.MULTILINE))
        free = (int(found["MemAvailable"]) + int(found.get("SwapFree", 0))) * 1024
    except (OSError, ValueError, KeyError):
        return  # it does not say: nothing is known to be short
    if free < NEEDED_BYTES:
        raise ImpyardError(
            f"this machine has {size_text(free)} of memory left, and a run needs some {size_text(NEEDED_BYTES)}",
            hint="end other programs, or wait for other runs: `impyard runs` lists those of a project",
        )
