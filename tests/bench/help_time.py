"""How long `impyard --help` and the completion of a line take: what a person waits for before anything is done."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.bench.plan import Plan
from tests.bench.processes import ROOT
from tests.bench.rounds import alternate, ratios, spread
from tests.bench.stored import Ratio
from tests.bench.table import Row

AT_MOST_S = 0.15
MODULE = "python -m impyard.runner"
# As bash asks how a line goes on (runner/completing.py).
COMPLETION = {"_IMPYARD_COMPLETE": "bash_complete", "IMPYARD_LINE": "impyard runs show "}


def measure(plan: Plan) -> Iterator[Row]:
    """Each way to call it that this checkout has; Python alone beside them."""
    for what, extra, environment in (("--help", ["--help"], {}), ("completion", [], COMPLETION)):
        names = commands()
        lines = [[*command, *extra] for command in names.values()]
        alone = [sys.executable, "-c", "pass"]
        *results, bare = alternate([*lines, alone], plan.rounds, partial(seconds, environment=environment))
        for name, times in zip(names, results, strict=True):
            took = spread(times)
            ratio = Ratio(f"help-{what.strip('-')}", ratios(times, bare).median, more=False)
            yield Row(
                f"{name} {what}",
                f"{took.median:.3f} s",
                took.text(".3f"),
                f"< {AT_MOST_S} s",
                took.median < AT_MOST_S,
                f"{len(times)} calls; Python alone takes {spread(bare).median:.3f} s",
                ratio if name == MODULE else None,  # the others may not be there
            )


def commands() -> dict[str, list[str]]:
    """Name -> command line. The script in `bin` only where it has made its environment: it would make one now."""
    found = {MODULE: [sys.executable, "-m", "impyard.runner"]}
    installed = Path(sys.executable).with_name("impyard")
    if installed.exists():
        found["impyard"] = [str(installed)]
    if (ROOT / "bin" / "impyard").exists() and (ROOT / ".venv").exists():
        found["bin/impyard"] = [str(ROOT / "bin" / "impyard")]
    return found


def seconds(command: list[str], environment: Mapping[str, str]) -> float:
    """How long a command takes, with `environment` added to this process's. Raises RuntimeError when it fails."""
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, check=False)
    took = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.decode(errors='replace')[:200]}")
    return took
