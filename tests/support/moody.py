"""Origins that end their connections at the wrong moment. They remember the requests of each."""

from __future__ import annotations

import abc
import contextlib
import socket
import ssl
import struct

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived

from tests.support.listening import on_loopback


class _Listener(abc.ABC):
    """Accepts on a port of loopback, each connection in a thread of its own. connections: what was asked on each."""

    def __init__(self) -> None:
        self.connections: list[list[str]] = []
        self._listening = on_loopback(self._serve)
        self.port = self._listening.port

    def close(self) -> None:
        self._listening.close()

    @abc.abstractmethod
    def _serve(self, client: socket.socket) -> None: ...


class MoodyOrigin(_Listener):
    """In clear HTTP/1.1. Closes a connection after `idle_s` without a request; resets it instead of answering request
    number `resets_at`.

    connections: the request lines of each connection, in order.
    """

    def __init__(self, *, idle_s: float = 30.0, resets_at: int = 0) -> None:
        self.idle_s = idle_s
        self.resets_at = resets_at
        super().__init__()

    def _serve(self, client: socket.socket) -> None:
        lines: list[str] = []
        self.connections.append(lines)
        client.settimeout(self.idle_s)
        with contextlib.suppress(OSError), client:
            while data := client.recv(65536):  # requests are small, and come in one piece
                lines.append(data.split(b"\r\n", 1)[0].decode())
                if len(lines) == self.resets_at:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


class MoodyH2Origin(_Listener):
    """An origin in HTTP/2 that closes its first connection when `ends_at` requests have come, answering but the first.

    connections: the paths asked for on each connection, in order.
    """

    def __init__(self, tls: ssl.SSLContext, *, ends_at: int) -> None:
        self._tls = tls
        self._tls.set_alpn_protocols(["h2"])
        self.ends_at = ends_at
        super().__init__()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), self._tls.wrap_socket(client, server_side=True) as tls:
            paths: list[str] = []
            self.connections.append(paths)
            first = len(self.connections) == 1
            h2 = H2Connection(H2Configuration(client_side=False))
            h2.initiate_connection()
            tls.sendall(h2.data_to_send())
            while data := tls.recv(65536):
                for event in h2.receive_data(data):
                    if not isinstance(event, RequestReceived):
                        continue
                    paths.append(dict(event.headers)[b":path"].decode())
                    if first and len(paths) == self.ends_at:
                        return
                    if not first or len(paths) == 1:
                        h2.send_headers(event.stream_id, [(":status", "200")], end_stream=True)
                tls.sendall(h2.data_to_send())
