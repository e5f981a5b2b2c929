"""How attempts are sent: each function gives one that a `Client` can carry out. Bytes are filled (`Client.filled`)."""

from __future__ import annotations

import socket
from collections.abc import Callable

from impyard.box.attacks import frames
from impyard.box.attacks.client import Client, Refused, ended, read_reply, send
from impyard.box.attacks.model import CLOSED, OK, WS, Result

Send = Callable[[Client], Result]

HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: {ws}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def raw(data: bytes, *, answers: int = 1, tunnel: bool = False) -> Send:
    """Bytes at the proxy's own port. answers: how many are read; 0: only the end of the connection counts.

    tunnel: whether the first answer is to a CONNECT, behind which another follows.
    """

    def attempt(client: Client) -> Result:
        with client.connect() as connection:
            if not tunnel:
                return _spoken(client, connection, data, answers)
            send(connection, client.filled(data))
            granted = read_reply(connection, tunnel=True).status
            return Result(
                (granted, *_spoken(client, connection, b"", answers).statuses) if granted == 200 else (granted,)
            )

    return attempt


def in_tunnel(data: bytes, target: bytes = b"{ok+}", *, answers: int = 0) -> Send:
    """Bytes in a granted tunnel to `target`, without TLS."""

    def attempt(client: Client) -> Result:
        try:
            with client.tunnel(client.filled(target)) as connection:
                return _spoken(client, connection, data, answers)
        except Refused as refused:
            return Result((refused.status,), "the tunnel was refused")

    return attempt


def inside(
    data: bytes,
    host: str = OK,
    *,
    port: int | None = None,
    sni: str | None = None,
    alpn: tuple[str, ...] = (),
    answers: int = 1,
    head_only: bool = False,
) -> Send:
    """Bytes inside the TLS of a tunnel to `host`."""

    def attempt(client: Client) -> Result:
        try:
            with client.tls(host, port, sni=sni, alpn=alpn) as connection:
                return _spoken(client, connection, data, answers, head_only=head_only)
        except Refused as refused:
            return Result((refused.status,), "the tunnel was refused")

    return attempt


def get(target: bytes, *, headers: bytes = b"", method: bytes = b"GET", **options: object) -> Send:
    """One request without a body inside of ok.test's TLS. headers: lines that end in CR LF."""
    head = b"%s %s HTTP/1.1\r\nHost: {ok}\r\n%s\r\n" % (method, target, headers)
    return inside(head, head_only=method == b"HEAD", **options)  # type: ignore[arg-type]


def h2(*pieces: bytes, host: str = OK, streams: tuple[int, ...] = (1,)) -> Send:
    """HTTP/2 frames inside of the TLS of a tunnel, after an honest beginning."""

    def attempt(client: Client) -> Result:
        try:
            with client.tls(host, alpn=("h2",)) as connection:
                if connection.selected_alpn_protocol() != "h2":
                    return Result((CLOSED,) * len(streams), "no HTTP/2 here")
                send(connection, frames.hello())
                for piece in pieces:
                    if not send(connection, piece):
                        break
                connection.settimeout(client.quiet_s)
                found = frames.read_streams(connection, streams)
                return Result(tuple(found.statuses[stream] for stream in streams))
        except Refused as refused:
            return Result((refused.status,), "the tunnel was refused")

    return attempt


def websocket(*pieces: bytes, handshake: bytes = HANDSHAKE + b"\r\n") -> Send:
    """A WebSocket handshake, and bytes after it was accepted.

    The answers: to it, and the code of the close frame that ended it, CLOSED when it ended without one.
    """

    def attempt(client: Client) -> Result:
        try:
            with client.tls(WS) as connection:
                send(connection, client.filled(handshake))
                reply = read_reply(connection)
                if reply.status != 101:
                    return Result((reply.status,))
                for piece in pieces:
                    if not send(connection, piece):
                        break
                connection.settimeout(client.quiet_s)
                return Result((101, frames.close_code(connection)))
        except Refused as refused:
            return Result((refused.status,), "the tunnel was refused")

    return attempt


def _spoken(client: Client, connection: socket.socket, data: bytes, answers: int, *, head_only: bool = False) -> Result:
    send(connection, client.filled(data))
    connection.settimeout(client.quiet_s)
    if not answers:
        return Result((ended(connection),))
    statuses: list[int] = []
    while len(statuses) < answers:
        statuses.append(read_reply(connection, head_only=head_only).status)
        if statuses[-1] <= CLOSED:
            break
    return Result(tuple(statuses))
