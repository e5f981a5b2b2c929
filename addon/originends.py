"""The origin's end of an HTTP connection: mitmproxy's parsers, bounded.

The core builds them from names in its own modules; `install` puts ours there, once per process.
"""

from __future__ import annotations

import re
from typing import Any

import h2.events
from mitmproxy import http
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import http as http_layers
from mitmproxy.proxy.layers.http import _http1
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    HttpEvent,
    RequestHeaders,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._http1 import Http1Client
from mitmproxy.proxy.layers.http._http2 import Http2Client

from impyard.addon.backpressure import gate_of_origin, note_frames, note_message
from impyard.addon.bodies import ChunkedBody, joined
from impyard.addon.destination import note_idle
from impyard.addon.frames import in_one_piece
from impyard.addon.h2writes import HeldWrites
from impyard.addon.heads import seen
from impyard.addon.limits import limits_of

# An interim answer, which is not the answer (RFC 9110, 15.2); 101 is one.
_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9][ \r\n]")


class JudgedHttp1Client(Http1Client):
    """The origin's side of an HTTP/1 connection: interim answers are dropped, what never ends, ends it."""

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, events.ConnectionEvent) and self.response_done and not self.request_done:
            # All is said, and the upload goes on: the core would read what follows as the same answer once more.
            self.state = self.done
            if self.conn.connected:
                yield commands.CloseConnection(self.conn)
            return
        yield from super()._handle_event(event)
        limit = limits_of(self.context.client).unparsed_bytes
        if self.state in (self.done, self.passthrough) or len(self.buf) <= limit:
            return
        # Only what cannot be parsed stays here: the line of a chunk, trailers.
        yield from self._end("the answer does not come to an end")

    def send(self, event: HttpEvent) -> CommandGenerator[None]:
        if isinstance(event, RequestHeaders):
            note_idle(self.conn, False)
            if event.request.is_http2:
                # The core translates too, but ends the connection after it.
                event = RequestHeaders(event.stream_id, _as_http1(event.request), event.end_stream)
        yield from super().send(event)

    def mark_done(self, *, request: bool = False, response: bool = False) -> CommandGenerator[None]:
        yield from super().mark_done(request=request, response=response)
        note_idle(self.conn, self.stream_id is None and self.state == self.read_headers)

    def read_body(self, event: events.Event) -> CommandGenerator[None]:
        yield from joined(super().read_body(event))

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
        if len(self.buf) > limit and seen(self.buf).find(b"\r\n\r\n", 0, limit) < 0:
            yield from self._end("the head of the answer is too large")
            return
        if isinstance(event, events.DataReceived) and not self.buf:
            return
        for command in super().read_headers(event):
            found = command.event if isinstance(command, ReceiveHttp) else None
            if isinstance(found, ResponseHeaders) and found.response.status_code == 101 and not self._may_switch():
                yield from self._end("the origin switched protocols unasked")
                return
            if isinstance(found, ResponseHeaders):
                note_message(gate_of_origin(self.conn))
            yield command

    def _may_switch(self) -> bool:
        """Whether the request asked for it, and is through: else its rest would come behind the switch."""
        return self.request_done and self.request is not None and "upgrade" in self.request.headers


def _as_http1(request: http.Request) -> http.Request:
    """A request that came by HTTP/2 as HTTP/1 says it: the name in a field of its own, one cookie field (RFC 9113,
    8.2.3)."""
    head = request.data
    fields = head.headers.fields
    cookies = [value for name, value in fields if name.lower() == b"cookie"]
    if len(cookies) > 1:
        fields = (
            *((name, value) for name, value in fields if name.lower() != b"cookie"),
            (b"cookie", b"; ".join(cookies)),
        )
    if head.authority and "host" not in head.headers:
        fields = ((b"Host", head.authority), *fields)
    return http.Request(
        host=head.host,
        port=head.port,
        method=head.method,
        scheme=head.scheme,
        authority=b"",
        path=head.path,
        http_version=b"HTTP/1.1",
        headers=http.Headers(fields),
        content=None,
        trailers=None,
        timestamp_start=head.timestamp_start,
        timestamp_end=None,
    )


class JudgedHttp2Client(HeldWrites, Http2Client):
    """The origin's side of an HTTP/2 connection: what it grants no window for stays with the box, and a request that
    had to wait until it may have one more is looked at again."""

    _held = 0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._refused: set[int] = set()  # streams of the box
        note_frames(gate_of_origin(self.conn))
        receive = self.h2_conn.receive_data
        vars(self.h2_conn)["receive_data"] = lambda data: in_one_piece(receive(data))

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        number = event.stream_id if isinstance(event, HttpEvent) else None  # the core changes it
        refusals = vars(self.conn).get("refusals", {})
        if isinstance(event, RequestHeaders) and refusals[number]() is not None:
            self._refused.add(event.stream_id)
            yield ReceiveHttp(ResponseProtocolError(event.stream_id, "denied", ErrorCode.GENERIC_SERVER_ERROR))
        if number in self._refused:
            return
        refused = len(self._refused)
        yield from super()._handle_event(event)
        if number in self.our_stream_id:
            refusals.pop(number, None)
        while len(self._refused) > refused and self.stream_queue:  # the turn of one that waited, and must not go
            refused = len(self._refused)
            for each in self.stream_queue.pop(next(iter(self.stream_queue))):
                yield from self._handle_event(each)
        gates = getattr(self.context.client, "gates", None)
        if gates is None or not (self._held or self.h2_conn.stream_buffers):
            return
        gone = isinstance(event, events.ConnectionClosed)
        held = (
            0 if gone else sum(len(chunk.data) for chunks in self.h2_conn.stream_buffers.values() for chunk in chunks)
        )
        gates.uploads.add(held - self._held)
        self._held = held

    def handle_h2_event(self, event: h2.events.Event) -> CommandGenerator[bool]:
        if isinstance(event, h2.events.ResponseReceived):
            note_message(gate_of_origin(self.conn))
        return bool((yield from super().handle_h2_event(event)))


def install() -> None:
    """Have the core use our parsers towards origins, and our reading of chunks in both directions."""
    make = _http1.make_body_reader

    def make_body_reader(expected_size: int | None) -> Any:
        reader = make(expected_size)
        return ChunkedBody(reader) if expected_size is None else reader

    _http1.make_body_reader = make_body_reader
    vars(http_layers)["Http1Client"] = JudgedHttp1Client
    vars(http_layers)["Http2Client"] = JudgedHttp2Client
