"""Where real work is done to be compared: a box of `impyard run`, and an ordinary container with and without a proxy.

All three get the same script, an empty folder to work in and an empty HOME, both on this machine's disk. In the box the
script is a command of the agent's, given by the demo model. What a script times it writes to `result`, a line for each:
a name, begin and end in seconds.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from impyard.certs.authority import system_bundle
from impyard.certs.throwaway import Pki
from impyard.runner.boxspec import CA_CERTIFICATE, NO_PROXY, TRUST_BUNDLE, TRUST_VARIABLES
from impyard.runner.image import ensure_image
from impyard.runner.policy import registries_npm, registries_pip
from impyard.runner.policy.registries import Found, Machine
from impyard.runner.removal import remove_tree
from tests.bench import processes, squid

ORIGIN = "bench.test"
LIMIT_S = 300.0
BOX, PLAIN, SQUID = "box", "container", "squid"

TIMED = """\
#!/bin/bash
# timed NAME COMMAND...: what a command takes, as a line of `result`.
timed() {
    local name=$1 begin=$EPOCHREALTIME; shift
    if ! "$@" >>log 2>&1; then tail -n 5 log >failed; exit 1; fi
    echo "$name $begin $EPOCHREALTIME" >>result
}
export npm_config_fetch_retries=1 PIP_RETRIES=1
"""


class Failed(Exception):
    """A script did not come to its end; with what it printed last."""


@dataclass(frozen=True, slots=True)
class Registries:
    """What this machine's own tools are configured for: npm's registry, pip's index, and all that they lead to."""

    npm: str
    pip: str
    urls: tuple[str, ...]


def registries(root: Path) -> Registries:
    """Raises ImpyardError where none is configured."""
    machine, found = Machine(os.environ, root), Found()
    registries_npm.read(machine, found)
    registries_pip.read(machine, found)
    registries_pip.files_of(machine, found, {})
    urls = tuple(place.url for places in found.places.values() for place in places)
    return Registries(found.places["npm"][0].url, found.places["pip"][0].url, urls)


class Places:
    """The three places, a small origin and a git server before all of them. Use as a context manager.

    port, git_port: of the origin and the git server, which all places know as ORIGIN. repositories: the git server's
    folder. project: a folder that the scripts see, read-only in the box.
    """

    def __enter__(self) -> Places:
        if shutil.which("docker") is None:
            raise RuntimeError(processes.NEEDS_DOCKER)
        self._stack = ExitStack()
        with self._stack as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="impyard-bench-")))
            self.project, self.repositories = self.folder / "project", self.folder / "repositories"
            for folder in (self.project, self.repositories, self.folder / "pki"):
                folder.mkdir()
            pki = Pki(self.folder / "pki")
            pki.context(ORIGIN)
            certificate = str(self.folder / "pki" / f"{ORIGIN}.pem")
            self.port = stack.enter_context(_server("origin", certificate))
            self.git_port = stack.enter_context(_server("githttp", certificate, str(self.repositories)))
            self.registries = registries(self.project)
            self.trust = self.folder / "trust.pem"
            roots = system_bundle()  # what an ordinary container has
            self.trust.write_bytes((roots.read_bytes() if roots else b"") + pki.ca_path.read_bytes())
            self.image = ensure_image(lambda line: print(line, file=sys.stderr))
            self.ours = OurBox(self, pki.ca_path)
            self.names = [BOX, PLAIN]
            if squid.installed():
                self.names.append(SQUID)
                allow = [f"^https://{ORIGIN}:({self.port}|{self.git_port})/", *map(_beginning, self.registries.urls)]
                self._squid = stack.enter_context(
                    squid.squid(allow, trust=self.trust, hosts={ORIGIN: "127.0.0.1"}, cpus=os.sched_getaffinity(0))
                )
            self._numbers = itertools.count()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def script(self, name: str, text: str) -> Path:
        """Store a script for all places."""
        path = self.project / name
        path.write_text(TIMED + text)
        return path

    def run(self, place: str, script: Path) -> dict[str, float]:
        """The seconds of each part that a script times, in one of the places. Raises Failed."""
        if place == BOX:
            return self.ours.run(script)
        home = self.folder / "home"
        home.mkdir()
        try:
            return self._run_container(place, script, home)
        finally:
            remove_tree(home)

    def _run_container(self, place: str, script: Path, home: Path) -> dict[str, float]:
        bundle, own = self.trust, os.environ.get("NODE_EXTRA_CA_CERTS")
        environment = {"HOME": str(home), **dict.fromkeys(TRUST_VARIABLES, str(TRUST_BUNDLE))}
        if place == SQUID:
            bundle = self.folder / "squid-trust.pem"
            bundle.write_bytes(self._squid.ca.read_bytes() + self.trust.read_bytes())
            own = str(self._squid.ca)
            proxy = f"http://127.0.0.1:{self._squid.port}"
            environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy)
            environment |= {"NO_PROXY": NO_PROXY, "no_proxy": NO_PROXY, "NODE_USE_ENV_PROXY": "1"}
        mounts = [f"{home}:{home}", f"{self.project}:{self.project}:ro", f"{bundle}:{TRUST_BUNDLE}:ro"]
        if own:
            environment["NODE_EXTRA_CA_CERTS"] = str(CA_CERTIFICATE)
            mounts.append(f"{own}:{CA_CERTIFICATE}:ro")
        name = f"impyard-bench-{os.getpid()}-work-{next(self._numbers)}"
        work = home / "work"
        work.mkdir()
        command = [
            *("docker", "run", "--rm", "--name", name, "--network", "host", "--add-host", f"{ORIGIN}:127.0.0.1"),
            *("--user", f"{os.geteuid()}:{os.getegid()}", "--workdir", str(work), "--entrypoint", "bash"),
            *(word for mount in mounts for word in ("--volume", mount)),
            *(word for key, value in environment.items() for word in ("--env", f"{key}={value}")),
            *(self.image, str(script)),
        ]
        try:
            return _result(work, _call(command, os.environ, check=False))
        finally:
            subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)


