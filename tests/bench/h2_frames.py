"""As much of HTTP/2 as a load and an origin need whose own cost must stay small beside the proxy's."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from hpack import Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
ACK, END_STREAM, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
# Windows that no measurement fills, so that nobody has to open one again.
_LARGEST = (1 << 31) - 1
_INITIAL_WINDOW_SIZE, _DEFAULT_WINDOW = 0x4, 65535


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def greeting() -> bytes:
    """The first frames of either side; a client sends PREFACE before."""
    window = struct.pack(">I", _LARGEST - _DEFAULT_WINDOW)
    return frame(SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, _LARGEST)) + frame(
        WINDOW_UPDATE, 0, 0, window
    )


def frames(buffer: bytearray) -> Iterator[tuple[int, int, int, bytes]]:
    """Take the whole frames out of a buffer: kind, flags, stream, payload."""
    at = 0
    while len(buffer) >= at + 9:
        first, flags, stream = struct.unpack_from(">IBI", buffer, at)
        end = at + 9 + (first >> 8)
        if len(buffer) < end:
            break
        yield first & 0xFF, flags, stream, bytes(buffer[at + 9 : end])
        at = end
    del buffer[:at]


def reply(kind: int, flags: int, payload: bytes) -> bytes:
    """What a frame about the connection itself is answered with; nothing for the others."""
    if kind == SETTINGS and not flags & ACK:
        return frame(SETTINGS, ACK, 0)
    return frame(PING, ACK, 0, payload) if kind == PING and not flags & ACK else b""


def block_of(flags: int, payload: bytes) -> bytes:
    """The packed fields of a HEADERS frame."""
    padding = payload[0] if flags & PADDED else 0
    start = bool(flags & PADDED) + (5 if flags & PRIORITY else 0)
    return payload[start : len(payload) - padding]


class RepeatedHead:
    """The same fields again and again on one connection: packed in full once, and as references from then on, which is
    what any client does."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        encoder = Encoder()
        self._first: bytes = encoder.encode(fields)
        self._again: bytes = encoder.encode(fields)
        self._sent = False

    def block(self) -> bytes:
        """The packed fields for the next HEADERS frame."""
        if self._sent:
            return self._again
        self._sent = True
        return self._first
