"""Group F in HTTP/1: where a request ends, what follows it, and what else is spoken on its connection."""

from __future__ import annotations

import gzip
import zlib
from functools import partial

from impyard.box.attacks import frames, sends
from impyard.box.attacks.model import DENIED, LIMIT, NO, PASSED, REFUSED, TOO_LARGE, Attempt

_attempt = partial(Attempt, group="F")

_MALFORMED = frozenset({"malformed"})
_NO_RULE = frozenset({"no-rule"})
_NOT_HTTP = frozenset({"not-http"})
_UPGRADE = frozenset({"upgrade", "websocket"})
_BROKEN = _MALFORMED | _NOT_HTTP
_LARGE = frozenset({"body-limit"})

_POST = b"POST /v1/messages HTTP/1.1\r\nHost: {ok}\r\n"
_HIDDEN = b"GET /private/hidden HTTP/1.1\r\nHost: {ok}\r\n\r\n"
_NEVER = (b"/private/hidden",)


def _bad(entry: str, name: str, head: bytes, body: bytes = b"", *, bare: bool = False) -> Attempt:
    """A request whose framing is not valid: refused, and the connection is closed."""
    return _attempt(entry, name, send=sends.inside(_POST + head + b"\r\n" + body), answers=(NO,), reasons=_BROKEN,
                    never=_NEVER, bare=bare)  # fmt: skip


def _begun(entry: str, name: str, head: bytes, body: bytes, *, bare: bool = False) -> Attempt:
    """An allowed request that breaks in its body: the origin may get its beginning, but not the whole."""
    return _attempt(entry, name, send=sends.inside(_POST + head + b"\r\n" + body), answers=(NO,), reasons=_BROKEN,
                    sees=("POST /v1/messages",), never=_NEVER, bare=bare)  # fmt: skip


def _whole(entry: str, name: str, head: bytes, body: bytes, carries: bytes, *, bare: bool = False) -> Attempt:
    """A request that is odd, but can be read in one way alone: it arrives as that, or is refused."""
    return _attempt(entry, name, send=sends.inside(_POST + head + b"\r\n" + body), answers=(PASSED | NO,),
                    reasons=_BROKEN, sees=("POST /v1/messages",), carries=carries, bare=bare)  # fmt: skip


def _chunked(body: bytes, *, size: bytes | None = None, extension: bytes = b"") -> bytes:
    return (b"%x" % len(body) if size is None else size) + extension + b"\r\n" + body + b"\r\n0\r\n\r\n"


_LAX = (" gzip, chunked",)  # what a bare proxy takes all the same
_CHUNKED = b"Transfer-Encoding: chunked\r\n"

