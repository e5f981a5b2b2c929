"""The client's side of a measured connection: straight to the origin, or through a proxy that is asked by CONNECT."""

from __future__ import annotations

import os
import re
import socket
import ssl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# The name that every request is for. A stock proxy resolves it, the gateway's policy sends it to the same port.
HOST = "localhost"
BLOCK_BYTES = 1 << 18

_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Way:
    """How to reach the origin.

    proxy: "" for none, "host:port", or the path of a unix socket. port: the origin's. ca: file with the authority that
    the certificate must come from.
    """

    proxy: str
    port: int
    ca: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def client_context(way: Way, protocol: str = "http/1.1") -> ssl.SSLContext:
    """What verifies a connection, and asks for one protocol on it."""
    context = ssl.create_default_context(cafile=way.ca)
    context.set_alpn_protocols([protocol])
    return context


def open_tls(way: Way, timeout_s: float = 60.0, *, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    """A verified TLS connection, for HTTP/1.1 unless `context` says otherwise.

    Raises OSError, also when the proxy refuses.
    """
    connection = _connect(way, timeout_s)
    if isinstance(connection, socket.socket) and connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if way.proxy:
        target = f"{HOST}:{way.port}"
        connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += connection.recv(1) or _end()
        if b" 200 " not in answer.partition(b"\r\n")[0] + b" ":
            raise OSError(f"the proxy refused: {answer[:80]!r}")
    return (context or client_context(way)).wrap_socket(connection, server_hostname=HOST)


def _connect(way: Way, timeout_s: float) -> socket.socket:
    if way.proxy.startswith("/"):
        path = Path(way.proxy)
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(timeout_s)
            # A socket address holds 108 bytes; the way through a descriptor is short wherever the folder lies.
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        return connection
    host, _, port = (way.proxy or f"127.0.0.1:{way.port}").rpartition(":")
    return socket.create_connection((host, int(port)), timeout_s)


def head(way: Way, method: str, path: str, body_bytes: int = 0, headers: str = "") -> bytes:
    """A request head such as an HTTP client of an agent sends. headers: further lines."""
    length = f"content-length: {body_bytes}\r\n" if method == "POST" else ""
    return (
        f"{method} {path} HTTP/1.1\r\nhost: {HOST}:{way.port}\r\nuser-agent: impyard-bench\r\n"
        f"accept: application/json\r\naccept-encoding: gzip, br\r\n{length}{headers}\r\n"
    ).encode()


def read_answer(connection: ssl.SSLSocket) -> tuple[int, int]:
    """Read one answer with a content-length to its end: its status, and how many bytes of body came.

    Raises OSError when the connection ends before.
    """
    buffer = b""
    while (end := buffer.find(b"\r\n\r\n")) < 0:
        buffer += connection.recv(65536) or _end()
    status, length = parse_head(buffer[: end + 2])
    received = len(buffer) - end - 4
    block = bytearray(BLOCK_BYTES)
    while received < length:
        received += connection.recv_into(block) or len(_end())
    return status, received


def parse_head(data: bytes) -> tuple[int, int]:
    """Status and content-length of an answer's head, 0 when it names no length."""
    return int(data.split(b" ", 2)[1]), content_length(data)


def content_length(data: bytes) -> int:
    """The content-length that a head names, 0 when it names none."""
    found = _LENGTH.search(data)
    return int(found[1]) if found else 0


def _end() -> bytes:
    raise OSError("the connection ended in the middle of an answer")
