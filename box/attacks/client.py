"""A client that sends what it is told, byte for byte, and reads what comes back. Every wait is bounded."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from dataclasses import dataclass, field

from impyard.box.attacks.model import CLOSED, EVIL, OK, SILENT, WS

LIMIT_S = 8.0
USES = 4
MAX_HEAD = 1 << 17
Address = tuple[str, int] | str


class Refused(Exception):
    """The proxy did not grant a tunnel. status: its answer, or CLOSED."""

    def __init__(self, status: int) -> None:
        super().__init__(f"no tunnel: {status}")
        self.status = status


@dataclass(slots=True)
class Reply:
    """One answer. status may be CLOSED or SILENT. headers: lower-case names, the last value of each."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Client:
    """Reaches the proxy at `proxy`: a TCP address, or the path of a unix socket.

    port: the port of the names, 443 unless they are served elsewhere. ca: a PEM file with the authority that signs
    what the proxy shows inside tunnels; None: whatever it shows is taken. keep: whether honest requests share a
    connection, a new one for every fourth, which is quicker. limit_s: how long an attempt waits for a tunnel and TLS in
    it; quiet_s: for what comes after. Honest requests wait for LIMIT_S.
    """

    def __init__(
        self,
        proxy: Address,
        *,
        ca: str | None = None,
        port: int = 443,
        limit_s: float = LIMIT_S,
        keep: bool = False,
        quiet_s: float = LIMIT_S,
    ) -> None:
        self.port = port
        self.quiet_s = quiet_s
        self._proxy = proxy
        self._ca = ca
        self._limit_s = limit_s
        self._keep = keep
        self._uses = 0
        self._kept: ssl.SSLSocket | None = None
        self._contexts: dict[tuple[str, ...], ssl.SSLContext] = {}  # by protocols: making one costs more than its use

    def filled(self, text: bytes) -> bytes:
        """`text` with {ok}, {ws} and {evil} as authorities, {ok+} and so on with the port in any case, {port} alone."""
        port = b":%d" % self.port
        for name in (OK, WS, EVIL):
            mark = name.partition(".")[0].encode()
            text = text.replace(b"{%s+}" % mark, name.encode() + port)
            text = text.replace(b"{%s}" % mark, name.encode() + (b"" if self.port == 443 else port))
        return text.replace(b"{port}", port[1:])

    def connect(self, limit_s: float | None = None) -> socket.socket:
        """A connection to the proxy itself."""
        limit_s = self._limit_s if limit_s is None else limit_s
        if isinstance(self._proxy, str):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(limit_s)
            connection.connect(self._proxy)
            return connection
        tcp = socket.create_connection(self._proxy, limit_s)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return tcp

    def tunnel(self, target: bytes, limit_s: float | None = None) -> socket.socket:
        """A granted CONNECT; raises Refused."""
        connection = self.connect(limit_s)
        send(connection, b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, target))
        reply = read_reply(connection, tunnel=True)
        if reply.status != 200:
            connection.close()
            raise Refused(reply.status)
        return connection

    def tls(
        self,
        host: str = OK,
        port: int | None = None,
        *,
        sni: str | None = None,
        alpn: tuple[str, ...] = (),
        limit_s: float | None = None,
    ) -> ssl.SSLSocket:
        """TLS inside a tunnel. sni: another name than the host's; "" for none. Raises Refused."""
        connection = self.tunnel(f"{host}:{port or self.port}".encode(), limit_s)
        try:
            return self._context(alpn).wrap_socket(connection, server_hostname=host if sni is None else sni or None)
        except ssl.SSLCertVerificationError:
            connection.close()
            raise
        except OSError:
            connection.close()
            raise Refused(CLOSED) from None

    def _context(self, alpn: tuple[str, ...]) -> ssl.SSLContext:
        found = self._contexts.get(alpn)
        if found is None:
            found = self._contexts[alpn] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            found.check_hostname = False  # what is asked for is the point of some attempts
            if self._ca is None:
                found.verify_mode = ssl.CERT_NONE
            else:
                found.load_verify_locations(self._ca)
            if alpn:
                found.set_alpn_protocols(list(alpn))
        return found

    def get(self, path: str) -> Reply:
        """An honest request to ok.test."""
        if self._kept is not None:
            reply = self._get(self._kept, path)
            self._uses += 1
            if reply.status == 200 and self._uses < USES:
                return reply
            self.close()
            if reply.status == 200:
                return reply
        connection = self.tls(limit_s=LIMIT_S)
        reply = self._get(connection, path)
        if self._keep and reply.status == 200:
            self._kept, self._uses = connection, 1
        else:
            connection.close()
        return reply

    def _get(self, connection: ssl.SSLSocket, path: str) -> Reply:
        send(connection, self.filled(b"GET %s HTTP/1.1\r\nHost: {ok}\r\n\r\n" % path.encode()))
        return read_reply(connection)

    def close(self) -> None:
        """End what is kept."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None


def send(connection: socket.socket, data: bytes) -> bool:
    """Send all of it; False when the other side takes no more."""
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True


def read_reply(connection: socket.socket, *, head_only: bool = False, tunnel: bool = False) -> Reply:
    """The next answer that is final; its body by length, by chunks, or to the end."""
    try:
        while True:
            head = _until(connection, b"\r\n\r\n")
            if not head.endswith(b"\r\n\r\n"):
                return Reply(CLOSED, body=head)
            first, *lines = head.decode("latin-1").split("\r\n")
            words = first.split(" ", 2)
            status = int(words[1]) if len(words) > 1 and words[0].startswith("HTTP/") and words[1].isdigit() else CLOSED
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name
            }
            if status < 100 or status >= 200 or status == 101:
                break
        reply = Reply(status, headers)
        if not (head_only or tunnel or status in (CLOSED, 101, 204, 304)):
            reply.body = _body(connection, headers)
        return reply
    except TimeoutError:
        return Reply(SILENT)
    except (OSError, ValueError):
        return Reply(CLOSED)


def ended(connection: socket.socket) -> int:
    """CLOSED once the other side has ended the connection, whatever it said before; SILENT when it has not in time."""
    deadline = time.monotonic() + (connection.gettimeout() or LIMIT_S)
    with contextlib.suppress(OSError):
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(1 << 16):
                return CLOSED
    return SILENT if time.monotonic() >= deadline else CLOSED


def _body(connection: socket.socket, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", ""):
        body = b""
        while size := int(_until(connection, b"\r\n").split(b";")[0], 16):
            body += _exactly(connection, size)
            _until(connection, b"\r\n")
        _until(connection, b"\r\n")
        return body
    if "content-length" in headers:
        return _exactly(connection, int(headers["content-length"]))
    body = b""
    while data := connection.recv(1 << 16):
        body += data
    return body


def _until(connection: socket.socket, end: bytes) -> bytes:
    # Byte by byte: what comes after belongs to the next answer.
    data = bytearray()
    while not data.endswith(end) and len(data) < MAX_HEAD and (byte := connection.recv(1)):
        data += byte
    return bytes(data)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (more := connection.recv(min(1 << 16, count - len(data)))):
        data += more
    return bytes(data)
