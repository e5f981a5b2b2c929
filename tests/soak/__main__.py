"""`python -m tests.soak [NAME ...]`: the long forms, and their figures as a table; exit status 1 when one is wrong.

Needs root and Docker: engines of its own are started and killed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields

from tests.bench.table import Row, lines
from tests.soak import engine_calls, kills, runs, traffic
from tests.soak.plan import Plan

MEASURES: dict[str, tuple[Callable[[Plan], Iterator[Row]], str]] = {
    "runs": (runs.measure, "runs in a row and at once leave nothing behind"),
    "requests": (traffic.measure, "a gateway's memory and descriptors over very many requests"),
    "kills": (kills.measure, "whoever dies whenever, the end is defined and nothing is left"),
    "engine": (engine_calls.measure, "the engine fails at each call of a run"),
}


def main() -> int:
    """Do what the command line names."""
    defaults = Plan()
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="What a long life and a violent death leave behind.",
        epilog="names: " + "; ".join(f"{name}: {what}" for name, (_, what) in MEASURES.items()),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to do; everything by default")
    for field in fields(Plan):
        default = getattr(defaults, field.name)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=default, help="(%(default)s)")
    arguments = vars(parser.parse_args())
    names = arguments.pop("names") or list(MEASURES)
    if unknown := [name for name in names if name not in MEASURES]:
        parser.error(f"no such measure: {', '.join(unknown)} (there are {', '.join(MEASURES)})")
    plan = Plan(**arguments)
    rows: list[Row] = []
    began = time.monotonic()
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            rows += MEASURES[name][0](plan)
        except (OSError, RuntimeError, AssertionError) as exc:
            rows.append(Row(name, "failed", ok=False, note=str(exc)[:300]))
    print(f"{time.strftime('%F %T')}, {os.cpu_count()} processors, {time.monotonic() - began:.0f} s")
    print("\n".join(lines(rows)))
    return int(any(row.ok is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
