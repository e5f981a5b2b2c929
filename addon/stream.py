"""The HTTP layers of the door: mitmproxy's own, with what hooks alone cannot do.

- A refused request is answered at once, though its body is still coming; what still arrives is dropped.
- A request that the core would refuse without any hook is refused with a record.
- A connection to an origin is used only for requests that were judged for just that origin.
- An origin that answers before the upload is through ends the upload.
- Failures are JSON that an agent can read.

These classes reach into parts of mitmproxy that are not public: tests/gateway breaks when they move.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import h2.errors
import h11
from mitmproxy import flow, http
from mitmproxy.connection import Client, Connection, Server
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator, Layer
from mitmproxy.proxy.layers.http import DropStream, GetHttpConnection, HttpLayer, HTTPMode, HttpStream, SendHttp, _http1
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    HttpEvent,
    RequestData,
    RequestHeaders,
    RequestProtocolError,
    RequestTrailers,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._hooks import HttpErrorHook
from mitmproxy.proxy.layers.http._http1 import Http1Server
from mitmproxy.proxy.layers.http._http2 import Http2Server

from impyard.addon import answers
from impyard.addon.answers import Answer
from impyard.addon.policy import Upstream

# A request head of more bytes is refused. Servers commonly take 8 to 64 KiB.
MAX_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an allowed request goes. Two requests may share a connection only if theirs are equal.

    host, port, tls: what was judged, and so the name that a certificate is checked against. upstream: the policy's own
    address for it. address: what is dialled, checked beforehand.
    """

    host: str
    port: int
    tls: bool
    upstream: Upstream | None
    address: tuple[str, int] = field(compare=False)


@dataclass
class Refusal:
    """A refusal below the level of a flow. `answer` is filled in by whoever records it."""

    client: Client
    host: str
    port: int
    reason: str
    hint: str
    method: str = ""
    path: str = ""
    answer: Answer | None = None


@dataclass
class RefusedHook(commands.StartHook):
    """Something was refused without a flow; the judge records it and writes the answer."""

    data: Refusal


class Watched(Protocol):
    """What a stream needs to know of the judge's notes on a flow."""

    uploaded: int

    @property
    def destination(self) -> Destination | None: ...

    @property
    def decision_id(self) -> str | None: ...

    @property
    def max_body(self) -> int | None: ...


Notes = Callable[[http.HTTPFlow], Watched | None]


@dataclass(eq=False)
class GetJudgedConnection(GetHttpConnection):
    """Asks for a connection to one destination: a new one, or one that was opened for an equal destination."""

    destination: Destination | None = None

    def connection_spec_matches(self, connection: Connection) -> bool:
        return isinstance(connection, Server) and getattr(connection, "destination", None) == self.destination


class DroppedTrailers:
    """Reads a chunked body and forgets its trailers, which nobody judged (and which mitmproxy cannot forward)."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __call__(self, buf: Any) -> Any:
        event = self._reader(buf)
        return h11.EndOfMessage() if isinstance(event, h11.EndOfMessage) and event.headers else event

    def read_eof(self) -> Any:
        return self._reader.read_eof()


def _drop_trailers() -> None:
    make = _http1.make_body_reader

    def make_body_reader(expected_size: int | None) -> Any:
        reader = make(expected_size)
        return DroppedTrailers(reader) if expected_size is None else reader

    _http1.make_body_reader = make_body_reader


_drop_trailers()


class JudgedHttp1Server(Http1Server):
    """The box's side of an HTTP/1 connection: what cannot be parsed is refused with a record."""

    _refusing = False

    def read_headers(self, event: events.ConnectionEvent) -> CommandGenerator[None]:
        if len(self.buf) > MAX_HEAD_BYTES and bytes(self.buf).find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) < 0:
            yield from self._refuse("malformed", f"the request head is larger than {MAX_HEAD_BYTES // 1024} KiB")
            return
        for command in super().read_headers(event):
            if isinstance(command, commands.SendData) and not self._refusing:
                # The core's own 400, sent before any hook: take its place.
                yield from self._refuse("malformed", "the request line or a header is not valid HTTP")
                return
            yield command

    def _refuse(self, reason: str, hint: str) -> CommandGenerator[None]:
        self._refusing = True
        self.state = self.done
        address = self.context.server.address or ("", 0)
        refusal = Refusal(self.context.client, address[0], address[1], reason, hint)
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
            status = event.code.http_status_code()
            if status is not None and self.conn.state & self.conn.state.CAN_WRITE:
                answer = answers.protocol_error(status, event.message)
                yield commands.SendData(self.conn, answers.raw_http1(answer))
                yield commands.CloseConnection(self.conn)
                return
        yield from super().send(event)


