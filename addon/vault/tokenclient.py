"""One request to a token endpoint, within one limit of time for everything. Standard library; for a thread of its own.

Verified TLS or nothing: plain http only where it stays on this machine. No redirect is followed, and no proxy is used
but the one that the caller names. What goes wrong is said without anything of request or answer.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Buffer
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import cast
from urllib.parse import SplitResult, urlsplit

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.oauth import TokenRequest
from impyard.addon.vault.tokenlines import MAX_HEAD_BYTES, Line, NoAnswer, Tls, connected, is_loopback
from impyard.certs.authority import upstream_roots

LIMIT_S = 15.0
MAX_ANSWER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """status: the final one. date_ms: the answer's own time, in ms since 1970, None when it has none."""

    status: int
    body: bytes = field(repr=False)
    date_ms: float | None = None


def ask(
    request: TokenRequest, proxy: str | None = None, proxy_ca: Path | None = None, *, limit_s: float = LIMIT_S
) -> TokenAnswer:
    """The answer to `request`, whatever its status.

    proxy: the URL of an HTTP proxy that is asked for a tunnel, with its user perhaps; None: the endpoint is dialled.
    proxy_ca: a PEM file of further roots, for a proxy that looks into TLS; it counts only through that proxy. Raises
    NoAnswer when there is no complete answer within `limit_s` seconds.
    """
    end = time.monotonic() + limit_s
    try:
        url = _checked(request.url)
        local = url.scheme == "http"
        line = connected(url, None if local else proxy, end, _context)
        try:
            if not local:
                line = Tls(line, _context(request.ca, proxy_ca if proxy is not None else None), url.hostname or "")
            line.send(_head(request, url) + request.body)
            return _answer(line, request.method)
        finally:
            line.close()
    except TimeoutError:
        raise NoAnswer(f"the token endpoint did not answer within {limit_s:g} seconds") from None
    except ssl.SSLCertVerificationError as exc:
        raise NoAnswer(f"the token endpoint's certificate does not hold: {exc.verify_message}") from None
    except ssl.SSLError as exc:
        raise NoAnswer(f"no TLS with the token endpoint: {exc.reason or type(exc).__name__}") from None
    except (ConnectionResetError, BrokenPipeError):
        raise NoAnswer("the token endpoint broke off") from None
    except OSError as exc:
        raise NoAnswer(f"the token endpoint cannot be reached: {exc.strerror or type(exc).__name__}") from None
    except (http.client.HTTPException, ValueError):  # what they say may quote the answer
        raise NoAnswer("the token endpoint's answer is not HTTP") from None


def _checked(text: str) -> SplitResult:
    """A URL that may be asked. Raises NoAnswer."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname or "", url.port
    except ValueError:
        raise NoAnswer("the token endpoint's URL is not one") from None
    if url.scheme not in ("http", "https") or not host or url.username is not None or not _is_plain(text):
        raise NoAnswer("the token endpoint's URL is not one")
    if url.scheme == "http" and host != "localhost" and not is_loopback(host):
        raise NoAnswer("the token endpoint is asked over https only, except on this machine")
    return url


def _is_plain(text: str) -> bool:
    return all("!" <= sign <= "~" for sign in text)


def _context(ca: str = "", more: Path | None = None) -> ssl.SSLContext:
    """Verifies with `ca`, or with what origins are verified with; and `more`. The default one may log its keys."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    try:
        pem = Path(ca).read_bytes() if ca else upstream_roots()
        pem += b"\n" + more.read_bytes() if more is not None else b""
        context.load_verify_locations(cadata=pem.decode("ascii", "ignore"))
    except (OSError, ValueError, ImpyardError) as exc:
        raise NoAnswer(f"the roots to verify the token endpoint with cannot be read: {ca or more or exc}") from None
    return context


def _head(request: TokenRequest, url: SplitResult) -> bytes:
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    own = {"user-agent": "impyard", **dict(request.headers)}
    own |= {"host": url.netloc, "accept-encoding": "identity", "connection": "close"}
    if request.body:
        own["content-length"] = str(len(request.body))
    lines = [f"{request.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in own.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _answer(line: Line, method: str) -> TokenAnswer:
    """Read one answer, never more than its end or the most that it may have."""
    response = http.client.HTTPResponse(cast(socket.socket, _Readable(line)), method=method)
    response.begin()
    if response.getheader("content-encoding", "identity").strip().lower() != "identity":
        raise NoAnswer("the token endpoint's answer is compressed, which nobody asked for")
    body = response.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        raise NoAnswer(f"the token endpoint's answer is larger than {MAX_ANSWER_BYTES >> 10} KiB")
    if response.length:  # what is still to come by its content-length
        raise NoAnswer("the token endpoint's answer broke off")
    try:
        date = parsedate_to_datetime(response.getheader("date", "")).timestamp() * 1000
    except (ValueError, OverflowError):
        date = None
    return TokenAnswer(response.status, body, date)


class _Readable(io.RawIOBase):
    """A line as http.client reads one."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._left = MAX_HEAD_BYTES + 2 * MAX_ANSWER_BYTES  # twice: chunks have heads
        self._ahead = b""

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Buffer, /) -> int:
        buffer = memoryview(into).cast("B")
        data = self._ahead or self._line.receive()
        self._ahead = data[len(buffer) :]
        data = data[: len(buffer)]
        self._left -= len(data)
        if self._left < 0:
            raise NoAnswer(f"the token endpoint's answer is larger than {MAX_ANSWER_BYTES >> 10} KiB")
        buffer[: len(data)] = data
        return len(data)
