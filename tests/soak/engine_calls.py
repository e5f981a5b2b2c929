"""An engine that fails at one call of a run, whichever: a defined end, one clear error, and nothing stays."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.bench.table import Row
from tests.soak.bed import engine_with_image, this_caller, verdict
from tests.soak.plan import Plan
from tests.support.engineproxy import Fault, engine_proxy
from tests.support.ownengine import OwnEngine
from tests.support.project import Project

LIMIT_S = 4  # instead of a minute, for what nobody will answer; all else may take its time on a busy machine
HURRIED = f"""\
import re
import sys
import requests
from impyard.runner import engine, stage
from impyard.runner.__main__ import main

call, how = sys.argv[1:3]
del sys.argv[1:3]
send = requests.Session.send

def hurried(self, request, **options):
    asked = request.method + " " + re.sub("^/v[0-9.]+", "", request.path_url)
    return send(self, request, **options | ({{"timeout": {LIMIT_S}}} if re.search(call, asked) else {{}}))

if how == "hang":
    requests.Session.send = hurried
elif how == "dead":
    engine.GONE_LIMIT_S = stage.END_LIMIT_S = {LIMIT_S}
sys.exit(main())
"""
# All that a run asks of its engine, in order. A run whose box has started has a receipt.
BEFORE = ("/version", "/info", "GET /containers/json", "GET /images/", "/create", "/attach", "/wait", "/start")
AFTER = ("DELETE /containers/", "GET /containers/[0-9a-f]{64}/json")
HOWS = ("error", "reset", "lost", "hang", "dead")
AT_ONCE = 4
# The ceiling is short, so that it ends what a broken engine does not.
CEILING_MIN = "0.5"


class HurriedProject(Project):
    """Its impyard does not wait long for an engine at its `fault`."""

    fault: Fault | None = None

    def command(self, *args: str) -> list[str]:
        if self.fault is None:
            return super().command(*args)
        return [sys.executable, "-P", "-c", HURRIED, self.fault.call, self.fault.how, *args]


def faults(hows: tuple[str, ...] = HOWS) -> list[Fault]:
    return [Fault(call, how) for how in hows for call in (*BEFORE, *AFTER)]


def attempt(fault: Fault, own: OwnEngine) -> list[str]:
    """One run with this fault; what is not as it must be."""
    with tempfile.TemporaryDirectory(prefix="impyard-soak-") as folder:
        project = HurriedProject(Path(folder).resolve(), caller=this_caller(), own=own)
        try:
            return [f"{fault.how} at {fault.call}: {text}" for text in _attempt(project, fault, own)]
        finally:
            project.clean()


def _attempt(project: HurriedProject, fault: Fault, own: OwnEngine) -> Iterator[str]:
    began = time.monotonic()
    project.fault = fault
    with engine_proxy(fault=fault, engine=own.host) as proxy:
        process = project.start(
            *("run", "--model", "demo", "--ceiling", CEILING_MIN, "write 4 to answer.txt"),
            env={"DOCKER_HOST": proxy.host},
        )
        try:
            result = project.finish(process)
        finally:
            proxy.release()
            project.fault = None
        if not proxy.broken:
            yield f"the call was never made: {proxy.calls}"
    if fault.call in BEFORE:
        lines = [line.partition(":")[0] for line in result.err.splitlines()]
        if result.code != 125 or lines != ["error", "hint"]:
            yield f"exit {result.code}: {result.err}"
        if folders := project.run_folders():
            yield f"a run that never began left {folders}"
    elif result.code != 0 or len(project.run_folders()) != 1:
        yield f"exit {result.code}: {result.out} {result.err}"
    if time.monotonic() - began > 60:
        yield f"it took {time.monotonic() - began:.0f} s"
    # Only a box whose engine was away may still be there. The next run takes it away.
    boxes = [line for line in project.leftovers() if not line.startswith("container ")]
    if boxes or (fault.how != "dead" and project.boxes()):
        yield f"left behind: {project.leftovers()}"
    after = project.demo("write 4 to answer.txt")
    if after.code != 0 or project.leftovers():
        yield f"the next run: {after}, left behind: {project.leftovers()}"
    if project.impyard("decisions", "--verify").code != 0:
        yield "the log does not verify"


def attempt_all(which: list[Fault], own: OwnEngine) -> list[str]:
    """What is not as it must be, of all of them."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [text for texts in pool.map(lambda fault: attempt(fault, own), which) for text in texts]


def measure(plan: Plan) -> Iterator[Row]:
    """Every fault at every call."""
    which = faults()
    with engine_with_image() as own:
        wrong = attempt_all(which, own)
    yield verdict(
        "engine calls broken", str(len(which)), wrong, "each ends as it must, and the next run leaves nothing"
    )