_LENGTHS = (
    _bad("77", "a length and chunks", b"Content-Length: 4\r\n" + _CHUNKED, b"0\r\n\r\n" + _HIDDEN),
    _bad("77", "chunks and a length", _CHUNKED + b"Content-Length: 60\r\n", b"0\r\n\r\n" + _HIDDEN),
    _bad("77", "a length of zero and chunks", b"Content-Length: 0\r\n" + _CHUNKED, b"0\r\n\r\n" + _HIDDEN),
    *(
        _bad("77", f"Transfer-Encoding:{value!r}", b"Transfer-Encoding:%s\r\n" % value.encode("latin-1"),
             b"0\r\n\r\n" + _HIDDEN, bare=value in _LAX)
        for value in (" xchunked", " chunked, chunked", " chunked, identity", " identity", " chunked;q=1",
                      " chunked\x00",
                      " \"chunked\"", " x, chunked", " gzip, chunked", " ,chunked",
                      " chunked,", "", " chu\tnked", " chunked\xa0")
    ),
    *(
        _attempt("77", f"Transfer-Encoding:{value!r}, which is chunked", answers=(PASSED | NO,), bare=False,
                 reasons=_BROKEN | _NO_RULE, lines=frozenset({1, 2}), sees=("POST /v1/messages",), never=_NEVER,
                 send=sends.inside(_POST + b"Transfer-Encoding:%s\r\n\r\n0\r\n\r\n" % value + _HIDDEN))
        for value in (b" chunked\x0b", b" \x0bchunked", b"\tchunked", b"Chunked  ")
    ),
    _bad("77", "Transfer-Encoding twice", _CHUNKED * 2, b"0\r\n\r\n" + _HIDDEN),
    _bad("77", "Transfer-Encoding twice, one of them identity", b"Transfer-Encoding: identity\r\n" + _CHUNKED,
         b"0\r\n\r\n" + _HIDDEN),
    _bad("77", "a space before the colon of Transfer-Encoding", b"Content-Length: 5\r\nTransfer-Encoding : chunked\r\n",
         b"0\r\n\r\n" + _HIDDEN),
    _bad("77", "Transfer-Encoding on a folded line", b"Content-Length: 5\r\nX: y\r\n Transfer-Encoding: chunked\r\n",
         b"0\r\n\r\n" + _HIDDEN, bare=True),
    _bad("77", "Transfer-Encoding behind a bare carriage return",
         b"Content-Length: 5\r\nX: y\rTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + _HIDDEN, bare=True),
    _attempt("77", "chunks in HTTP/1.0", answers=(NO,), reasons=_BROKEN, never=_NEVER, bare=False,
             send=sends.inside(_POST.replace(b"1.1", b"1.0") + _CHUNKED + b"\r\n0\r\n\r\n" + _HIDDEN)),
    _whole("77", "Transfer_Encoding beside a length", b"Transfer_Encoding: chunked\r\nContent-Length: 5\r\n", b"hello",
           b"hello"),
    _whole("77", "Content_Length beside a length", b"Content_Length: 0\r\nContent-Length: 5\r\n", b"hello", b"hello"),
    _bad("79", "two lengths", b"Content-Length: 4\r\nContent-Length: 5\r\n", b"abcde"),
    _whole("79", "the same length twice", b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello", b"hello"),
    *(
        _bad("79", f"Content-Length:{value!r}", b"Content-Length:%s\r\n" % value.encode("latin-1"), b"abcd",
             bare=value in _LAX)
        for value in (" +4", " -1", " 0x4", " 4, 5", " 5, 5", " 4 4", " 4;x", " 4.0", " 1e1", " four", "", " \xb2",
                      " 99999999999999999999", " 4\x00", " 4_0", " 0b1", " -0", " 4,", "\xa04")
    ),
    *(
        _whole("79", f"Content-Length:{value!r}, which is four", b"Content-Length:%s\r\n" % value, b"abcd", b"abcd")
        for value in (b"4", b"\t4", b" 4 \t", b" 0004", b" \x0b4")
    ),
    _attempt("79", "a body on a GET that is the next request", answers=(PASSED | NO,), reasons=_BROKEN, bare=False,
             sees=("GET /public/a",), carries=b"GET /private HTTP/1.1\r\n",
             send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\nContent-Length: 23\r\n\r\n"
                               b"GET /private HTTP/1.1\r\n")),
)  # fmt: skip

_CHUNKS = (
    *(
        _begun("77", f"a chunk size of {size!r}", _CHUNKED, _chunked(b"hello", size=size.encode("latin-1")))
        for size in ("-5", "+5", "0x5", " 5", "5g", "five", "", "fffffffffffffffffffff", "5\x00",
                     "5_0", "\xb2", "00000000000000000000000000000005", "5\r", "\n5")
    ),
    _whole("77", "a chunk size with white space behind it", _CHUNKED, _chunked(b"hello", size=b"5 \t"), b"hello"),
    _begun("77", "a chunk that is longer than it says", _CHUNKED, b"3\r\nhello\r\n0\r\n\r\n"),
    _begun("77", "a chunk without its line end", _CHUNKED, b"5\r\nhello0\r\n\r\n"),
    _begun("77", "a chunk that ends in other bytes", _CHUNKED, b"5\r\nhelloXX0\r\n\r\n"),
    _begun("77", "chunks with bare line feeds", _CHUNKED, b"5\nhello\n0\n\n\r\n"),
    _begun("77", "a chunk extension with a bare line feed", _CHUNKED, b"5;a\n\r\nhello\r\n0\r\n\r\n"),
    _begun("77", "a chunk extension of 300000 bytes", _CHUNKED, b"5;" + b"a" * 300_000),
    _whole("77", "a chunk extension", _CHUNKED, _chunked(b"hello", extension=b";a=b"), b"hello"),
    _whole("77", "a chunk extension that is a request", _CHUNKED,
           _chunked(b"hello", extension=b';a="GET /private HTTP/1.1"'), b"hello"),
    _whole("77", "a chunk size in capitals with zeros", _CHUNKED, _chunked(b"hello world", size=b"000B"),
           b"hello world"),
    _whole("77", "CHUNKED in capitals", b"Transfer-Encoding: CHUNKED\r\n", _chunked(b"hello"), b"hello"),
    *(
        _attempt("86", f"{line.partition(':')[0]} as a trailer", answers=(PASSED | NO,), reasons=_BROKEN,
                 sees=("POST /v1/messages",), carries=b"hello", never=(b"trailed",), bare=False,
                 send=sends.inside(_POST + _CHUNKED + b"Trailer: x\r\n\r\n5\r\nhello\r\n0\r\n"
                                   + line.encode() + b"\r\n\r\n"))
        for line in ("Host: trailed.test", "Authorization: trailed", "Content-Length: 1\r\nX: trailed", "X: trailed",
                     "Transfer-Encoding: chunked\r\nX: trailed", "no colon trailed", " X: trailed")
    ),
)  # fmt: skip

_LINES = (
    _bad("77", "a header without a colon", b"nothing\r\n"),
    _bad("77", "a header without a name", b": x\r\n"),
    _bad("77", "a space in a header's name", b"a b: c\r\nContent-Length: 0\r\n"),
    _bad("77", "a NUL in a header", b"X: a\x00b\r\nContent-Length: 0\r\n", bare=True),
    _bad("77", "a vertical tab in a header", b"X: a\x0bb\r\nContent-Length: 0\r\n", bare=True),
    _bad("77", "a DEL in a header", b"X: a\x7fb\r\nContent-Length: 0\r\n", bare=True),
    _bad("77", "bytes beyond ASCII in a header's name", b"X\xe4: a\r\nContent-Length: 0\r\n"),
    _bad("77", "a bare carriage return in a header", b"X: a\rContent-Length: 0\r\nContent-Length: 5\r\n", b"hello",
         bare=True),
    _bad("77", "a header of one folded line", b"X: a\r\n b\r\nContent-Length: 0\r\n", bare=True),
    _whole("77", "bytes beyond ASCII in a header", b"X: \xe4\xff\r\nContent-Length: 5\r\n", b"hello", b"hello"),
    *(
        _attempt("77", name, answers=(NO | PASSED,), reasons=_BROKEN | _NO_RULE, bare=bare, sees=("GET /public/a",),
                 never=_NEVER, send=sends.inside(data))
        for name, data, bare in (
            ("bare line feeds for line ends", b"GET /public/a HTTP/1.1\nHost: {ok}\n\n", False),
            ("a bare line feed behind the request line", b"GET /public/a HTTP/1.1\nHost: {ok}\r\n\r\n", False),
            ("empty lines before the request", b"\r\n\r\nGET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n", True),
            ("several spaces in the request line", b"GET  /public/a  HTTP/1.1\r\nHost: {ok}\r\n\r\n", False),
            ("tabs in the request line", b"GET\t/public/a\tHTTP/1.1\r\nHost: {ok}\r\n\r\n", True),
            ("a space behind the version", b"GET /public/a HTTP/1.1 \r\nHost: {ok}\r\n\r\n", False),
            ("a carriage return in the request line", b"GET /public/a\r HTTP/1.1\r\nHost: {ok}\r\n\r\n", False),
        )
    ),
    *(
        _attempt("77", f"the version {version.strip()!r}", answers=(NO,), reasons=_BROKEN, bare=bare,
                 send=sends.inside(b"GET /public/a%s\r\nHost: {ok}\r\n\r\n" % version.encode()))
        for version, bare in ((" HTTP/2.0", True), (" HTTP/1.7", True), (" HTTP/0.9", True), (" HTTP/3", False),
                              (" http/1.1", False), (" HTTP/01.1", False), (" HTTP/1.1x", False), ("", False),
                              (" HTTP/1", False), (" HTTPS/1.1", False), (" HTTP/1.1\x00", False))
    ),
)  # fmt: skip

_AFTER = (
    _attempt("82", "a denied request behind an allowed one", answers=(PASSED, DENIED), reasons=_NO_RULE,
             lines=frozenset({2}), sees=("GET /public/a",), must=True,
             send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n" + _HIDDEN, answers=2)),
    _attempt("82", "an allowed request behind a denied one", answers=(DENIED, PASSED), reasons=_NO_RULE,
             lines=frozenset({2}), sees=("GET /public/a",), must=True,
             send=sends.inside(_HIDDEN + b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n", answers=2)),
    _attempt("82", "100 requests at once, every other denied", answers=(PASSED, DENIED) * 50, reasons=_NO_RULE,
             lines=frozenset({100}), sees=("GET /public/a",) * 50, must=True,
             send=sends.inside((b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n" + _HIDDEN) * 50, answers=100)),
    _attempt("83", "another Host on a connection that is kept", answers=(PASSED, REFUSED),
             reasons=frozenset({"host-mismatch"}), lines=frozenset({2}), sees=("GET /public/a",), must=True,
             send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n"
                               b"GET /public/b HTTP/1.1\r\nHost: {evil}\r\n\r\n", answers=2)),
    _attempt("83", "another allowed Host on a connection that is kept", answers=(PASSED, REFUSED),
             reasons=frozenset({"host-mismatch"}), lines=frozenset({2}), sees=("GET /public/a",), must=True,
             send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n"
                               b"GET /ws HTTP/1.1\r\nHost: {ws}\r\n\r\n", answers=2)),
    _attempt("82", "raw bytes behind an allowed request", answers=(PASSED, NO), reasons=_BROKEN, lines=frozenset({2}),
             sees=("GET /public/a",), must=True, never=(b"SSH-2.0",), bare=False,
             send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\nSSH-2.0-x\r\n\r\n", answers=2)),
    _attempt("82", "a denied request in the body of a denied one", answers=(DENIED,), reasons=_NO_RULE,
             send=sends.inside(b"POST /private HTTP/1.1\r\nHost: {ok}\r\nContent-Length: 41\r\n\r\n"
                               b"GET /private/hidden HTTP/1.1\r\nHost: x\r\n\r\n")),
    _attempt("82", "a body that waits for its 100, on a denied request", reasons=_NO_RULE, bare=False,
             send=sends.inside(b"POST /private HTTP/1.1\r\nHost: {ok}\r\nExpect: 100-continue\r\n"
                               b"Content-Length: 5\r\n\r\n")),
    _attempt("82", "an expectation that is none", answers=(PASSED | NO | {417},), reasons=_BROKEN,
             sees=("POST /v1/messages",), carries=b"hello", bare=False,
             send=sends.inside(_POST + b"Expect: 200-x\r\nContent-Length: 5\r\n\r\nhello")),
)  # fmt: skip


def _upgrade(entry: str, name: str, lines: bytes, reasons: frozenset[str] = _UPGRADE, *, bare: bool = True) -> Attempt:
    """A wish for another protocol: denied, or forwarded without it."""
    send = sends.get(b"/public/a", headers=lines)
    return _attempt(entry, name, send=send, answers=(PASSED | NO,), reasons=reasons, sees=("GET /public/a",),
                    never=(b"upgrade:", b"http2-settings"), bare=bare)  # fmt: skip


_UPGRADES = (
    *(
        _upgrade("88", f"an upgrade to {value!r}", b"Connection: Upgrade\r\nUpgrade: %s\r\n" % value.encode())
        for value in ("foo", "TLS/1.0", "foo, websocket", "websocket, foo", "HTTP/2.0", "IRC/6.9", "WEBSOCKET",
                      "connect-udp", "SPDY/3")
    ),
    _upgrade("88", "an upgrade without Connection", b"Upgrade: foo\r\n"),
    _upgrade("88", "two upgrades", b"Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: foo\r\n"),
    _upgrade("88", "an upgrade in two cases", b"Connection: uPGRADE\r\nuPGRADE: fOO\r\n"),
    *(
        _upgrade("89", f"an upgrade to {value!r}", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\n"
                 b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n" % value.encode(), bare=value != "h2c")
        for value in ("h2c", "h2c, foo", "H2C", "h2c,h2c", "h2")
    ),
    _attempt("89", "HTTP/2 in the clear, at the port", answers=(NO,), reasons=_BROKEN, bare=False,
             send=sends.raw(frames.hello() + frames.request(1, authority=b"evil.test", scheme=b"http"))),
    _attempt("89", "HTTP/2 in the clear, in a tunnel", answers=(NO,), reasons=_BROKEN, bare=False,
             lines=frozenset({1, 2}),
             send=sends.in_tunnel(frames.hello() + frames.request(1), answers=1)),
    _attempt("89", "HTTP/2 in TLS that did not agree on it", answers=(NO,), reasons=_BROKEN, bare=False,
             lines=frozenset({1, 2}),
             send=sends.inside(frames.hello() + frames.request(1))),
    _attempt("89", "HTTP/1 in TLS that agreed on HTTP/2", answers=(NO,), reasons=_BROKEN, bare=False,
             send=sends.inside(b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n\r\n", alpn=("h2",), answers=0)),
    *(
        _attempt("89", f"a header {line.partition(b':')[0].decode()} that only concerns the hop",
                 answers=(PASSED | NO,), reasons=_BROKEN, sees=("GET /public/a",), never=(line.lower(),),
                 send=sends.get(b"/public/a", headers=line + b"\r\n"))
        for line in (b"TE: trailers, x", b"Keep-Alive: 5", b"Proxy-Connection: x", b"Proxy-Authorization: Basic eDp5",
                     b"Proxy-Authenticate: x", b"Connection: x-secret\r\nX-Secret: 1")
    ),
)  # fmt: skip

_GZIP = gzip.compress(b"x" * 1000, mtime=0)
_BOMB = zlib.compress(bytes(20 << 20), 9)
_LIMITED = b"POST /limited HTTP/1.1\r\nHost: {ok}\r\n"


def _limited(entry: str, name: str, head: bytes, body: bytes, *, forwarded: bool = False, bare: bool = True) -> Attempt:
    """A body over the limit of its rule: refused by its length, or cut, and then the origin gets less than all."""
    return _attempt(entry, name, send=sends.inside(_LIMITED + head + b"\r\n" + body), answers=(TOO_LARGE,),
                    reasons=_LARGE | _BROKEN, sees=("POST /limited",) if forwarded else (), most=LIMIT,
                    bare=bare)  # fmt: skip


_BODIES = (
    _limited("95", "a body that says it is over the limit", b"Content-Length: 100001\r\n", b"a" * 100_001),
    _limited("95", "a body that says it is far over the limit", b"Content-Length: 999999999999\r\n", b"a",
             bare=False),
    _limited("85", "chunks that grow over the limit", _CHUNKED, _chunked(b"a" * 70_000)[:-5] * 4 + b"0\r\n\r\n",
             forwarded=True),
    _limited("85", "one chunk that grows over the limit", _CHUNKED, _chunked(b"a" * 300_000), forwarded=True),
    _limited("85", "chunks of one byte that grow over the limit", _CHUNKED, b"1\r\na\r\n" * 110_000 + b"0\r\n\r\n",
             forwarded=True, bare=False),
    _limited("85", "a chunk that says it is over every limit", _CHUNKED, b"f" * 20 + b"\r\n" + b"a" * 300_000,
             forwarded=True, bare=False),
    _attempt("94", "a compressed body", answers=(PASSED | NO,), reasons=_LARGE, sees=("POST /limited",), bare=False,
             carries=_GZIP, send=sends.inside(_LIMITED + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
                                              % len(_GZIP) + _GZIP)),
    _attempt("94", "a body that says it is compressed twice", answers=(PASSED | NO,), reasons=_LARGE,
             sees=("POST /limited",), carries=b"hello", bare=False,
             send=sends.inside(_LIMITED + b"Content-Encoding: gzip, br, gzip\r\nContent-Length: 5\r\n\r\nhello")),
    _attempt("94", "a body that bursts", answers=(PASSED | NO,), reasons=_LARGE, sees=("POST /limited",), carries=_BOMB,
             bare=False, send=sends.inside(_LIMITED + b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n"
                                           % len(_BOMB) + _BOMB)),
    *(
        _attempt("97", name, answers=(TOO_LARGE,), reasons=_BROKEN | {"too-large"}, send=sends.inside(data), bare=bare)
        for name, data, bare in (
            ("10000 headers", b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\n" + b"x: y\r\n" * 10_000 + b"\r\n", True),
            ("a header of a megabyte", b"GET /public/a HTTP/1.1\r\nHost: {ok}\r\nX: " + b"y" * (1 << 20), False),
            ("a URL of 64 KiB", b"GET /public/" + b"a" * (64 << 10) + b" HTTP/1.1\r\nHost: {ok}\r\n\r\n", True),
            ("a URL without an end", b"GET /public/" + b"a" * (1 << 20), True),
            ("a method without an end", b"G" * (1 << 20), True),
        )
    ),
)  # fmt: skip

FRAMING = (*_LENGTHS, *_CHUNKS, *_LINES, *_AFTER, *_UPGRADES, *_BODIES)
