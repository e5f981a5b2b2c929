"""Origins that keep every byte: one over HTTP/1.1, with each connection as a tape, and one over HTTP/2."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from tests.support.listening import QUEUE, Listening
from tests.support.strict import Unclean, strict_request


@dataclass
class Tape:
    """One connection. sni: the name asked for in the TLS hello. ended: whether it is closed."""

    data: bytearray = field(default_factory=bytearray)
    sni: str | None = None
    ended: bool = False


@dataclass
class H2Got:
    """One HTTP/2 request as it arrived, pseudo headers among the headers."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    trailers: bool = False


class TapeOrigin:
    """A threaded server on loopback that answers 200 to each whole request, and keeps what it was sent."""

    def __init__(self, tls: ssl.SSLContext | None = None, *, http2: bool = False) -> None:
        self._tls = tls
        self._names: dict[int, str | None] = {}
        if tls is not None:
            tls.sni_callback = self._remember
            tls.set_alpn_protocols(["h2", "http/1.1"] if http2 else ["http/1.1"])
        self.tapes: list[Tape] = []
        self.h2: list[H2Got] = []
        self.faults: list[str] = []
        self._listening = Listening(socket.create_server(("127.0.0.1", 0), backlog=QUEUE), self._take)
        self.port = self._listening.port

    def clear(self) -> None:
        self.tapes.clear()
        self.h2.clear()
        self.faults.clear()

    def close(self) -> None:
        self._listening.close()

    def settled(self, seconds: float = 10) -> bool:
        """Whether all connections have ended, after waiting for that."""
        deadline = time.monotonic() + seconds
        while not (done := all(tape.ended for tape in self.tapes)) and time.monotonic() < deadline:
            time.sleep(0.005)
        return done

    def _remember(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        self._names[id(connection)] = name

    def _take(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        tape = Tape()
        self.tapes.append(tape)
        threading.Thread(target=self._serve, args=(connection, tape), daemon=True).start()

    def _serve(self, connection: socket.socket, tape: Tape) -> None:
        try:
            if self._tls is not None:
                tls = self._tls.wrap_socket(connection, server_side=True)
                tape.sni = self._names.pop(id(tls), None)
                connection = tls
                if tls.selected_alpn_protocol() == "h2":
                    self._serve_h2(tls)
                    return
            self._serve_h1(connection, tape)
        except Unclean as exc:
            self.faults.append(str(exc))
        except OSError:
            pass
        finally:
            connection.close()
            tape.ended = True

    @staticmethod
    def _serve_h1(connection: socket.socket, tape: Tape) -> None:
        at = 0
        while data := connection.recv(1 << 16):
            tape.data += data
            while at < len(tape.data) and (got := strict_request(bytes(tape.data), at)) and got.complete:
                at = got.end
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    def _serve_h2(self, connection: ssl.SSLSocket) -> None:
        session = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="latin-1"))
        session.initiate_connection()
        connection.sendall(session.data_to_send())
        begun: dict[int, H2Got] = {}
        while data := connection.recv(1 << 16):
            try:
                events = session.receive_data(data)
            except h2.exceptions.ProtocolError as exc:
                raise Unclean(f"HTTP/2: {exc}") from exc
            for event in events:
                if isinstance(event, h2.events.RequestReceived):
                    got = begun[event.stream_id] = H2Got([(str(n), str(v)) for n, v in event.headers or []])
                    self.h2.append(got)
                elif isinstance(event, h2.events.DataReceived):
                    begun[event.stream_id].body += event.data or b""
                    session.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
                elif isinstance(event, h2.events.TrailersReceived):
                    begun[event.stream_id].trailers = True
                elif isinstance(event, h2.events.StreamEnded):
                    session.send_headers(event.stream_id, [(":status", "200")], end_stream=True)
            connection.sendall(session.data_to_send())
