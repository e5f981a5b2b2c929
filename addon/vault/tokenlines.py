"""Connections to a token endpoint: over at a set time whatever the other side does, through a proxy where one is named.

For a thread that may stand still. A line over plain http leads to this machine alone.
"""

from __future__ import annotations

import base64
import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from impyard.addon.request import is_address
from impyard.addon.resolve import MAX_ADDRESSES, ask_system

MAX_HEAD_BYTES = 32 << 10
MAX_WIRE_BYTES = 1 << 20  # handshakes, and records with little in them
_CHUNK = 16 << 10

T = TypeVar("T")


class NoAnswer(Exception):
    """There is no answer. The message says why, for people and without any value."""


class Line(Protocol):
    def send(self, data: bytes) -> None: ...
    def receive(self) -> bytes: ...
    def close(self) -> None: ...


class _Socket:
    """A connection that is over at `end`, whatever the other side does until then."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock = sock
        self._end = end
        self._received = 0

    def send(self, data: bytes) -> None:
        while data:
            self._sock.settimeout(_left(self._end))
            data = data[self._sock.send(data) :]

    def receive(self) -> bytes:
        self._sock.settimeout(_left(self._end))
        data = self._sock.recv(_CHUNK)
        self._received += len(data)
        if self._received > MAX_WIRE_BYTES:
            raise NoAnswer("the token endpoint sends more than any answer has")
        return data

    def close(self) -> None:
        self._sock.close()


class Tls:
    """TLS over another line, which may be TLS itself: a proxy may be spoken to over https."""

    def __init__(self, under: Line, context: ssl.SSLContext, host: str) -> None:
        self._under = under
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._pump(self._tls.do_handshake)

    def send(self, data: bytes) -> None:
        self._pump(lambda: self._tls.write(data))  # into memory, so all of it

    def receive(self) -> bytes:
        try:
            return self._pump(lambda: self._tls.read(_CHUNK))
        except ssl.SSLZeroReturnError:
            return b""

    def close(self) -> None:
        self._under.close()

    def _pump(self, step: Callable[[], T]) -> T:
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                self._flush()
                data = self._under.receive()
                if not data:
                    raise ConnectionResetError from None
                self._in.write(data)
            else:
                self._flush()
                return done

    def _flush(self) -> None:
        if data := self._out.read():
            self._under.send(data)


def _left(end: float) -> float:
    """The seconds until `end`. Raises TimeoutError when it is over."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def connected(url: SplitResult, proxy: str | None, end: float, proxy_context: Callable[[], ssl.SSLContext]) -> Line:
    """A line to the endpoint until `end`, through the proxy if there is one. Raises NoAnswer and OSError."""
    host, port = url.hostname or "", url.port or (80 if url.scheme == "http" else 443)
    if proxy is None:
        return _dialled(host, port, end, only_here=url.scheme == "http")
    try:
        named = urlsplit(proxy)
        to, at = named.hostname or "", named.port or (443 if named.scheme == "https" else 80)
    except ValueError:
        raise NoAnswer("the proxy's URL is not one") from None
    if named.scheme not in ("http", "https") or not to:
        raise NoAnswer("the proxy's URL is not one")
    line: Line = _dialled(to, at, end)
    try:
        if named.scheme == "https":
            line = Tls(line, proxy_context(), to)
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        if named.username is not None:
            pair = f"{unquote(named.username)}:{unquote(named.password or '')}".encode()
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair).decode()}")
        line.send("\r\n".join([*lines, "", ""]).encode("ascii"))
        _tunnelled(line)
    except BaseException:
        line.close()
        raise
    return line


def _tunnelled(line: Line) -> None:
    """Read the proxy's answer up to its end. Raises NoAnswer when it is no tunnel."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        data = line.receive()
        answer += data
        if not data or len(answer) > MAX_HEAD_BYTES or answer[:7] != b"HTTP/1."[: len(answer)]:
            raise NoAnswer("the proxy does not answer with HTTP")
    status = answer[9:12]
    if not (status.isdigit() and status.startswith(b"2")):
        code = status.decode() if status.isdigit() else "none"
        raise NoAnswer(f"the proxy refuses the tunnel with status {code}")
    if not answer.endswith(b"\r\n\r\n"):
        raise NoAnswer("the proxy speaks before the token endpoint does")


def _dialled(host: str, port: int, end: float, *, only_here: bool = False) -> _Socket:
    """A connection to the first address that takes one. only_here: to this machine alone."""
    addresses = [host] if is_address(host) else _looked_up(host, end)[:MAX_ADDRESSES]
    if only_here:
        addresses = [address for address in addresses if is_loopback(address)]
    failed: OSError = OSError(None, "its name has no address")
    for count, address in enumerate(addresses):
        left = _left(end)
        try:  # a silent address must not use up the time of those after it
            return _Socket(socket.create_connection((address, port), left / (len(addresses) - count)), end)
        except OSError as exc:
            failed = exc
    raise failed


def _looked_up(host: str, end: float) -> list[str]:
    """The addresses of a name. The system's resolver knows no limit, so it is left alone with its own thread."""
    answers: queue.SimpleQueue[list[str] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(ask_system(host))
        except OSError as exc:
            answers.put(exc)
        except ValueError:  # a name that cannot be encoded
            answers.put(OSError(None, "its name cannot be looked up"))

    threading.Thread(target=look_up, daemon=True).start()
    try:
        found = answers.get(timeout=_left(end))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(found, OSError):
        raise found
    return found


def is_loopback(text: str) -> bool:
    """Whether an address is one of this machine alone."""
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False