class JudgedHttp2Server(Http2Server):
    """The box's side of an HTTP/2 connection: what breaks the protocol ends it with a record."""

    def protocol_error(
        self, message: str, error_code: int = h2.errors.ErrorCodes.PROTOCOL_ERROR
    ) -> CommandGenerator[None]:
        host, port = self.context.server.address or ("", 0)
        hint = "a frame or a header is not valid HTTP/2"
        yield RefusedHook(Refusal(self.context.client, host, port, "malformed", hint))
        yield from super().protocol_error(message, error_code)


class JudgedStream(HttpStream):
    """One request and its answer."""

    notes: Notes
    _answer_begun = False

    def __init__(self, context: Context, stream_id: int, notes: Notes) -> None:
        super().__init__(context, stream_id)
        self.notes = notes

    def state_wait_for_request_headers(self, event: RequestHeaders) -> CommandGenerator[None]:
        # The judge's hook sees only the flow: this tells it that a body follows. It decides anew what is streamed.
        event.request.stream = not event.end_stream
        yield from super().state_wait_for_request_headers(event)
        if (
            not event.end_stream
            and self.client_state == self.state_consume_request_body
            and self.flow.response is not None
        ):
            yield from self._answer_before_the_body_ends(self.flow.response)

    def state_stream_request_body(self, event: HttpEvent) -> CommandGenerator[None]:
        notes = self.notes(self.flow)
        if isinstance(event, RequestTrailers):
            return  # nobody judged them
        if isinstance(event, RequestData) and notes is not None:
            notes.uploaded += len(event.data)
            if notes.max_body is not None and notes.uploaded > notes.max_body:
                self.flow.error = flow.Error(f"the body grew over max_body of {notes.max_body} bytes")
                yield HttpErrorHook(self.flow)
                answer = answers.too_large(decision_id=notes.decision_id)
                yield from self._give_up_on_the_origin(answer)
                return
        yield from super().state_stream_request_body(event)

    def state_consume_request_body(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, RequestTrailers):
            return
        yield from super().state_consume_request_body(event)

    def start_response_stream(self) -> CommandGenerator[None]:
        self._answer_begun = True
        yield from super().start_response_stream()

    def send_response(self, already_streamed: bool = False) -> CommandGenerator[None]:
        early = self.client_state == self.state_stream_request_body
        if early and self.flow.response is not None:
            # The origin has said all that it will say while the upload is still running: it will not read on, and
            # waiting for the rest would hang both sides.
            if not already_streamed and not self.flow.request.is_http2:
                self.flow.response.headers["connection"] = "close"
            self.client_state = self.state_errored
        yield from super().send_response(already_streamed)
        if early and self.server_state == self.state_done:
            self.flow.live = False
            yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
            yield from self._cancel_at_the_origin()
            yield DropStream(self.stream_id)

    def make_server_connection(self) -> CommandGenerator[bool]:
        notes = self.notes(self.flow)
        destination = notes.destination if notes is not None else None
        if destination is None:
            # Invariant: no verdict, no connection.
            yield from self.handle_protocol_error(
                ResponseProtocolError(self.stream_id, "no verdict", ErrorCode.CONNECT_FAILED)
            )
            return False
        connection, error = yield GetJudgedConnection(
            (destination.host, destination.port), destination.tls, None, destination=destination
        )
        if error:
            yield from self.handle_protocol_error(
                ResponseProtocolError(self.stream_id, error, ErrorCode.CONNECT_FAILED)
            )
            return False
        self.context.server = self.flow.server_conn = connection
        request = self.flow.request
        if request.stream and request.is_http2 and connection.alpn != b"h2" and "content-length" not in request.headers:
            # HTTP/2 frames a body by itself. Without this an HTTP/1 origin would read the body as its next request.
            request.headers["transfer-encoding"] = "chunked"
        return True

    def handle_protocol_error(self, event: RequestProtocolError | ResponseProtocolError) -> CommandGenerator[None]:
        answerable = (
            isinstance(event, ResponseProtocolError)
            and event.code is not ErrorCode.KILL
            and not self._answer_begun
            and self.client_state != self.state_errored
            and self.server_state not in (self.state_done, self.state_errored)
        )
        if not answerable:
            yield from super().handle_protocol_error(event)
            return
        self.flow.error = flow.Error(event.message)
        yield HttpErrorHook(self.flow)
        notes = self.notes(self.flow)
        answer = answers.upstream_failure(
            event.message,
            host=self.flow.request.host,
            decision_id=notes.decision_id if notes is not None else None,
        )
        yield from self._give_up_on_the_origin(answer)

    def _give_up_on_the_origin(self, answer: Answer) -> CommandGenerator[None]:
        """Answer the box ourselves, and end what was begun with the origin."""
        if self.client_state == self.state_stream_request_body:
            yield from self._cancel_at_the_origin()
        body_is_through = self.client_state == self.state_done
        if self._answer_begun:
            error_for_box = ResponseProtocolError(self.stream_id, "body-limit", ErrorCode.KILL)
            yield SendHttp(error_for_box, self.context.client)
        else:
            response = to_response(answer)
            if not body_is_through and not self.flow.request.is_http2:
                response.headers["connection"] = "close"
            self.flow.response = response
            yield SendHttp(ResponseHeaders(self.stream_id, response, False), self.context.client)
            yield SendHttp(ResponseData(self.stream_id, answer.body), self.context.client)
            yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
        self.client_state = self.server_state = self.state_errored
        self.flow.live = False
        yield DropStream(self.stream_id)

    def _cancel_at_the_origin(self) -> CommandGenerator[None]:
        """Reset an HTTP/2 stream, close an HTTP/1 connection: the upload will not be finished."""
        if self.context.server.connected:
            error = RequestProtocolError(self.stream_id, "upload ended early", ErrorCode.CANCEL)
            yield SendHttp(error, self.context.server)

    def _answer_before_the_body_ends(self, response: http.Response) -> CommandGenerator[None]:
        """Send the refusal now. The layers below drop what still arrives, and close the connection after it."""
        if not self.flow.request.is_http2:
            response.headers["connection"] = "close"
        self.client_state = self.state_errored
        response.timestamp_start = time.time()
        yield from self.send_response()
        self.flow.live = False
        yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
        yield DropStream(self.stream_id)


