"""An origin in clear HTTP/1.1 that ends its connections at the wrong moment. Remembers the requests of each."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading


class MoodyOrigin:
    """Closes a connection after `idle_s` without a request; resets it instead of answering request number `resets_at`.

    connections: the request lines of each connection, in order.
    """

    def __init__(self, *, idle_s: float = 30.0, resets_at: int = 0) -> None:
        self.idle_s = idle_s
        self.resets_at = resets_at
        self.connections: list[list[str]] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

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
