"""Group E: path, method, query. The origin gets the judged target byte for byte, or nothing."""

from __future__ import annotations

from functools import partial

from impyard.box.attacks import frames, sends
from impyard.box.attacks.model import NO, PASSED, REFUSED, Attempt

_attempt = partial(Attempt, group="E")

_AMBIGUOUS = frozenset({"ambiguous-path"})
_NO_RULE = frozenset({"no-rule"})
_MALFORMED = frozenset({"malformed"})
_TRICK = _AMBIGUOUS | _NO_RULE | _MALFORMED
_GONE_TOO = _TRICK | {"not-http"}


def _path(entry: str, target: bytes | str, *, bare: bool = True, name: str = "") -> Attempt:
    """A path that some origin reads as one that no rule allows."""
    raw = target if isinstance(target, bytes) else target.encode()
    shown = name or (target if isinstance(target, str) and target.isascii() else ascii(raw)[1:])
    return _attempt(entry, shown, send=sends.get(raw), answers=(NO,), reasons=_GONE_TOO, bare=bare)


def _same(entry: str, target: str, *, bare: bool = False) -> Attempt:
    """A path that is odd, but allowed in every reading."""
    return _attempt(entry, f"{target}, allowed in every reading", send=sends.get(target.encode()), bare=bare,
                    answers=(PASSED | REFUSED,), reasons=_TRICK, sees=(f"GET {target}",))  # fmt: skip


_DOTS = (
    "/public/../private", "/public/a/../../private", "/public/./../private", "/public/..", "/public/a/../../",
    "/../private", "/..", "/public/..;/private", "/public/..;x=y/private", "/public/;/../private",
    "/public/.;/../private", "/public/../public/../private", "/./private", "/public/.//../private",
)  # fmt: skip
_ENCODED_DOTS = (
    "/public/%2e%2e/private", "/public/.%2e/private", "/public/%2E./private", "/public/%2e%2E/private",
    "/public/%252e%252e/private", "/public/%25252e%25252e/private", "/public/%u002e%u002e/private",
    "/public/%%32%65%%32%65/private", "/public/%2e%2e%2fprivate", "/public/%2e%2e;/private", "/%2e/private",
    "/public/%c0%ae%c0%ae/private", "/public/%e0%80%ae%e0%80%ae/private", "/public/%f0%80%80%ae./private",
    "/public/%ef%bc%8e%ef%bc%8e/private", "/public/%e2%80%a5/private", "/public/%c0%2e%c0%2e/private",
    "/public/\uff0e\uff0e/private", "/public/..%00/private", "/public/%2e%2e%5cprivate",
)  # fmt: skip
_ENCODED_SLASHES = (
    "/public%2f..%2fprivate", "/public/a%2F..%2f..%2Fprivate", "/public%2F..%2Fprivate", "/public/..%2fprivate",
    "/public/..%252fprivate", "/public/..%25252fprivate", "/public/..%c0%afprivate", "/public/..%e2%88%95private",
    "/public/..%ef%bc%8fprivate", "/public/..\u2215private", "/public%2f%2e%2e/private", "/%2fprivate",
    "/public/..%u2215private", "/public%252f..%252fprivate",
)  # fmt: skip
_BACKSLASHES = (
    r"/public\..\private", r"/public/..\private", "/public/%5c..%5cprivate", "/public%5c..%5cprivate",
    r"/public/\..\../private", "/public/..%5cprivate", "/public/..%255cprivate", r"/\private", r"\private",
    "/public/..%ef%bc%bcprivate",
)  # fmt: skip
_EMPTY = (
    "//private", "/public//../private", "///evil.test/", "//evil.test/public/a", "/public//..//private",
    "////private", "//public/../private", "/public///../../private", "//ok.test/private", "/%2f/private",
)  # fmt: skip
_CONTROL = (
    "/public/%00", "/public/%0a", "/public/%0d%0aX:%20y", "/public/a%00/../private", "/public/%7f", "/public/%1b[31m",
    "/public/%09", "/public/%80", "/public/%c0%ae", "/public/%ff", "/public/%ed%a0%80", "/public/%zz", "/public/%",
    "/public/%2", "/public/a%c2%85",
)  # fmt: skip
_RAW_CONTROL = (
    b"/public/\x00", b"/public/\x7f", b"/public/\x1b[31m", b"/public/\xff", b"/public/\xc0\xae",
    b"/public/\xc2\x85", b"/public/a  ",
)  # fmt: skip

