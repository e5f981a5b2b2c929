"""Runs in a row and at once: nothing stays, and the last one takes about as long as the first."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator

from tests.bench.table import Row
from tests.soak.bed import Bed, bed, engine_with_image, verdict
from tests.soak.plan import Plan

PROMPT = "write 4 to answer.txt"
LOOK_EVERY = 25
# How many runs at either end are compared, and how much longer the last ones may take.
ENDS = 10
SLOWER = 1.5


def in_a_row(here: Bed, count: int) -> tuple[list[float], list[str]]:
    """`count` runs, one after the other: the seconds of each, and what is not as it must be."""
    seconds, wrong = [], []
    for number in range(1, count + 1):
        result = here.project.demo(PROMPT)
        seconds.append(result.seconds)
        if result.code != 0 or result.file("answer.txt").strip() != "4":
            wrong.append(f"run {number}: {result}")
        if number % LOOK_EVERY == 0 or number == count:
            wrong += [f"after run {number}: {text}" for text in here.leftovers()]
            print(f"  {number} runs, the last in {seconds[-1]:.2f} s", file=sys.stderr, flush=True)
        if len(wrong) > LOOK_EVERY:
            break
    return seconds, wrong


def at_once(here: Bed, count: int) -> list[str]:
    """`count` runs at the same time; what is not as it must be."""
    before = len(here.project.run_folders())
    processes = [here.project.start("run", "--model", "demo", PROMPT) for _ in range(count)]
    results = [here.project.finish(process, limit_s=300) for process in processes]
    wrong = [f"of {count} at once: {result}" for result in results if result.code != 0]
    if (made := len(here.project.run_folders()) - before) != count:
        wrong.append(f"{count} at once made {made} folders")
    return wrong + [f"after {count} at once: {text}" for text in here.leftovers()]


def is_slower(seconds: list[float]) -> tuple[float, float, bool]:
    """The middle of the first runs, that of the last, and whether those took longer than they may."""
    ends = min(ENDS, len(seconds) // 2)
    first, last = statistics.median(seconds[:ends]), statistics.median(seconds[-ends:])
    return first, last, last > SLOWER * first


def measure(plan: Plan) -> Iterator[Row]:
    """All on one project, whose folder of runs grows."""
    with engine_with_image() as own, bed(own) as here:
        seconds, wrong = in_a_row(here, plan.runs)
        for number in range(plan.rounds):
            wrong += at_once(here, plan.at_once)
            print(f"  round {number + 1} of {plan.at_once} at once", file=sys.stderr, flush=True)
        if here.project.impyard("decisions", "--verify").code != 0:
            wrong.append("the log does not verify")
    yield verdict(
        f"runs in a row, then {plan.rounds} times {plan.at_once} at once",
        str(len(seconds)),
        wrong,
        "nothing left",
        "containers, processes, mounts, sockets, control groups, files, the engine's open files",
    )
    first, last, slower = is_slower(seconds)
    yield Row("  seconds of the first and the last runs", f"{first:.2f}, {last:.2f}", "", f"x{SLOWER}", not slower)