class OurBox:
    """A project of impyard's with data of its own, whose policy allows the registries and the two servers."""

    def __init__(self, places: Places, origin_ca: Path) -> None:
        self._project = places.project
        self._environment = {**os.environ, "IMPYARD_DATA_DIR": str(places.folder / "data")}
        # As for people: python finds impyard's code compiled.
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._impyard("init", "--project", str(self._project))
        self._impyard("policy", "preset", "add", "npm", "pip", "--yes", "--project", str(self._project))
        policy = self._project / "policies" / "gateway.yaml"
        text = policy.read_text()
        for host in {urlsplit(url).hostname for url in places.registries.urls}:
            # A registry, or what stands in for it on the way there, may have a private address.
            text = text.replace(f"  - host: {host}\n", f"  - host: {host}\n    upstream: https://{host}\n")
        text += "".join(
            f"  - host: {ORIGIN}\n    port: {port}\n    upstream: https://127.0.0.1:{port}\n"
            f"    upstream_ca: {origin_ca}\n    policies:\n"
            "      - {action: ALLOW, method: [GET, POST], path: /.*}\n"
            for port in (places.port, places.git_port)
        )
        policy.write_text(text)

    def run(self, script: Path) -> dict[str, float]:
        """As `Places.run`."""
        before = set(self._project.glob("runs/*/run.json"))
        words = self._impyard(
            "run", "--project", str(self._project), "--model", "demo", "--json", f"run: bash {script}"
        )
        (receipt,) = set(self._project.glob("runs/*/run.json")) - before
        try:
            return _result(receipt.parent / "workspace", words)
        finally:
            remove_tree(receipt.parent)

    def _impyard(self, *arguments: str) -> str:
        return _call([sys.executable, "-m", "impyard.runner", *arguments], self._environment)


@contextmanager
def _server(module: str, *arguments: str) -> Iterator[int]:
    """A server of this package; its port."""
    process = processes.start(processes.python(module, *arguments), os.sched_getaffinity(0))
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        processes.stop(process)


def _beginning(url: str) -> str:
    return "^" + url.replace(".", "[.]")


def _call(command: Sequence[str], environment: Mapping[str, str], *, check: bool = True) -> str:
    """Run to the end; what it wrote to standard error. Raises RuntimeError when it fails, if that is checked."""
    done = subprocess.run(
        command,
        cwd=processes.ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-300:]}")
    return done.stderr


def _result(work: Path, words: str) -> dict[str, float]:
    """What a script wrote into the folder that it worked in. words: of the command around it, for a failure of that."""
    if (work / "failed").exists():
        raise Failed((work / "failed").read_text()[-300:])
    if not (work / "result").exists():
        raise RuntimeError(f"the script did not run: {words[-300:]}")
    found = {}
    for line in (work / "result").read_text().splitlines():
        name, begin, end = line.split()
        found[name] = float(end) - float(begin)
    return found
