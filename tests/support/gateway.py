"""A real gateway process as the runner starts it, and clients that speak to its door."""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import os
import resource
import secrets
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Vault
from impyard.certs.authority import ensure_authority
from tests.support.listening import on_loopback

ROOT = Path(__file__).resolve().parents[2]


class LiveGateway:
    """`python -m impyard.addon` with a lifeline. The project's folder is `root`. limits: other than the defaults.

    descriptors: how many files it may open at most; 0 for as many as we. credentials: what its vault, `root/vault`,
    holds; None for a gateway without a vault.
    """

    def __init__(
        self,
        root: Path,
        policy: str,
        *,
        run: str = "r1",
        ca: Path | None = None,
        fault: str = "",
        policies: list[Path] | None = None,
        env: dict[str, str] | None = None,
        limits: dict[str, float] | None = None,
        descriptors: int = 0,
        credentials: Iterable[Credential] | None = None,
    ) -> None:
        self.root = root
        self.run = run
        self.runs = root / "runs"
        self.door = self.runs / run / "door"
        self.door.mkdir(parents=True, exist_ok=True)
        self.policy_path = root / "policies" / "gateway.yaml"
        self.policy_path.parent.mkdir(exist_ok=True)
        self.policy_path.write_text(policy)
        self.policies = policies or [self.policy_path]
        self.limits = limits or {}
        self.vault = Vault(root / "vault") if credentials is not None else None
        for credential in credentials or ():
            assert self.vault is not None
            self.vault.put(credential)
        self.authority = ensure_authority(ca or root / "ca")
        self.secret = secrets.token_bytes(32)
        self.events: list[dict[str, Any]] = []
        ours, theirs = socket.socketpair()
        program = [sys.executable, "-c", fault] if fault else [sys.executable, "-m", "impyard.addon"]
        self.stderr_path = root / f"gateway-{run}.log"
        with self.stderr_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*program, "--lifeline", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                stderr=log,
                preexec_fn=functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (descriptors, descriptors))
                if descriptors
                else None,
                env={
                    **os.environ,
                    "HTTPS_PROXY": "http://127.0.0.1:9",
                    "HTTP_PROXY": "http://127.0.0.1:9",
                    **(env or {}),
                },
            )
        theirs.close()
        self._line = ours
        self._reader = ours.makefile("rb")
        self._line.sendall(json.dumps(self.config()).encode() + b"\n")
        self.first = json.loads(self._reader.readline() or b"{}")
        threading.Thread(target=self._listen, daemon=True).start()

    def config(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "door": str(self.door),
            "policies": [str(path) for path in self.policies],
            "root": str(self.root),
            "runs": str(self.runs),
            "ca": str(self.authority.dir),
            "secret": self.secret.hex(),
            "limits": self.limits,
            "vault": str(self.vault.folder) if self.vault is not None else None,
        }

    def sentinel(self, name: str) -> Credential:
        """What the box holds in place of a credential."""
        return msgspec.convert(self.first["keys"]["sentinels"][name], Credential)

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._reader:
                self.events.append(json.loads(line))

    def stop(self) -> dict[str, Any]:
        """End it as the runner does; its last event."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        self.process.wait(10)
        time.sleep(0.05)
        self._line.close()
        return self.events[-1] if self.events else {}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def decisions(self) -> list[dict[str, Any]]:
        return _lines(self.runs / "decisions.jsonl")

    def forget(self) -> None:
        """Empty its record."""
        for name in ("decisions.jsonl", "outcomes.jsonl"):
            if (self.runs / name).exists():
                os.truncate(self.runs / name, 0)

    def told(self, event: str) -> bool:
        """Whether the runner hears of such an event within a moment."""
        deadline = time.monotonic() + 5
        while not any(told["event"] == event for told in self.events):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def outcomes(self, count: int = 0) -> list[dict[str, Any]]:
        """The outcome lines, after waiting a moment for `count` of them: they follow the answer."""
        deadline = time.monotonic() + 5
        while len(lines := _lines(self.runs / "outcomes.jsonl")) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        return lines

    def peak_from_now(self) -> int:
        """Forget the peak of before; the resident size now, in KiB."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.memory_kib()

    def memory_kib(self) -> int:
        """The peak of the resident size, in KiB."""
        field = "VmHWM"
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field + ":"))

    # -- clients ----------------------------------------------------------------------------------------------------

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(15)
        deadline = time.monotonic() + 10
        while True:
            try:
                connection.connect(f"/proc/self/fd/{self._door_fd()}/judge.sock")
                return connection
            except BlockingIOError:  # as many as may wait to be accepted do
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def _door_fd(self) -> int:
        if not hasattr(self, "_fd"):
            self._fd = os.open(self.door, os.O_PATH)
        return self._fd

    def tunnel(self, target: str) -> socket.socket:
        """A granted CONNECT."""
        connection = self.connect()
        connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head = read_head(connection)
        assert head.startswith(b"HTTP/1.1 200"), head
        return connection

    def tls(self, host: str, port: int = 443, *, sni: str | None = None, alpn: tuple[str, ...] = ()) -> ssl.SSLSocket:
        """TLS inside a tunnel, verified against our authority."""
        context = ssl.create_default_context(cafile=str(self.authority.cert_path))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context.wrap_socket(self.tunnel(f"{host}:{port}"), server_hostname=sni or host)

    def get(self, url: str, method: str = "GET", headers: str = "", body: bytes = b"") -> Reply:
        """One request, by CONNECT for https and in absolute form for http. `headers`: lines ending in CR LF."""
        scheme, _, rest = url.partition("://")
        authority, slash, path = rest.partition("/")
        host, _, port = authority.partition(":")
        length = f"content-length: {len(body)}\r\n" if body else ""
        target = slash + path if scheme == "https" else url
        head = f"{method} {target} HTTP/1.1\r\nhost: {authority}\r\n{headers}{length}\r\n"
        with self.tls(host, int(port or 443)) if scheme == "https" else self.connect() as connection:
            connection.sendall(head.encode("latin-1") + body)
            return read_reply(connection, head_only=method == "HEAD")

    def canary(self) -> tuple[Reply, bool]:
        """The runner's canary, and whether the answer proves that it came from this gateway."""
        challenge = secrets.token_hex(16)
        reply = self.get(f"http://{challenge}.canary.impyard.invalid/")
        proof = hmac.new(self.secret, challenge.encode(), "sha256").hexdigest()
        return reply, hmac.compare_digest(reply.headers.get("x-impyard-canary", ""), proof)

    @contextlib.contextmanager
    def tcp_port(self) -> Iterator[int]:
        """A loopback port that leads to the door, for tools that know no unix socket."""

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    sink.sendall(data)
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

        def serve(client: socket.socket) -> None:
            door = self.connect()
            door.settimeout(None)
            threading.Thread(target=pump, args=(door, client), daemon=True).start()
            pump(client, door)

        with contextlib.closing(on_loopback(serve)) as listening:
            yield listening.port