_WHITE = (b"/public/\ta", b"/public/\r/a", b"/public/\x0ba", b"/public/ a")

_PATHS = (
    *(_path("58", target) for target in _DOTS),
    *(_path("59", target) for target in _ENCODED_DOTS),
    *(_path("61", target) for target in _ENCODED_SLASHES),
    *(_path("62", target, bare=target.startswith("/")) for target in _BACKSLASHES),
    *(_path("64", target) for target in _EMPTY),
    *(_path("65", target) for target in _CONTROL),
    *(_path("65", target) for target in _RAW_CONTROL),
    *(_path("65", target, bare=False) for target in _WHITE),
    *(_path("67", target) for target in ("/public-keys", "/publicx", "/public", "/publi", "/public.", "/public%20/a",
                                         "/v1/messages/", "/v1/messages/x", "/v1/message", "/v1//messages")),
    *(_path("68", target) for target in ("/PUBLIC/a", "/Public/a", "/publi\u0107/a", "/%50UBLIC/a", "/\uff50ublic/a")),
    *(_path("64", target) for target in ("/private#/public/a", "/private?/public/a", "/private;/public/a",
                                         "/private%3f/public/a", "/private%23/public/a", "/private/..;/public/a")),
    _path("64", "/public/a#/../../private"),
    _path("64", "/public/a;/../../private"),
    _path("64", "/public/a%3f/../../private"),
    _path("64", "*"),
    _path("64", "public/a", bare=False),
    _path("64", "", name="an empty target", bare=False),
    _path("64", "?/public/a", bare=False),
    _path("64", ";/public/a", bare=False),
    *(_same("58", target) for target in ("/public/a/../b", "/public/./a", "/public/...", "/public/..a",
                                         "/public/a/..")),
    *(_same("59", target) for target in ("/public/%41", "/public/a%20b", "/public/%e2%82%ac", "/public/a%2fb",
                                         "/public/a%252fb")),
    *(_same("64", target) for target in ("/public//a", "/public/a//", "/public/a;v=1", "/public/a?x=/../..",
                                         "/public/a?b?c", "/public/a?//evil.test/", "/public/a?", "/public/?%00")),
)  # fmt: skip

_URLS = tuple(
    _attempt("64", f"{shown} as the target in a tunnel", send=sends.get(target), answers=(NO,), bare=bare,
             reasons=_GONE_TOO | {"host-mismatch"})
    for shown, target, bare in (
        ("a URL with a path in no rule", b"https://{ok}/private", True),
        ("a URL with a climbing path", b"https://{ok}/public/../private", True),
        ("a URL without a path", b"https://{ok}", True),
        ("a URL with a query for a path", b"https://{ok}?/public/a", False),
        ("a URL with three slashes", b"https:///public/a", False),
        ("an authority", b"{ok+}", False),
    )
)  # fmt: skip

_SCHEMES = tuple(
    _attempt("34", name, send=send, answers=(PASSED | NO,), reasons=_GONE_TOO | {"host-mismatch"},
             sees=("GET /public/a",), bare=bare)
    for name, send, bare in (
        ("a URL in clear text as the target in a tunnel", sends.get(b"http://{ok}/public/a"), True),
        ("HTTP/2: another :scheme", sends.h2(frames.request(1, scheme=b"http")), False),
        ("HTTP/2: an empty :scheme", sends.h2(frames.request(1, scheme=b"")), False),
    )
)  # fmt: skip

