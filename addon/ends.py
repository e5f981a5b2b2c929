"""The two ends of an HTTP connection: mitmproxy's parsers, bounded, and with a record of what they refuse.

The core builds its origin-side parsers from names in its own modules; `install` puts ours there, once per process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import h2.errors
import h2.events
import h2.exceptions
import h11
from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import http as http_layers
from mitmproxy.proxy.layers.http import _http1
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    HttpEvent,
    RequestData,
    RequestHeaders,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._http1 import Http1Client, Http1Server
from mitmproxy.proxy.layers.http._http2 import Http2Client, Http2Server

from impyard.addon import answers
from impyard.addon.answers import Answer
from impyard.addon.clocks import owes
from impyard.addon.destination import Refusal, RefusedHook
from impyard.addon.frames import BoundedH2, in_one_piece
from impyard.addon.limits import Limits, limits_of
from impyard.addon.wire import to_response

# What a request line has besides its target: a method, a version, blanks.
_REQUEST_LINE_BESIDES = 64
# The core takes these from the ends of a value before the judge sees it; with them `chunked` is no longer `chunked`.
_STRIPPED_BY_THE_CORE = re.compile(rb"[\x0b\x0c]")
# An interim answer, which is not the answer (RFC 9110, 15.2); 101 is one.
_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9][ \r\n]")
_FAULTS_OF_THE_BOX = (
    ErrorCode.GENERIC_CLIENT_ERROR,
    ErrorCode.REQUEST_VALIDATION_FAILED,
    ErrorCode.REQUEST_TOO_LARGE,
)


class JudgedHttp1Server(Http1Server):
    """The box's side of an HTTP/1 connection: what cannot be parsed is refused with a record."""

    _refusing = False
    _received = 0
    _unwanted = 0
    _held = 0

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        yield from super()._handle_event(event)
        size = len(event.data) if isinstance(event, events.DataReceived) else 0
        self._received += size
        self._keep_time()
        if self.state in (self.done, self.passthrough):
            return
        limits = limits_of(self.conn)
        if self.response_done and not self.request_done:
            self._unwanted += size
            if self._unwanted > limits.drain_bytes:
                self.state = self.done
                yield commands.CloseConnection(self.conn)
                return
        if self.state == self.wait or len(self.buf) <= limits.unparsed_bytes:
            return
        self.state = self.done
        self.buf = type(self.buf)()
        yield commands.CloseConnection(self.conn)
        if self.request is not None:
            message = "the body does not come to an end"
            yield ReceiveHttp(RequestProtocolError(self.stream_id, message, ErrorCode.CLIENT_DISCONNECTED))

    def read_body(self, event: events.Event) -> CommandGenerator[None]:
        yield from _joined(super().read_body(event))

    def _keep_time(self) -> None:
        """Say what is owed now, and how many bytes of later requests wait for the one in progress."""
        pending = len(self.buf)
        if self.state == self.passthrough:
            return  # what is inside keeps its own time
        if self.state == self.read_headers:
            # A first request that has not begun is owed since the connection is there.
            what = "head" if pending else ("next" if self.stream_id > 1 else "first")
        elif self.state == self.read_body:
            what = "drain" if self.response_done else ("rest" if pending else "")
        else:
            what = ""
        owes(self.conn, what, self._received - pending if what == "rest" else 0)
        held = pending if self.state == self.wait else 0
        if held != self._held and (gates := getattr(self.conn, "gates", None)) is not None:
            gates.uploads.add(held - self._held)
            self._held = held

    def read_headers(self, event: events.ConnectionEvent) -> CommandGenerator[None]:
        limits = limits_of(self.conn)
        if excess := _unfinished_excess(self.buf, limits):
            yield from self._refuse("too-large", *excess)
            return
        head = _seen(self.buf)
        if _STRIPPED_BY_THE_CORE.search(head, 0, max(head.find(b"\r\n\r\n"), 0)):
            yield from self._refuse("malformed", "a header holds a control byte")
            return
        for command in super().read_headers(event):
            if isinstance(command, ReceiveHttp) and isinstance(command.event, RequestHeaders):
                request = command.event.request
                if excess := head_excess(request.data.path, request.headers.fields, limits):
                    yield from self._refuse("too-large", *excess)
                    return
            if isinstance(command, commands.SendData) and not self._refusing:
                # The core's own 400, sent before any hook: take its place.
                yield from self._refuse("malformed", "the request line or a header is not valid HTTP")
                return
            yield command

    def _refuse(self, reason: str, hint: str, status: int = 400) -> CommandGenerator[None]:
        self._refusing = True
        self.state = self.done
        address = self.context.server.address or ("", 0)
        refusal = Refusal(self.context.client, address[0], address[1], reason, hint, status=status)
        if self.request is not None:
            refusal.method, refusal.path = self.request.method, self.request.path
            if not refusal.host:
                refusal.host, refusal.port = self.request.host, self.request.port
        yield RefusedHook(refusal)
        if refusal.answer is not None:
            yield commands.SendData(self.conn, answers.raw_http1(refusal.answer))
        yield commands.CloseConnection(self.conn)

    def send(self, event: HttpEvent) -> CommandGenerator[None]:
        if isinstance(event, ResponseProtocolError) and event.code is ErrorCode.DESTINATION_UNKNOWN:
            yield from self._refuse("malformed", "the request names no host")  # no hook has seen it
            return
        if isinstance(event, ResponseProtocolError) and self.response is None:
            answer = error_answer(self.context, event)
            if answer is not None and self.conn.state & ConnectionState.CAN_WRITE:
                yield commands.SendData(self.conn, answers.raw_http1(answer))
                yield commands.CloseConnection(self.conn)
                return
        yield from super().send(event)


