"""A token endpoint over TLS on loopback: it rotates single-use refresh tokens, or answers what a test writes itself."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from tests.support.listening import on_loopback

Answer = Callable[[socket.socket, "Asking"], None]


@dataclass(frozen=True)
class Asking:
    """One request as it came. Names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        if self.headers.get("content-type") == "application/json":
            return dict(json.loads(self.body))
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


class TokenEndpoint:
    """Each good refresh token is taken once: it is answered with `access-N` and `refresh-N`. Others get a 400.

    answer: what a test writes instead. wait_s: how long each answer takes. asked: the requests, in order.
    """

    def __init__(self, tls: ssl.SSLContext | None, *, first: str = "refresh-0") -> None:
        self._tls = tls
        self.good = {first}
        self.spent: list[str] = []
        self.asked: list[Asking] = []
        self.wait_s = 0.0
        self.expires_in = 3600
        self.answer: Answer = self.rotate
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._listening = on_loopback(self._serve)
        self.port = self._listening.port

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://localhost:{self.port}/oauth/token"

    def close(self) -> None:
        self.ended.set()
        self._listening.close()

    def rotate(self, client: socket.socket, asking: Asking) -> None:
        token = asking.fields.get("refresh_token", "")
        with self._lock:
            known = token in self.good
            if known:
                self.good.remove(token)
                self.spent.append(token)
                count = len(self.spent)
                self.good.add(f"refresh-{count}")
        self.ended.wait(self.wait_s)
        if known:
            tokens = {"access_token": f"access-{count}", "refresh_token": f"refresh-{count}"}
            client.sendall(given({**tokens, "expires_in": self.expires_in, "token_type": "Bearer"}))
        else:
            client.sendall(given({"error": "invalid_grant", "error_description": token}, status=400))

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ssl.SSLError), client:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            with client:
                data = b""
                while b"\r\n\r\n" not in data:
                    if not (more := client.recv(4096)):
                        return
                    data += more
                head, _, body = data.partition(b"\r\n\r\n")
                first, *lines = head.decode().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                while len(body) < int(headers.get("content-length", 0)):
                    body += client.recv(4096)
                method, target, _ = first.split(" ")
                asking = Asking(method, target, headers, body)
                self.asked.append(asking)
                self.answer(client, asking)


def given(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    """An answer as bytes; `content` goes as it is or as JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body)}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def says(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer to everybody."""
    return lambda client, _: client.sendall(given(content, status=status, headers=headers))


def writes(data: bytes, times: int = 1) -> Answer:
    """These bytes, and the end."""

    def answer(client: socket.socket, _: Asking) -> None:
        for _time in range(times):
            client.sendall(data)

    return answer


def hangs(client: socket.socket, _: Asking) -> None:
    """Nothing, until the client gives up."""
    client.recv(1)


def drips(data: bytes, every_s: float) -> Answer:
    """Byte by byte."""

    def answer(client: socket.socket, _: Asking) -> None:
        for byte in data:
            client.sendall(bytes([byte]))
            time.sleep(every_s)

    return answer
