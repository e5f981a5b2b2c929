"""A Docker engine of the tests' own, which they may kill and restart: the machine's engine serves other people.

It has its own data, state, socket, containerd and parent of control groups, and a network namespace of its own: with
`--bridge=none` alone it would take the bridge of the machine's engine away. Only root can start one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from impyard.runner.engine import Container
from tests.support.waiting import wait_until

START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
CGROUPS = Path("/sys/fs/cgroup")
PROGRAMS = re.compile(r"(\S*/)?(dockerd|containerd|containerd-shim\S*|runc) ")


class OwnEngine:
    """`start` it; `host` is for DOCKER_HOST. `stop`, `kill` and `start` again at will; `close` it at the end."""

    def __init__(self, *, live_restore: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="impyard-own-"))  # short: sockets lie in it
        self.folder.chmod(0o755)
        self.host = f"unix://{self.folder}/docker.sock"
        self.env = {**os.environ, "DOCKER_HOST": self.host}
        self._options = ["--live-restore"] if live_restore else []
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        for stale in ("pid", "exec/containerd/containerd.pid"):  # a killed daemon leaves them, and believes them
            (self.folder / stale).unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen(
                [
                    *(
                        "unshare",
                        "--net",
                        "--",
                    ),  # becomes the daemon. Without it, it would remove the machine's docker0
                    "dockerd",
                    *("--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"),
                    *("--pidfile", f"{self.folder}/pid", "-H", self.host),
                    *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-masq=false"),
                    "--ip-forward=false",
                    *("--cgroup-parent", f"/{self.folder.name}"),
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, START_LIMIT_S)
        assert os.stat(f"/proc/{self.pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino

    def load(self, image: str) -> None:
        """Copy an image from the machine's engine, with its names."""
        names = self._output(["docker", "image", "inspect", "-f", '{{join .RepoTags " "}}', image], env=None).split()
        with subprocess.Popen(["docker", "save", *(names or [image])], stdout=subprocess.PIPE) as save:
            subprocess.run(["docker", "load", "-q"], stdin=save.stdout, env=self.env, check=True, capture_output=True)
        assert save.returncode == 0

    @property
    def pid(self) -> int:
        assert self._daemon is not None
        return self._daemon.pid

    def stop(self) -> None:
        """End the daemon as the system does. Boxes go with it, unless it was made with `live_restore`."""
        self.signal(signal.SIGTERM)
        self._reap()

    def kill(self) -> None:
        """Kill the daemon, and the containerd that it started: what is left are containers without a manager."""
        self.signal(signal.SIGKILL)
        self._reap()
        containerd = list(self.processes("containerd --config"))
        for pid in containerd:
            _kill(pid)
        wait_until(lambda: all(map(_is_gone, containerd)), STOP_LIMIT_S)

    def signal(self, number: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(number)

    def docker(self, *args: str) -> str:
        """The output of a docker command on this engine."""
        return self._output(["docker", *args], env=self.env)

    def boxes(self, label: str) -> list[Container]:
        """The containers with a label, in any state; their labels are left out."""
        form = "{{.ID}} {{.Names}} {{.State}}"
        lines = self.docker("ps", "--all", "--no-trunc", "--filter", f"label={label}", "--format", form).splitlines()
        found = [line.split(" ") for line in lines]
        return [Container(id, name, state, {}) for id, name, state in found]

    def processes(self, words: str = "") -> dict[int, str]:
        """This engine's processes (daemon, containerd, one shim for each container), with their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit():
                    line = _command_line(int(entry.name))
                    if f"{self.folder}/" in line and words in line and PROGRAMS.match(line):
                        found[int(entry.name)] = line
        return found

    def drop_lost_shims(self) -> list[str]:
        """End the shims that a killed containerd has forgotten, with what they hold; the boxes that still ran in them.

        An engine that is killed while it makes a container loses one now and then.
        """
        known = self.docker("ps", "--all", "--quiet", "--no-trunc").split()
        lost = {pid: line for pid, line in self.processes("containerd-shim").items() if _id_of(line) not in known}
        running = [line for pid in lost for line in children(pid).values() if "relay.py" in line]
        for pid, line in lost.items():
            for child in children(pid):
                _kill(child)
            _kill(pid)
            wait_until(functools.partial(_is_gone, pid), STOP_LIMIT_S)
            self._drop_groups(_id_of(line))
            for mount in reversed(mounts_under(self.folder)):
                if _id_of(line) in str(mount):
                    subprocess.run(["umount", "--lazy", str(mount)], check=False, capture_output=True)
        return running

    def close(self) -> None:
        """End everything, whatever state it is in, and remove all that it made."""
        if self._daemon is not None and self._daemon.poll() is None:
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                self.signal(signal.SIGCONT)
                if boxes := self.docker("ps", "-aq").split():
                    self.docker("rm", "-f", *boxes)
            self.stop()
        for pid in self.processes():
            _kill(pid)
        wait_until(lambda: not self.processes(), STOP_LIMIT_S)
        for mount in reversed(mounts_under(self.folder)):
            subprocess.run(["umount", "--lazy", str(mount)], check=False, capture_output=True)
        self._drop_groups("")
        shutil.rmtree(self.folder)

    def _drop_groups(self, name: str) -> None:
        for top in CGROUPS.glob(f"*/{self.folder.name}/{name}".rstrip("/")):
            for folder in (*sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True), top):
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _answers(self) -> bool:
        assert self._daemon is not None
        if self._daemon.poll() is not None:
            raise AssertionError(f"the engine ended: {(self.folder / 'log').read_text()[-2000:]}")
        return subprocess.run(["docker", "version"], env=self.env, capture_output=True, check=False).returncode == 0

    def _reap(self) -> None:
        assert self._daemon is not None
        try:
            self._daemon.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait(STOP_LIMIT_S)

    @staticmethod
    def _output(command: list[str], env: dict[str, str] | None) -> str:
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120).stdout


@contextlib.contextmanager
def own_engine(image: str, *, live_restore: bool = False) -> Iterator[OwnEngine]:
    """A started engine that has `image`."""
    engine = OwnEngine(live_restore=live_restore)
    try:
        engine.start()
        engine.load(image)
        yield engine
    finally:
        engine.close()


def mounts_under(folder: Path) -> list[Path]:
    """The mount points under a folder, outer ones first."""
    points = (line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [Path(point) for point in points if point.startswith(f"{folder}/")]


def children(pid: int) -> dict[int, str]:
    """The child processes of a process, with their command lines."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found[child] = (
                    Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                )
    return found


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")


def _is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def _id_of(shim: str) -> str:
    return shim.partition(" -id ")[2].partition(" ")[0]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
