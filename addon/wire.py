"""Between mitmproxy's request and ours: reading one into the judge's value, and cleaning it for the origin."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection

from mitmproxy import http

from impyard.addon.answers import Answer
from impyard.addon.request import Request, canonical_host
from impyard.addon.vault.masking import Mask

# RFC 9110, 7.6.1 and 11.7: what concerns only the hop to us. `transfer-encoding` stays: the framing is made from it.
# So does every header that begins with "Proxy-": see `_is_doomed`.
_HOP_BY_HOP = ("keep-alive", "trailer")
# Headers by which a client asks some origins to take the request for another one than was judged.
_OVERRIDES = (
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-original-host",
    "x-original-uri",
    "x-original-method",
    "x-rewrite-url",
    "x-rewrite-uri",
    "x-override-url",
    "x-host",
    "x-http-host-override",
    "x-forwarded-host",
    "x-forwarded-server",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-prefix",
    "x-forwarded-path",
    "x-forwarded-uri",
    "x-forwarded-url",
    "x-forwarded-method",
    "forwarded",
)
_STRIPPED = frozenset(name.encode() for name in (*_HOP_BY_HOP, *_OVERRIDES))
# Never removed because `Connection` names them: without them the request would mean something else.
_KEPT = frozenset((b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization", b"cookie"))
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))

_REQUEST_LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32} [^\s]{1,65536} HTTP/[0-9]")
_LONG_BEGINNING = 4096
# A line that may still become one. Control bytes end the waiting: they belong to some other protocol.
_BEGUN = re.compile(
    rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}"
    rb"(?: [^\s\x00-\x1f\x7f]*(?: (?:H|HT|HTT|HTTP|HTTP/|HTTP/[0-9][^\n]*)?)?)?\Z"
)
# Server-sent events, JSON by the line, and parts that replace each other.
_PIECEMEAL = re.compile(r"event-stream|ndjson|jsonl|json-seq|json-lines|stream\+json|x-mixed-replace", re.IGNORECASE)


def looks_like_http(data: bytes) -> bool | None:
    """Whether a connection begins with an HTTP/1 request line; None while that is still open."""
    if _REQUEST_LINE.match(data):
        return True
    if data and (data.startswith(b"SSH-") or not _BEGUN.match(data)):
        return False
    # Nothing else begins like that for so long. Whether its target comes to an end is the parser's to say.
    return True if len(data) > _LONG_BEGINNING else None


def request_from(flow: http.HTTPFlow, body_bytes: int | None) -> Request:
    """What the judge sees of a flow. The host is the one that the gateway would connect to.

    All that claims to name the host is gathered into `host_header`; claims that differ are joined, which no host can
    equal. Host names that are none are handed on as they are: the judge refuses them.
    """
    data = flow.request.data
    host, port = data.host, data.port
    if not host and flow.server_conn.address:
        # The core refuses what is malformed before it looks at the tunnel that it came through.
        host, port = flow.server_conn.address[:2]
    with contextlib.suppress(ValueError):
        host = canonical_host(host)
    target = data.path.decode("latin-1")
    path, _, query = target.partition("?")
    fields = data.headers.fields
    claims = [value.decode("latin-1") for name, value in fields if name.lower() == b"host"]
    if data.authority:
        claims.append(data.authority.decode("latin-1"))
    scheme = data.scheme.decode("latin-1") or ("https" if flow.client_conn.tls else "http")
    if scheme == "https" and not flow.client_conn.tls:
        # An https URL sent in the clear asks the gateway to do TLS for it: the origin would be reached in a way that
        # the box did not ask for. A claim that nothing can equal refuses it.
        claims.append("https URL outside of TLS")
    return Request(
        method=data.method.decode("latin-1"),
        scheme=scheme,
        host=host,
        port=port,
        path=path,
        query=query,
        http=_version(flow),
        headers=tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields),
        body_bytes=body_bytes,
        host_header=", ".join(dict.fromkeys(claims)) if claims else None,
        sni=flow.client_conn.sni,
        upgrade=flow.request.headers.get("upgrade", ""),
    )


def _version(flow: http.HTTPFlow) -> str:
    """The version that is really spoken: the core believes the text of a request line, which may claim HTTP/2."""
    claimed = flow.request.data.http_version.decode("latin-1").removeprefix("HTTP/")
    return claimed if (claimed == "2.0") == (flow.client_conn.alpn == b"h2") else f"{claimed} inside of another"


def is_event_stream(response: http.Response) -> bool:
    """Whether an answer is meant to be read piece by piece, whatever its length."""
    return bool(_PIECEMEAL.search(response.headers.get("content-type", "")))


def to_response(answer: Answer) -> http.Response:
    """An answer of ours as mitmproxy's response."""
    response = http.Response.make(answer.status, answer.body, answer.headers)
    response.data.reason = answer.phrase.encode("ascii")  # HTTP/2 has no place for it
    return response


def mask_head(response: http.Response, mask: Mask) -> None:
    """Mask all that an answer's head says."""
    response.data.reason = mask.whole(response.data.reason)
    mask_fields(response.headers, mask)


def mask_fields(headers: http.Headers, mask: Mask) -> None:
    """Mask headers or trailers, their names too: a star may be in a name."""
    fields = headers.fields
    if mask.spans(b"\n".join([b"%b\n%b" % pair for pair in fields])):
        headers.fields = tuple((mask.whole(name), mask.whole(value)) for name, value in fields)


def strip_for_origin(request: http.Request, host: str, port: int, scheme: str) -> None:
    """Take from an allowed request what must not reach the origin, and give it the one form that was judged.

    The target is sent in origin form, and the authority as it was judged; a WebSocket handshake keeps its upgrade, any
    other wish to upgrade is dropped.
    """
    name = f"[{host}]" if ":" in host else host
    authority = name if port == (443 if scheme == "https" else 80) else f"{name}:{port}"
    if request.is_http2:
        request.data.authority = authority.encode()
        request.headers.pop("host", None)
    else:
        request.data.authority = b""
        request.headers["host"] = authority
    websocket = request.headers.get("upgrade", "").lower() == "websocket"
    nominated = {
        token.strip().lower().encode("latin-1", "replace")
        for value in request.headers.get_all("connection")
        for token in value.split(",")
    }
    if request.headers.get_all("connection"):
        # Of what the box says about its own connection, only its end concerns the next one.
        wish = "Upgrade" if websocket else "close" if b"close" in nominated else None
        if wish is not None:
            request.headers["connection"] = wish
        else:
            del request.headers["connection"]
    doomed = (_STRIPPED | nominated) - _KEPT
    if websocket:
        doomed -= {b"upgrade"}
    else:
        doomed |= {b"upgrade", b"http2-settings"}
    if not request.is_http2 or request.headers.get("te", "").strip().lower() != "trailers":
        doomed |= {b"te"}  # over HTTP/2 gRPC insists on it
    fields = request.data.headers.fields
    if any(_is_doomed(name, doomed) for name, _ in fields):
        request.data.headers.fields = tuple(pair for pair in fields if not _is_doomed(pair[0], doomed))


def _is_doomed(name: bytes, doomed: Collection[bytes]) -> bool:
    """Whether a header is one of `doomed`, also where "_" stands for "-": behind CGI-like interfaces they are one.

    Nobody needs a second spelling of the headers that frame the body.
    """
    name = name.lower()
    if name in doomed or name.startswith(b"proxy-"):
        return True
    plain = name.replace(b"_", b"-")
    return plain != name and (plain in _FRAMING or _is_doomed(plain, doomed))
