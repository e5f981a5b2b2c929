"""Pieces from inside of a body of known length go on as they came; its end, and what is behind it, are parsed."""

from __future__ import annotations

import pytest
from mitmproxy import connection, http, options
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    HttpEvent,
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
)

import impyard.addon.connections  # noqa: F401  it puts our readers of bodies into the core
from impyard.addon.boxends import JudgedHttp1Server
from impyard.addon.originends import JudgedHttp1Client

HEAD = b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\n"


def _context() -> Context:
    client = connection.Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), timestamp_start=0)
    context = Context(client, options.Options())
    context.server = connection.Server(address=("a.test", 443))
    context.server.state = connection.ConnectionState.OPEN
    return context


def _box() -> JudgedHttp1Server:
    box = JudgedHttp1Server(_context())
    list(box.handle_event(events.Start()))
    return box


def _come(end: JudgedHttp1Server | JudgedHttp1Client, data: bytes) -> list[HttpEvent]:
    """What is told of that."""
    said = end.handle_event(events.DataReceived(end.conn, data))
    return [command.event for command in said if isinstance(command, ReceiveHttp)]


def test_a_piece_from_inside_of_a_body_is_the_one_that_came() -> None:
    box, piece = _box(), b"cdefgh"
    assert [type(event) for event in _come(box, HEAD + b"ab")] == [RequestHeaders, RequestData]
    (told,) = _come(box, piece)
    assert isinstance(told, RequestData) and told.data is piece and told.stream_id == 1


def test_an_answers_piece_is_the_one_that_came_too() -> None:
    origin, piece = _origin(), b"cdefgh"
    _say(origin, _request("content-length", "0"), b"")
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n"
    assert [type(event) for event in _come(origin, head + b"ab")] == [ResponseHeaders, ResponseData]
    (told,) = _come(origin, piece)
    assert isinstance(told, ResponseData) and told.data is piece
    assert [type(event) for event in _come(origin, b"ij")] == [ResponseData, ResponseEndOfMessage]


@pytest.mark.parametrize("behind", [b"", b"GET /next HTTP/1.1\r\n"])
@pytest.mark.parametrize("first", [b"", b"a", b"abcdefghi"])
def test_the_end_of_a_body_and_what_is_behind_it_are_told_apart(first: bytes, behind: bytes) -> None:
    box = _box()
    _come(box, HEAD)
    body = b"".join(event.data for event in _come(box, first) if isinstance(event, RequestData))
    last, end = _come(box, b"abcdefghij"[len(first) :] + behind)
    assert isinstance(last, RequestData) and isinstance(end, RequestEndOfMessage)
    assert body + last.data == b"abcdefghij"
    assert bytes(box.buf) == behind


def test_a_body_of_chunks_is_parsed() -> None:
    box = _box()
    _come(box, HEAD.replace(b"Content-Length: 10", b"Transfer-Encoding: chunked"))
    (told,) = _come(box, b"3\r\nabc\r\n")
    assert isinstance(told, RequestData) and told.data == b"abc"


def _origin() -> JudgedHttp1Client:
    context = _context()
    origin = JudgedHttp1Client(context)
    list(origin.handle_event(events.Start()))
    return origin


def _request(name: str, value: str) -> http.Request:
    request = http.Request.make("POST", "https://a.test/", b"", http.Headers(host="a.test"))
    del request.headers["content-length"]
    request.headers[name] = value
    return request


def _say(origin: JudgedHttp1Client, request: http.Request, piece: bytes) -> bytes:
    """What the origin gets of a request's piece."""
    list(origin.handle_event(RequestHeaders(1, request, False)))
    sent = list(origin.handle_event(RequestData(1, piece))) if piece else []
    list(origin.handle_event(RequestEndOfMessage(1)))
    return b"".join(command.data for command in sent if isinstance(command, commands.SendData))


def test_each_request_of_a_connection_has_the_framing_that_its_head_names() -> None:
    origin = _origin()
    for name, value, sent in (
        ("content-length", "3", b"abc"),
        ("transfer-encoding", "chunked", b"3\r\nabc\r\n"),
        ("content-length", "3", b"abc"),
    ):
        assert _say(origin, _request(name, value), b"abc") == sent
        _come(origin, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
