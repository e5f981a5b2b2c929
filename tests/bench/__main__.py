"""`python -m tests.bench [NAME ...]`: measure, and print the figures beside their targets.

A missed target does not change the exit status: on a busy machine it says little. Look at the spread, run it again.
With `--check` a ratio that is more than a fifth worse than the stored one does, if it is that when measured again too.
Whatever is to be measured, Ctrl-C ends it: the measures stop what they started and remove their folders.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

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
from tests.bench.table import FAILED, Row, lines, summary

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


INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line names; the exit status is 1 when something could not be measured."""
    arguments = _arguments(argv)
    try:
        before = stored() if arguments.check else {}
    except FileNotFoundError as exc:
        return _error(f"no ratios are stored in {exc.filename}: `--store` measures and stores them")
    except (OSError, ValueError, AttributeError, TypeError) as exc:
        return _error(f"the stored ratios cannot be read: {exc}; `--store` without names writes them anew")
    try:
        return _measure(arguments, before)
    except KeyboardInterrupt:
        print("interrupted" + ("; nothing was stored" if arguments.store else ""), file=sys.stderr)
        return INTERRUPTED


def _error(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    defaults = Plan()
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Ratios between runs that alternate on one machine, beside their targets.\n"
        "A missed target does not change the exit status.",
        epilog="names:\n" + "\n".join(f"  {name:<10} {what}" for name, (_, what) in MEASURES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure; everything by default")
    parser.add_argument(
        "--rounds", type=_count, default=defaults.rounds, metavar="N", help="of each comparison (%(default)s)"
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=defaults.seconds, metavar="S", help="of each load (%(default)s)"
    )
    parser.add_argument(
        "--body", type=_count, default=defaults.body_mib, metavar="MIB", help="a big body (%(default)s)"
    )
    numbers = ",".join(map(str, defaults.at_once))
    parser.add_argument("--at-once", type=_counts, default=numbers, metavar="N,N", help="runs at once (%(default)s)")
    parser.add_argument(
        "--decisions", type=_count, default=defaults.decisions, metavar="N", help="in a long log (%(default)s)"
    )
    after = parser.add_mutually_exclusive_group()
    after.add_argument(
        "--check", action="store_true", help="fail when a ratio is more than a fifth worse than the stored one"
    )
    after.add_argument("--store", action="store_true", help="store the ratios for --check, in place of those before")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.names if name not in MEASURES]
    if unknown:
        parser.error(f"no such measure: {', '.join(unknown)} (there are {', '.join(MEASURES)})")
    return arguments


def _measure(arguments: argparse.Namespace, before: Mapping[str, float]) -> int:
    plan = Plan(
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        body_mib=arguments.body,
        at_once=arguments.at_once,
        decisions=arguments.decisions,
    )
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
    sys.stdout.flush()
    for what in failed:
        print(f"failed: {what}", file=sys.stderr, flush=True)
    print(summary(rows))
    return int(bool(failed))


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(word) for word in text.split(","))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0 or not math.isfinite(seconds):
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds, above 0")
    return seconds


def _measured(name: str, plan: Plan) -> list[Row]:
    print(f"measuring {name} …", file=sys.stderr, flush=True)
    rows: list[Row] = []
    try:
        rows += MEASURES[name][0](plan)
    except (OSError, RuntimeError, subprocess.SubprocessError) as exc:
        rows.append(Row(name, FAILED, note=str(exc)))
    return rows


def _ratios(rows: list[Row]) -> list[Ratio]:
    return [row.ratio for row in rows if row.ratio is not None]


if __name__ == "__main__":
    sys.exit(main())
