"""The origin's end of an HTTP connection: mitmproxy's parsers, bounded.

The core builds them from names in its own modules; `install` puts ours there, once per process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import h2.events
import h2.stream
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
    RequestData,
    RequestHeaders,
    RequestProtocolError,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._http1 import Http1Client
from mitmproxy.proxy.layers.http._http2 import Http2Client

from impyard.addon.answers import Answer
from impyard.addon.backpressure import gate_of_origin, note_frames, note_message
from impyard.addon.bodies import ChunkedBody, KnownLength, joined, straight
from impyard.addon.destination import destination_of, note_idle, note_room
from impyard.addon.frames import in_one_piece
from impyard.addon.h2writes import HeldWrites
from impyard.addon.heads import seen
from impyard.addon.limits import limits_of

# An interim answer, which is not the answer (RFC 9110, 15.2); 101 is one.
_INTERIM = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9][0-9][ \r\n]")


_ASSUMED = 10  # streams that an origin takes, as long as it has not said


class JudgedHttp1Client(Http1Client):
    """The origin's side of an HTTP/1 connection: interim answers are dropped, what never ends, ends it."""

    _sends_chunks = True  # the core looks it up for each piece: a dozen calls

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, events.ConnectionEvent) and self.response_done and not self.request_done:
            # All is said, and the upload goes on: the core would read what follows as the same answer once more.
            self.state = self.done
            if self.conn.connected:
                yield commands.CloseConnection(self.conn)
            return
        if (piece := straight(self, event)) is not None:
            yield piece
            return
        yield from super()._handle_event(event)
        limit = limits_of(self.context.client).unparsed_bytes
        if self.state in (self.done, self.passthrough) or len(self.buf) <= limit:
            return
        # Only what cannot be parsed stays here: the line of a chunk, trailers.
        yield from self._end("the answer does not come to an end")

    def send(self, event: HttpEvent) -> CommandGenerator[None]:
        if isinstance(event, RequestData) and not self._sends_chunks and event.stream_id == self.stream_id:
            yield commands.SendData(self.conn, event.data)
            return
        if isinstance(event, RequestHeaders):
            note_idle(self.conn, False)
            if event.request.is_http2:
                # The core translates too, but ends the connection after it.
                event = RequestHeaders(event.stream_id, _as_http1(event.request), event.end_stream)
            self._sends_chunks = "chunked" in event.request.headers.get("transfer-encoding", "").lower()
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
    had to wait until it may have one more is looked at again.

    Such requests wait here. The core's own queue keeps what was cancelled, and sends it; it goes on by recursion, and
    forgets those who wait when the connection ends.
    """

    _held = 0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._waiting: dict[int, list[HttpEvent]] = {}  # by the box's stream, in their order
        self._uploads = 0  # bytes among them
        self._ended: list[int] = []  # streams of ours, by what is being worked on
        self._reading = False  # what came from the origin is being worked on
        note_room(self.conn, lambda: not self._may_begin())
        # Until it says how many it takes, what it said on another connection holds; the core always assumes ten.
        known: dict[object, int] = vars(self.context.client).setdefault("streams_at", {})
        if (most := known.get(destination_of(self.conn))) is not None:
            self.provisional_max_concurrency = most
        note_frames(gate_of_origin(self.conn))
        receive = self.h2_conn.receive_data
        vars(self.h2_conn)["receive_data"] = lambda data: in_one_piece(receive(data))

    def _may_begin(self) -> bool:
        most = self.provisional_max_concurrency or self.h2_conn.remote_settings.max_concurrent_streams
        return bool(self.h2_conn.open_outbound_streams < most)

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, HttpEvent) and event.stream_id not in self.our_stream_id:
            self._wait(event)
        else:
            came_within = self._reading
            self._reading |= not isinstance(event, HttpEvent)
            yield from super()._handle_event(event)
            self._reading = came_within
            if isinstance(event, HttpEvent):
                self._ended.append(event.stream_id)  # of ours: the core has changed it
            if not came_within:  # else the core still works on what it was told of that stream
                yield from self._forget()
        while self._waiting and self._may_begin() and not self._is_over:
            number = next(iter(self._waiting))
            yield from self._begin(number, self._no_longer(number))
        if self._is_over:
            for number in list(self._waiting):
                self._no_longer(number)
                why = "the connection ended before its turn"
                yield ReceiveHttp(ResponseProtocolError(number, why, ErrorCode.GENERIC_SERVER_ERROR))
        self._measure()

    def _forget(self) -> CommandGenerator[None]:
        """Drop those streams that are closed on both sides: the core would keep their numbers.

        Of one that the origin has answered nothing more is sent: it need not read on, and without a window the stream
        would stay open, in the place of others.
        """
        ended, self._ended = self._ended, []
        for number in ended:
            if self._is_answered(number) and self.h2_conn.stream_buffers.get(number):
                over = RequestProtocolError(self.their_stream_id[number], "it is answered", ErrorCode.CANCEL)
                yield from super()._handle_event(over)
            if self.is_closed(number):
                self.streams.pop(number, None)
                self.our_stream_id.pop(self.their_stream_id.pop(number, -1), None)

    def _is_answered(self, number: int) -> bool:
        stream = self.h2_conn.streams.get(number)
        return stream is not None and stream.state_machine.state is h2.stream.StreamState.HALF_CLOSED_REMOTE

    @property
    def _is_over(self) -> bool:
        return "_handle_event" in vars(self)  # the core has put its last state there

    def _wait(self, event: HttpEvent) -> None:
        number = event.stream_id
        if isinstance(event, RequestHeaders):
            self._waiting[number] = [event]
        elif number not in self._waiting:
            pass  # of one that was refused, or given up before its turn
        elif isinstance(event, RequestProtocolError):
            self._no_longer(number)
            self._refusals.pop(number)
        else:
            self._waiting[number].append(event)
            self._uploads += _streamed(self._waiting[number][0], event)

    def _no_longer(self, number: int) -> list[HttpEvent]:
        """Take a request from those that wait; what came of it."""
        came = self._waiting.pop(number)
        self._uploads -= sum(_streamed(came[0], event) for event in came)
        return came

    @property
    def _refusals(self) -> dict[int, Callable[[], Answer | None]]:
        found: dict[int, Callable[[], Answer | None]] = vars(self.conn).get("refusals", {})
        return found

    def _begin(self, number: int, came: list[HttpEvent]) -> CommandGenerator[None]:
        """The turn of a request has come."""
        if self._refusals.pop(number)() is not None:
            yield ReceiveHttp(ResponseProtocolError(number, "denied", ErrorCode.GENERIC_SERVER_ERROR))
            return
        for each in came:
            yield from super()._handle_event(each)

    def _measure(self) -> None:
        """Have the box read no further while too much waits: what no window is granted for, and uploads that wait.

        Not the bodies that came as a whole: they are few and small, and the upload that they wait for may come by the
        same connection of the box.
        """
        gates = getattr(self.context.client, "gates", None)
        if gates is None or not (self._held or self._waiting or self.h2_conn.stream_buffers):
            return
        held = 0
        if not self._is_over:
            held = sum(len(chunk.data) for chunks in self.h2_conn.stream_buffers.values() for chunk in chunks)
            held += self._uploads
        gates.uploads.add(held - self._held)
        self._held = held

    def handle_h2_event(self, event: h2.events.Event) -> CommandGenerator[bool]:
        if isinstance(event, h2.events.ResponseReceived):
            note_message(gate_of_origin(self.conn))
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            most = self.h2_conn.remote_settings.max_concurrent_streams
            vars(self.context.client)["streams_at"][destination_of(self.conn)] = max(1, min(most, _ASSUMED))
        elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
            self._ended.append(event.stream_id)
        return bool((yield from super().handle_h2_event(event)))


def _streamed(head: HttpEvent, event: HttpEvent) -> int:
    """How many bytes of an upload an event holds, whose request began with `head`."""
    is_upload = isinstance(head, RequestHeaders) and head.request.stream
    return len(event.data) if is_upload and isinstance(event, RequestData) else 0


def install() -> None:
    """Have the core use our parsers towards origins, and our reading of bodies in both directions."""
    make = _http1.make_body_reader

    def make_body_reader(expected_size: int | None) -> Any:
        if expected_size is None:
            return ChunkedBody(make(expected_size))
        return make(expected_size) if expected_size < 0 else KnownLength(expected_size)

    _http1.make_body_reader = make_body_reader
    vars(http_layers)["Http1Client"] = JudgedHttp1Client
    vars(http_layers)["Http2Client"] = JudgedHttp2Client