class JudgedHttp2Server(Http2Server):
    """The box's side of an HTTP/2 connection: what breaks the protocol ends it with a record."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.h2_conn: BoundedH2 = BoundedH2(self.h2_conf, limits_of(self.conn))
        self._unwanted = 0

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        answer = error_answer(self.context, event) if isinstance(event, ResponseProtocolError) else None
        if isinstance(event, ResponseProtocolError) and answer is not None and self._may_answer(event.stream_id):
            number = event.stream_id
            yield from super()._handle_event(ResponseHeaders(number, to_response(answer), False))
            yield from super()._handle_event(ResponseData(number, answer.body))
            yield from super()._handle_event(ResponseEndOfMessage(number))
        else:
            yield from super()._handle_event(event)
        self._measure(event)
        if isinstance(event, ResponseEndOfMessage) and self.is_closed(event.stream_id):
            self.streams.pop(event.stream_id, None)  # the core keeps it until the connection ends
        unfinished = self.h2_conn.unfinished
        owes(
            self.conn,
            unfinished or ("" if self.streams else "next"),
            self.h2_conn.frames if unfinished == "rest" else 0,
        )

    def _measure(self, event: events.Event) -> None:
        """Have an origin read no further while the box does not take what it sent."""
        gates = getattr(self.context.client, "gates", None)
        if gates is None:
            return
        if isinstance(event, ResponseData) and (gate := getattr(event, "gate", None)) is not None:
            gates.stalled[event.stream_id] = gate
        for number, gate in list(gates.stalled.items()):
            gate.set(sum(len(chunk.data) for chunk in self.h2_conn.stream_buffers.get(number, ())))
            if gate.is_open:
                del gates.stalled[number]

    def handle_h2_event(self, event: h2.events.Event) -> CommandGenerator[bool]:
        if isinstance(event, h2.events.RequestReceived):
            fields = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
            path = next((value for name, value in fields if name == b":path"), b"")
            if excess := head_excess(path, fields, limits_of(self.conn)):
                assert event.stream_id is not None
                yield from self._refuse_stream(event.stream_id, dict(fields), *excess)
                return False
        if isinstance(event, h2.events.DataReceived) and not self.is_open_for_us(event.stream_id):
            # Its request is answered already.
            self._unwanted += event.flow_controlled_length
            if self._unwanted > limits_of(self.conn).drain_bytes:
                too_much = "more was sent of what is answered already than may be"
                yield from self.protocol_error(too_much, h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
                return True
        if isinstance(event, h2.exceptions.DenialOfServiceError):
            yield from self.protocol_error(str(event), h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            return True
        return bool((yield from super().handle_h2_event(event)))

    def _refuse_stream(self, number: int, head: dict[bytes, bytes], hint: str, status: int) -> CommandGenerator[None]:
        """Refuse one request of the connection; nobody above hears of it, and what follows of it is dropped."""
        host, port = self.context.server.address or ("", 0)
        refusal = Refusal(self.context.client, host, port, "too-large", hint, http="2.0", status=status)
        refusal.method = head.get(b":method", b"").decode("latin-1")
        refusal.path = head.get(b":path", b"").decode("latin-1")
        yield RefusedHook(refusal)
        if refusal.answer is None or not self.is_open_for_us(number):
            return
        answer = refusal.answer
        lines = [(b":status", b"%d" % answer.status), *((k.encode(), v.encode()) for k, v in answer.headers.items())]
        self.h2_conn.send_headers(number, lines)
        self.h2_conn.send_data(number, answer.body, end_stream=True)

    def _may_answer(self, stream_id: int) -> bool:
        stream = self.h2_conn.streams.get(stream_id)
        return stream is not None and self.is_open_for_us(stream_id) and not stream.state_machine.headers_sent

    def protocol_error(
        self, message: str, error_code: int = h2.errors.ErrorCodes.PROTOCOL_ERROR
    ) -> CommandGenerator[None]:
        host, port = self.context.server.address or ("", 0)
        reason, hint = "malformed", "a frame or a header is not valid HTTP/2"
        if error_code == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM:
            reason, hint = "too-large", message
        yield RefusedHook(Refusal(self.context.client, host, port, reason, hint, http="2.0"))
        yield from super().protocol_error(message, error_code)


class JudgedHttp1Client(Http1Client):
    """The origin's side of an HTTP/1 connection: interim answers are dropped, what never ends, ends it."""

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        yield from super()._handle_event(event)
        limit = limits_of(self.context.client).unparsed_bytes
        if self.state in (self.done, self.passthrough) or len(self.buf) <= limit:
            return
        # Only what cannot be parsed stays here: the line of a chunk, trailers.
        yield from self._end("the answer does not come to an end")

    def read_body(self, event: events.Event) -> CommandGenerator[None]:
        yield from _joined(super().read_body(event))

    def _end(self, message: str) -> CommandGenerator[None]:
        self.buf = type(self.buf)()
        yield commands.CloseConnection(self.conn)
        if self.stream_id is not None:
            yield ReceiveHttp(ResponseProtocolError(self.stream_id, message, ErrorCode.GENERIC_SERVER_ERROR))

    def read_headers(self, event: events.ConnectionEvent) -> CommandGenerator[None]:
        while self.request is not None and _INTERIM.match(bytes(self.buf)):
            if not self.buf.maybe_extract_lines():
                break
        limit = limits_of(self.context.client).head_bytes
        if len(self.buf) > limit and _seen(self.buf).find(b"\r\n\r\n", 0, limit) < 0:
            yield from self._end("the head of the answer is too large")
            return
        if isinstance(event, events.DataReceived) and not self.buf:
            return
        yield from super().read_headers(event)


