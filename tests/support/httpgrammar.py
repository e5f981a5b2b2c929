"""Requests as a box might write them: a grammar of plain ones, salted with what parsers disagree about.

Everything is bytes. The parts shrink towards a plain GET.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

# What one reader takes for an end, a part or nothing, and another does not.
DANGEROUS = [
    b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b"\r\r\n", b"\x00", b"\t", b" ", b"\x0b", b"\x0c", b"\x1f", b"\x7f",
    b"\x85", b"\xa0", b"..", b"%2e", b"%2E%2e", b"//", b"\\", b";", b"#", b"?", b"@", b"%00", b"%0d%0a", b"%", b":",
    b"%2f", b"%252e", b"\xc3\xa9", b"\xe2\x80\xa8", b"\xef\xbc\x8e", b"\xff", b",", b"\"", b"chunked", b"0\r\n\r\n",
    b"GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n", b"HTTP/1.1", b"HTTP/2.0", b"*", b"http://evil.test/",
]  # fmt: skip

METHODS = st.sampled_from(
    [b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"PROPFIND", b"get", b"TRACE", b"TRACK",
     b"CONNECT", b"PRI", b"", b"G!#$T", b"GET\t", b"POST\x00", b"\xc7ET"]
)  # fmt: skip

PIECES = st.sampled_from(
    [b"a", b"b.c", b"/", b"/", b"..", b".", b"%2e%2e", b"%2f", b"%5c", b"\\", b";x=1", b"%3b", b"%20", b"%3f",
     b"%23", b"+", b"@", b":", b"!$&'()*,", b"%C3%A9", b"%00", b"%zz", b"%252e", b"~", b"=", b"\"", b"<", b"|",
     b"^", b"{}", b"#", b"\xc3\xa9"]
)  # fmt: skip
PATHS = st.lists(PIECES, max_size=8).map(lambda parts: b"/" + b"".join(parts))
QUERIES = st.one_of(
    st.just(b""),
    st.lists(
        st.sampled_from(
            [b"q=1", b"&", b";", b"q[]=2", b"=", b"?", b"/", b"%26", b"+", b"#x", b"\\", b"%0a", b"_method=PUT"]
        ),
        max_size=5,
    ).map(lambda parts: b"?" + b"".join(parts)),
)
HOSTS = [b"a.test", b"b.test", b"evil.test"]
AUTHORITIES = st.sampled_from(
    [b"a.test", b"a.test", b"a.test:443", b"A.TEST", b"a.test.", b"b.test", b"evil.test", b"a.test:80", b"a.test:",
     b"a.test:0443", b"a.test@evil.test", b"evil.test@a.test", b"a.test, evil.test", b"a.test\x00.evil.test",
     b"[::1]", b"127.0.0.1", b"", b"a.test:443:443", b"a.test/x", b"a.test#x", b"\xc3\xa4.test", b"a..test",
     b"a.test\t", b"2130706433"]
)  # fmt: skip

NAMES = st.sampled_from(
    [b"X-A", b"Accept", b"Cookie", b"Connection", b"Proxy-Connection", b"Proxy-Authorization", b"Proxy-Foo",
     b"Keep-Alive", b"TE", b"Trailer", b"Upgrade", b"HTTP2-Settings", b"X-HTTP-Method-Override", b"X-Original-URL",
     b"X_Rewrite_URL", b"Forwarded", b"X-Forwarded-Host", b"x-forwarded_for", b"X-Host", b"Expect",
     b"Content-Length", b"Transfer-Encoding", b"Content_Length", b"Transfer_Encoding", b"Host", b"Host ", b" Host",
     b"Transfer-Encoding ", b"Content-Length\x00", b"X-\xe9", b"", b"X(", b"Via", b"Max-Forwards",
     b"Content-Encoding", b"Range", b"Priority", b"Alt-Used", b"Proxy"]
)  # fmt: skip
VALUES = st.sampled_from(
    [b"a", b"", b"close", b"keep-alive", b"upgrade", b"Upgrade, HTTP2-Settings", b"X-A, close", b"host",
     b"content-length", b"transfer-encoding, close", b"trailers", b"trailers, deflate", b"websocket", b"h2c",
     b"h2c, websocket", b"DELETE", b"/smuggled", b"host=evil.test", b"evil.test", b"100-continue",
     b"100-Continue, x", b"0", b"3", b"5", b"+5", b"0x5", b"5, 5", b"5 ", b"-1", b"00005", b"5\x0b", b"chunked",
     b"Chunked", b"chunked, chunked", b"identity", b"gzip, chunked", b"chunked, identity", b"xchunked",
     b"chunked\x0b", b"\x0cchunked", b"chunk\xc5\xbfed", b"chun\xe2\x84\xaaed", b"\"chunked\"", b"chunked;q=1",
     b"\xff\xfe", b"a\tb"]
)  # fmt: skip
HEADERS = st.tuples(NAMES, st.sampled_from([b": ", b": ", b":", b" : ", b":\t", b"", b"\t:"]), VALUES).map(b"".join)
FOLDED = st.sampled_from([b"X-A: a\r\n b", b"X-A: a\r\n\tTransfer-Encoding: chunked", b" X-A: a", b"X-A: a\rX-B: b"])
LINE_ENDS = st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\r", b"\r\r\n", b" \r\n", b"\r\n\r\n"])
VERSIONS = st.sampled_from(
    [b" HTTP/1.1"] * 8 + [b" HTTP/1.0", b" HTTP/1.2", b" HTTP/2.0", b" HTTP/0.9", b"", b" http/1.1", b"\tHTTP/1.1"]
)
BODIES = st.sampled_from(
    [b"abc", b"", b"GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"x" * 300]
)


@st.composite
def chunked(draw: st.DrawFn) -> bytes:
    """A chunked body, well or badly made."""
    data = b""
    for body in draw(st.lists(BODIES, max_size=3)):
        size = b"%x" % len(body)
        size = draw(st.sampled_from([size] * 8 + [b"0" + size, size.upper(), size + b";x=y", size + b" ",
                                                  b"+" + size, b"0x" + size, b" " + size, size + b";\n",
                                                  b"-" + size, b"fffffffffffff"]))  # fmt: skip
        end = draw(st.sampled_from([b"\r\n"] * 10 + [b"\n", b"\r", b"", b"x\r\n"]))
        data += size + draw(LINE_ENDS) + body + end
    return data + draw(
        st.sampled_from(
            [b"0\r\n\r\n"] * 6
            + [
                b"0\n\n",
                b"00\r\n\r\n",
                b"0;x\r\n\r\n",
                b"0\r\nHost: evil.test\r\n\r\n",
                b"",
                b"0\r\n",
                b"0\r\n\n",
                b"0\r\nX: \n\r\n",
            ]
        )
    )


plain_framing: st.SearchStrategy[tuple[list[bytes], bytes]] = st.one_of(
    st.just(([], b"")),
    BODIES.map(lambda body: ([b"Content-Length: %d" % len(body)], body)),
    BODIES.map(
        lambda body: ([b"Transfer-Encoding: chunked"], b"%x\r\n%s\r\n" % (len(body), body) * bool(body) + b"0\r\n\r\n")
    ),
)


@st.composite
def framing(draw: st.DrawFn) -> tuple[list[bytes], bytes]:
    """Header lines that frame a body, and the body: agreeing, or not."""
    kind = draw(
        st.sampled_from(["none", "length", "chunked", "other length", "both", "two lengths", "odd coding", "unframed"])
    )
    body = draw(BODIES)
    length = b"Content-Length: %d" % len(body)
    if kind == "none":
        return [], b""
    if kind == "length":
        return [length], body
    if kind == "chunked":
        return [b"Transfer-Encoding: chunked"], draw(chunked())
    if kind == "other length":
        return [b"Content-Length: %d" % max(0, len(body) + draw(st.sampled_from([-2, -1, 1, 2, 400])))], body
    if kind == "both":
        lines = [length, b"Transfer-Encoding: " + draw(st.sampled_from([b"chunked", b"identity", b"x", b" Chunked"]))]
        return draw(st.permutations(lines)), draw(st.one_of(st.just(body), chunked()))
    if kind == "two lengths":
        return [
            length,
            draw(st.sampled_from([length, b"Content-Length: 0", b"content-length : 3", b"Content_Length: 0"])),
        ], body
    if kind == "odd coding":
        name = draw(st.sampled_from([b"Transfer-Encoding", b"transfer_encoding", b"Transfer-Encoding "]))
        return [name + b": " + draw(VALUES)], draw(chunked())
    return [], body


ASPECTS = ["framing", "headers", "path", "method", "target", "hosts", "order", "version", "line ends", "separator"]
plain_paths = st.sampled_from([b"/", b"/a", b"/a/b.c?q=1", b"/a/?", b"/%20"])
plain_headers = st.sampled_from([b"Accept: x", b"X-A: a", b"User-Agent: a b", b"Cookie: a=b"])


@st.composite
def requests(draw: st.DrawFn, *, absolute: bytes = b"", host: bytes = b"a.test") -> bytes:
    """One HTTP/1 request, odd in some of its ASPECTS. absolute: what the target begins with, as in b"http://x.test"."""
    odd = draw(st.sets(st.sampled_from(ASPECTS), max_size=3))
    method = draw(METHODS) if "method" in odd else draw(st.sampled_from([b"GET", b"POST"]))
    path = draw(st.builds(bytes.__add__, PATHS, QUERIES)) if "path" in odd else draw(plain_paths)
    target = absolute + path
    if "target" in odd:
        prefix = draw(st.sampled_from([b"http://", b"https://", b"//", b"ftp://", b"HTTPS://", b""]))
        whole = st.sampled_from([b"*", b"", b"a", b"?x", b"/ /x", host + b":443"])
        target = draw(st.one_of(AUTHORITIES.map(lambda authority: prefix + authority + path), whole))
    hosts = draw(st.lists(AUTHORITIES, max_size=2)) if "hosts" in odd else [host]
    lines = [b"Host: " + name for name in hosts] + draw(st.lists(plain_headers, max_size=1))
    if "headers" in odd:
        lines += draw(st.lists(st.one_of(HEADERS, HEADERS, FOLDED), min_size=1, max_size=2))
    frame, body = draw(framing() if "framing" in odd else plain_framing)
    lines += frame
    if "order" in odd:
        lines = list(draw(st.permutations(lines)))
    separator = draw(st.sampled_from([b"\t", b"  ", b"\x0b"])) if "separator" in odd else b" "
    first = method + separator + target + (draw(VERSIONS) if "version" in odd else b" HTTP/1.1")
    ends = [draw(LINE_ENDS) if "line ends" in odd else b"\r\n" for _ in range(len(lines) + 2)]
    head = first + b"".join(end + line for end, line in zip(ends, lines, strict=False)) + ends[-2] + ends[-1]
    return head + body


@st.composite
def streams(draw: st.DrawFn, *, absolute: bytes = b"", host: bytes = b"a.test") -> bytes:
    """What one connection sends: some requests, one behind the other, with a few dangerous bytes put in."""
    data = b"".join(draw(st.lists(requests(absolute=absolute, host=host), min_size=1, max_size=3)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 1, 1, 2]))):
        at = draw(st.integers(0, len(data)))
        what, cut = draw(st.sampled_from(DANGEROUS)), draw(st.sampled_from([0, 0, 1, 2]))
        data = data[:at] + what + data[at + cut :]
    return data


@dataclass(frozen=True)
class H2Stream:
    """One HTTP/2 stream. parts: DATA frames. trailers: a second block of headers."""

    headers: tuple[tuple[bytes, bytes], ...]
    parts: tuple[bytes, ...] = ()
    trailers: tuple[tuple[bytes, bytes], ...] = ()
    end: bool = True
    split: bool = False  # the header block goes in two frames


H2_NAMES = st.one_of(
    NAMES.map(bytes.lower),
    NAMES,
    st.sampled_from(
        [
            b":path",
            b":method",
            b":authority",
            b":scheme",
            b":protocol",
            b":status",
            b":x",
            b"x:y",
            b"x\r\ny",
            b"host\x00",
            b"x y",
        ]
    ),
)
H2_VALUES = st.one_of(
    VALUES,
    st.sampled_from(
        [b"a\r\nX-Smuggled: 1", b"a\nb", b"a\x00b", b" a", b"a ", b"/x HTTP/1.1\r\nHost: evil.test\r\n\r\n"]
    ),
)
H2_PATHS = st.one_of(
    st.builds(bytes.__add__, PATHS, QUERIES),
    st.sampled_from(
        [
            b"",
            b"*",
            b"x",
            b"http://evil.test/",
            b"/a b",
            b"/x HTTP/1.1\r\nHost: evil.test\r\n\r\nGET /smuggled",
            b"/\r\n",
            b"//evil.test/",
        ]
    ),
)


@st.composite
def h2_streams(draw: st.DrawFn) -> H2Stream:
    """One HTTP/2 request, odd in some of its aspects, that no client library would send."""
    odd = draw(
        st.sets(st.sampled_from(["method", "scheme", "authority", "path", "fields", "order", "length"]), max_size=2)
    )
    parts = tuple(draw(st.lists(BODIES, max_size=3)))
    pseudo = [
        (b":method", draw(METHODS) if "method" in odd else draw(st.sampled_from([b"GET", b"POST"]))),
        (
            b":scheme",
            draw(st.sampled_from([b"http", b"", b"ftp", b"https://a.test/?"])) if "scheme" in odd else b"https",
        ),
        (b":authority", draw(AUTHORITIES) if "authority" in odd else b"a.test"),
        (b":path", draw(H2_PATHS) if "path" in odd else draw(plain_paths)),
    ]
    fields = []
    if "fields" in odd:
        fields += draw(st.lists(st.tuples(H2_NAMES, H2_VALUES), min_size=1, max_size=2))
    size = b"%d" % len(b"".join(parts))
    if "length" in odd:
        fields.append((b"content-length", draw(st.sampled_from([b"0", b"2", b"3", b"05", b"5, 5", b"+" + size]))))
    elif draw(st.booleans()):
        fields.append((b"content-length", size))
    headers = [*pseudo, *fields]
    if "order" in odd:
        headers = list(draw(st.permutations(headers)))[draw(st.integers(0, 1)) :]
    trailers = tuple(draw(st.lists(st.tuples(H2_NAMES, H2_VALUES), max_size=2))) if draw(st.integers(0, 4)) == 4 else ()
    return H2Stream(tuple(headers), parts, trailers, draw(st.integers(0, 7)) != 7, draw(st.booleans()))