@dataclass
class Reply:
    """An HTTP/1.1 answer. headers: lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value


def read_head(connection: socket.socket) -> bytes:
    """The bytes of a head with its empty line; fewer when the connection ends."""
    return _until(connection, b"\r\n\r\n")


def read_reply(connection: socket.socket, *, head_only: bool = False) -> Reply:
    """Read one answer: by content-length, by chunks, or to the end. Status 0: the connection ended without one."""
    head = read_head(connection)
    if not head:
        return Reply(0, {}, b"")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines) if key}
    reply = Reply(int(first.split()[1]), headers, b"")
    if head_only or reply.status in (204, 304):
        return reply
    if "chunked" in headers.get("transfer-encoding", ""):
        while True:
            size = int(_line(connection), 16)
            reply.body += _exactly(connection, size)
            _line(connection)
            if not size:
                return reply
    if "content-length" in headers:
        reply.body = _exactly(connection, int(headers["content-length"]))
        return reply
    while data := connection.recv(1 << 16):
        reply.body += data
    return reply


def _line(connection: socket.socket) -> bytes:
    return _until(connection, b"\r\n")[:-2]


def _until(connection: socket.socket, end: bytes) -> bytes:
    # Byte by byte: what comes after belongs to others.
    data = b""
    while not data.endswith(end) and (byte := connection.recv(1)):
        data += byte
    return data


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (more := connection.recv(min(1 << 16, count - len(data)))):
        data += more
    return bytes(data)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