class JudgedHttp2Client(Http2Client):
    """The origin's side of an HTTP/2 connection: what it grants no window for stays with the box."""

    _held = 0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        receive = self.h2_conn.receive_data
        vars(self.h2_conn)["receive_data"] = lambda data: in_one_piece(receive(data))

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        yield from super()._handle_event(event)
        gates = getattr(self.context.client, "gates", None)
        if gates is None or not (self._held or self.h2_conn.stream_buffers):
            return
        gone = isinstance(event, events.ConnectionClosed)
        held = (
            0 if gone else sum(len(chunk.data) for chunks in self.h2_conn.stream_buffers.values() for chunk in chunks)
        )
        gates.uploads.add(held - self._held)
        self._held = held


class ChunkedBody:
    """Reads a chunked body: the chunks that are there in one piece, and no trailers.

    Each piece passes all layers and becomes a chunk for the other side, so chunks of one byte would keep the gateway
    busy for seconds. Trailers were judged by nobody, and mitmproxy cannot forward them.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._end: Any = None  # what came behind the piece that was handed out last
        self._fault: h11.ProtocolError | None = None

    def __call__(self, buf: Any) -> Any:
        if self._fault is not None:
            raise self._fault
        if self._end is not None:
            return self._end
        pieces = []
        try:
            while isinstance(event := self._reader(buf), h11.Data):
                pieces.append(event.data)
        except h11.ProtocolError as exc:
            if not pieces:
                raise
            self._fault, event = exc, None
        if isinstance(event, h11.EndOfMessage):
            self._end = event = h11.EndOfMessage()
        return h11.Data(data=b"".join(pieces)) if pieces else event

    def read_eof(self) -> Any:
        return self._reader.read_eof()


def _joined(found: CommandGenerator[None]) -> CommandGenerator[None]:
    """The same, with what is read of a body at once in one piece: a chunk of one byte costs as much as a big one."""
    pieces: list[RequestData | ResponseData] = []
    for command in found:
        if isinstance(command, ReceiveHttp) and isinstance(command.event, RequestData | ResponseData):
            pieces.append(command.event)
            continue
        if pieces:
            yield _in_one(pieces)
            pieces = []
        yield command
    if pieces:
        yield _in_one(pieces)


def _in_one(pieces: list[RequestData | ResponseData]) -> ReceiveHttp:
    first = pieces[0]
    return ReceiveHttp(type(first)(first.stream_id, b"".join(piece.data for piece in pieces)))


def head_excess(path: bytes, fields: Iterable[tuple[bytes, bytes]], limits: Limits) -> tuple[str, int] | None:
    """What of a request's head is too large, for people, and the status that says so; None when nothing is."""
    if len(path) > limits.url_bytes:
        return "the URL is too long", 414
    size = count = 0
    for name, value in fields:
        size += len(name) + len(value)
        count += 1
    if count > limits.headers:
        return "the request has too many headers", 431
    return ("the request head is too large", 431) if size > limits.head_bytes else None


