"""`python -m tests.bench [NAME ...]`: measure, and print the figures beside their targets.

A missed target does not change the exit status: on a busy machine it says little. Look at the spread, run it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator

from tests.bench import big_bodies, first_event, help_time, kept_connections, keys, many_rules, run_start
from tests.bench.plan import Plan
from tests.bench.table import Row, lines

MEASURES: dict[str, tuple[Callable[[Plan], Iterator[Row]], str]] = {
    "kept": (kept_connections.measure, "judged requests/s on kept connections, of bare mitmdump"),
    "rules": (many_rules.measure, "10,000 rules on one host, of 20 rules"),
    "bodies": (big_bodies.measure, "memory and speed of a big download, an upload and a denied upload"),
    "keys": (keys.measure, "requests/s with 100 kB, credentials and the tripwire, of the judge without them"),
    "event": (first_event.measure, "how long the first server-sent event is under way"),
    "start": (run_start.measure, "from impyard run to the agent's first event, more than docker run"),
    "help": (help_time.measure, "how long impyard --help takes"),
}


def main() -> int:
    """Measure what the command line names; the exit status is 1 when something could not be measured."""
    defaults = Plan()
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Ratios between runs that alternate on one machine, beside their targets.",
        epilog="names: " + "; ".join(f"{name}: {what}" for name, (_, what) in MEASURES.items()),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure; everything by default")
    parser.add_argument("--rounds", type=int, default=defaults.rounds, help="of each comparison (%(default)s)")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="of each load (%(default)s)")
    parser.add_argument("--body", type=int, default=defaults.body_mib, metavar="MIB", help="a big body (%(default)s)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in MEASURES]
    if unknown:
        parser.error(f"no such measure: {', '.join(unknown)} (there are {', '.join(MEASURES)})")
    plan = Plan(rounds=arguments.rounds, seconds=arguments.seconds, body_mib=arguments.body)
    rows: list[Row] = []
    failed = False
    for name in arguments.names or MEASURES:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        try:
            rows += MEASURES[name][0](plan)
        except (OSError, RuntimeError) as exc:
            failed = True
            rows.append(Row(name, "failed", note=str(exc)))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{time.strftime('%F %T')}, {os.cpu_count()} processors, load {load}")
    print("\n".join(lines(rows)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
