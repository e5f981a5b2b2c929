"""An HTTP/2 origin in a thread that remembers each header with whether it may be kept in the connection's table."""

from __future__ import annotations

import contextlib
import socket
import ssl

import h2.config
import h2.connection
import h2.events
from hpack import NeverIndexedHeaderTuple

from tests.support.listening import on_loopback


class H2Echo:
    """Answers 200 to everything on 127.0.0.1:`port` until the block ends. seen: (name, value, may be kept) lists."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        tls.set_alpn_protocols(["h2"])
        self._tls = tls
        self.seen: list[list[tuple[str, str, bool]]] = []
        self._listening = on_loopback(self._serve)
        self.port = self._listening.port

    def __enter__(self) -> H2Echo:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._listening.close()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), self._tls.wrap_socket(client, server_side=True) as tls:
            ours = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
            ours.initiate_connection()
            tls.sendall(ours.data_to_send())
            while data := tls.recv(1 << 16):
                for event in ours.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived) and event.headers is not None:
                        self.seen.append(
                            [
                                (bytes(pair[0]).decode(), bytes(pair[1]).decode(), _may_be_kept(pair))
                                for pair in event.headers
                            ]
                        )
                    elif isinstance(event, h2.events.StreamEnded):
                        ours.send_headers(event.stream_id, [(":status", "200")], end_stream=True)
                tls.sendall(ours.data_to_send())


def _may_be_kept(pair: object) -> bool:
    return not isinstance(pair, NeverIndexedHeaderTuple)
