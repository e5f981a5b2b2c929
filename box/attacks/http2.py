"""Group F in HTTP/2: frames and fields that are not valid, and what they would become in HTTP/1."""

from __future__ import annotations

from functools import partial

from impyard.box.attacks import frames, sends
from impyard.box.attacks.model import DENIED, LIMIT, NO, PASSED, TOO_LARGE, Attempt

_attempt = partial(Attempt, group="F")

_REASONS = frozenset({"malformed", "too-large", "host-mismatch", "upgrade", "websocket", "no-rule"})
_SEES = ("POST /v1/messages",)
_NEVER = (b"/private/hidden",)
_POST = partial(frames.request, 1, b"/v1/messages", method=b"POST", end=False)
_ONE_OR_MORE = frozenset({1, 2, 3})


def _bad(name: str, *pieces: bytes, entry: str = "80", bare: bool = False) -> Attempt:
    """Something that is not valid HTTP/2: the stream or the connection ends, nothing is forwarded."""
    return _attempt(entry, f"HTTP/2: {name}", send=sends.h2(*pieces), answers=(TOO_LARGE,), reasons=_REASONS,
                    never=_NEVER, lines=_ONE_OR_MORE, bare=bare)  # fmt: skip


def _field(name: str, *pairs: tuple[bytes, bytes], entry: str = "80", bare: bool = False) -> Attempt:
    return _bad(name, frames.request(1, extra=pairs), entry=entry, bare=bare)


def _begun(name: str, *pieces: bytes, entry: str = "80", bare: bool = False) -> Attempt:
    """An allowed request that breaks behind its head: the origin may get its beginning, but not the whole."""
    return _attempt(entry, f"HTTP/2: {name}", send=sends.h2(*pieces), answers=(NO | {502},), reasons=_REASONS,
                    lines=_ONE_OR_MORE, sees=_SEES, never=_NEVER, bare=bare)  # fmt: skip


def _whole(
    name: str, carries: bytes, *pieces: bytes, entry: str = "80", never: tuple[bytes, ...] = (), bare: bool = False
) -> Attempt:
    """A request that is odd, but can be read in one way alone."""
    return _attempt(entry, f"HTTP/2: {name}", send=sends.h2(*pieces), answers=(PASSED | NO,), reasons=_REASONS,
                    lines=_ONE_OR_MORE, sees=_SEES, carries=carries, never=(*_NEVER, *never), bare=bare)  # fmt: skip


_SPLIT = b"a\r\n\r\nGET /private/hidden HTTP/1.1\r\nHost: ok.test\r\n\r\n"

_FIELDS = (
    _field("transfer-encoding", (b"transfer-encoding", b"chunked")),
    _field("transfer-encoding in capitals", (b"Transfer-Encoding", b"chunked")),
    _field("connection", (b"connection", b"close")),
    _field("connection that names another", (b"connection", b"x"), (b"x", b"y")),
    _field("keep-alive", (b"keep-alive", b"5")),
    _field("proxy-connection", (b"proxy-connection", b"keep-alive")),
    _field("upgrade", (b"upgrade", b"h2c"), entry="89"),
    _field("te that is not trailers", (b"te", b"gzip")),
    _field("a name with a colon", (b"a:b", b"c")),
    _field("a name with a space", (b"a b", b"c")),
    _field("a name with a line end", (b"a\r\n" + _SPLIT, b"c")),
    _field("a name in capitals", (b"X-Capital", b"c")),
    _field("an empty name", (b"", b"c")),
    _field("a name of bytes beyond ASCII", (b"x\xff", b"c")),
    _field("a value with CR LF", (b"x", _SPLIT)),
    _field("a value with LF", (b"x", _SPLIT.replace(b"\r", b""))),
    _field("a value with CR", (b"x", b"a\rHost: evil.test")),
    _field("a value with a NUL", (b"x", b"a\x00b")),
    _field("a value with a vertical tab", (b"x", b"a\x0bb"), bare=True),
    _field("a value that begins with a space", (b"x", b" a")),
    _field("a value that ends in a tab", (b"x", b"a\t")),
    _field("a pseudo-header that is none", (b":x", b"y")),
    _field("a pseudo-header of answers", (b":status", b"200")),
    _field(":path behind the fields", (b"x", b"y"), (b":path", b"/private")),
    _field(":protocol without CONNECT", (b":protocol", b"websocket"), entry="88"),
    _field("two content-lengths", (b"content-length", b"0"), (b"content-length", b"5")),
    _field("a cookie with CR LF", (b"cookie", b"a=b"), (b"cookie", _SPLIT)),
    _field("10000 fields", *[(b"x", b"y")] * 10_000, entry="97"),
    _field("a field of a megabyte", (b"x", b"y" * (1 << 20)), entry="97"),
    _bad("a :path of 64 KiB", frames.request(1, b"/public/" + b"a" * (64 << 10)), entry="97"),
)  # fmt: skip