def _unfinished_excess(buf: Any, limits: Limits) -> tuple[str, int] | None:
    """The same for a head that is still coming."""
    if len(buf) <= limits.url_bytes:
        return None
    seen = _seen(buf)
    if (
        len(seen) > limits.url_bytes + _REQUEST_LINE_BESIDES
        and seen.find(b"\n", 0, limits.url_bytes + _REQUEST_LINE_BESIDES) < 0
    ):
        return "the URL is too long", 414
    if len(seen) > limits.head_bytes and seen.find(b"\r\n\r\n", 0, limits.head_bytes) < 0:
        return "the request head is too large", 431
    return None


def _seen(buf: Any) -> bytearray:
    """The bytes of a receive buffer, not copied: this is asked for each piece of a head."""
    data = vars(buf)["_data"]
    assert isinstance(data, bytearray)
    return data


def error_answer(context: Context, event: ResponseProtocolError) -> Answer | None:
    """Our words for an error of the core, None where it has no status to give."""
    status = event.code.http_status_code()
    if status is None:
        return None
    if event.code in _FAULTS_OF_THE_BOX:
        return answers.protocol_error(status, event.message)
    host = context.server.address[0] if context.server.address else "the origin"
    return answers.upstream_failure(event.message, host=host, decision_id=None)


def install() -> None:
    """Have the core use our parsers towards origins, and our reading of chunks in both directions."""
    make = _http1.make_body_reader

    def make_body_reader(expected_size: int | None) -> Any:
        reader = make(expected_size)
        return ChunkedBody(reader) if expected_size is None else reader

    _http1.make_body_reader = make_body_reader
    vars(http_layers)["Http1Client"] = JudgedHttp1Client
    vars(http_layers)["Http2Client"] = JudgedHttp2Client


install()
