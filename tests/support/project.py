"""A project folder in which `impyard` is run as a person would run it, and what it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from impyard.runner import engine
from tests.support.gateway import ROOT
from tests.support.ownengine import OwnEngine
from tests.support.waiting import wait_until

PLAIN_POLICY = """\
networkPolicies:
  - host: open.test
    policies:
      - {action: ALLOW, method: GET, path: /.*}
"""
DATA_VARIABLE = "IMPYARD_DATA_DIR"
LIMIT_S = 90.0

# Options and prompt of a run whose agent is killed for want of memory: what lies in the box's /tmp counts, too.
OUT_OF_MEMORY = ("--memory", "64m", "run: head -c 64000000 /dev/zero > /tmp/fill")


@dataclass(frozen=True)
class Caller:
    """Who runs impyard. `prefix` is put before the command line and makes it that user's."""

    uid: int
    gid: int
    name: str
    home: Path
    prefix: tuple[str, ...] = ()


@dataclass
class Result:
    """How a command ended: `code`, what it printed, how long it took, the folder of the one `run` that it made, and
    what was `watched` meanwhile."""

    code: int
    out: str
    err: str
    seconds: float
    run: Path | None = None
    watched: Any = None
    _receipt: dict[str, Any] = field(default_factory=dict)

    @property
    def receipt(self) -> dict[str, Any]:
        """The receipt of the one run that this command made."""
        assert self.run is not None, self
        if not self._receipt:
            self._receipt = json.loads((self.run / "run.json").read_bytes())
        return self._receipt

    def file(self, name: str) -> str:
        """The text of a file in the run's workspace."""
        assert self.run is not None, self
        return (self.run / "workspace" / name).read_text()