_QUERIES = tuple(
    _attempt("70", target, send=sends.get(target.encode()), answers=(REFUSED,), reasons=_TRICK)
    for target in ("/search?repo=evil", "/search?repo=ok&repo=evil", "/search?repo=evil&repo=ok",
                   "/search?repo=ok;repo=evil", "/search?repo=ok&repo[]=evil", "/search?repo=ok&repo[x]=evil",
                   "/search?repo=ok&REPO=evil", "/search?repo=ok&%72epo=evil", "/search?repo=ok&re%70o=%65vil",
                   "/search?repo=ok&r%2565po=evil", "/search?repo[]=ok", "/search?repo=ok%00evil",
                   "/search?repo=ok%26x",
                   "/search?repo", "/search?repo=", "/search", "/search?", "/search?%3frepo=ok", "/search?repo=OK",
                   "/search?repo=ok&+repo=evil", "/search?repo=ok&repo%20=evil", "/search?repo=%6fk&repo=evil",
                   "/search%3frepo=ok", "/search;?repo=evil", "/search?repo==ok", "/search?x=repo=ok",
                   "/search?repo=ok#&repo=evil", "/search?repo=ok%0a", "/search?repo=okk",
                   "/search?" + "&".join(["repo=ok"] * 1200))
)  # fmt: skip

_OVERRIDES = (
    *(
        _attempt("71", f"{header} for a method in no rule", answers=(REFUSED,), reasons=_TRICK,
                 send=sends.get(b"/public/a", headers=header.encode() + b"\r\n"))
        for header in ("X-HTTP-Method-Override: DELETE", "X-Method-Override: DELETE", "X-HTTP-Method: DELETE",
                       "x-http-method-override: delete", "X_HTTP_Method_Override: DELETE",
                       "X-HTTP-Method-Override: DELETE, GET", "X-HTTP-Method-Override: GET\r\nX-HTTP-Method: DELETE",
                       "X-HTTP-Method-Override:\tDELETE", "X-Original-URL: /private", "X-Rewrite-URL: /private",
                       "X_Original_URL: /private", "X-Original-URL: /public/../private",
                       "X-Original-URL: https://evil.test/")
    ),
    *(
        _attempt("71", f"{header} stays behind", answers=(PASSED | REFUSED,), reasons=_TRICK, sees=("GET /public/a",),
                 never=(header.encode(),), send=sends.get(b"/public/a", headers=header.encode() + b": /private\r\n"))
        for header in ("X-Override-URL", "X-Forwarded-Path", "X-Forwarded-Prefix", "X-Forwarded-Uri",
                       "X-Original-Uri", "X-Rewrite-Uri", "X_Forwarded_Uri", "X-Forwarded-Method")
    ),
    *(
        _attempt("71", f"a method in the query, {query}", answers=(REFUSED,), reasons=_TRICK,
                 send=sends.get(b"/public/a?" + query.encode()))
        for query in ("_method=DELETE", "x=1&_method=delete", "%5fmethod=DELETE", "x=1;_method=DELETE",
                      "_method[]=DELETE", "_METHOD=DELETE", "%255fmethod=DELETE", ".method=DELETE", "%2Emethod=DELETE")
    ),
)  # fmt: skip

_METHODS = (
    *(
        _attempt("73", f"the method {method!r}", answers=(NO,), reasons=_NO_RULE | _MALFORMED | {"not-http"},
                 send=sends.get(b"/public/a", method=method.encode()))
        for method in ("get", "Get", "GETX", "PROPFIND", "TRACE", "TRACK", "DEBUG", "PUT", "PATCH", "DELETE", "MKCOL",
                       "PURGE", "BREW", "PRI", "QUERY", "G\x00ET", "GE(T", "", " GET", "G" * 40, "\xa0GET", "GET,POST")
    ),
    *(
        _attempt("74", f"{method.decode()} for free", reasons=_NO_RULE, send=sends.get(b"/private", method=method))
        for method in (b"HEAD", b"OPTIONS")
    ),
    *(
        _attempt("74", f"{method.decode()} on a path that GET may have", reasons=_NO_RULE,
                 send=sends.get(b"/public/a", method=method))
        for method in (b"HEAD", b"OPTIONS")
    ),
    _attempt("74", "OPTIONS for all of the server", answers=(REFUSED,), reasons=_TRICK,
             send=sends.get(b"*", method=b"OPTIONS")),
    _attempt("73", "a GET where only POST may", reasons=_NO_RULE, send=sends.get(b"/v1/messages")),
    _attempt("73", "a POST where only GET may", reasons=_NO_RULE,
             send=sends.get(b"/public/a", method=b"POST", headers=b"Content-Length: 0\r\n")),
    _attempt("76", "git's push, its question", reasons=_NO_RULE,
             send=sends.get(b"/repo.git/info/refs?service=git-receive-pack")),
    _attempt("76", "git's push, its question behind the one of a fetch", reasons=_NO_RULE,
             send=sends.get(b"/repo.git/info/refs?service=git-upload-pack&service=git-receive-pack")),
    _attempt("76", "git's push, its data", reasons=_NO_RULE,
             send=sends.get(b"/repo.git/git-receive-pack", method=b"POST", headers=b"Content-Length: 0\r\n")),
    _attempt("76", "git's push, its data under another spelling", answers=(REFUSED,), reasons=_TRICK,
             send=sends.get(b"/repo.git/git-upload-pack/../git-receive-pack", method=b"POST",
                            headers=b"Content-Length: 0\r\n")),
    _attempt("76", "git's old protocol", reasons=_NO_RULE, send=sends.get(b"/repo.git/HEAD")),
)  # fmt: skip


