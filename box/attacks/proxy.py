"""Group C: how one speaks to a proxy. Tunnels to elsewhere, and other protocols at its port or in its tunnels."""

from __future__ import annotations

from functools import partial

from impyard.box.attacks import frames, sends
from impyard.box.attacks.model import BAD, DENIED, EVIL, GONE, NO, PASSED, REFUSED, Attempt

_attempt = partial(Attempt, group="C")

_NO_RULE = frozenset({"no-rule"})
_UNLISTED = frozenset({"unlisted-host"})
_NOT_HTTP = frozenset({"not-http"})
_MALFORMED = frozenset({"malformed"})
_MISMATCH = frozenset({"host-mismatch"})
_ANY = _NOT_HTTP | _MALFORMED | _MISMATCH

_HELLO = bytes.fromhex("160301005a0100005603") + bytes(80)
_DNS = b"\x00\x22\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x04evil\x04test\x00\x00\x10\x00\x01"
_GET = b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n"

# Protocols in which the client speaks first, by their first bytes.
_PROTOCOLS = {
    "SSH": b"SSH-2.0-x\r\n",
    "SMTP": b"EHLO x\r\n",
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "PostgreSQL": bytes.fromhex("0000000804d2162f"),
    "MQTT": bytes.fromhex("101000044d5154540402003c000461626364"),
    "memcached": b"stats\r\n",
    "IRC": b"NICK x\r\nUSER x x x x\r\n",
    "git": b"0032git-upload-pack /x.git\x00host=ok.test\x00",
    "SIP": b"OPTIONS sip:x SIP/2.0\r\n\r\n",
    "RTSP": b"OPTIONS * RTSP/1.0\r\n\r\n",
    "BitTorrent": b"\x13BitTorrent protocol" + bytes(28),
    "WireGuard": b"\x01\x00\x00\x00" + bytes(144),
    "zero bytes": bytes(64),
    "an empty line first, then SSH": b"\r\nSSH-2.0-x\r\n",
}

_HALF_HTTP = ("SMTP", "IRC", "SIP", "RTSP")  # enough like HTTP for a bare proxy to wait for the rest, or refuse it

