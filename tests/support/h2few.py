"""An HTTP/2 origin in a thread that takes few streams at a time, and may let each wait for its answer."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings

from tests.support.listening import on_loopback


class FewAtATime:
    """Serves TLS on 127.0.0.1:`port` until `close`; answers 200 to all, but to /pub/hold only after `release` is set.
    /early is reset as soon as something of its body comes, /limited is answered before that.

    seen: the targets that arrived, of all connections. body_bytes: what came of bodies, which are taken as they come
    unless `grants` is False. streams: how many it takes on one connection. connections: those that are open.
    last_words: sent as they are, if any.
    """

    def __init__(self, tls: ssl.SSLContext, *, streams: int = 1, grants: bool = True) -> None:
        tls.set_alpn_protocols(["h2"])
        self._tls, self._streams, self._grants = tls, streams, grants
        self.seen: list[str] = []
        self.body_bytes = 0
        self.last_words = b""
        self.release = threading.Event()
        self.connections: list[ssl.SSLSocket] = []
        self._listening = on_loopback(self._serve)
        self.port = self._listening.port

    def close(self) -> None:
        self.release.set()
        self._listening.close()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), self._tls.wrap_socket(client, server_side=True) as tls:
            self.connections.append(tls)
            tls.settimeout(0.05)
            ours = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
            ours.local_settings = h2.settings.Settings(
                client=False, initial_values={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self._streams}
            )
            ours.initiate_connection()
            held: set[int] = set()
            refused: set[int] = set()
            answered: set[int] = set()
            while True:
                if self.release.is_set():
                    for stream in held:
                        ours.send_headers(stream, [(":status", "200")], end_stream=True)
                    held.clear()
                tls.sendall(ours.data_to_send() + self.last_words)
                try:
                    data = tls.recv(1 << 16)
                except TimeoutError:
                    continue
                if not data:
                    break
                for event in ours.receive_data(data):
                    self._hear(ours, event, held, refused, answered)

    def _hear(
        self,
        ours: h2.connection.H2Connection,
        event: h2.events.Event,
        held: set[int],
        refused: set[int],
        answered: set[int],
    ) -> None:
        if isinstance(event, h2.events.RequestReceived):
            target = bytes(dict(event.headers or ())[b":path"]).decode()
            self.seen.append(target)
            if target == "/pub/hold":
                held.add(event.stream_id)
            elif target == "/early":
                refused.add(event.stream_id)
            elif target == "/limited":
                ours.send_headers(event.stream_id, [(":status", "200")], end_stream=True)
                answered.add(event.stream_id)
        elif isinstance(event, h2.events.DataReceived) and event.stream_id in refused:
            ours.reset_stream(event.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            refused.discard(event.stream_id)
        elif isinstance(event, h2.events.DataReceived):
            self.body_bytes += len(event.data)
            if self._grants:
                ours.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded) and event.stream_id not in held | answered:
            ours.send_headers(event.stream_id, [(":status", "200")], end_stream=True)
        elif isinstance(event, h2.events.StreamReset):
            held.discard(event.stream_id)
