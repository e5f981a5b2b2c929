"""An origin that remembers everything: connections, request heads as bytes, bodies. HTTP/1.1, plain or TLS."""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import wsproto
import wsproto.events

from impyard.certs.throwaway import Pki
from tests.support.listening import QUEUE, Listening

__all__ = ["Origin", "Pki", "Seen"]


@dataclass
class Seen:
    """One request as it arrived. body_bytes counts; body_start holds at most 64 KiB."""

    head: bytes
    body_bytes: int = 0
    body_start: bytes = b""
    digest: str = ""
    at: float = field(default_factory=time.time)

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def method(self) -> str:
        return self.head.split(b" ", 1)[0].decode()

    def header(self, name: str) -> list[str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return [value.strip() for key, _, value in (line.partition(":") for line in lines) if key.lower() == name]


class Origin:
    """A threaded server on loopback. Paths choose the answer: see `_answer`."""

    def __init__(self, tls: ssl.SSLContext | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._tls = tls
        self.connections = 0
        self.ended = 0  # connections that are over
        self.seen: list[Seen] = []
        self.alpn: list[str | None] = []
        self.release = threading.Event()
        self.on_request: Callable[[Seen], None] = lambda seen: None
        self.answers: dict[
            str, Callable[[socket.socket, Seen], None]
        ] = {}  # a test's own, by target; ends the connection
        self._listening = Listening(socket.create_server((host, port), backlog=QUEUE), self._take)
        self.port = self._listening.port

    def clear(self) -> None:
        self.connections = self.ended = 0
        self.seen.clear()
        self.release.clear()
        self.answers.clear()

    def close(self) -> None:
        self._listening.close()

    def _take(self, connection: socket.socket) -> None:
        self.connections += 1
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                tls = self._tls.wrap_socket(connection, server_side=True)
                self.alpn.append(tls.selected_alpn_protocol())
                connection = tls
            with connection, connection.makefile("rb") as reader:
                while self._one(connection, reader):
                    pass
        except (OSError, ValueError):  # ValueError: a chunk's size that never came
            return
        finally:
            self.ended += 1

    def _one(self, connection: socket.socket, reader) -> bool:  # type: ignore[no-untyped-def]  # BufferedReader or SSL's
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = reader.readline(1 << 20)
            if not line:
                return False
            head += line
        seen = Seen(head)
        self.seen.append(seen)
        self.on_request(seen)
        if seen.target.startswith(("/early", "/pub/early")):
            connection.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\n\r\nenough"[:-1])
            time.sleep(float(seen.target.rpartition("=")[2] or 0) if "=" in seen.target else 0.0)
            return False
        self._body(seen, reader)
        return self._answer(connection, seen)

    def _body(self, seen: Seen, reader) -> None:  # type: ignore[no-untyped-def]  # as above
        digest = hashlib.sha256()

        def take(data: bytes) -> None:
            seen.body_bytes += len(data)
            digest.update(data)
            if len(seen.body_start) < 65536:
                seen.body_start += data[: 65536 - len(seen.body_start)]

        if "chunked" in "".join(seen.header("transfer-encoding")):
            while size := int(reader.readline().split(b";")[0], 16):
                take(reader.read(size))
                reader.readline()
            while reader.readline() not in (b"\r\n", b""):
                pass
        elif lengths := seen.header("content-length"):
            left = int(lengths[0])
            while left and (data := reader.read(min(left, 1 << 16))):
                left -= len(data)
                take(data)
        seen.digest = digest.hexdigest()

    def _answer(self, connection: socket.socket, seen: Seen) -> bool:
        path, _, argument = seen.target.partition("=")
        send = connection.sendall
        if own := self.answers.get(seen.target):
            own(connection, seen)
            return False
        if path.startswith("/pub/endless-trailers"):
            send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + _chunk(b"body") + b"0\r\n")
            for _ in range(int(argument)):
                send(b"x: " + b"y" * 1000 + b"\r\n")
        elif path.startswith("/pub/endless-chunk-line"):
            send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;")
            for _ in range(int(argument)):
                send(b"y" * 1000)
        elif path.startswith("/pub/sse"):
            send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            send(_chunk(b"data: one\n\n"))
            self.release.wait(10)
            send(_chunk(b"data: two\n\n") + b"0\r\n\r\n")
        elif path.startswith("/pub/silent"):
            self.release.wait(30)
            return False
        elif path.startswith("/pub/big"):
            left = int(argument)
            send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % left)
            block = bytes(1 << 16)
            while left:
                left -= min(left, len(block))
                send(block if left else block[: int(argument) % len(block) or len(block)])
        elif path.startswith(("/pub/ws", "/pub/duplex")):
            self._websocket(connection, seen)
            return False
        elif path.startswith("/pub/switch"):
            send(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: foo\r\n\r\nraw bytes")
            time.sleep(0.5)
        elif path.startswith("/pub/interim"):
            send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
            send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfinal")
        elif path.startswith("/pub/endless-head"):
            send(b"HTTP/1.1 200 OK\r\n")
            for _ in range(int(argument)):
                send(b"x: " + b"y" * 1000 + b"\r\n")
        elif path.startswith("/pub/two-lengths"):
            send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello")
            return False
        elif path.startswith("/pub/garbage"):
            send(b"this is no HTTP\r\n\r\n")
            return False
        elif path.startswith("/pub/trailers"):
            send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + _chunk(b"body") + b"0\r\nx-late: 1\r\n\r\n")
        elif path.startswith("/pub/cut"):
            send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
            return False
        elif path.startswith("/pub/empty"):
            send(b"HTTP/1.1 204 No Content\r\n\r\n")
        elif path.startswith("/pub/redirect"):
            location = (argument or "https://b.test/x").encode()
            send(b"HTTP/1.1 302 Found\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n" % location)
        elif path.startswith(("/pub/last", "/last")):
            send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlast")
            return False
        else:
            body = b"" if seen.method == "HEAD" else b"hello from the origin\n"
            send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 22\r\n\r\n" + body)
        return True

    def _websocket(self, connection: socket.socket, seen: Seen) -> None:
        """Echo each message until the peer closes; body_bytes counts what came."""
        protocol = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
        protocol.receive_data(seen.head)
        pending = b""
        while True:
            for event in protocol.events():
                if isinstance(event, wsproto.events.Request):
                    connection.sendall(protocol.send(wsproto.events.AcceptConnection()))
                    if seen.target == "/pub/duplex":
                        pending = protocol.send(wsproto.events.BytesMessage(bytes(1 << 20))) * 16
                elif isinstance(event, wsproto.events.BytesMessage):
                    seen.body_bytes += len(event.data)
                    if seen.target == "/pub/duplex":
                        continue
                    connection.sendall(protocol.send(wsproto.events.BytesMessage(bytes(event.data))))
                elif isinstance(event, wsproto.events.CloseConnection):
                    if event.code != 1006:  # the peer is still there to hear it
                        connection.sendall(protocol.send(event.response()))
                    return
            received, pending = _both_ways(connection, pending)
            protocol.receive_data(received or None)


def _both_ways(connection: socket.socket, pending: bytes) -> tuple[bytes, bytes]:
    """Send of `pending` what goes until something comes: that, and what is still to be sent.

    In one thread: TLS takes no two at once.
    """
    view = memoryview(pending)
    if not view:
        return connection.recv(1 << 16), b""
    limit = connection.gettimeout()
    connection.setblocking(False)
    try:
        while True:
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return connection.recv(1 << 16), bytes(view)
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                view = view[connection.send(view[: 1 << 16]) :] if view else view
            select.select([connection], [connection] if view else [], [], 0.05)
    finally:
        connection.settimeout(limit)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
