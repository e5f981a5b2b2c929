"""Group D: who is the host. Everything that names one has to name the one that is connected to."""

from __future__ import annotations

from functools import partial

from impyard.box.attacks import frames, sends
from impyard.box.attacks.model import EVIL, NO, OK, PASSED, REFUSED, Attempt

_attempt = partial(Attempt, group="D")

_UNLISTED = frozenset({"unlisted-host"})
_MISMATCH = frozenset({"host-mismatch"})
_MALFORMED = frozenset({"malformed"})
_EITHER = _MISMATCH | _MALFORMED
_NONE = NO | {414}
_NO_HOST = _MALFORMED | {"not-http", "too-large"}
_SEES = ("GET /public/a",)


def _host(entry: str, name: str, host: bytes, *, reasons: frozenset[str] = _MISMATCH, bare: bool = True) -> Attempt:
    """A request in a tunnel to ok.test whose header lines for the host are `host`."""
    request = b"GET /public/a HTTP/1.1\r\n%s\r\n\r\n" % host
    return _attempt(entry, name, send=sends.inside(request), answers=(REFUSED,), reasons=reasons, bare=bare)


def _h2(entry: str, name: str, frame: bytes, *, bare: bool = True) -> Attempt:
    return _attempt(entry, name, send=sends.h2(frame), answers=(NO,), reasons=_EITHER, bare=bare)


def _connect(entry: str, name: str, target: bytes, *, bare: bool = False) -> Attempt:
    """A tunnel to something that is no host, and an honest request in it, should it be granted."""
    data = b"CONNECT %s HTTP/1.1\r\nHost: {ok+}\r\n\r\n" % target
    return _attempt(entry, name, send=sends.raw(data), answers=(_NONE,), reasons=_NO_HOST, bare=bare)


def _same(entry: str, name: str, data: bytes, host: str = OK, *, sni: str | None = None, bare: bool = False) -> Attempt:
    """A request that is honest, or could be taken for it: it arrives in one spelling, or is refused."""
    send = sends.inside(data, host, sni=sni)
    return _attempt(entry, name, send=send, answers=(PASSED | REFUSED,), reasons=_EITHER, sees=_SEES, bare=bare)


_LONG = ".".join(["a" * 60] * 5).encode() + b".test"

