"""HTTP/2 and WebSocket frames as bytes, written by hand: libraries refuse to send what an attacker sends."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from impyard.box.attacks.model import CLOSED, SILENT

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
# A table of no entries makes each answer readable by itself.
NO_TABLE = (1, 0)
TEXT, BINARY, CLOSE, WS_PING, WS_PONG = 1, 2, 8, 9, 10

Pairs = Sequence[tuple[bytes, bytes]]

# RFC 7541, B and A: the codes of the digits, and the statuses that have an entry of their own.
_DIGITS = {f"{code:05b}": str(code) for code in range(3)} | {f"{22 + digit:06b}": str(digit) for digit in range(3, 10)}
_STATUSES = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in pairs))


def hello(*pairs: tuple[int, int]) -> bytes:
    """What an HTTP/2 client says first."""
    return PREFACE + settings(NO_TABLE, *pairs)


def block(pairs: Pairs) -> bytes:
    """Fields as literals that are never indexed (RFC 7541, 6.2.3), without any check."""
    return b"".join(b"\x10" + _string(name) + _string(value) for name, value in pairs)


def headers(stream: int, pairs: Pairs, *, end: bool = True) -> bytes:
    """A HEADERS frame, with CONTINUATION frames when it is long."""
    data = block(pairs)
    flags = END_STREAM if end else 0
    if len(data) <= 16384:
        return frame(HEADERS, flags | END_HEADERS, stream, data)
    pieces = [data[start : start + 16384] for start in range(0, len(data), 16384)]
    first = frame(HEADERS, flags, stream, pieces[0])
    middle = b"".join(frame(CONTINUATION, 0, stream, piece) for piece in pieces[1:-1])
    return first + middle + frame(CONTINUATION, END_HEADERS, stream, pieces[-1])


def request(
    stream: int,
    path: bytes | None = b"/public/a",
    *,
    method: bytes | None = b"GET",
    scheme: bytes | None = b"https",
    authority: bytes | None = b"ok.test",
    extra: Pairs = (),
    first: Pairs = (),
    end: bool = True,
) -> bytes:
    """The HEADERS of a request. None leaves a pseudo-header away; `first` comes before them, `extra` after."""
    pseudo = ((b":method", method), (b":scheme", scheme), (b":authority", authority), (b":path", path))
    return headers(stream, [*first, *((name, value) for name, value in pseudo if value is not None), *extra], end=end)


def data(stream: int, payload: bytes, *, end: bool = True) -> bytes:
    """A DATA frame."""
    return frame(DATA, END_STREAM if end else 0, stream, payload)


def ws(
    opcode: int, payload: bytes, *, fin: bool = True, reserved: int = 0, masked: bool = True, length: int | None = None
) -> bytes:
    """One WebSocket frame (RFC 6455, 5.2). length: what it says instead of the truth."""
    size = len(payload) if length is None else length
    first = (0x80 if fin else 0) | reserved << 4 | opcode
    mask = 0x80 if masked else 0
    if size < 126:
        head = bytes([first, mask | size])
    elif size < 1 << 16:
        head = bytes([first, mask | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([first, mask | 127]) + size.to_bytes(8, "big")
    return head + (bytes(4) if masked else b"") + payload  # a mask of zeros leaves the payload as it is


def close_code(connection: socket.socket) -> int:
    """The code of the close frame that ends a WebSocket. CLOSED when it ends without one, SILENT when it does not."""
    data = b""
    try:
        while more := connection.recv(1 << 16):
            data += more
            while len(data) >= 4:
                size, start = data[1] & 0x7F, 2
                if size > 125:
                    start = 4 if size == 126 else 10
                    size = int.from_bytes(data[2:start], "big")
                if data[0] & 0xF == CLOSE:
                    return int.from_bytes(data[start : start + 2], "big")
                if len(data) < start + size:
                    break
                data = data[start + size :]
    except TimeoutError:
        return SILENT
    except OSError:
        pass
    return CLOSED


@dataclass(slots=True)
class Answers:
    """What came back on an HTTP/2 connection. goaway: whether it was ended with a word."""

    statuses: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    bodies: dict[int, bytes] = field(default_factory=dict)
    goaway: bool = False


def read_streams(connection: socket.socket, streams: Sequence[int]) -> Answers:
    """Read until each stream is answered or reset; what has neither by the end is CLOSED, or SILENT when time is up."""
    found = Answers()
    buffer, missing = b"", CLOSED
    while not set(streams) <= found.done:
        while len(buffer) >= 9 and len(buffer) >= 9 + (size := int.from_bytes(buffer[:3], "big")):
            _take(found, buffer[3], buffer[4], int.from_bytes(buffer[5:9], "big"), buffer[9 : 9 + size])
            buffer = buffer[9 + size :]
        if set(streams) <= found.done:
            break
        try:
            more = connection.recv(1 << 16)
        except TimeoutError:
            missing = SILENT
            break
        except OSError:
            break
        if not more:
            break
        buffer += more
    for stream in streams:
        if stream not in found.done:
            found.statuses[stream] = CLOSED if found.goaway else missing
    return found


def _take(found: Answers, kind: int, flags: int, stream: int, payload: bytes) -> None:
    if kind == HEADERS and stream not in found.statuses:
        found.statuses[stream] = _status(payload)
    elif kind == DATA:
        found.bodies[stream] = found.bodies.get(stream, b"") + payload
    elif kind == RESET and stream not in found.done:
        found.statuses[stream] = CLOSED
        found.done.add(stream)
    elif kind == GOAWAY:
        found.goaway = True
    if kind in (HEADERS, DATA) and flags & END_STREAM:
        found.done.add(stream)


def _status(fields: bytes) -> int:
    """The status of an answer's header block: its first field, as encoders without a table write it."""
    while fields and fields[0] & 0xE0 == 0x20:  # the table's size
        fields = fields[1:]
    if not fields:
        return CLOSED
    if fields[0] & 0x80:
        return _STATUSES.get(fields[0] & 0x7F, CLOSED)
    text = fields[2 : 2 + (fields[1] & 0x7F)]
    if not fields[1] & 0x80:
        return int(text) if text.isdigit() else CLOSED
    bits, digits = "".join(f"{byte:08b}" for byte in text), ""
    while len(digits) < 3:
        size = 5 if bits[:5] in _DIGITS else 6
        if bits[:size] not in _DIGITS:
            return CLOSED
        digits, bits = digits + _DIGITS[bits[:size]], bits[size:]
    return int(digits)


def _string(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes([size]) + text
    size, head = size - 127, b"\x7f"
    while size >= 128:
        head += bytes([size % 128 + 128])
        size //= 128
    return head + bytes([size]) + text
