"""Many runs at once: how long each takes, what each holds and uses, and whether any of them fails.

A run's time is that until its agent has used its first tool, and from when it is let go to its end; between the two it
waits for the others, so that memory is looked at with all of them there.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.crowd import Crowd, Member, folder, last_words, verify
from tests.bench.footprint import PARTS, Footprint, footprint, machine_cpu_s, machine_mib
from tests.bench.plan import Plan
from tests.bench.stored import Ratio
from tests.bench.table import Row

PROJECTS = 4
SETTLE_S = 2.0
# A look at the runs of a project, while they run.
LOOK_S = 3.0


@dataclass(slots=True)
class Pass:
    """What one number of runs at once came to. seconds: of each run that ended well, and until its agent had used a
    tool. Processor time and memory are of one run, on average; `held` are the sums of all."""

    count: int
    wall_s: float
    seconds: list[float]
    arrivals: list[float]
    ends: list[float]
    cpu_s: float
    host_cpu_s: float
    machine_mib: float
    before: Footprint
    held: Footprint
    looks: dict[str, float]
    faults: list[str]

    @property
    def run_mib(self) -> float:
        return self.held.run_mib / self.count


def measure(plan: Plan) -> Iterator[Row]:
    """One pass for each number of runs in the plan."""
    if os.geteuid() != 0:
        raise RuntimeError("needs root, to read how much memory the gateways have")
    first: Pass | None = None
    with folder() as place, _terminated_as_interrupted():
        for count in plan.at_once:
            print(f"  {count} at once …", file=sys.stderr, flush=True)
            this = together(Path(place) / f"{count}-at-once", count)
            first = first or this
            yield from rows(this, first)


def together(place: Path, count: int) -> Pass:
    """So many runs at once, in at most PROJECTS projects. Raises RuntimeError when they cannot even be started, and
    when something of them is left."""
    place.mkdir()
    crowd = Crowd(place, min(PROJECTS, count))
    left: list[str] = []
    try:
        crowd.prepare()
        before, cpu_before, mib_before = footprint((), ()), machine_cpu_s(), machine_mib()
        began = time.time()
        crowd.start(count)
        crowd.arrive()
        working = machine_cpu_s() - cpu_before
        time.sleep(SETTLE_S)
        mib = mib_before - machine_mib()
        held = footprint([member.process.pid for member in crowd.members], crowd.boxes())
        looks, wrong = _looks(crowd)
        cpu_before, paused = machine_cpu_s(), time.time()
        released = crowd.release()
        working += machine_cpu_s() - cpu_before
        well = [member for member in crowd.members if not member.fault]
        wall_s = max((member.ended for member in crowd.members), default=began) - began
        wrong += [f"{member.fault}: {last_words(member)}" for member in crowd.members if member.fault]
        wrong += verify(crowd, crowd.projects)
        arrivals = [member.arrived - member.started for member in well]
        ends = [member.ended - released for member in well]
        return Pass(
            count=count,
            wall_s=wall_s - (paused - max((member.arrived for member in crowd.members), default=paused)),
            seconds=[a + b for a, b in zip(arrivals, ends, strict=True)],
            arrivals=arrivals,
            ends=ends,
            cpu_s=working / count,
            host_cpu_s=sum(member.cpu_s for member in crowd.members) / count,
            machine_mib=mib / count,
            before=before,
            held=held,
            looks=looks,
            faults=wrong,
        )
    finally:
        left += crowd.close()
        if left:
            raise RuntimeError(f"left behind by {count} runs at once: {', '.join(left)}")


def rows(this: Pass, first: Pass) -> Iterator[Row]:
    """The lines of one pass; `first` is the smallest one."""
    count = this.count
    title = f"{count} {'run' if count == 1 else 'runs'} at once"
    if not this.seconds:
        yield Row(title, "failed", note="; ".join(this.faults)[:500])
        return
    yield Row(
        f"{title}: a run takes",
        f"{statistics.median(this.seconds):.1f} s",
        f"{min(this.seconds):.1f}-{max(this.seconds):.1f}",
        note=f"to its first tool {statistics.median(this.arrivals):.1f} s, from being let go to its end "
        f"{statistics.median(this.ends):.1f} s; all were done in {this.wall_s:.1f} s",
    )
    yield Row(
        "  failed or wrong",
        str(len(this.faults)),
        target="0",
        ok=not this.faults,
        note="; ".join(dict.fromkeys(this.faults))[:500],
    )
    parts = {part: (this.held.cpu_s[part] - this.before.cpu_s[part]) / count for part in PARTS}
    yield Row(
        "  CPU seconds a run",
        f"{this.cpu_s:.2f}",
        note=f"runner and gateway {this.host_cpu_s:.2f} to the end; while held "
        + ", ".join(f"{part} {value:.2f}" for part, value in parts.items()),
        ratio=None if this is first else Ratio(f"many-cpu-{count}", this.cpu_s / first.cpu_s, more=False),
    )
    held = {part: (this.held.mib[part] - this.before.mib[part]) / count for part in PARTS}
    ours = sum(held[part] for part in ("runner", "gateway", "relay", "shim"))
    yield Row(
        "  memory of a run",
        f"{this.run_mib:.0f} MiB",
        note=", ".join(f"{part} {value:.1f}" for part, value in held.items())
        + f"; its control group {this.held.group_mib / count:.0f}; the machine has {this.machine_mib:.0f} less",
        ratio=Ratio(f"many-memory-{count}", ours / held["agent"], more=False) if held["agent"] else None,
    )
    yield Row(
        "  `runs` and `decisions` meanwhile",
        ", ".join(f"{took:.2f} s" for took in this.looks.values()),
        target=f"<= {LOOK_S:.0f} s",
        ok=all(took <= LOOK_S for took in this.looks.values()),
        note=" and ".join(this.looks),
    )


def _looks(crowd: Crowd) -> tuple[dict[str, float], list[str]]:
    """How long the commands take that look at a project whose runs are under way, and what they get wrong."""
    project = crowd.projects[0]
    mine = [member for member in crowd.members if member.project == project and member.arrived]
    listed, runs_s = crowd.impyard("runs", project)
    _shown, decisions_s = crowd.impyard("decisions", project)
    wrong = [f"`impyard runs` does not name {folder.name}" for folder in _folders(mine) if folder.name not in listed]
    return {"runs": runs_s, "decisions": decisions_s}, wrong


def _folders(members: list[Member]) -> list[Path]:
    return [member.folder for member in members if member.folder is not None]


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A SIGTERM in the block is a Ctrl-C: what was started is ended."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