_TUNNELS = (
    _attempt("23", "a tunnel to a host in no rule", send=sends.inside(b"GET / HTTP/1.1\r\nHost: {evil}\r\n\r\n", EVIL),
             reasons=_UNLISTED),
    _attempt("23", "a tunnel to an address", send=sends.inside(b"GET / HTTP/1.1\r\nHost: 198.51.100.1\r\n\r\n",
             "198.51.100.1", port=443), reasons=_UNLISTED),
    *(
        _attempt("25", f"another port, {port}",
                 send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: ok.test:%d\r\n\r\n" % port, port=port),
                 reasons=_NO_RULE, bare=port not in (53, 5353))
        for port in (22, 25, 53, 80, 853, 5353, 8080, 8443, 65535)
    ),
    *(
        _attempt("25", f"port {port!r}", answers=(BAD,), reasons=_MALFORMED, bare=False,
                 send=sends.raw(b"CONNECT ok.test:%s HTTP/1.1\r\nHost: ok.test\r\n\r\n" % port.encode()))
        for port in ("0", "65536", "443x", "-1", "", "99999999999999999999", "443,80", "443/x")
    ),
    *(
        _attempt("25", f"DNS in a tunnel to port {port}", answers=(GONE,), reasons=_NOT_HTTP,
                 send=sends.in_tunnel(_DNS, b"ok.test:%d" % port))
        for port in (53, 5353)
    ),
    _attempt("25", "SSH in a tunnel to port 22", answers=(GONE,), reasons=_NOT_HTTP,
             send=sends.in_tunnel(b"SSH-2.0-x\r\n", b"ok.test:22")),
    *(
        _attempt("26", f"{name} in a tunnel", answers=(GONE,), reasons=_NOT_HTTP, send=sends.in_tunnel(data),
                 bare=name not in _HALF_HTTP)
        for name, data in _PROTOCOLS.items()
    ),
    *(
        _attempt("26", f"{name} inside of TLS", answers=(GONE,), reasons=_NOT_HTTP, send=sends.inside(data, answers=0),
                 bare=name not in _HALF_HTTP)
        for name, data in _PROTOCOLS.items()
    ),
    _attempt("26", "plain HTTP in a tunnel to the TLS port", reasons=_NO_RULE, send=sends.in_tunnel(_GET, answers=1)),
    _attempt("26", "plain HTTP to a host in no rule, in a tunnel", answers=(REFUSED,), reasons=_UNLISTED,
             send=sends.in_tunnel(b"GET / HTTP/1.1\r\nHost: {evil}\r\n\r\n", b"{evil+}", answers=1)),
    _attempt("26", "TLS inside of TLS", answers=(GONE,), bare=False, reasons=_NOT_HTTP,
             send=sends.inside(_HELLO, answers=0)),
    _attempt("28", "CONNECT inside of TLS", answers=(REFUSED,), bare=False, reasons=_ANY,
             send=sends.inside(b"CONNECT {evil+} HTTP/1.1\r\nHost: {evil+}\r\n\r\n")),
    _attempt("28", "CONNECT inside of TLS to the same host", answers=(REFUSED,), bare=False, reasons=_ANY,
             send=sends.inside(b"CONNECT {ok+} HTTP/1.1\r\nHost: {ok+}\r\n\r\n")),
    _attempt("28", "CONNECT in a tunnel", answers=(REFUSED,), bare=False, reasons=_ANY,
             send=sends.in_tunnel(b"CONNECT {evil+} HTTP/1.1\r\nHost: {evil+}\r\n\r\n", answers=1)),
    _attempt("28", "CONNECT as an HTTP/2 stream", answers=(NO,), bare=False, reasons=_ANY,
             send=sends.h2(frames.headers(1, [(b":method", b"CONNECT"), (b":authority", b"evil.test:443")],
                                          end=False))),
    _attempt("28", "CONNECT for a WebSocket as an HTTP/2 stream", answers=(NO,), bare=False, reasons=_ANY,
             send=sends.h2(frames.headers(1, [(b":method", b"CONNECT"), (b":protocol", b"websocket"),
                           (b":scheme", b"https"), (b":path", b"/public/a"), (b":authority", b"ok.test")], end=False))),
    _attempt("29", "a path in no rule behind a tunnel that was granted", send=sends.get(b"/private"), reasons=_NO_RULE),
    _attempt("29", "a tunnel whose Host names an allowed host", answers=(PASSED, DENIED), reasons=_UNLISTED,
             send=sends.raw(b"CONNECT {evil+} HTTP/1.1\r\nHost: {ok+}\r\n\r\nGET / HTTP/1.1\r\nHost: {evil}\r\n\r\n",
                            tunnel=True)),
    _attempt("29", "a tunnel by lower-case connect", answers=(NO,), bare=False, reasons=_ANY,
             send=sends.raw(b"connect {evil+} HTTP/1.1\r\nHost: {evil+}\r\n\r\n")),
    _attempt("29", "a request sent along with its tunnel", answers=(PASSED, DENIED), reasons=_NO_RULE,
             send=sends.raw(b"CONNECT {ok+} HTTP/1.1\r\nHost: {ok+}\r\n\r\nGET /private HTTP/1.1\r\nHost: {ok}\r\n\r\n",
                            tunnel=True)),
    _attempt("29", "a request in the body of a CONNECT", answers=(PASSED, NO), reasons=_UNLISTED | _NOT_HTTP,
             send=sends.raw(b"CONNECT {evil+} HTTP/1.1\r\nHost: {evil+}\r\nContent-Length: 37\r\n\r\n"
                            b"GET /x HTTP/1.1\r\nHost: {evil}\r\n\r\nxxx" + b"\x00" * 9, tunnel=True)),
    _attempt("29", "a tunnel to a URL", answers=(BAD,), bare=False, reasons=_MALFORMED,
             send=sends.raw(b"CONNECT https://{ok}/ HTTP/1.1\r\nHost: {ok}\r\n\r\n")),
    _attempt("29", "a tunnel to a host without a port", answers=(BAD,), bare=False, reasons=_MALFORMED,
             send=sends.raw(b"CONNECT ok.test HTTP/1.1\r\nHost: ok.test\r\n\r\n")),
)  # fmt: skip