class JudgedHttpLayer(HttpLayer):
    """mitmproxy's HTTP layer, made of the parts above."""

    def __init__(self, context: Context, mode: HTTPMode, notes: Notes) -> None:
        super().__init__(context, mode)
        self._notes = notes

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, events.Start):
            kind = JudgedHttp2Server if self.context.client.alpn == b"h2" else JudgedHttp1Server
            self.connections[self.context.client] = kind(self.context.fork())
        yield from super()._handle_event(event)

    def make_stream(self, stream_id: int) -> CommandGenerator[None]:
        stream = JudgedStream(self.context.fork(), stream_id, self._notes)
        self.streams[stream_id] = stream
        yield from self.event_to_child(stream, events.Start())

    def get_connection(self, event: GetHttpConnection, *, reuse: bool = True) -> CommandGenerator[None]:
        for command in super().get_connection(event, reuse=reuse):
            if isinstance(command, commands.OpenConnection) and isinstance(event, GetJudgedConnection):
                # Stamped before the connection is dialled: the connect hook refuses one without.
                command.connection.destination = event.destination
            yield command


class RefusedLayer(Layer):
    """The end of a connection that must not go on: closes it, ignores the rest."""

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, events.Start):
            yield commands.CloseConnection(self.context.client)


def to_response(answer: Answer) -> http.Response:
    """An answer of ours as mitmproxy's response."""
    return http.Response.make(answer.status, answer.body, answer.headers)