class Project:
    """A folder `root` with a policy, and a data folder of its own beside it. `env` is the environment of its commands.

    `leftovers` says what of it still lives; `clean` ends that. `own` is an engine of the tests' own for it.
    """

    def __init__(
        self,
        base: Path,
        policy: str | None = PLAIN_POLICY,
        *,
        name: str = "project",
        caller: Caller,
        own: OwnEngine | None = None,
    ) -> None:
        self.base = base
        self.own_engine = own
        self.caller = caller
        self.root = base / name
        self.data = base / "data"
        self.root.mkdir(parents=True)
        self.policy = self.root / "policies" / "gateway.yaml"
        self.policy.parent.mkdir()
        if policy is not None:
            self.policy.write_text(policy)
        self.env = {
            **os.environ,
            DATA_VARIABLE: str(self.data),
            "HOME": str(caller.home),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            **({"DOCKER_HOST": own.host} if own else {}),
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self.own(base)

    def own(self, folder: Path) -> None:
        """Give everything under `folder` to the caller."""
        if self.caller.uid != os.geteuid():
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self.caller.uid, self.caller.gid, follow_symlinks=False)

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def log(self) -> Path:
        return self.runs / "decisions.jsonl"

    def decisions(self, run: str | None = None) -> list[dict[str, Any]]:
        """The lines of the decision log, of one run or of all. Each must be whole."""
        lines = [json.loads(line) for line in self.log.read_bytes().splitlines()] if self.log.is_file() else []
        return [line for line in lines if run in (None, line["run"])]

    def asked(self, run: str | None = None) -> list[dict[str, Any]]:
        """`decisions`, without impyard's own checks."""
        return [line for line in self.decisions(run) if not line["host"].endswith(".impyard.invalid")]

    def script(self, name: str, text: str) -> str:
        """Put a shell script into the project; the demo model's instruction to run it."""
        path = self.root / name
        path.write_text(text)
        path.chmod(0o755)
        return f"run: bash {shlex.quote(str(path))}"

    # -- running --------------------------------------------------------------------------------------------------

    def command(self, *args: str) -> list[str]:
        return [*self.caller.prefix, sys.executable, "-P", "-m", "impyard.runner", *args]

    def start(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        prefix: Sequence[str] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start `impyard` with these arguments, in a session of its own, in the project."""
        process = subprocess.Popen(
            [*prefix, *self.command(*args)],
            env={**self.env, **(env or {})},
            cwd=cwd or self.root,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def finish(
        self, process: subprocess.Popen[bytes], *, stdin: bytes | None = None, limit_s: float = LIMIT_S
    ) -> Result:
        """Wait for a command that was started. No command ever shows a traceback, or an error of our own making."""
        began = time.monotonic()
        out, err = process.communicate(stdin, timeout=limit_s)
        result = Result(process.returncode, out.decode(), err.decode(), time.monotonic() - began)
        assert "Traceback" not in result.out + result.err, result
        assert "internal error" not in result.err, result
        return result

    def impyard(
        self,
        *args: str,
        stdin: bytes | None = None,
        limit_s: float = LIMIT_S,
        watch: Callable[[], object] = lambda: None,
        **options: Any,
    ) -> Result:
        """Run `impyard` with these arguments to its end, and call `watch` meanwhile. Options: see `start`."""
        before = set(self.run_folders())
        began = time.monotonic()
        process = self.start(*args, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, **options)
        watched = watch()
        result = self.finish(process, stdin=stdin, limit_s=limit_s)
        result.watched = watched
        result.seconds = time.monotonic() - began
        new = [folder for folder in self.run_folders() if folder not in before]
        result.run = new[0] if len(new) == 1 else None
        return result

    def demo(self, *prompt: str, args: Sequence[str] = (), **options: Any) -> Result:
        """`impyard run --model demo` on these lines of a prompt."""
        return self.impyard("run", "--model", "demo", *args, "\n".join(prompt), **options)

    def ceiling_in_mid_run(self, work_s: float) -> float:
        """A ceiling in seconds that an agent reaches at work: it has begun by then, and done what takes it `work_s`.

        It begins a few seconds after its box, or half a minute on a machine that others use: so long as a whole run
        takes now, twice.
        """
        whole = self.demo("run: true")
        assert whole.code == 0, whole
        return 2 * whole.seconds + work_s

    def on_terminal(self, *args: str) -> tuple[subprocess.Popen[bytes], int]:
        """Start `impyard` on a terminal of its own: the process and the terminal's other end. The caller closes it."""
        terminal, theirs = pty.openpty()

        def lead() -> None:
            os.setsid()
            os.close(os.open(os.ttyname(0), os.O_RDWR))  # a leader without a terminal gets the first that it opens

        process = subprocess.Popen(
            self.command(*args),
            env={**self.env, "TERM": "xterm"},
            cwd=self.root,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=lead,
        )
        os.close(theirs)
        self._processes.append(process)
        return process, terminal

    # -- what there is --------------------------------------------------------------------------------------------

    def run_folders(self) -> list[Path]:
        if not self.runs.is_dir():
            return []
        return [path for path in self.runs.iterdir() if path.is_dir() and path.name[:2] == "20"]

    def boxes(self) -> list[engine.Container]:
        if self.own_engine is not None:
            return self.own_engine.boxes(f"impyard.project={self.root}")
        return [box for box in engine.boxes() if box.labels.get("impyard.project") == str(self.root)]

    def processes(self) -> dict[int, str]:
        """The living processes that have this project's data folder in their environment, with their command lines."""
        mark = f"{DATA_VARIABLE}={self.data}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state != "Z":
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def gateway(self) -> int:
        """The process id of the one gateway that lives."""
        (pid,) = [pid for pid, line in self.processes().items() if "impyard.addon" in line]
        return pid

    def started_file(self, name: str) -> Path:
        """Wait for a file that the agent makes in the workspace of the one run; its path."""
        found: list[Path] = []

        def look() -> bool:
            found[:] = [folder / "workspace" / name for folder in self.run_folders()]
            return any(path.exists() for path in found)

        wait_until(look)
        return next(path for path in found if path.exists())

    def leftovers(self) -> list[str]:
        """What lives, or lies about, of runs that are over; empty when all is as it was."""
        left = [f"container {box.name} ({box.state})" for box in self.boxes()]
        left += [f"process {pid}: {line}" for pid, line in self.processes().items()]
        left += [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{self.base}/" in line]
        for folder in self.run_folders():
            left += [str(folder / name) for name in ("door", ".box", ".pihome") if os.path.lexists(folder / name)]
            for path in (folder, folder / "workspace", folder / "session"):
                if path.exists() and path.stat().st_uid != self.caller.uid:
                    left.append(f"{path} belongs to {path.stat().st_uid}")
            if not (folder / "run.json").is_file():
                left.append(f"{folder} has no receipt")
        return left

    def clean(self) -> None:
        """End what was started, whatever state it is in."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for box in self.boxes():
            if self.own_engine is not None:
                self.own_engine.docker("rm", "-f", box.id)
            else:
                engine.remove(box.id)


@contextlib.contextmanager
def no_new_container(root: Path) -> Iterator[list[str]]:
    """The engine must not have created a container for this project meanwhile; its own record of events says so."""
    since = time.time()
    created: list[str] = []
    yield created
    created += containers_created(root, since)
    assert created == []


def containers_created(root: Path, since: float) -> list[str]:
    """Ids of the containers that were created for this project since a time (Unix seconds), living or not."""
    filters = {"type": "container", "event": "create", "label": f"impyard.project={root}"}
    api: Any = engine.client().api
    events = api.events(since=f"{since:.6f}", until=f"{time.time():.6f}", filters=filters, decode=True)
    return [str(event["id"]) for event in events]
