"""Random deaths at random moments of a run: always a defined end, books that say what happened, and nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from impyard.runner.receipt import EXITS
from tests.bench.table import Row
from tests.soak.bed import Bed, bed, engine_with_image, verdict
from tests.soak.plan import Plan
from tests.support.ownengine import children
from tests.support.waiting import wait_until

CEILING_MIN = "0.2"
# A run that is stopped, its engine restarted, must still end by this.
END_LIMIT_S = 90.0
VICTIM_LIMIT_S = 30.0
PROMPT = "write 4 to answer.txt\nrun: sleep 0.5"
SIGNALS = {
    "runner": ("KILL", "KILL", "TERM", "INT", "HUP", "STOP"),
    "gateway": ("KILL", "TERM", "STOP"),
    "relay": ("KILL", "TERM", "STOP"),
    "agent": ("KILL", "TERM", "STOP"),
    "box": ("kill", "stop", "rm", "pause"),
    "runner and gateway": ("KILL",),
    "engine": ("TERM", "KILL"),
}
DEADLY = ("runner", "runner and gateway", "engine")
# Statuses of a Python that was signalled before it had come as far as our first line.
BEFORE_US = (1, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Kill:
    """Who is hit by what, this long (seconds) after the start of the run. pause_s: between the first and the second
    blow, if there are `twice` two, and until a stopped process goes on, if it `goes_on`."""

    victim: str
    how: str
    after_s: float
    twice: bool
    pause_s: float
    goes_on: bool


def choose(chance: random.Random, victim: str, span_s: float) -> Kill:
    """A kill of this kind of victim, within the time that a run takes."""
    return Kill(
        victim,
        chance.choice(SIGNALS[victim]),
        chance.uniform(0, span_s),
        chance.random() < 0.25,
        chance.uniform(0.05, 1.0),
        victim == "runner" or chance.random() < 0.5,
    )


def plan_kills(chance: random.Random, count: int, span_s: float, engine_every: int) -> Iterator[Kill]:
    """Each kind of victim about as often; the engine, which takes longest to come back, every so many kills."""
    others = [victim for victim in SIGNALS if victim != "engine"]
    for number in range(1, count + 1):
        is_engine = engine_every and number % engine_every == 0
        yield choose(chance, "engine" if is_engine else others[number % len(others)], span_s)


def strike(here: Bed, kill: Kill) -> Iterator[str]:
    """One run that is hit; what is not as it must be."""
    project = here.project
    before = set(project.run_folders())
    process = project.start("run", "--model", "demo", "--ceiling", CEILING_MIN, PROMPT)
    time.sleep(kill.after_s)
    _hit(here, kill, process)
    try:
        out, err = process.communicate(timeout=END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        yield "the run does not end"
        process.communicate()
        return
    if kill.victim == "engine":
        wait_until(lambda: subprocess.run(["docker", "ps"], env=here.own.env, capture_output=True).returncode == 0)
    words = (out + err).decode("utf-8", "replace")
    was_killed = process.returncode == -signal.SIGKILL and kill.victim in DEADLY
    early = kill.victim == "runner" and process.returncode in BEFORE_US
    if process.returncode not in EXITS.values() and not was_killed and not early:
        yield f"status {process.returncode}: {words}"
    if ("Traceback" in words and not early) or "internal error" in words:
        yield words
    new = set(project.run_folders()) - before
    if len(new) > 1:
        yield f"{len(new)} folders"
    if kill.victim in DEADLY:
        after = project.demo("write 4 to answer.txt")  # the next start puts things in order
        if after.code != 0:
            yield f"the next run: {after}"
    if kill.victim == "engine" and (running := here.own.drop_lost_shims()):
        yield f"a box that the engine has forgotten still runs: {running}"
    for folder in new:
        yield from _books(here, folder, None if was_killed else process.returncode)
    checked = project.impyard("decisions", "--verify")
    if checked.code != 0 and "torn" not in checked.err:
        yield f"the log: {checked.err}"
    if left := here.leftovers():
        yield f"left behind: {left}"


def _books(here: Bed, folder: Path, code: int | None) -> Iterator[str]:
    """Whether what is said of a run agrees with how its runner ended; code None: it was killed."""
    if code is None and not (folder / "run.json").exists():
        return  # killed before the receipt: removed when it is old enough, shown until then
    shown = here.project.impyard("runs", "show", folder.name, "--json")
    if shown.code != 0:
        yield f"runs show: {shown}"
        return
    receipt = json.loads(shown.out)
    state, status = receipt["state"], receipt["exit_status"]
    if code is None:
        if state not in EXITS or state == "running":
            yield f"the run of a killed runner is {state}"
    elif state != receipt["exit_reason"] or status != code or state == "running":
        yield f"ended with {code}, but the receipt says {state}, {status}"
    if state == "running":
        yield "still running"


def _hit(here: Bed, kill: Kill, process: subprocess.Popen[bytes]) -> None:
    """Strike once or twice, as soon as the victim is there."""
    for _ in range(2 if kill.twice else 1):
        if kill.victim == "engine":
            here.own.stop() if kill.how == "TERM" else here.own.kill()
            time.sleep(kill.pause_s)
            here.own.start()
            here.recount()
        elif kill.victim == "box":
            _hit_box(here, kill, process)
        else:
            targets = _find(here, kill.victim, process)
            for pid in targets:
                _send(pid, signal.Signals[f"SIG{kill.how}"])
            if kill.how == "STOP" and kill.goes_on:
                time.sleep(kill.pause_s)
                for pid in targets:
                    _send(pid, signal.SIGCONT)
        if kill.twice:
            time.sleep(kill.pause_s)


def _hit_box(here: Bed, kill: Kill, process: subprocess.Popen[bytes]) -> None:
    arguments = {"kill": ["kill"], "stop": ["stop", "-t", "1"], "rm": ["rm", "-f"], "pause": ["pause"]}[kill.how]
    for box in _await(process, here.project.boxes):
        with contextlib.suppress(subprocess.CalledProcessError):  # created only, or gone meanwhile
            here.own.docker(*arguments, box.id)
            if kill.how == "pause" and kill.goes_on:
                time.sleep(kill.pause_s)
                here.own.docker("unpause", box.id)


def _find(here: Bed, victim: str, process: subprocess.Popen[bytes]) -> list[int]:
    """The victim's process numbers, once it is there; none when the run has ended before."""
    if victim == "runner":
        return [process.pid]
    if victim == "runner and gateway":
        return [process.pid, *_find(here, "gateway", process)]
    if victim == "gateway":
        return _await(
            process, lambda: [pid for pid, line in here.project.processes().items() if "impyard.addon" in line]
        )
    relays = _await(process, lambda: _relays(here))
    if victim == "relay":
        return relays
    return _await(process, lambda: [child for relay in relays for child in children(relay)])