_HEADERS = (
    _host("40", "the Host of one in no rule", b"Host: {evil}"),
    _host("40", "the Host of another allowed one", b"Host: {ws}"),
    _host("40", "a Host that begins like it", b"Host: ok.test.evil.test"),
    _host("40", "a Host that ends like it", b"Host: notok.test"),
    _host("40", "a Host below it", b"Host: sub.ok.test"),
    _host("40", "an address as the Host", b"Host: 127.0.0.1"),
    _host("40", "an empty Host", b"Host:"),
    _host("40", "no Host", b"X: y", reasons=_EITHER),
    _attempt("40", "a URL of another in a tunnel", answers=(REFUSED,), reasons=_MISMATCH,
             send=sends.inside(b"GET https://{evil}/public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n")),
    _attempt("40", "a URL and the Host of another in a tunnel", answers=(REFUSED,), reasons=_MISMATCH,
             send=sends.inside(b"GET https://{evil}/public/a HTTP/1.1\r\nHost: {evil}\r\n\r\n")),
    _attempt("40", "another TLS name", answers=(REFUSED,), reasons=_MISMATCH,
             send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n", sni=EVIL)),
    _attempt("40", "another TLS name and the Host of it", answers=(REFUSED,), reasons=_MISMATCH,
             send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: {evil}\r\n\r\n", sni=EVIL)),
    _attempt("40", "a tunnel to one in no rule, with name and Host of the allowed", answers=(REFUSED,),
             reasons=_MISMATCH | _UNLISTED,
             send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n", EVIL, sni=OK)),
    _host("43", "two Hosts", b"Host: {ok}\r\nHost: {evil}", reasons=_EITHER),
    _host("43", "two Hosts, the other way round", b"Host: {evil}\r\nHost: {ok}", reasons=_EITHER),
    _host("43", "the same Host twice", b"Host: {ok}\r\nHost: {ok}", reasons=_EITHER),
    _host("43", "a list of Hosts", b"Host: {ok}, {evil}"),
    _host("43", "Hosts in two cases of the name", b"Host: {ok}\r\nhOST: {evil}", reasons=_EITHER),
    _host("44", "a space before the colon", b"Host : {ok}", reasons=_MALFORMED, bare=False),
    _host("44", "a second Host with a space before its colon", b"Host: {ok}\r\nHost : {evil}", reasons=_MALFORMED,
          bare=False),
    _host("44", "a Host on a folded line", b"Host: {ok}\r\n Host: {evil}", reasons=_MALFORMED),
    _host("44", "a Host folded into itself", b"Host: {ok}\r\n\t{evil}", reasons=_EITHER),
    _host("44", "a line before the first header that begins with a space", b" Host: {evil}\r\nHost: {ok}",
          reasons=_EITHER, bare=False),
    _host("44", "a Host behind a bare line feed", b"X: y\nHost: {evil}\r\nHost: {ok}", reasons=_EITHER),
    _host("44", "a Host behind a bare carriage return", b"X: y\rHost: {evil}\r\nHost: {ok}", reasons=_EITHER),
    _host("44", "a NUL behind the Host", b"Host: {ok}\x00{evil}", reasons=_EITHER),
    _host("44", "a header name with a NUL", b"Host: {ok}\r\nHost\x00: {evil}", reasons=_MALFORMED, bare=False),
    _same("44", "a tab before the Host", b"GET /public/a HTTP/1.1\r\nHost:\t{ok}\r\n\r\n"),
    _same("44", "a vertical tab before the Host", b"GET /public/a HTTP/1.1\r\nHost:\x0b{ok}\r\n\r\n"),
    _same("44", "spaces behind the Host", b"GET /public/a HTTP/1.1\r\nHost: {ok}  \t\r\n\r\n"),
    _host("50", "user information in the Host", b"Host: ok.test@evil.test"),
    _host("50", "the host as user information", b"Host: evil.test@ok.test"),
    _host("50", "a path in the Host", b"Host: ok.test/evil.test"),
    _host("50", "a URL as the Host", b"Host: https://ok.test"),
    _host("50", "a fragment in the Host", b"Host: ok.test#evil.test"),
    _host("50", "a query in the Host", b"Host: ok.test?evil.test"),
    _host("50", "a backslash in the Host", rb"Host: ok.test\evil.test"),
    _host("52", "a percent code in the Host", b"Host: ok%2etest"),
    _host("56", "another port in the Host", b"Host: ok.test:8443"),
    _host("56", "port zero in the Host", b"Host: ok.test:0"),
    _host("56", "a port that overflows to the right one", b"Host: ok.test:65979"),
    _host("56", "a port with a sign", b"Host: ok.test:+443"),
    _host("56", "a port with a zero before it", b"Host: ok.test:0443"),
    _host("56", "a colon and no port", b"Host: ok.test:"),
    _host("56", "two ports", b"Host: ok.test:443:80"),
    _same("56", "the port spelled out", b"GET /public/a HTTP/1.1\r\nHost: {ok+}\r\n\r\n"),
    _same("46", "the Host in capitals", b"GET /public/a HTTP/1.1\r\nHost: OK.Test\r\n\r\n", bare=True),
    _same("47", "a dot behind the Host", b"GET /public/a HTTP/1.1\r\nHost: ok.test.\r\n\r\n", bare=True),
    _host("47", "two dots behind the Host", b"Host: ok.test.."),
    _same("40", "no TLS name", b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n", sni=""),
    _same("40", "no Host in HTTP/1.0", b"GET /public/a HTTP/1.0\r\n\r\n", bare=True),
    _same("40", "its own URL in a tunnel", b"GET https://{ok}/public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n", bare=True),
)  # fmt: skip

_FORWARDED = tuple(
    _attempt("40", f"{header.partition(':')[0]} of another", answers=(PASSED | REFUSED,), reasons=_EITHER, sees=_SEES,
             never=(EVIL.encode(),), send=sends.get(b"/public/a", headers=header.encode() + b"\r\n"))
    for header in ("X-Forwarded-Host: evil.test", "Forwarded: host=evil.test", "X-Original-Host: evil.test",
                   "X-Host: evil.test", "X-Forwarded-Server: evil.test", "X-HTTP-Host-Override: evil.test",
                   "X_Forwarded_Host: evil.test")
)  # fmt: skip

_HTTP2 = (
    _h2("41", ":authority of one in no rule", frames.request(1, authority=b"evil.test")),
    _h2("41", ":authority of another allowed one", frames.request(1, authority=b"ws.test")),
    _h2("41", ":authority with another port", frames.request(1, authority=b"ok.test:8443")),
    _h2("41", "a Host beside :authority", frames.request(1, extra=[(b"host", b"evil.test")]),
        bare=False),
    _h2("41", "two Hosts beside :authority", frames.request(1, extra=[(b"host", b"ok.test"),
        (b"host", b"evil.test")]), bare=False),
    _h2("41", ":authority twice", frames.request(1, first=[(b":authority", b"evil.test")]), bare=False),
    _h2("41", ":authority behind the headers", frames.request(1, authority=None, extra=[(b"x", b"y"),
        (b":authority", b"evil.test")]), bare=False),
    _h2("41", "a Host alone, of another", frames.request(1, authority=None, extra=[(b"host", b"evil.test")])),
    _h2("41", "neither :authority nor Host", frames.request(1, authority=None), bare=False),
    _h2("41", "an empty :authority", frames.request(1, authority=b"")),
    _h2("50", ":authority with user information", frames.request(1, authority=b"ok.test@evil.test"), bare=False),
    _h2("50", ":authority with a path", frames.request(1, authority=b"ok.test/evil.test"), bare=False),
    _h2("52", ":authority with a NUL", frames.request(1, authority=b"ok.test\x00.evil.test"), bare=False),
    _h2("52", ":authority with a line end", frames.request(1, authority=b"ok.test\r\nHost: evil.test"), bare=False),
    _h2("41", "a :path that is a URL of another", frames.request(1, b"https://evil.test/public/a")),
)  # fmt: skip

_NAMES = (
    _attempt("46", "a host in no rule, in capitals", answers=(REFUSED,), reasons=_UNLISTED,
             send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: EVIL.Test\r\n\r\n", "EVIL.Test")),
    _same("46", "a tunnel in capitals", b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n", host="OK.Test"),
    _attempt("47", "a host in no rule, with a dot behind it", answers=(REFUSED,), reasons=_UNLISTED,
             send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: evil.test.\r\n\r\n", "evil.test.", sni=EVIL)),
    _same("47", "a tunnel with a dot behind the name", b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n",
          host="ok.test.", sni=OK),
    *(
        _attempt("49", f"{host} under a rule for another", answers=(REFUSED,), reasons=_UNLISTED,
                 send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode(), host))
        for host in ("wild.test", "evilwild.test", "sub.ok.test", "xok.test", "ok.test.evil.test", "o.test")
    ),
    _attempt("50", "a URL with user information", answers=(REFUSED,), reasons=_UNLISTED | _EITHER,
             send=sends.raw(b"GET http://ok.test@evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"), bare=False),
    _attempt("50", "a URL with a port as user information", answers=(REFUSED,), reasons=_UNLISTED | _EITHER,
             send=sends.raw(b"GET http://ok.test:80@evil.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n"), bare=False),
    _attempt("50", "a URL with another behind a fragment", answers=(REFUSED,), reasons=_UNLISTED | _EITHER,
             send=sends.raw(b"GET http://evil.test#@ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n"), bare=False),
    _attempt("50", "a URL with a backslash for a slash", answers=(REFUSED,), reasons=_UNLISTED | _EITHER,
             send=sends.raw(b"GET http://evil.test\\@ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n"), bare=False),
    _connect("50", "a tunnel with user information", b"ok.test@evil.test:443"),
    _connect("52", "a NUL in a tunnel's name", b"ok.test\x00.evil.test:443"),
    _connect("52", "a space in a tunnel's name", b"ok.test .evil.test:443"),
    _connect("52", "a tab in a tunnel's name", b"ok.test\t.evil.test:443"),
    _connect("52", "a carriage return in a tunnel's name", b"ok.test\r.evil.test:443"),
    _connect("52", "a line feed in a tunnel's name", b"ok.test\n.evil.test:443"),
    *(
        _connect("52", f"{code} in a tunnel's name", b"ok.test%s.evil.test:443" % code.encode())
        for code in ("%00", "%0d%0a", "%2e", "%23", "%40")
    ),
    _connect("52", "bytes beyond ASCII in a tunnel's name", b"\xff\xfe.test:443"),
    _connect("52", "a wide letter in a tunnel's name", "\uff4fk.test:443".encode()),
    _connect("52", "an ideographic stop in a tunnel's name", "ok\u3002test:443".encode()),
    _connect("52", "a sharp s in a tunnel's name", "stra\u00dfe.test:443".encode()),
    _connect("52", "a soft hyphen in a tunnel's name", "o\u00adk.test:443".encode()),
    *(
        _attempt("53", f"the address {host}", answers=(NO,), reasons=_UNLISTED | _EITHER, bare=False,
                 send=sends.raw(b"GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n" % (host.encode(), host.encode())))
        for host in ("2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "127.1", "0", "127.0.0.1.", "0x7f.1",
                     "[::1]", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[fe80::1%25eth0]", "[::]",
                     "169.254.169.254", "[64:ff9b::a9fe:a9fe]", "localhost", "1.1", "256.1.1.1", "[::1", "::1")
    ),
    *(
        _connect("53", f"a tunnel to the spelling {host}", f"{host}:443".encode())
        for host in ("2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "127.1", "0", "[fe80::1%25eth0]",
                     "127.0.0.0x1", "1.2.3.4.5", "\uff11\uff12\uff17.0.0.1")
    ),
    _connect("55", "a name of 300 bytes", _LONG + b":443"),
    _connect("55", "a label of 64 bytes", b"a" * 64 + b".test:443"),
    _connect("55", "an empty label", b"ok..test:443"),
    _connect("55", "an empty first label", b".ok.test:443"),
    _connect("55", "a name of dots", b"...:443"),
    _connect("55", "a label that begins with a hyphen", b"-ok.test:443"),
    _connect("55", "no name", b":443"),
    _connect("55", "a name of 60000 bytes", b"a" * 60000 + b":443"),
    _host("55", "a Host of 300 bytes", b"Host: " + _LONG, reasons=_EITHER),
    _host("55", "a Host with an empty label", b"Host: ok..test"),
)  # fmt: skip

HOST = (*_HEADERS, *_FORWARDED, *_HTTP2, *_NAMES)