_LENGTHS = (
    _begun("a length that is more than the data", _POST(extra=[(b"content-length", b"10")]), frames.data(1, b"hello")),
    _begun("a length that is less than the data", _POST(extra=[(b"content-length", b"2")]),
           frames.data(1, b"he" + _SPLIT)),
    _bad("a length and no data", frames.request(1, b"/v1/messages", method=b"POST",
           extra=[(b"content-length", b"5")])),
    _begun("a length of zero and data", _POST(extra=[(b"content-length", b"0")]), frames.data(1, _SPLIT)),
    *(
        _begun(f"content-length {value!r}", _POST(extra=[(b"content-length", value)]), frames.data(1, b"hello"))
        for value in (b"+5", b"-5", b"0x5", b"5, 5", b"five", b"", b"5 ", b"99999999999999999999")
    ),
    _attempt("80", "HTTP/2: data that is a request", answers=(PASSED,), sees=_SEES, must=True,
             carries=b"GET /x HTTP/1.1\r\n\r\n",
             send=sends.h2(_POST(), frames.data(1, b"GET /x HTTP/1.1\r\n\r\n"))),
    _whole("empty frames of data in between", b"hello", _POST(), frames.data(1, b"he", end=False),
           frames.data(1, b"", end=False), frames.data(1, b"llo", end=False), frames.data(1, b""), bare=True),
    _whole("te: trailers", b"", frames.request(1, b"/v1/messages", method=b"POST", extra=[(b"te", b"trailers")])),
    _attempt("95", "HTTP/2: a length over the limit", answers=(TOO_LARGE,), reasons=frozenset({"body-limit"}),
             send=sends.h2(frames.request(1, b"/limited", method=b"POST", extra=[(b"content-length", b"100001")],
                                          end=False)), bare=False),
    _attempt("95", "HTTP/2: data over the limit", answers=(TOO_LARGE,), sees=("POST /limited",), most=LIMIT,
             reasons=_REASONS, bare=False,
             send=sends.h2(frames.request(1, b"/limited", method=b"POST", end=False),
                           *[frames.data(1, b"a" * 16_000, end=False)] * 20)),
)  # fmt: skip

_TRAILERS = tuple(
    _whole(f"trailers with {shown}", b"hello", _POST(), frames.data(1, b"hello", end=False), frames.headers(1, pairs),
           entry="86", never=(b"trailed",), bare=bare)
    for shown, pairs, bare in (
        ("a host", [(b"host", b"trailed.test")], True),
        ("an authorization", [(b"authorization", b"trailed")], True),
        ("a length", [(b"content-length", b"1"), (b"x", b"trailed")], True),
        ("a :path", [(b":path", b"/trailed")], False),
        ("a whole request", [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"ok.test"),
                             (b":path", b"/trailed")], False),
        ("a line end", [(b"x", b"trailed" + _SPLIT)], False),
    )
)  # fmt: skip

_FRAMES = (
    _bad("a stream of the server's", frames.request(2)),
    _bad("stream zero", frames.request(0)),
    _bad("data on stream zero", frames.data(0, b"x")),
    _bad("data before the request", frames.data(1, b"x")),
    _bad("a promise of the client's", frames.frame(frames.PUSH, 4, 1, bytes(4) + frames.block([(b"x", b"y")]))),
    _bad("a continuation of nothing", frames.frame(frames.CONTINUATION, 4, 1, frames.block([(b"x", b"y")]))),
    _bad("a frame between a head and its continuation",
         frames.frame(frames.HEADERS, 1, 1, frames.block([(b":method", b"GET")])), frames.request(3)),
    _bad("fields that are no code", frames.frame(frames.HEADERS, 5, 1, b"\xff\xff\xff\xff\xff\xff")),
    _bad("an entry that the table does not have", frames.frame(frames.HEADERS, 5, 1, b"\xfe")),
    _bad("a table of four gigabytes", frames.frame(frames.HEADERS, 5, 1, b"\x3f\xe1\xff\xff\xff\x0f")),
    _bad("a field that is longer than its frame", frames.frame(frames.HEADERS, 5, 1, b"\x10\x7fab")),
    _bad("padding that is longer than its frame", frames.frame(frames.HEADERS, 0xD, 1, b"\xff" + b"a")),
    _bad("settings on a stream", frames.frame(frames.SETTINGS, 0, 1, bytes(6))),
    _bad("settings of a wrong size", frames.frame(frames.SETTINGS, 0, 0, bytes(5))),
    _bad("an answer to settings with content", frames.frame(frames.SETTINGS, 1, 0, bytes(6))),
    _bad("a window that overflows", frames.frame(frames.WINDOW, 0, 0, b"\x7f\xff\xff\xff")),
    _bad("a frame of a megabyte", frames.frame(frames.DATA, 0, 1, bytes(1 << 20))),
    _bad("no HTTP/2 behind its beginning", b"GET /private/hidden HTTP/1.1\r\nHost: ok.test\r\n\r\n"),
    _bad("a stream number that goes back", frames.request(5, b"/private"), frames.request(3, b"/private"),
         frames.request(1, b"/private")),
)  # fmt: skip

_STREAMS = (
    _attempt("82", "HTTP/2: streams of which one is denied", answers=(PASSED, DENIED, PASSED),
             reasons=frozenset({"no-rule"}), lines=frozenset({3}), sees=("GET /public/a", "GET /public/a"), must=True,
             send=sends.h2(frames.request(1), frames.request(3, b"/private"), frames.request(5), streams=(1, 3, 5))),
    _attempt("83", "HTTP/2: another host on a connection that is kept", answers=(PASSED, NO),
             reasons=frozenset({"host-mismatch"}), lines=frozenset({2}), sees=("GET /public/a",), must=True,
             send=sends.h2(frames.request(1), frames.request(3, b"/public/b", authority=b"evil.test"),
                           streams=(1, 3))),
    _attempt("80", "HTTP/2: a request of the same stream again", answers=(PASSED | NO,), reasons=_REASONS,
             lines=_ONE_OR_MORE, sees=("GET /public/a",), bare=False,
             send=sends.h2(frames.request(1), frames.request(1, b"/private"))),
    _attempt("80", "HTTP/2: a frame that nobody knows", answers=(PASSED,), sees=("GET /public/a",), must=True,
             bare=False, send=sends.h2(frames.frame(0xFA, 0xFF, 0, b"GET /private/hidden HTTP/1.1\r\n\r\n"),
                                       frames.request(1))),
)  # fmt: skip

HTTP2 = (*_FIELDS, *_LENGTHS, *_TRAILERS, *_FRAMES, *_STREAMS)
