"""What runs that are under way hold, taken apart: memory in which shared pages count once, and CPU time so far.

Everything is read from /proc and the control groups, of processes that are found by their parents and their groups.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.processes import cpu_s

# Parts of a run, in the order in which they are shown. "engine" is what all runs share.
PARTS = ("runner", "gateway", "relay", "agent", "shim", "engine")
CGROUPS = Path("/sys/fs/cgroup")
MIB = 1024 * 1024


@dataclass(slots=True)
class Footprint:
    """Sums over all runs that are under way. mib, cpu_s: by part. group_mib: what the boxes' control groups count, with
    the pages of files that they were the first to read."""

    mib: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    cpu_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    group_mib: float = 0.0

    @property
    def run_mib(self) -> float:
        """Without what all runs share."""
        return sum(value for part, value in self.mib.items() if part != "engine")


def footprint(runners: Collection[int], boxes: Collection[str]) -> Footprint:
    """Of runs by their runners' process numbers and their boxes' container ids. Needs root: a gateway lets nobody else
    read its memory map. A process that ends meanwhile counts for nothing."""
    found = Footprint()
    groups = set()
    for pid, parent, command, group in _processes():
        box = next((name for name in boxes if name in group), None)
        part = _part(pid, parent, command, box, runners, boxes)
        if part is None:
            continue
        with suppress(OSError, ValueError):
            found.mib[part] += pss_kib(pid) / 1024
            found.cpu_s[part] += cpu_s(pid)
        if part == "relay":
            groups.add(group)
    found.group_mib = sum(map(_group_bytes, groups)) / MIB
    return found


def pss_kib(pid: int) -> int:
    """The memory of a process in KiB, of each page its share among those who have it mapped."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0  # it has ended


def machine_cpu_s() -> float:
    """The CPU time of everything on this machine so far, without what a hypervisor took."""
    user, nice, system, _idle, _wait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return float(user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def machine_mib() -> float:
    """The memory of this machine that new programs can have, in MiB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 1024


def _part(
    pid: int, parent: int, command: str, box: str | None, runners: Collection[int], boxes: Collection[str]
) -> str | None:
    if pid in runners:
        return "runner"
    if parent in runners:
        return "gateway" if "impyard.addon" in command else "runner"
    if box is not None:
        return "relay" if "/opt/impyard/relay.py" in command else "agent"
    name = os.path.basename(command.split("\0")[0])
    if name.startswith("containerd-shim"):
        return "shim" if any(argument in boxes for argument in command.split("\0")) else None
    return "engine" if name in ("dockerd", "containerd") else None


def _processes() -> Iterator[tuple[int, int, str, str]]:
    """Number, parent, command line and control group of the memory controller, of each process that has all of them."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                command = (entry / "cmdline").read_text("utf-8", "replace")
                yield int(entry.name), int(fields[1]), command, _group((entry / "cgroup").read_text())


def _group(text: str) -> str:
    """The group's place below CGROUPS, in the old hierarchy of the memory controller or in the unified one."""
    lines = [line.split(":", 2) for line in text.splitlines()]
    for _number, controllers, path in lines:
        if "memory" in controllers.split(","):
            return f"memory{path}"
    return next((path.lstrip("/") for number, _, path in lines if number == "0"), "")


def _group_bytes(group: str) -> int:
    for name in ("memory.current", "memory.usage_in_bytes"):
        with suppress(OSError, ValueError):
            return int((CGROUPS / group / name).read_text())
    return 0
