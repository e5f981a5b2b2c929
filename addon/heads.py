"""How large the head of a message is, while it comes and once it is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from impyard.addon.limits import Limits

# What a request line has besides its target: a method, a version, blanks.
_REQUEST_LINE_BESIDES = 64


def head_excess(path: bytes, fields: Iterable[tuple[bytes, bytes]], limits: Limits) -> tuple[str, int] | None:
    """What of a request's head is too large, for people, and the status that says so; None when nothing is."""
    if len(path) > limits.url_bytes:
        return "the URL is too long", 414
    size = count = 0
    for name, value in fields:
        size += len(name) + len(value)
        count += 1
    if count > limits.headers:
        return "the request has too many headers", 431
    return ("the request head is too large", 431) if size > limits.head_bytes else None


def unfinished_excess(buf: Any, limits: Limits) -> tuple[str, int] | None:
    """The same for a head that is still coming."""
    if len(buf) <= limits.url_bytes:
        return None
    found = seen(buf)
    if (
        len(found) > limits.url_bytes + _REQUEST_LINE_BESIDES
        and found.find(b"\n", 0, limits.url_bytes + _REQUEST_LINE_BESIDES) < 0
    ):
        return "the URL is too long", 414
    if len(found) > limits.head_bytes and found.find(b"\r\n\r\n", 0, limits.head_bytes) < 0:
        return "the request head is too large", 431
    return None


def seen(buf: Any) -> bytearray:
    """The bytes of a receive buffer, not copied: this is asked for each piece of a head."""
    data = vars(buf)["_data"]
    assert isinstance(data, bytearray)
    return data
