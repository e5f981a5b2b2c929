"""The origin, in a process of its own: `python -m tests.bench.origin CERTIFICATE` prints its port and serves TLS.

With `h2` behind the certificate it speaks HTTP/2 to whoever can, and then has nothing but /small.

GET  /small      200 bytes of JSON
GET  /bytes/N    N bytes
POST /sink       reads the body, answers with its length
POST /early      answers at once, and reads nothing more until the connection ends
GET  /ticks/N    N events, one each 10 ms, each with this process's clock
GET  /echo       a WebSocket that says what it hears
GET  /events     an event with this process's clock, and a second one only after somebody asked for /release
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator

from hpack import Decoder
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage

from tests.bench import h2_frames as h2
from tests.bench.client import BLOCK_BYTES, content_length

SMALL = b'{"object":"list","data":[{"id":"bench","version":"1.2.3","note":"%s"}]}' % (b"x" * 133)
# The second event goes out after this long even if nobody asked for it.
HELD_BACK_S = 2.0
TICK_S = 0.01
# How long an upload that was answered early stands still if nobody ends it.
EARLY_S = 20.0


class Origin:
    """A thread for each connection."""

    def __init__(self, certificate: str, *more: str) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._context.set_alpn_protocols([*more, "http/1.1"])
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._released = threading.Event()
        self.port = int(self._listener.getsockname()[1])

    def serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._context.wrap_socket(plain, server_side=True) as connection:
                if connection.selected_alpn_protocol() == "h2":
                    _serve_h2(connection)
                    return
                buffer = b""
                while True:
                    while (end := buffer.find(b"\r\n\r\n")) < 0:
                        data = connection.recv(65536)
                        if not data:
                            return
                        buffer += data
                    head, buffer = buffer[: end + 2], buffer[end + 4 :]
                    buffer = self._answer(connection, head, buffer)
        except (OSError, ValueError):
            return

    def _answer(self, connection: ssl.SSLSocket, head: bytes, buffer: bytes) -> bytes:
        """Answer one request; what came after it."""
        path = head.split(b" ", 2)[1]
        if path == b"/small":
            connection.sendall(_whole(SMALL))
        elif path.startswith(b"/bytes/"):
            _send_bytes(connection, int(path[7:]))
        elif path == b"/sink":
            length = content_length(head)
            left, buffer = length - len(buffer[:length]), buffer[length:]
            block = bytearray(BLOCK_BYTES)
            while left:
                received = connection.recv_into(block, min(left, BLOCK_BYTES))
                if not received:
                    raise OSError("the upload was cut")
                left -= received
            connection.sendall(_whole(b'{"got":%d}' % length))
        elif path == b"/early":
            connection.sendall(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n")
            time.sleep(EARLY_S)
            raise OSError("it has been answered")
        elif path.startswith(b"/ticks/"):
            _ticks(connection, int(path[7:]))
        elif path == b"/echo":
            _echo(connection, head)
        elif path == b"/events":
            self._events(connection)
        elif path == b"/release":
            self._released.set()
            connection.sendall(_whole(b"{}"))
        else:
            connection.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        return buffer

    def _events(self, connection: ssl.SSLSocket) -> None:
        self._released.clear()
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        connection.sendall(_event())
        self._released.wait(HELD_BACK_S)
        connection.sendall(_event() + b"0\r\n\r\n")


def _serve_h2(connection: ssl.SSLSocket) -> None:
    """Answer requests for /small until the client leaves. Raises OSError and ValueError."""
    fields = [(":status", "200"), ("content-type", "application/json"), ("content-length", str(len(SMALL)))]
    head, decoder, buffer = h2.RepeatedHead(fields), Decoder(), bytearray()
    connection.sendall(h2.greeting())
    while len(buffer) < len(h2.PREFACE):
        buffer += _some(connection)
    del buffer[: len(h2.PREFACE)]
    while True:
        out = b""
        for kind, flags, stream, payload in h2.frames(buffer):
            if kind == h2.HEADERS:
                asked = dict(decoder.decode(h2.block_of(flags, payload), raw=True))
                if asked.get(b":path") != b"/small":
                    raise ValueError("there is nothing else")
                out += h2.frame(h2.HEADERS, h2.END_HEADERS, stream, head.block())
                out += h2.frame(h2.DATA, h2.END_STREAM, stream, SMALL)
            out += h2.reply(kind, flags, payload)
        if out:
            connection.sendall(out)
        buffer += _some(connection)


def _some(connection: ssl.SSLSocket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise OSError("the client left")
    return data


def _whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def _ticks(connection: ssl.SSLSocket, count: int) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(count):
        connection.sendall(_event())
        time.sleep(TICK_S)
    connection.sendall(b"0\r\n\r\n")


def _echo(connection: ssl.SSLSocket, head: bytes) -> None:
    end = WSConnection(ConnectionType.SERVER)
    end.receive_data(head + b"\r\n")
    connection.sendall(b"".join(end.send(AcceptConnection()) for _ in end.events()))
    while data := connection.recv(BLOCK_BYTES):
        end.receive_data(data)
        said = [end.send(BytesMessage(event.data, message_finished=event.message_finished)) for event in _messages(end)]
        connection.sendall(b"".join(said))


def _messages(end: WSConnection) -> Iterator[BytesMessage]:
    return (event for event in end.events() if isinstance(event, BytesMessage))


def _event() -> bytes:
    data = b"data: %d\n\n" % time.monotonic_ns()
    return b"%x\r\n%s\r\n" % (len(data), data)


def _send_bytes(connection: ssl.SSLSocket, left: int) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % left)
    block = os.urandom(BLOCK_BYTES)
    while left:
        size = min(left, BLOCK_BYTES)
        connection.sendall(block if size == BLOCK_BYTES else block[:size])
        left -= size


if __name__ == "__main__":
    origin = Origin(*sys.argv[1:])
    print(origin.port, flush=True)
    origin.serve()
