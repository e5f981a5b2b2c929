"""The origin of all attempts: one port that takes TLS, plain HTTP and anything else, and counts all of it.

It reads requests as a lenient server would, since what it is for is to see what a proxy let through.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import replace

from impyard.box.attacks.model import Asked, Event

IDLE_S = 10.0
KEPT_BYTES = 1 << 16
MAX_HEAD = 1 << 20
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
# What can still become a request: a method and a space, and a first line that ends in a version.
_BEGUN = re.compile(rb"[!-~]{1,32} (?:[^\n]*\Z|[^\n]* HTTP/[0-9.]+\r?\n)")
BODY = b"hello from the origin\n"


class CountingOrigin:
    """Listens on a free port of 127.0.0.1 until closed. `tls` holds the certificate for every name."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._count = 0
        self._open: set[socket.socket] = set()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self) -> list[Event]:
        """What has happened since this was last asked."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Stop listening and end every connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with self._lock:
                    self._count += 1
                    self._open.add(connection)
                    self._events.append(Event(self._count))
                threading.Thread(target=self._serve, args=(connection, self._count), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        raw = connection
        with contextlib.suppress(OSError, ValueError):
            connection.settimeout(IDLE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if connection.recv(1, socket.MSG_PEEK) == b"\x16":
                connection = self._tls.wrap_socket(connection, server_side=True)
            reader = _Reader(connection)
            while self._one(connection, reader, number):
                pass
        with self._lock:
            self._open.discard(raw)
        connection.close()

    def _one(self, connection: socket.socket, reader: _Reader, number: int) -> bool:
        head = reader.head()
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if not head.endswith(b"\r\n\r\n") or len(words) != 3 or not words[2].startswith(b"HTTP/"):
            if head:
                with self._lock:
                    self._events.append(Event(number, raw=head[:KEPT_BYTES]))
            return False
        asked = Asked(words[0].decode("latin-1"), words[1].decode("latin-1"), head)
        with self._lock:
            place, events = len(self._events), self._events
            events.append(Event(number, asked))

        def grow(body: bytes, size: int) -> None:
            with self._lock:
                events[place] = Event(number, replace(asked, body=body, size=size))

        reader.note = grow
        upgrade = "".join(asked.values("upgrade")).lower()
        if upgrade == "websocket" and asked.target.startswith("/ws"):
            accept = base64.b64encode(
                hashlib.sha1("".join(asked.values("sec-websocket-key")).encode() + _GUID).digest()
            )
            connection.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
                b"sec-websocket-accept: " + accept + b"\r\n\r\n"
            )
            reader.rest()
            return False
        if upgrade and upgrade != "h2c":
            connection.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nupgrade: " + upgrade.encode() + b"\r\nconnection: upgrade\r\n\r\n"
            )
            reader.rest()
            return False
        if "100-continue" in "".join(asked.values("expect")):
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        whole = reader.body(asked)
        body = b"" if asked.method == "HEAD" else BODY
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 22\r\n\r\n" + body)
        return whole


class _Reader:
    """Reads one connection; tells `note` how each body grows."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""
        self._kept = b""
        self._size = 0
        self.note: Callable[[bytes, int], None] = lambda body, size: None

    def head(self) -> bytes:
        """Up to the empty line, or all there is."""
        self._kept, self._size = b"", 0
        while b"\r\n\r\n" not in self._buffer and len(self._buffer) < MAX_HEAD and self._more():
            if not _BEGUN.match(self._buffer):
                break
        end = self._buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            end = len(self._buffer)
        found, self._buffer = self._buffer[:end], self._buffer[end:]
        return found

    def body(self, asked: Asked) -> bool:
        """Read a request's body; whether another request may follow."""
        if "chunked" in "".join(asked.values("transfer-encoding")).lower():
            while size := int(self._line().split(b";")[0], 16):
                self._take(size)
                self._line()
            while self._line():
                pass
        elif lengths := asked.values("content-length"):
            self._take(int(lengths[0]))
        return True

    def rest(self) -> None:
        """Whatever comes until the end."""
        while True:
            self._note(self._buffer)
            self._buffer = b""
            if not self._more():
                return

    def _take(self, count: int) -> None:
        while count:
            if not self._buffer and not self._more():
                raise ValueError("the body was cut")
            part, self._buffer = self._buffer[:count], self._buffer[count:]
            count -= len(part)
            self._note(part)

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            if not self._more():
                raise ValueError("a line was cut")
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _note(self, part: bytes) -> None:
        self._size += len(part)
        self._kept += part[: max(0, KEPT_BYTES - len(self._kept))]
        self.note(self._kept, self._size)

    def _more(self) -> bool:
        data = self._connection.recv(1 << 16)
        self._buffer += data
        return bool(data)
