"""What a long log costs: an append beside it, its first page, its summary and its check."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from impyard.addon.judge import Decision, Verdict
from impyard.addon.log import DecisionLog
from impyard.addon.request import Request
from impyard.runner.decisions.tend import LARGE_BYTES
from tests.bench.plan import Plan
from tests.bench.processes import ROOT
from tests.bench.rounds import alternate, ratios, spread
from tests.bench.stored import Ratio
from tests.bench.table import Row
from tests.support.manydecisions import write_many

FEW = 1000
MEMORY_MIB = 80
APPENDS = 2000
AT_MOST_APPEND, AT_MOST_PAGE = 1.1, 2.0


def measure(plan: Plan) -> Iterator[Row]:
    """Two projects, of which one has a long log in compressed files."""
    with tempfile.TemporaryDirectory(prefix="impyard-logs-") as folder:
        few, many = Path(folder, "few"), Path(folder, "many")
        now = datetime.now(UTC)
        for root, count in ((few, FEW), (many, plan.decisions)):
            (root / "policies").mkdir(parents=True)
            (root / "policies" / "gateway.yaml").write_text("networkPolicies: []\n")
            part = min(LARGE_BYTES, max(plan.decisions * 1100 // 8, 1 << 20))
            write_many(root / "runs", count, part_bytes=part, since=now - timedelta(days=60), until=now)
        size = sum(path.stat().st_size for path in (many / "runs").iterdir())
        label = f"log of {plan.decisions:,} decisions ({size / 1e6:.0f} MB)"
        yield _appends(label, few, many, plan)
        yield from _pages(label, few, many, plan)
        yield from _whole(label, many, plan)


def _appends(label: str, few: Path, many: Path, plan: Plan) -> Row:
    logs = [DecisionLog(root / "runs" / "decisions.jsonl", "bench") for root in (many, few)]
    request, decision = Request("GET", "https", "a.test", 443, "/x"), Decision(Verdict.DENY, "no-rule")

    def append(log: DecisionLog) -> float:
        begin = time.process_time()
        for _ in range(APPENDS):
            log.write(decision, request, "sha256:ab")
        return (time.process_time() - begin) / APPENDS

    long, short = alternate(logs, plan.rounds, append)
    for log in logs:
        log.close()
    found = ratios(long, short)
    return Row(
        f"{label}: append, beside one of {FEW}",
        f"{found.median:.2f}",
        found.text(".2f"),
        f"<= {AT_MOST_APPEND}",
        found.median <= AT_MOST_APPEND,
        note=f"{spread(long).median * 1e6:.1f} µs of processor time each",
        ratio=Ratio("logs-append", found.median, more=False),
    )


def _pages(label: str, few: Path, many: Path, plan: Plan) -> Iterator[Row]:
    for what, option in (("first page", ()), ("first page of denials", ("--denied",))):
        found = alternate((many, few), plan.rounds, functools.partial(_seconds, options=option))
        share = ratios(*found)
        yield Row(
            f"{label}: {what}, to that of {FEW}",
            f"{share.median:.2f}",
            share.text(".2f"),
            f"<= {AT_MOST_PAGE}",
            share.median <= AT_MOST_PAGE,
            note=f"{spread(found[0]).median:.2f} s",
            ratio=Ratio(f"logs-{what.replace(' ', '-')}", share.median, more=False),
        )


def _whole(label: str, many: Path, plan: Plan) -> Iterator[Row]:
    for what, option in (("summary", "--summary"), ("check", "--verify")):
        seconds, memory = _run(many, [option])
        yield Row(
            f"{label}: {what}",
            f"{plan.decisions / seconds / 1e6:.2f} M a second",
            "",
            f"<= {MEMORY_MIB} MiB",
            memory <= MEMORY_MIB,
            note=f"{seconds:.1f} s, {memory:.0f} MiB",
        )


def _seconds(root: Path, options: Sequence[str]) -> float:
    return _run(root, options)[0]


def _run(root: Path, options: Sequence[str]) -> tuple[float, float]:
    """How long the command takes, in seconds, and the most memory that one of its processes has, in MiB."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "impyard.runner", "decisions", "--project", str(root), *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _, status, used = os.wait4(process.pid, 0)
    except KeyboardInterrupt:
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    return time.monotonic() - begin, used.ru_maxrss / 1024