def _relays(here: Bed) -> list[int]:
    """The first processes of the boxes, as this machine numbers them."""
    shims = here.own.processes("containerd-shim")
    return [pid for shim in shims for pid, line in children(shim).items() if "relay.py" in line]


def _await[T](process: subprocess.Popen[bytes], look: Callable[[], list[T]]) -> list[T]:
    """What `look` finds, once it finds something; nothing when the run is over before."""
    deadline = time.monotonic() + VICTIM_LIMIT_S
    while not (found := look()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def strike_all(here: Bed, kills: Iterator[Kill], results: Counter[str], seed: int) -> list[str]:
    """All of them, one after the other; what is not as it must be. `results` counts the victims."""
    wrong = []
    for number, kill in enumerate(kills, 1):
        found = [f"seed {seed}, number {number}, {kill}: {text}" for text in strike(here, kill)]
        for text in found:
            print(f"  {text}", file=sys.stderr, flush=True)
        wrong += found
        results[f"{kill.victim}"] += 1
        if found:
            here.project.clean()
    return wrong


def measure(plan: Plan) -> Iterator[Row]:
    """Half of the kills with an engine that takes its boxes with it when it restarts, half with one that keeps them."""
    for live_restore in (False, True):
        results: Counter[str] = Counter()
        with engine_with_image(live_restore=live_restore) as own, bed(own) as here:
            seed = plan.seed + live_restore
            kills = plan_kills(random.Random(seed), plan.kills // 2, here.run_s * 1.3, plan.engine_every)
            wrong = strike_all(here, kills, results, seed)
        made = ", ".join(f"{count} {victim}" for victim, count in results.items())
        kept = "kept alive by" if live_restore else "taken down with"
        yield verdict(
            f"random kills, boxes {kept} the engine",
            str(sum(results.values())),
            wrong,
            "defined end, whole books, nothing left",
            f"seed {seed}: {made}",
        )
