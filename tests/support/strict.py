"""What an origin received, read twice: by a parser that forgives nothing, and by some that forgive too much.

Where all of them agree on the number of requests, no origin can be made to see one more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,15}")
_CHUNK = re.compile(rb"[0-9a-fA-F]{1,8}")


class Unclean(ValueError):
    """Bytes that no gateway should send: not one HTTP/1.1 request after the other, beyond doubt."""


@dataclass(frozen=True)
class Got:
    """One request as it arrived. complete: whether its body came to its end. end: the byte behind it."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    complete: bool
    end: int

    def all(self, name: str) -> list[str]:
        """The values of a header, by its lower-case name."""
        return [value for key, value in self.headers if key.lower() == name]


def strict_request(data: bytes, at: int) -> Got | None:
    """The request that begins at `at`; None while its head is not whole. Raises Unclean."""
    end = data.find(b"\r\n\r\n", at)
    if end < 0:
        if b"\n\n" in data[at:] or data[at : at + 1].isspace():
            raise Unclean("a head with line ends of its own")
        return None
    first, *lines = data[at:end].split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise Unclean(f"no request line: {first[:200]!r}")
    headers: list[tuple[str, str]] = []
    for each in lines:
        field = _FIELD.fullmatch(each)
        if field is None:
            raise Unclean(f"no header: {each[:200]!r}")
        headers.append((field[1].decode("latin-1"), field[2].decode("latin-1")))
    body, complete, end = _strict_body(data, end + 4, headers)
    return Got(line[1].decode(), line[2].decode(), tuple(headers), body, complete, end)


def strict_requests(data: bytes) -> list[Got]:
    """All requests of a connection; the last may be incomplete. Raises Unclean."""
    found: list[Got] = []
    at = 0
    while at < len(data):
        got = strict_request(data, at)
        if got is None:
            raise Unclean(f"half a head: {data[at : at + 200]!r}")
        found.append(got)
        at = got.end
        if not got.complete:
            break
    return found


def _strict_body(data: bytes, at: int, headers: list[tuple[str, str]]) -> tuple[bytes, bool, int]:
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value for name, value in headers if name.lower() == "transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise Unclean(f"framed twice: {lengths + codings}")
    if codings:
        if codings[0].lower() not in ("chunked", "gzip, chunked", "deflate, chunked", "compress, chunked"):
            raise Unclean(f"transfer-encoding {codings[0]!r}")
        return _strict_chunks(data, at)
    if not lengths:
        return b"", True, at
    if not _LENGTH.fullmatch(lengths[0].encode("latin-1")):
        raise Unclean(f"content-length {lengths[0]!r}")
    size = int(lengths[0])
    return data[at : at + size], len(data) - at >= size, min(at + size, len(data))


def _strict_chunks(data: bytes, at: int) -> tuple[bytes, bool, int]:
    body = b""
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return body, False, len(data)
        if not _CHUNK.fullmatch(data[at:end]):
            raise Unclean(f"chunk {data[at:end][:80]!r}")
        size = int(data[at:end], 16)
        at = end + 2
        if len(data) < at + size + 2:
            return body + data[at : at + size], False, len(data)
        if data[at + size : at + size + 2] != b"\r\n":
            raise Unclean("a chunk without its end, or a trailer")
        body += data[at : at + size]
        at += size + 2
        if not size:
            return body, True, at


def lenient_counts(data: bytes) -> set[int]:
    """How many requests each of many careless servers would see."""
    ways = product((False, True), (False, True), (False, True), (False, True))
    return {_lenient_count(data, *way) for way in ways}


def _lenient_count(data: bytes, bare_cr: bool, length_wins: bool, last_wins: bool, underscores: bool) -> int:
    """bare_cr: CR alone ends a line. length_wins: over a transfer coding. last_wins: of repeated headers. underscores:
    count as hyphens in names."""
    line_end = re.compile(rb"\r\n|\n|\r" if bare_cr else rb"\r?\n")
    count, at = 0, 0
    while at < len(data):
        lines: list[bytes] = []
        while at < len(data):
            found = line_end.search(data, at)
            line, at = (data[at : found.start()], found.end()) if found else (data[at:], len(data))
            if not line and not lines:
                continue  # RFC 9112, 2.2: empty lines before a request are skipped
            if not line:
                break
            if line[:1] in b" \t" and len(lines) > 1:
                lines[-1] += b" " + line.strip()  # obs-fold
            else:
                lines.append(line)
        if not lines:
            return count
        count += 1
        at = _lenient_body(data, at, lines[1:], length_wins, last_wins, underscores)
    return count


def _lenient_body(
    data: bytes, at: int, lines: list[bytes], length_wins: bool, last_wins: bool, underscores: bool
) -> int:
    lengths: list[bytes] = []
    chunked = False
    for line in lines:
        name, _, value = line.partition(b":")
        name = re.sub(rb"[^a-z_-]", b"", name.lower())
        name = name.replace(b"_", b"-") if underscores else name
        if name == b"content-length":
            lengths += re.findall(rb"[0-9]+", value)
        elif name == b"transfer-encoding":
            chunked = chunked or b"chunked" in value.lower()
    if chunked and not (lengths and length_wins):
        while True:
            found = re.compile(rb"\s*(?:0x)?([0-9a-fA-F]{1,12})[^\n]*\n").match(data, at)
            if found is None:
                return len(data)
            size = int(found[1], 16)
            at = found.end() + size
            if not size:
                while (end := data.find(b"\n", at)) >= 0:
                    line, at = data[at:end], end + 1
                    if not line.strip():
                        return at
                return len(data)
    return min(len(data), at + (int(lengths[-1 if last_wins else 0]) if lengths else 0))