def _absolute(entry: str, name: str, url: bytes, reasons: frozenset[str], host: bytes = b"ok.test",
              bare: bool = True) -> Attempt:  # fmt: skip
    request = b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (url, host)
    return _attempt(entry, name, send=sends.raw(request), answers=(NO,), reasons=reasons, bare=bare)


_AT_THE_PORT = (
    _absolute("31", "plain HTTP to a host in no rule", b"http://evil.test/", _UNLISTED, b"evil.test"),
    _absolute("31", "plain HTTP to a host of TLS alone", b"http://ok.test/public/a", _NO_RULE),
    _absolute("31", "plain HTTP to the TLS port", b"http://ok.test:443/public/a", _NO_RULE, b"ok.test:443"),
    _absolute("32", "a URL in no rule, and the Host of an allowed one", b"http://evil.test/", _UNLISTED | _MISMATCH),
    _absolute("32", "an allowed URL, and the Host of another", b"http://ok.test/public/a", _MISMATCH, b"evil.test"),
    _attempt("32", "no URL at all", answers=(NO,), reasons=_NO_RULE, send=sends.raw(_GET)),
    _absolute("34", "an https URL in the clear", b"https://ok.test/public/a", _MISMATCH),
    _absolute("34", "an HTTPS URL in the clear", b"HTTPS://ok.test/public/a", _MISMATCH | _MALFORMED),
    *(
        _absolute("34", f"a {url.decode().partition(':')[0]} URL", url, _MISMATCH | _MALFORMED | _NO_RULE, bare=False)
        for url in (b"ftp://ok.test/public/a", b"file:///etc/passwd", b"gopher://ok.test/1public", b"ws://ok.test/ws",
                    b"wss://ok.test/ws", b"javascript:alert(1)", b"data:,x", b"unix:///var/run/docker.sock")
    ),
    _absolute("34", "a URL without a scheme", b"//ok.test/public/a", _MISMATCH | _MALFORMED | _NO_RULE),
    _absolute("34", "a URL of nothing but a name", b"ok.test", _MISMATCH | _MALFORMED | _NO_RULE, bare=False),
    _absolute("34", "a URL without slashes", b"http:ok.test/public/a", _MISMATCH | _MALFORMED | _NO_RULE,
              bare=False),
    _attempt("35", "SOCKS5", answers=(GONE,), reasons=_NOT_HTTP, bare=False,
             send=sends.raw(b"\x05\x01\x00\x05\x01\x00\x03\x09evil.test\x01\xbb", answers=0)),
    _attempt("35", "SOCKS5 with a NUL in the name", answers=(GONE,), reasons=_NOT_HTTP, bare=False,
             send=sends.raw(b"\x05\x01\x00\x05\x01\x00\x03\x11ok.test\x00evil.test\x01\xbb", answers=0)),
    _attempt("35", "SOCKS4", answers=(GONE,), reasons=_NOT_HTTP, bare=False,
             send=sends.raw(b"\x04\x01\x01\xbb\x00\x00\x00\x01x\x00evil.test\x00", answers=0)),
    _absolute("37", "the pages of the proxy", b"http://mitm.it/cert/pem", _UNLISTED, b"mitm.it", bare=False),
    _absolute("37", "a web interface of the proxy", b"http://127.0.0.1:8081/flows", _UNLISTED, b"127.0.0.1:8081",
              bare=False),
    _attempt("38", "TLS at the port itself", answers=(GONE,), reasons=_NOT_HTTP, bare=False,
             send=sends.raw(_HELLO, answers=0)),
    _attempt("38", "a PROXY header before the request", answers=(GONE,), reasons=_NOT_HTTP, bare=False,
             send=sends.raw(b"PROXY TCP4 198.51.100.1 198.51.100.2 1 443\r\n" + _GET, answers=0)),
    _attempt("38", "an ICAP request", answers=(NO,), reasons=_NOT_HTTP | _MALFORMED, bare=False,
             send=sends.raw(b"REQMOD icap://ok.test/x ICAP/1.0\r\nHost: ok.test\r\n\r\n", answers=0)),
)  # fmt: skip

PROXY = (*_TUNNELS, *_AT_THE_PORT)
