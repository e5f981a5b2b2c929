"""A box and an origin that do anything in any order, on the layers of `layers.py`. The host is p.test, over http."""

from __future__ import annotations

import contextlib
import random

import h2.config
import h2.connection
import h2.exceptions

from impyard.addon.hooks import JudgeAddon
from tests.support.layers import Stage

GET = b"GET http://p.test/ok HTTP/1.1\r\nHost: p.test\r\n\r\n"
UPLOAD = b"POST http://p.test/ok HTTP/1.1\r\nHost: p.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
HANDSHAKE = (
    b"GET http://p.test/ws HTTP/1.1\r\nHost: p.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
ANSWERS = (
    OK,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz",
    b"HTTP/1.1 413 No\r\nContent-Length: 100000\r\n\r\nhello",
    b"garbage\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n",
    *(SWITCHED + frame for frame in (b"", b"\x81\x05hello", b"\x88\x02\x03\xe8", b"\xff\xff", b"\x8a\0")),
    b"HTTP/1.1 101 Switching\r\nUpgrade: foo\r\n\r\nraw",
)
FRAMES = (b"\x81\x85\0\0\0\0hello", b"\x88\x82\0\0\0\0\x03\xe8", b"\xff\xff", b"\x89\x80\0\0\0\0", b"\x01\x81\0\0\0\0a")


class Http1Box:
    """A box that sends requests of all kinds, cut anywhere."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._rest = b""

    def data(self) -> bytes:
        self._rest = self._rest or self._request()
        cut = self._dice.choice([len(self._rest), len(self._rest), self._dice.randint(1, len(self._rest))])
        data, self._rest = self._rest[:cut], self._rest[cut:]
        return data

    def _request(self) -> bytes:
        dice = self._dice
        if dice.random() < 0.15:
            return HANDSHAKE + dice.choice(FRAMES)
        method = dice.choice(["GET", "HEAD", "POST", "POST", "PUT"])
        path, version = dice.choice(["/ok", "/ok", "/limited", "/no"]), dice.choice(["1.1", "1.1", "1.0"])
        head = f"{method} http://p.test{path} HTTP/{version}\r\nHost: p.test\r\n"
        head += dice.choice(["", "", "", "Connection: close\r\n", "Expect: 100-continue\r\n"])
        body = b""
        if method in ("POST", "PUT"):
            kind = dice.random()
            if kind < 0.4:
                body = b"x" * dice.choice([0, 1, 5, 30, 70000])
                head += f"Content-Length: {len(body)}\r\n"
            elif kind < 0.9:
                head += "Transfer-Encoding: chunked\r\n"
                body = b"5\r\nhello\r\n" * dice.randint(0, 3) + dice.choice(
                    [b"0\r\n\r\n", b"0\r\n\r\n", b"zz\r\n", b""]
                )
        return head.encode() + b"\r\n" + body


class Http2Box:
    """The same with the frames of several streams at once."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self._h2 = h2.connection.H2Connection(config)
        self._h2.initiate_connection()
        self._begun: list[int] = []

    def data(self) -> bytes:
        with contextlib.suppress(h2.exceptions.ProtocolError):  # its own connection is over
            self._step()
        return self._h2.data_to_send() + (b"\0\0\0\xff\xff\0\0\0\0" if self._dice.random() < 0.01 else b"")

    def _step(self) -> None:
        dice, kind = self._dice, self._dice.random()
        if kind < 0.4 or not self._begun:
            stream = self._h2.get_next_available_stream_id()
            head = [(":method", dice.choice(["GET", "POST", "CONNECT"])), (":scheme", "http")]
            head += [(":authority", "p.test"), (":path", dice.choice(["/ok", "/ok", "/limited", "/no", "/ws"]))]
            head += dice.choice([[], [], [("content-length", "5")], [("expect", "100-continue")]])
            ends = dice.random() < 0.4
            self._h2.send_headers(stream, head, end_stream=ends)
            self._begun += [] if ends else [stream]
            return
        stream = dice.choice(self._begun)
        if kind < 0.6:
            self._h2.send_data(stream, b"x" * dice.choice([0, 1, 5, 30, 10000]))
            return
        self._begun.remove(stream)
        if kind < 0.75:
            self._h2.send_data(stream, b"hello", end_stream=True)
        elif kind < 0.85:
            self._h2.send_headers(stream, [("x", "y")], end_stream=True)
        elif kind < 0.98:
            self._h2.reset_stream(stream, dice.choice([0, 2, 8]))
        else:
            self._h2.close_connection()


async def walk(judge: JudgeAddon, seed: int, *, http2: bool) -> None:
    """One connection of a box that does anything, to an origin that does, to its end; raises what a layer raises."""
    dice = random.Random(seed)
    stage = Stage(judge, b"h2", ("p.test", 80)) if http2 else Stage(judge)
    box = Http2Box(dice) if http2 else Http1Box(dice)
    for _ in range(dice.randint(5, 60)):
        kind = dice.random()
        if stage.hooks and kind < 0.35:
            await stage.hook(dice.randrange(len(stage.hooks)))
        elif stage.dials and kind < 0.5:
            stage.dial(dice.randrange(len(stage.dials)), None if dice.random() < 0.85 else "refused")
        elif stage.closing and kind < 0.6:
            stage.ends(dice.choice(stage.closing))
        elif kind < 0.8:
            stage.says(stage.client, box.data())
        elif kind < 0.95 and stage.origins:
            origin, answer = dice.choice(stage.origins), dice.choice(ANSWERS)
            cut = dice.choice([len(answer), dice.randint(1, len(answer))])
            stage.says(origin, answer[:cut])
            if dice.random() < 0.8:
                stage.says(origin, answer[cut:])
        elif kind < 0.98 and stage.origins:
            stage.ends(dice.choice(stage.origins), half=dice.random() < 0.7)
        elif dice.random() < 0.3:
            stage.ends(stage.client, half=dice.random() < 0.5)
    await stage.leave(at_once=dice.random() < 0.5)
