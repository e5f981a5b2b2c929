"""Real runs of the demo model that are all under way at the same moment: started, held, let go, and taken away.

Each run does a little work, says that it is there, and then waits in the box on a pipe until it is let go; waiting
costs nothing. So the crowd is complete while it is looked at, whatever its size.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from impyard.runner import engine
from tests.bench.processes import ROOT

PROMPT = "write 4 to answer.txt\nrun: mkfifo go && touch there && cat go\nwrite 5 to last.txt"
# Long for the slowest machine: a run takes a few seconds of processor time.
BASE_S, EACH_S = 90.0, 15.0
BUILD_LIMIT_S = 1800.0
END_S = 40.0


@dataclass(slots=True)
class Member:
    """One run of the crowd. Times are those of time.time(); `cpu_s` is of the runner and the gateway, at the end."""

    project: Path
    process: subprocess.Popen[bytes]
    words: Path
    started: float
    folder: Path | None = None
    arrived: float = 0.0
    ended: float = 0.0
    cpu_s: float = 0.0
    fault: str = ""


class Crowd:
    """`start` runs, wait until they `arrive`, `release` them, and `close` it in any case."""

    def __init__(self, folder: Path, projects: int) -> None:
        self.folder = folder
        self.projects = [folder / f"project-{number}" for number in range(1, projects + 1)]
        self.members: list[Member] = []
        # The user's own authority and vault stay as they are.
        self.environment = {**os.environ, "IMPYARD_DATA_DIR": str(folder / "data"), "TMPDIR": str(folder / "tmp")}
        for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):  # which a user's impyard does not have
            self.environment.pop(name, None)
        self._ends: list[threading.Thread] = []

    def prepare(self) -> None:
        """Make the projects, and by a first run the image, the authority and the demo model's account. Raises
        RuntimeError when that fails."""
        (self.folder / "tmp").mkdir()
        for project in self.projects:
            project.mkdir()
            self.impyard("init", project)
        self.impyard("run", self.projects[0], "--model", "demo", "write 4 to answer.txt", limit_s=BUILD_LIMIT_S)

    def impyard(self, command: str, project: Path, *arguments: str, limit_s: float = 60.0) -> tuple[str, float]:
        """What a command prints, and how many seconds it took. Raises RuntimeError when it fails."""
        line = [sys.executable, "-m", "impyard.runner", command, *arguments, "--project", str(project)]
        began = time.monotonic()
        try:
            done = subprocess.run(
                line, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"impyard {command} takes more than {limit_s:.0f} s") from None
        if done.returncode:
            raise RuntimeError(f"impyard {command} failed: {done.stderr[-300:]}")
        return done.stdout, time.monotonic() - began

    def start(self, count: int) -> None:
        """Start so many runs at once, spread over the projects."""
        for number in range(count):
            project = self.projects[number % len(self.projects)]
            words = self.folder / "tmp" / f"words-{number}"
            command = [sys.executable, "-m", "impyard.runner", "run", "--project", str(project), "--model", "demo"]
            with words.open("wb") as sink:
                process = subprocess.Popen(
                    [*command, PROMPT], cwd=ROOT, env=self.environment,
                    stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
                )  # fmt: skip
            member = Member(project, process, words, time.time())
            self.members.append(member)
            thread = threading.Thread(target=_await_end, args=(member,), daemon=True)
            thread.start()
            self._ends.append(thread)

    def arrive(self) -> None:
        """Wait until each run waits to be let go, or has ended, which is its fault; or until the time is over."""
        deadline = time.monotonic() + BASE_S + EACH_S * len(self.members)
        while time.monotonic() < deadline and any(not m.arrived and not m.ended for m in self.members):
            time.sleep(0.1)
            self._look_for_arrivals()
        for member in self.members:
            if not member.arrived and not member.ended:
                member.fault = "it did not come up in time"
            elif not member.arrived:
                member.fault = "it ended early"

    def boxes(self) -> list[str]:
        """The ids of the crowd's containers."""
        place = f"{self.folder}/"
        return [box.id for box in engine.boxes() if box.labels.get("impyard.project", "").startswith(place)]

    def release(self) -> float:
        """Let all go and wait until all have ended; when that was done, in time.time()."""
        at = time.time()
        for member in self.members:
            if member.arrived and member.folder is not None:
                _let_go(member.folder / "workspace" / "go")
        deadline = time.monotonic() + BASE_S + EACH_S * len(self.members)
        for thread in self._ends:
            thread.join(max(0.0, deadline - time.monotonic()))
        for member in self.members:
            if not member.ended:
                member.fault = member.fault or "it did not end in time"
            elif member.process.returncode:
                member.fault = member.fault or f"status {member.process.returncode}"
            elif not self._is_done(member):
                member.fault = member.fault or "its work is not done"
        return at

    def close(self) -> list[str]:
        """End what still lives, as Ctrl-C would, and then with force. Returns what is left, normally nothing."""
        for insist in (signal.SIGINT, signal.SIGKILL):
            for member in self.members:
                if not member.ended:
                    os.kill(member.process.pid, insist)
            deadline = time.monotonic() + END_S
            for thread in self._ends:
                thread.join(max(0.0, deadline - time.monotonic()))
        boxes = self.boxes()
        for box in boxes:
            engine.make_gone(box)
        return [f"box {box[:12]}" for box in boxes]

    def _look_for_arrivals(self) -> None:
        for member in self.members:
            if member.arrived:
                continue
            if member.folder is None:
                member.folder = self._folder_of(member)
            if member.folder is not None:
                with suppress(OSError):
                    member.arrived = (member.folder / "workspace" / "there").stat().st_mtime

    def _folder_of(self, member: Member) -> Path | None:
        for receipt in member.project.glob("runs/*/run.json"):
            with suppress(OSError, ValueError):
                if json.loads(receipt.read_bytes()).get("runner_pid") == member.process.pid:
                    return receipt.parent
        return None

    def _is_done(self, member: Member) -> bool:
        if member.folder is None:
            return False
        workspace = member.folder / "workspace"
        try:
            return [(workspace / name).read_text() for name in ("answer.txt", "last.txt")] == ["4", "5"]
        except OSError:
            return False


def last_words(member: Member) -> str:
    """The end of what a run printed, on one line."""
    return " / ".join(member.words.read_text("utf-8", "replace").split("\n")[-4:])[-300:].strip(" /")


def folder() -> tempfile.TemporaryDirectory[str]:
    """A place for a crowd."""
    return tempfile.TemporaryDirectory(prefix="impyard-many-", ignore_cleanup_errors=True)


def verify(crowd: Crowd, projects: Sequence[Path]) -> list[str]:
    """What is wrong with the projects' logs."""
    wrong = []
    for project in projects:
        try:
            crowd.impyard("decisions", project, "--verify")
        except RuntimeError as exc:
            wrong.append(str(exc))
    return wrong


def _let_go(pipe: Path) -> None:
    """Open and close the pipe that a run reads. It says that it is there a moment before it reads."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with suppress(OSError):
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            return
        time.sleep(0.02)


def _await_end(member: Member) -> None:
    _pid, status, used = os.wait4(member.process.pid, 0)
    member.process.returncode = os.waitstatus_to_exitcode(status)
    member.cpu_s = used.ru_utime + used.ru_stime  # the gateway's too, whose end the runner awaits
    member.ended = time.time()
