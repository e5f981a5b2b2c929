"""How long `impyard --help` takes: what every command pays before it does anything."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.plan import Plan
from tests.bench.processes import ROOT
from tests.bench.rounds import alternate, spread
from tests.bench.table import Row

AT_MOST_S = 0.25


def measure(plan: Plan) -> Iterator[Row]:
    """Each way to call it that this checkout has; Python alone beside them."""
    names = commands()
    results = alternate(list(names.values()), plan.commands, seconds)
    bare = spread([seconds([sys.executable, "-c", "pass"]) for _ in range(plan.commands)])
    for name, times in zip(names, results, strict=True):
        took = spread(times)
        yield Row(
            f"{name} --help",
            f"{took.median:.3f} s",
            took.text(".3f"),
            f"< {AT_MOST_S} s",
            took.median < AT_MOST_S,
            f"{len(times)} calls; Python alone takes {bare.median:.3f} s",
        )


def commands() -> dict[str, list[str]]:
    """Name -> command line. The script in `bin` only where it has made its environment: it would make one now."""
    found = {"python -m impyard.runner": [sys.executable, "-m", "impyard.runner", "--help"]}
    installed = Path(sys.executable).with_name("impyard")
    if installed.exists():
        found["impyard"] = [str(installed), "--help"]
    if (ROOT / "bin" / "impyard").exists() and (ROOT / ".venv").exists():
        found["bin/impyard"] = [str(ROOT / "bin" / "impyard"), "--help"]
    return found


def seconds(command: list[str]) -> float:
    """How long a command takes. Raises RuntimeError when it fails."""
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    took = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.decode(errors='replace')[:200]}")
    return took
