"""The origin and the proxies that are compared, all on loopback, and the folder that they live in."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from impyard.addon.vault.credential import Credential
from tests.bench import processes
from tests.bench.client import HOST, Way
from tests.bench.load import Seen
from tests.support.gateway import LiveGateway
from tests.support.listening import free_port
from tests.support.origin import Pki

# A load is what the limits of a run are there to slow down.
UNTHROTTLED = {"decisions": 1e9, "decisions_per_s": 1e9, "log_bytes": 1e15, "log_bytes_per_s": 1e12}


@dataclass(slots=True)
class Target:
    """Something that a load can go through. pid: the process that is measured, 0 for none (straight to the origin).

    body: a file with what is sent, None for requests without a body. headers: further lines of each request.
    """

    name: str
    way: Way
    pid: int = 0
    gateway: LiveGateway | None = None
    body: Path | None = None
    headers: str = ""


class Bed:
    """One origin, and proxies in front of it. Use as a context manager. h2: whether the origin speaks HTTP/2."""

    def __init__(self, *, h2: bool = False) -> None:
        self._more = ("h2",) if h2 else ()
        self._folder = tempfile.TemporaryDirectory(prefix="impyard-bench-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)

    def __enter__(self) -> Bed:
        pki = Pki(self.folder)
        pki.context(HOST)
        self.origin_ca = str(pki.ca_path)
        self._origin = processes.start(
            processes.python("origin", str(self.folder / f"{HOST}.pem"), *self._more), processes.other_cpu()
        )
        assert self._origin.stdout is not None
        try:
            self.port = int(self._origin.stdout.readline())
        except BaseException:  # an interrupt too: nobody would end it
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        processes.stop(self._origin)
        self._folder.cleanup()

    @property
    def origin_pid(self) -> int:
        return self._origin.pid

    def direct(self) -> Target:
        """No proxy."""
        return Target("direct", Way("", self.port, self.origin_ca))

    @contextmanager
    def bare_mitmdump(self, *settings: str) -> Iterator[Target]:
        """mitmproxy's own command from this Python environment, without any add-on but its own.

        It is told not to print flows: that would cost it more than our whole decision log costs us. settings: further
        options of it, such as "connection_strategy=lazy".
        """
        confdir = self.folder / "mitmproxy"
        port = free_port()
        process = processes.start(
            [
                str(Path(sys.executable).with_name("mitmdump")),
                *("--listen-host", "127.0.0.1", "--listen-port", str(port), "--quiet"),
                *("--set", "flow_detail=0", "--set", f"confdir={confdir}"),
                *("--set", f"ssl_verify_upstream_trusted_ca={self.origin_ca}"),
                *(word for setting in settings for word in ("--set", setting)),
            ],
            processes.measured_cpu(),
            log=self.folder / "mitmdump.log",
        )
        try:
            processes.wait_for_port(port, process, "mitmdump", self.folder / "mitmdump.log")
            ca = str(confdir / "mitmproxy-ca-cert.pem")
            yield Target("bare mitmdump", Way(f"127.0.0.1:{port}", self.port, ca), process.pid)
        finally:
            processes.stop(process)

    @contextmanager
    def gateway(
        self,
        name: str = "gateway",
        *,
        rules: int = 20,
        inject: str = "",
        more: str = "",
        credentials: Iterable[Credential] | None = None,
        fault: str = "",
    ) -> Iterator[Target]:
        """Our gateway with its door and its logs.

        rules: how many rules the one host has. inject: which credential it gets. more: further entries of the policy.
        credentials: what its vault holds, None for none. fault: the program that is run in its place, see LiveGateway.
        """
        root = self.folder / name
        root.mkdir(exist_ok=True)
        policy = self._policy(rules, inject) + more
        live = LiveGateway(
            root, policy, ca=self.folder / "ca", limits=UNTHROTTLED, credentials=credentials, fault=fault
        )
        if live.first.get("event") != "ready":
            live.kill()
            raise RuntimeError(f"the gateway did not start: {live.first} {live.stderr_path.read_text()}")
        processes.pin(live.process.pid, processes.measured_cpu())
        try:
            way = Way(str(live.door / "judge.sock"), self.port, str(live.authority.cert_path))
            yield Target(name, way, live.process.pid, live)
        finally:
            live.stop()

    def load(
        self, target: Target, connections: int, seconds: float, *, kind: str = "load", streams: int = 1
    ) -> tuple[Seen, float]:
        """One load through a target: what it saw, and the CPU seconds that the target used for it.

        kind: the module of this package that is the load. streams: of each connection, where it has several.
        """
        order = {
            "way": target.way.as_dict(),
            "connections": connections,
            "seconds": seconds,
            "body": str(target.body or ""),
            "headers": target.headers,
            "streams": streams,
        }
        before = processes.cpu_s(target.pid) if target.pid else 0.0
        process = processes.start(processes.python(kind, json.dumps(order)), processes.other_cpu())
        output = processes.said(process, seconds + 60)
        used = processes.cpu_s(target.pid) - before if target.pid else 0.0
        if process.returncode:
            raise RuntimeError(f"the load through {target.name} failed")
        return Seen(**json.loads(output)), used

    def _policy(self, rules: int, inject: str) -> str:
        """`rules` rules on one host; the first one allows the measured paths, so all after it must be passed over."""
        lines = [
            "networkPolicies:",
            f"  - host: {HOST}",
            f"    port: {self.port}",
            f"    upstream: https://127.0.0.1:{self.port}",
            f"    upstream_ca: {self.origin_ca}",
            *([f"    inject: {inject}"] if inject else []),
            "    policies:",
            "      - {action: ALLOW, method: [GET, POST], path: '/(small|bytes/[0-9]+|sink|events)'}",
            "      - {action: ALLOW, method: [GET, POST], path: '/(ticks/[0-9]+|early)'}",
            "      - {action: ALLOW, method: GET, path: /echo, websocket: true}",
        ]
        for number in range(rules - 1):
            path = f"/v{number % 7}/(users|repos|orgs)/[^/]+/item{number}(/.*)?"
            lines.append(f"      - {{action: ALLOW, method: GET, path: '{path}'}}")
        return "\n".join(lines) + "\n"
