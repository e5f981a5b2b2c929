"""Group F in WebSockets: as a way to carry much out, or to speak something else behind the handshake."""

from __future__ import annotations

import zlib
from functools import partial

from impyard.box.attacks import frames, sends
from impyard.box.attacks.frames import BINARY, CLOSE, TEXT, WS_PING, WS_PONG, ws
from impyard.box.attacks.model import CLOSED, LIMIT, NO, PASSED, Attempt

_attempt = partial(Attempt, group="F")

_OPEN = frozenset({101})
_BROKEN = frozenset({CLOSED, 1000, 1002, 1003, 1005, 1006, 1007, 1009})
_CUT = frozenset({1009, CLOSED})  # the word for it is lost to a client whose unread bytes reset the connection
_SEES = ("GET /ws",)
_HEAD = 2000  # what the heads of frames may add to what a message holds


def _cut(name: str, *pieces: bytes, bare: bool = True) -> Attempt:
    """More than the rule's limit: counted, cut, and closed with the code for it."""
    return _attempt("91", name, send=sends.websocket(*pieces), answers=(_OPEN, _CUT), sees=_SEES, must=True,
                    most=LIMIT + _HEAD, bare=bare)  # fmt: skip


def _broken(name: str, *pieces: bytes, entry: str = "92") -> Attempt:
    """Bytes behind the handshake that are no valid frames: closed, and nothing of them passed on."""
    return _attempt(entry, name, send=sends.websocket(*pieces), answers=(_OPEN, _BROKEN), sees=_SEES, must=True,
                    never=(b"hidden",), most=_HEAD, bare=False)  # fmt: skip


_BLOCK = b"a" * 10_000
_BOMB = zlib.compressobj(9, zlib.DEFLATED, -15)
_DEFLATED = _BOMB.compress(bytes(50 << 20)) + _BOMB.flush(zlib.Z_SYNC_FLUSH)[:-4]

_UPLOADS = (
    _cut("10 MB in frames of a WebSocket", *[ws(BINARY, _BLOCK)] * 1000),
    _cut("one frame over the limit", ws(BINARY, b"a" * (2 * LIMIT))),
    _cut("one message over the limit in many frames", ws(BINARY, _BLOCK, fin=False), *[ws(0, _BLOCK, fin=False)] * 20,
         ws(0, _BLOCK)),
    _cut("pings over the limit", *[ws(WS_PING, b"a" * 125)] * 1000),
    _cut("pongs over the limit", *[ws(WS_PONG, b"a" * 125)] * 1000),
    _cut("empty frames over the limit", ws(TEXT, b"", fin=False), ws(0, b"", fin=False) * 20_000,
         bare=False),
    _cut("a frame that says it is over every limit", ws(BINARY, b"a" * (LIMIT + 100), length=1 << 40), bare=False),
)  # fmt: skip

_REQUEST = b"GET /private/hidden HTTP/1.1\r\nHost: ok.test\r\n\r\n"
_FRAMES = (
    _broken("plain HTTP behind the handshake", _REQUEST),
    _broken("TLS behind the handshake", bytes.fromhex("160301005a0100005603") + bytes(80)),
    _broken("SSH behind the handshake", b"SSH-2.0-hidden\r\n" * 20),
    _broken("HTTP/2 behind the handshake", frames.hello() + frames.request(1, b"/private/hidden")),
    _broken("a frame with a reserved bit", ws(TEXT, b"hidden", reserved=4)),
    _broken("a frame with all reserved bits", ws(TEXT, b"hidden", reserved=7)),
    _broken("a frame of a kind that is none", ws(3, b"hidden")),
    _broken("a control frame of a kind that is none", ws(0xB, b"hidden")),
    _broken("a control frame that is too long", ws(WS_PING, b"hidden" * 30)),
    _broken("a control frame in pieces", ws(WS_PING, b"hidden", fin=False)),
    _broken("a frame without a mask", ws(TEXT, b"hidden", masked=False)),
    _broken("a continuation of nothing", ws(0, b"hidden")),
    _broken("a message inside of another", ws(TEXT, b"a", fin=False), ws(TEXT, b"hidden")),
    _broken("a text that is none", ws(TEXT, b"\xff\xfehidden")),
    _broken("a close of one byte", ws(CLOSE, b"h")),
    _broken("a close with a code that is none", ws(CLOSE, b"\x00\x01hidden")),
    _broken("a length with its highest bit set", ws(TEXT, b"hidden", length=(1 << 63) + 5)),
    _broken("a length in more bytes than it needs", b"\x81\xfe\x00\x06" + bytes(4) + b"hidden"),
    _broken("a compressed frame that bursts, unasked", ws(BINARY, _DEFLATED[:60_000], reserved=4), entry="94"),
)  # fmt: skip

_KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
_ASK = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" + _KEY
_NOT_HERE = frozenset({"websocket", "no-rule", "upgrade", "malformed"})


def _handshake(name: str, data: bytes, *, host: str = "ws.test", bare: bool = True) -> Attempt:
    return _attempt("92", name, send=sends.inside(data, host), answers=(NO,), reasons=_NOT_HERE, bare=bare)


_HANDSHAKES = (
    _handshake("a WebSocket where only GET may", b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n" + _ASK + b"\r\n",
               host="ok.test"),
    _handshake("a WebSocket on a path in no rule", b"GET /other HTTP/1.1\r\nHost: {ws}\r\n" + _ASK + b"\r\n"),
    _handshake("a WebSocket behind dot segments", b"GET /ws/../other HTTP/1.1\r\nHost: {ws}\r\n" + _ASK + b"\r\n"),
    _handshake("a POST for a WebSocket", b"POST /ws HTTP/1.1\r\nHost: {ws}\r\nContent-Length: 0\r\n" + _ASK + b"\r\n"),
    _handshake("a WebSocket and something else", b"GET /ws HTTP/1.1\r\nHost: {ws}\r\n"
               + _ASK.replace(b"websocket\r", b"websocket, foo\r") + b"\r\n"),
    *(
        _attempt("92", name, answers=(PASSED | _OPEN | NO | {502},), reasons=_NOT_HERE, sees=_SEES, bare=False,
                 send=sends.inside(b"GET /ws HTTP/1.1\r\nHost: {ws}\r\n" + lines + b"\r\n", "ws.test"))
        for name, lines in (
            ("a WebSocket without a key", _ASK.replace(_KEY, b"")),
            ("a WebSocket with two keys", _ASK + _KEY),
            ("a WebSocket of another version", _ASK.replace(b"13", b"8")),
            ("a WebSocket without Connection", _ASK.replace(b"Connection: Upgrade\r\n", b"")),
            ("a WebSocket with a length", _ASK + b"Content-Length: 0\r\n"),
        )
    ),
    _attempt("94", "a WebSocket that may compress, and bursts", answers=(_OPEN, _BROKEN), sees=_SEES, must=True,
             most=LIMIT + _HEAD, bare=False,
             send=sends.websocket(ws(BINARY, _DEFLATED, reserved=4), handshake=sends.HANDSHAKE
                                  + b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n")),
)  # fmt: skip

WEBSOCKET = (*_UPLOADS, *_FRAMES, *_HANDSHAKES)
