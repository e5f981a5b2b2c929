"""From `impyard run` to the agent's first event, beside `docker run` of the same image with nothing around it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from impyard.addon.vault.credential import Credential
from impyard.runner.agent import demo_agent, write_agent_folder
from tests.bench.plan import Plan
from tests.bench.processes import NEEDS_DOCKER, ROOT
from tests.bench.rounds import alternate, ratios, spread
from tests.bench.stored import Ratio
from tests.bench.table import Row

AT_MOST_S = 0.5
PREFLIGHT_MS = 100
END_S = 0.3
ROUNDS = 7
LIMIT_S = 120.0
BUILD_LIMIT_S = 1800.0
PROMPT = "write 4 to answer.txt"
# The steps of a start that wait for each other (tests/bench/stamped.py has all).
START = (
    "gateway process started",
    "waits for the gateway",
    "gateway ready",
    "canary denied",
    "container created",
    "container started",
    "relay's probes done",
    "first event",
)


def measure(plan: Plan) -> Iterator[Row]:
    """Alternating starts. pi writes its `session` record before it asks a model, so neither needs one to get there."""
    if shutil.which("docker") is None:
        raise RuntimeError(NEEDS_DOCKER)
    with tempfile.TemporaryDirectory(prefix="impyard-bench-", ignore_cleanup_errors=True) as folder:
        place = Place(Path(folder))
        place.prepare()
        place.start_docker()
        starts = [place.start_impyard, place.start_docker]
        ours, theirs = alternate(starts, min(plan.rounds, ROUNDS), lambda start: start())
        stamps = [place.run_with_stamps() for _ in range(min(plan.rounds, ROUNDS))]
    more = spread([a - b for a, b in zip(ours, theirs, strict=True)])
    yield Row(
        "start of a run, more than docker run",
        f"{more.median:.2f} s",
        more.text(".2f"),
        f"<= {AT_MOST_S} s",
        more.median <= AT_MOST_S,
        f"to pi's first event {spread(ours).median:.2f} and {spread(theirs).median:.2f} s",
        Ratio("start", ratios(ours, theirs).median, more=False),
    )
    yield from _rows_of(stamps)


def _rows_of(stamps: list[dict[str, float]]) -> Iterator[Row]:
    """Preflight, the end, and what a start is made of, of runs with stamps."""
    canary = [(at["canary denied"] - at["gateway ready"]) * 1000 for at in stamps]
    probes = [(at["relay's probes done"] - at["container started"]) * 1000 for at in stamps]
    both = spread([a + b for a, b in zip(canary, probes, strict=True)])
    yield Row(
        "preflight: the canary and the box's own probes",
        f"{both.median:.0f} ms",
        both.text(".0f"),
        f"< {PREFLIGHT_MS} ms",
        both.median < PREFLIGHT_MS,
        f"canary {spread(canary).median:.0f} ms; relay's start and probes {spread(probes).median:.0f} ms",
    )
    end = spread([at["prompt back"] - at["last event"] for at in stamps])
    yield Row(
        "end of a run: from the last event to the prompt",
        f"{end.median:.2f} s",
        end.text(".2f"),
        f"< {END_S} s",
        end.median < END_S,
        f"until the container is gone {_until(stamps, 'container gone', 'last event')}",
    )
    parts, before = [], ""
    for reached in START:
        parts.append(f"{reached} +{_until(stamps, reached, before)}")
        before = reached
    first = spread([at["first event"] for at in stamps])
    yield Row("a start, step by step", f"{first.median:.2f} s", first.text(".2f"), note="; ".join(parts))


def _until(stamps: list[dict[str, float]], reached: str, before: str) -> str:
    return f"{spread([at[reached] - at.get(before, 0.0) for at in stamps]).median * 1000:.0f} ms"


class Place:
    """A project, an authority of its own, and an agent folder for the container that has nothing around it."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.home = folder / "home"
        self.image = ""
        self._started = 0
        # The user's own authority stays as it is; the demo model's key is made there, so none may come from here.
        self.environment = {**os.environ, "IMPYARD_DATA_DIR": str(folder / "data")}
        # Like any start but the first, and all of those that bin/impyard makes, these find impyard's code compiled.
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def prepare(self) -> None:
        """Make the project, and the image and the authority by a first run. Raises RuntimeError when that fails."""
        self.project.mkdir()
        self.home.mkdir()
        write_agent_folder(demo_agent(), Credential(name="demo", kind="api_key", key="worthless"), self.home)
        self._call("init", "--project", str(self.project))
        self.start_impyard(BUILD_LIMIT_S)
        receipt = next(self.project.glob("runs/*/run.json"))
        self.image = json.loads(receipt.read_text())["image"]["id"]

    def start_impyard(self, limit_s: float = LIMIT_S) -> float:
        """Seconds to the first event of a run."""
        run = ["run", "--project", str(self.project), "--model", "demo", "--json", PROMPT]
        return first_event_s([sys.executable, "-m", "impyard.runner", *run], self.environment, limit_s)

    def run_with_stamps(self) -> dict[str, float]:
        """A whole run: seconds from its start to each step. Raises RuntimeError when it fails."""
        file = self.project.parent / "stamps.json"
        run = ["run", "--project", str(self.project), "--model", "demo", "--json", PROMPT]
        begin = time.time()
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.stamped", str(file), *run],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"a run with stamps failed: {done.stderr[-300:]}")
        found = {"prompt back": time.time() - begin}
        for reached, at in json.loads(file.read_text()):
            if reached == "event":
                found.setdefault("first event", at - begin)
                found["last event"] = at - begin
            else:
                found.setdefault(reached, at - begin)
        return found

    def start_docker(self) -> float:
        """Seconds to the first event of the same pi in the same image, started by somebody who trusts it."""
        self._started += 1
        name = f"impyard-bench-{os.getpid()}-{self._started}"
        variables = {
            "HOME": str(self.home),
            "PI_CODING_AGENT_DIR": str(self.home / "agent"),
            "PI_OFFLINE": "1",
            "PI_SKIP_VERSION_CHECK": "1",
            "PI_TELEMETRY": "0",
        }
        command = [
            *("docker", "run", "--rm", "--name", name, "--network", "none", "--user", f"{os.geteuid()}:{os.getegid()}"),
            *("--volume", f"{self.home}:{self.home}", "--workdir", str(self.home)),
            *(item for key, value in variables.items() for item in ("--env", f"{key}={value}")),
            *("--entrypoint", "pi", self.image),
            *("--mode", "json", "--offline", "--no-approve", "--no-extensions", "--model", "demo/demo", PROMPT),
        ]
        try:
            return first_event_s(command, self.environment, LIMIT_S)
        finally:
            subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)

    def _call(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "impyard.runner", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"impyard {arguments[0]} failed: {done.stderr[:300]}")


def first_event_s(command: list[str], environment: dict[str, str], limit_s: float) -> float:
    """Seconds until a command prints pi's `session` record. The command is then let to its own end, at most 30 s.

    Raises RuntimeError when the record does not come.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    killer = threading.Timer(limit_s, process.kill)
    killer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{") and json.loads(line).get("type") == "session":
                took = time.perf_counter() - begin
                break
        else:
            raise RuntimeError(f"{command[0]} ended without an event: {process.communicate()[1][-300:]}")
        _let_end(process)
        return took
    finally:
        killer.cancel()
        if process.poll() is None:  # we were interrupted
            _let_end(process)


def _let_end(process: subprocess.Popen[str]) -> None:
    """Both take themselves down when they are asked to; an unfinished container must not slow down the next start."""
    process.terminate()
    try:
        process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
