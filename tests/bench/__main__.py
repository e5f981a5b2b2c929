"""`python -m tests.bench [NAME ...]`: measure, and print the figures beside their targets.

A missed target does not change the exit status: on a busy machine it says little. Look at the spread, run it again.
With `--check` a ratio that is more than a fifth worse than the stored one does, if it is that when measured again too.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator

from tests.bench import (
    big_bodies,
    first_event,
    help_time,
    http2,
    kept_connections,
    keys,
    logs,
    many_rules,
    many_runs,
    many_streams,
    new_connections,
    real_work,
    run_start,
    websocket,
)
from tests.bench.plan import Plan
from tests.bench.stored import Ratio, losses, names_of, store, stored
from tests.bench.table import Row, lines

MEASURES: dict[str, tuple[Callable[[Plan], Iterator[Row]], str]] = {
    "kept": (kept_connections.measure, "judged requests/s on kept connections, of bare mitmdump"),
    "new": (new_connections.measure, "new judged connections/s, of bare mitmdump"),
    "h2": (http2.measure, "judged requests/s of HTTP/2 clients, of bare mitmdump"),
    "rules": (
        many_rules.measure,
        "10,000 rules on one host and over 1,000, of 20 rules; loading them; stalls by a reload",
    ),
    "bodies": (big_bodies.measure, "memory and speed of a big download, an upload and a denied upload"),
    "keys": (keys.measure, "requests/s with 100 kB, credentials and the tripwire, of the judge without them"),
    "websocket": (websocket.measure, "a WebSocket's round trip, more than direct"),
    "streams": (many_streams.measure, "64 downloads and event streams at once"),
    "event": (first_event.measure, "how long the first server-sent event is under way"),
    "start": (run_start.measure, "from impyard run to the first event, more than docker run; preflight; the end"),
    "many": (many_runs.measure, "many runs at once: time, memory and processor time of each"),
    "npm": (real_work.npm, "npm ci of pi's lock file in a box, of the same in a container"),
    "pip": (real_work.pip, "pip download of 40 packages in a box"),
    "git": (real_work.git, "git clone and push of 100 MB in a box"),
    "curl": (real_work.curl, "200 calls by curl in a box"),
    "logs": (logs.measure, "appends, first pages, summary and check of a long log, beside a short one"),
    "help": (help_time.measure, "how long impyard --help and completion take"),
}


FAILED = "failed"


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
    numbers = ",".join(map(str, defaults.at_once))
    parser.add_argument("--at-once", type=_numbers, default=numbers, metavar="N,N", help="runs at once (%(default)s)")
    parser.add_argument("--decisions", type=int, default=defaults.decisions, help="in a long log (%(default)s)")
    after = parser.add_mutually_exclusive_group()
    after.add_argument("--check", action="store_true", help="fail when a stored ratio was lost")
    after.add_argument("--store", action="store_true", help="store the ratios in place of those before")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in MEASURES]
    if unknown:
        parser.error(f"no such measure: {', '.join(unknown)} (there are {', '.join(MEASURES)})")
    plan = Plan(
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        body_mib=arguments.body,
        at_once=arguments.at_once,
        decisions=arguments.decisions,
    )
    before = stored() if arguments.check else {}
    rows: list[Row] = []
    failed: list[str] = []
    for name in arguments.names or MEASURES:
        measured = _measured(name, plan)
        if losses(before, _ratios(measured)):
            print(f"{name} has lost; once more …", file=sys.stderr, flush=True)
            rows += measured
            measured = _measured(name, plan)
        rows += measured
        found = _ratios(measured)
        failed += [f"{row.what}: {row.note}" for row in measured if row.figure == FAILED]
        failed += losses(before, found)
        failed += [f"{gone}: not measured" for gone in names_of(before, name) - {ratio.name for ratio in found}]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{time.strftime('%F %T')}, {os.cpu_count()} processors, load {load}")
    print("\n".join(lines(rows)))
    if arguments.store:
        store(_ratios(rows))
    for what in failed:
        print(f"failed: {what}", file=sys.stderr)
    return int(bool(failed))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _measured(name: str, plan: Plan) -> list[Row]:
    print(f"measuring {name} …", file=sys.stderr, flush=True)
    rows: list[Row] = []
    try:
        rows += MEASURES[name][0](plan)
    except (OSError, RuntimeError) as exc:
        rows.append(Row(name, FAILED, note=str(exc)))
    return rows


def _ratios(rows: list[Row]) -> list[Ratio]:
    return [row.ratio for row in rows if row.ratio is not None]


if __name__ == "__main__":
    sys.exit(main())
