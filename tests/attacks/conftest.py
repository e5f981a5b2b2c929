"""What attempts are made against: a gateway as the runner starts it, and a proxy that judges nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from impyard.box.attacks import run, score
from impyard.box.attacks.bed import policy
from impyard.box.attacks.client import Client
from impyard.box.attacks.model import EVIL, OK, WS, Attempt, Seen, Tried
from impyard.box.attacks.origin import CountingOrigin
from impyard.certs.throwaway import Pki
from tests.gateway.conftest import bed, module_bed  # noqa: F401 - fixtures
from tests.support.boxes import (  # noqa: F401 - fixtures
    box_image,
    make_project,
    module_project,
    needs_root,
    ordinary_container,
    project,
    this_user,
)
from tests.support.gateway import LiveGateway
from tests.support.shop import crates, module_shop, shop  # noqa: F401 - fixtures
from tests.support.streams import module_streams, streams  # noqa: F401 - fixtures

NAMES = (OK, WS, EVIL, "*.wild.test")
# What a bare proxy waits for in silence need not be waited for: whatever gets out does so at once.
BARE_QUIET_S = 1.0
SCRIPT = Path(__file__).parent / "bare_proxy.py"


@dataclass
class Bed:
    """A proxy under test, and the origin behind it. log: its decision log, None for a proxy without one."""

    client: Client
    origin: CountingOrigin
    log: Path | None = None
    number: int = 0
    _read: int = field(default=0, init=False)
    _owed: score.Owed = field(default_factory=Counter, init=False)

    def make(self, attempt: Attempt) -> tuple[Tried, Seen, list[str]]:
        """Make one attempt: how it went, what the origin saw of it, and what is wrong with that."""
        self.number += 1
        between = tuple(event.asked for event in self.origin.take() if event.asked)
        self._owed -= score.reached_by(Seen(asked=between))
        self.lines()
        tried = next(run.carry_out(self.client, [(self.number, attempt)]))
        seen = run.by_attempt(self.origin.take()).get(self.number, Seen())
        lines = None
        if self.log is not None:
            lines = run.lines_by_attempt(map(run.line_from, self.lines())).get(self.number, [])
            seen, self._owed = score.settled(seen, lines, self._owed)
        return tried, seen, score.faults(attempt, tried.result, lines, seen)

    def lines(self) -> list[dict[str, object]]:
        """The lines of the log since this was last asked."""
        if self.log is None or not self.log.exists():
            return []
        with self.log.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        return [json.loads(line) for line in data.splitlines()]


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Bed]:
    """A gateway with the policy of the attempts, reached through its door."""
    origin = CountingOrigin(pki.context(*NAMES))
    gateway = LiveGateway(tmp_path_factory.mktemp("judged"), policy(origin.port, str(pki.ca_path)))
    assert gateway.first.get("event") == "ready", gateway.stderr_path.read_text()
    door = os.open(gateway.door, os.O_PATH)
    client = Client(f"/proc/self/fd/{door}/judge.sock", ca=str(gateway.authority.cert_path), keep=True)
    try:
        yield Bed(client, origin, gateway.runs / "decisions.jsonl")
    finally:
        client.close()
        os.close(door)
        gateway.stop()
        origin.close()
    assert "Traceback" not in gateway.stderr_path.read_text()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Bed]:
    """mitmproxy without a judge: names lead to the origin, whose certificate it takes as it is."""
    origin = CountingOrigin(pki.context(*NAMES))
    folder = tmp_path_factory.mktemp("bare")
    with Mitmdump(folder, origin.port) as port:
        ca = str(folder / "mitmproxy-ca-cert.pem")
        client = Client(("127.0.0.1", port), ca=ca, quiet_s=BARE_QUIET_S, keep=True)
        yield Bed(client, origin)
        client.close()
    origin.close()


class Mitmdump:
    """A plain mitmdump with its files in `folder`, whose names ending in .test lead to the port `origin` (0: as
    asked); gives its own."""

    def __init__(self, folder: Path, origin: int, port: int = 0) -> None:
        self._port_file = folder / "port"
        code = "from mitmproxy.tools.main import mitmdump; mitmdump()"
        options = ("ssl_insecure=true", "connection_strategy=lazy", "listen_host=127.0.0.1", f"listen_port={port}")
        sets = [word for option in (f"confdir={folder}", *options) for word in ("--set", option)]
        env = {**os.environ, "ORIGIN_PORT": str(origin), "PORT_FILE": str(self._port_file)}
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, "-q", *sets, "-s", str(SCRIPT)], env=env, stdout=log, stderr=log
            )

    def __enter__(self) -> int:
        deadline = time.monotonic() + 30
        while not self._port_file.exists() and time.monotonic() < deadline and self._process.poll() is None:
            time.sleep(0.05)
        return int(self._port_file.read_text())

    def __exit__(self, *_exc: object) -> None:
        self._process.terminate()
        self._process.wait(10)
