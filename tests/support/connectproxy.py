"""A real HTTP proxy that grants tunnels, counts and remembers them; or misbehaves as told."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Mapping

from tests.support.listening import QUEUE, Listening


class ConnectProxy:
    """Listens on loopback. The target's port decides the behaviour: see `misbehave`; others get their tunnel.

    heads: each request head as it came. routes: where "name:port" really is. wants: the credentials that it asks for.
    """

    def __init__(self, routes: Mapping[str, int], *, wants: str = "", tls: ssl.SSLContext | None = None) -> None:
        self._routes = routes
        self._tls = tls
        self.wants = wants
        self.heads: list[bytes] = []
        self.connections = 0
        self.misbehave: dict[str, bytes | None] = {}
        self.greeting = b"HTTP/1.1 200 Connection established\r\n\r\n"  # sent in pieces
        self.ended = threading.Event()
        self._listening = Listening(socket.create_server(("127.0.0.1", 0), backlog=QUEUE), self._take)
        self.port = self._listening.port

    def clear(self) -> None:
        self.connections = 0
        self.heads.clear()

    def close(self) -> None:
        self.ended.set()
        self._listening.close()

    def targets(self) -> list[str]:
        """What tunnels were asked for, in order."""
        return [head.split(b" ")[1].decode() for head in self.heads]

    def _take(self, client: socket.socket) -> None:
        self.connections += 1
        threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                data = client.recv(1)
                if not data:
                    return
                head += data
            self.heads.append(head)
            self._tunnel(client, head)
        client.close()

    def _tunnel(self, client: socket.socket, head: bytes) -> None:
        method, target = head.split(b" ")[:2]
        name = target.decode("latin-1")
        if name in self.misbehave:
            answer = self.misbehave[name]
            if answer is None:
                self.ended.wait(60)  # not a word
            else:
                client.sendall(answer)
                if not answer.startswith(b"HTTP/1.1 407"):
                    client.shutdown(socket.SHUT_WR)
            return
        if self.wants and f"proxy-authorization: {self.wants}".lower() not in head.decode("latin-1").lower():
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic\r\n\r\n")
            return
        if method != b"CONNECT" or name not in self._routes:
            client.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
            return
        origin = socket.create_connection(("127.0.0.1", self._routes[name]), 5)
        origin.settimeout(None)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(self.greeting), 16):
            client.sendall(self.greeting[at : at + 16])
        back = threading.Thread(target=_pump, args=(origin, client), daemon=True)
        back.start()
        _pump(client, origin)
        back.join(60)
        origin.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
