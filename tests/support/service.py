"""A plain HTTP/1.1 origin whose answers a test writes itself, and tools that are pointed at a door as in the box."""

from __future__ import annotations

import contextlib
import gzip
import os
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from impyard.runner.boxspec import TRUST_VARIABLES
from tests.support.gateway import LiveGateway
from tests.support.listening import HttpServer

LIMIT_S = 60.0


@dataclass(frozen=True)
class Asked:
    """One request as the origin got it. `target` with its query; `headers` with lower-case names."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Given:
    """An answer."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


class Service:
    """Serves on 127.0.0.1:`port` until `close`, over TLS if it is given; `asked` is what came, whole, in order."""

    def __init__(self, answer: Callable[[Asked], Given], *, tls: ssl.SSLContext | None = None) -> None:
        service = self
        self.asked: list[Asked] = []
        self.connections = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                service.connections += 1

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, self.path, headers, self._body(headers))
                service.asked.append(asked)
                given = answer(asked)
                self.send_response(given.status)
                for name, value in given.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(given.body)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else given.body)

            do_HEAD = do_POST = do_PUT = do_GET

            def _body(self, headers: Mapping[str, str]) -> bytes:
                if headers.get("transfer-encoding") != "chunked":
                    return self.rfile.read(int(headers.get("content-length", 0)))
                body = bytearray()
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return bytes(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HttpServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def clear(self) -> None:
        self.asked.clear()
        self.connections = 0

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Tools:
    """Runs tools with a home of their own, behind a door, by the variables that the box sets."""

    def __init__(self, gateway: LiveGateway, port: int, home: Path) -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        proxy = f"http://127.0.0.1:{port}"
        ca = str(gateway.authority.cert_path)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy),
            **dict.fromkeys(TRUST_VARIABLES, ca),
            "NODE_USE_ENV_PROXY": "1",
            "NODE_EXTRA_CA_CERTS": ca,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "NO_UPDATE_NOTIFIER": "1",
            "npm_config_update_notifier": "false",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "npm_config_globalconfig": str(home / "no-npmrc"),  # this machine's own may name another authority
            "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", os.path.expanduser("~/.rustup")),
        }

    def run(self, *command: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end; its output as text."""
        return subprocess.run(
            [str(word) for word in command],
            env=self.env | env,
            cwd=cwd or self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )


@contextlib.contextmanager
def tools_behind(gateway: LiveGateway, home: Path) -> Iterator[Tools]:
    """Tools whose proxy leads to this gateway's door."""
    with gateway.tcp_port() as port:
        yield Tools(gateway, port, home)


def git_backend(root: Path) -> Callable[[Asked], Given]:
    """Answers of `git http-backend` for the repositories under `root`; anybody may push."""

    def answer(asked: Asked) -> Given:
        path, _, query = asked.target.partition("?")
        body = gzip.decompress(asked.body) if asked.headers.get("content-encoding") == "gzip" else asked.body
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "REQUEST_METHOD": asked.method,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": asked.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": asked.headers.get("git-protocol", ""),
            "REMOTE_USER": "somebody",
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        return Given(content, int(headers.pop("Status", "200").split()[0]), headers)

    return answer


def bare_repository(made: Path) -> str:
    """Make a bare repository with one commit; the commit."""
    work = made.with_name(f"{made.name}.work")

    def git(*words: str | Path) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@a.test")
        return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "-b", "main", work)
    git("-C", work, "commit", "-q", "--allow-empty", "-m", "one")
    git("clone", "-q", "--bare", work, made)
    git("-C", made, "config", "http.receivepack", "true")
    return git("-C", work, "rev-parse", "HEAD")