def _h2(entry: str, name: str, frame: bytes, *, bare: bool = True) -> Attempt:
    return _attempt(entry, name, send=sends.h2(frame), answers=(NO,), reasons=_TRICK | {"host-mismatch"}, bare=bare)


_HTTP2 = (
    _h2("58", "HTTP/2: dot segments", frames.request(1, b"/public/../private")),
    _h2("61", "HTTP/2: an encoded slash", frames.request(1, b"/public%2f..%2fprivate")),
    _h2("65", "HTTP/2: a NUL in :path", frames.request(1, b"/public/\x00"), bare=False),
    _h2("65", "HTTP/2: a space in :path", frames.request(1, b"/public/a HTTP/1.1")),
    _h2("65", "HTTP/2: a line end in :path", frames.request(1, b"/public/a HTTP/1.1\r\nHost: evil.test\r\n\r\nGET /x"),
        bare=False),
    _h2("65", "HTTP/2: bytes beyond ASCII in :path", frames.request(1, b"/public/\xff")),
    _h2("64", "HTTP/2: an empty :path", frames.request(1, b""), bare=False),
    _h2("64", "HTTP/2: no :path", frames.request(1, None), bare=False),
    _h2("64", "HTTP/2: :path without a slash", frames.request(1, b"public/a")),
    _h2("64", "HTTP/2: :path with two slashes", frames.request(1, b"//evil.test/public/a")),
    _h2("64", "HTTP/2: :path twice", frames.request(1, first=[(b":path", b"/private")]), bare=False),
    _h2("64", "HTTP/2: a fragment in :path", frames.request(1, b"/public/a#x")),
    _h2("73", "HTTP/2: a lower-case :method", frames.request(1, method=b"get")),
    _h2("73", "HTTP/2: a :method with a space", frames.request(1, method=b"GET /private HTTP/1.1\r\nX:"), bare=False),
    _h2("73", "HTTP/2: an empty :method", frames.request(1, method=b"")),
    _h2("73", "HTTP/2: no :method", frames.request(1, method=None), bare=False),
    _h2("73", "HTTP/2: :method twice", frames.request(1, first=[(b":method", b"DELETE")]), bare=False),
    _h2("71", "HTTP/2: a header for a method in no rule",
        frames.request(1, extra=[(b"x-http-method-override", b"DELETE")])),
    _h2("34", "HTTP/2: a :scheme that is none", frames.request(1, scheme=b"ftp"), bare=False),
    _h2("34", "HTTP/2: a :scheme with a host", frames.request(1, scheme=b"https://evil.test/"), bare=False),
    _h2("34", "HTTP/2: no :scheme", frames.request(1, scheme=None), bare=False),
    _h2("34", "HTTP/2: :scheme twice", frames.request(1, first=[(b":scheme", b"http")]), bare=False),
)  # fmt: skip

TARGET = (*_PATHS, *_URLS, *_SCHEMES, *_QUERIES, *_OVERRIDES, *_METHODS, *_HTTP2)
