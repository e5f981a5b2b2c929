"""The HTTP layers of the door: mitmproxy's own, with what hooks alone cannot do.

- A refused request is answered at once, though its body is still coming; what still arrives is dropped.
- A connection to an origin is used only for requests that were judged for just that origin.
- An origin that answers before the upload is through ends the upload.
- Failures are JSON that an agent can read.

These classes reach into parts of mitmproxy that are not public: tests/gateway breaks when they move.
"""

from __future__ import annotations

import functools
import time

from mitmproxy import flow, http
from mitmproxy.connection import Connection, Server
from mitmproxy.net.http.validate import validate_headers
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator, NextLayer
from mitmproxy.proxy.layers.http import DropStream, HttpStream, SendHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    HttpEvent,
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
    RequestTrailers,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._hooks import HttpErrorHook

from impyard.addon import answers
from impyard.addon.answers import Answer
from impyard.addon.backpressure import gate_of_origin
from impyard.addon.boxends import JudgedHttp1Server, JudgedHttp2Server, is_cancelled
from impyard.addon.connections import JudgedConnections, connection_to
from impyard.addon.destination import has_served, note_idle, note_served
from impyard.addon.dialing import why_ended, without_quotes
from impyard.addon.limits import limits_of
from impyard.addon.notes import notes_of
from impyard.addon.vault.masking import Mask
from impyard.addon.wire import mask_head, to_response
from impyard.addon.wsrelay import JudgedWebsocket

# Methods that change nothing (RFC 9110, 9.2.1), so that an intermediary may ask twice (9.2.2).
_SAFE = ("GET", "HEAD", "OPTIONS")
# The place of a stream that is not in a tunnel among its layers: behind the door's mode and its HTTP layer.
_OUTERMOST = 2


class JudgedStream(HttpStream):
    """One request and its answer."""

    _answer_begun = False
    _again = False  # asked for a second time
    _kept = False  # on a connection that had served another request
    _held = 0
    _cancelled = False  # in the same breath as it was asked

    def handle_event(self, event: events.Event) -> CommandGenerator[None]:
        """Tell the connection's gate what waits here while an origin comes up."""
        if isinstance(event, ResponseProtocolError):
            event.message = without_quotes(event.message)
        gates = getattr(self.context.client, "gates", None)
        if gates is not None and self._paused is not None and isinstance(event, RequestData):
            self._held += len(event.data)
            gates.uploads.add(len(event.data))
        if isinstance(event, ResponseProtocolError) and (mask := self._mask()) is not None:
            # The parser's words hold what the origin said.
            event.message = mask.whole(event.message.encode("utf-8", "replace")).decode("utf-8", "replace")
        yield from super().handle_event(event)
        if self._held and self._paused is None and gates is not None:
            gates.uploads.add(-self._held)
            self._held = 0

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        """Go on at once after a hook of which nobody has to wait for the end, which are nearly all of them.

        The core makes a task for each hook, and passes its end down through all layers.
        """
        steps, reply = super()._handle_event(event), None
        at_once = getattr(self.context.client, "at_once", None)
        while True:
            try:
                command = steps.send(reply)
            except StopIteration:
                return
            if at_once is not None and isinstance(command, commands.StartHook) and at_once(command):
                reply = None
            else:
                reply = yield command

    def state_wait_for_request_headers(self, event: RequestHeaders) -> CommandGenerator[None]:
        # The judge's hook sees only the flow: this tells it that a body follows. It decides anew what is streamed.
        event.request.stream = not event.end_stream
        self._cancelled = is_cancelled(event)
        yield from super().state_wait_for_request_headers(event)
        if (
            not event.end_stream
            and self.client_state == self.state_consume_request_body
            and self.flow.response is not None
        ):
            yield from self._answer_before_the_body_ends(self.flow.response)

    def check_invalid(self, request: bool) -> CommandGenerator[bool]:
        response = self.flow.response
        if request or response is None:
            return (yield from super().check_invalid(request))
        if (mask := self._mask()) is not None:
            mask_head(response, mask)  # before anybody says what is wrong with it
        try:
            validate_headers(response)
        except ValueError as exc:
            # The core's answer to this names no decision, and an option of its own by which to let it through.
            yield commands.CloseConnection(self.flow.server_conn)
            notes = notes_of(self.flow)
            decision_id = notes.decision_id if notes is not None else None
            why = f"the origin's answer is not valid HTTP: {exc}"
            answer = answers.upstream_failure(why, host=self.flow.request.host, decision_id=decision_id)
            yield from self._give_up_on_the_origin(why, answer)
            return True
        return False

    def _mask(self) -> Mask | None:
        notes = notes_of(self.flow) if hasattr(self, "flow") else None
        return notes.mask if notes is not None else None

    def state_stream_request_body(self, event: HttpEvent) -> CommandGenerator[None]:
        notes = notes_of(self.flow)
        if isinstance(event, RequestTrailers):
            return  # nobody judged them
        if isinstance(event, RequestData) and not event.data:
            return  # as a chunk it would end the body, and what follows would be the next request
        if isinstance(event, RequestData) and notes is not None:
            notes.uploaded += len(event.data)
            notes.touched = time.monotonic()
            if notes.max_body is not None and notes.uploaded > notes.max_body:
                why = f"the body grew over max_body of {notes.max_body} bytes"
                yield from self._give_up_on_the_origin(why, answers.too_large(decision_id=notes.decision_id))
                return
        if notes is None or notes.watch is None:
            raise RuntimeError("a body that nobody looks at")
        refusal = notes.watch.piece(event.data) if isinstance(event, RequestData) else notes.watch.end()
        if refusal is not None:
            yield from self._give_up_on_the_origin(notes.watch.why, refusal)
            return
        yield from super().state_stream_request_body(event)

    def state_consume_request_body(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, RequestTrailers):
            return
        yield from super().state_consume_request_body(event)

    def state_stream_response_body(self, event: events.Event) -> CommandGenerator[None]:
        gate = gate_of_origin(self.context.server)
        for command in super().state_stream_response_body(event):
            if isinstance(command, SendHttp) and isinstance(command.event, ResponseData):
                vars(command.event)["gate"] = gate  # whom to hold back while the box does not take it
            yield command

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

    def flow_done(self) -> CommandGenerator[None]:
        notes = notes_of(self.flow)
        if self.flow.websocket is None or notes is None:
            yield from super().flow_done()
            return
        # What the core does for a WebSocket, with our relay.
        self.child_layer = JudgedWebsocket(self.context, self.flow, notes)
        vars(self)["_handle_event"] = self.passthrough
        yield from self.child_layer.handle_event(events.Start())
        yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)

    def passthrough(self, event: events.Event) -> CommandGenerator[None]:
        """Inside of a tunnel. Once it is up, those layers of the door that only pass things on are left out."""
        yield from super().passthrough(event)
        enter, inside = getattr(self.context.client, "enter", None), self.child_layer
        if enter is None or not isinstance(inside, NextLayer) or inside.layer is None:
            return
        is_up = "handle_event" in vars(inside)  # the core has put that of the layer in its place
        if is_up and self.context.layers[_OUTERMOST] is self:
            enter(inside.layer)

    def make_server_connection(self) -> CommandGenerator[bool]:
        notes = notes_of(self.flow)
        connection: Connection | None = None
        error: str | None = "no verdict"
        if self.is_cancelled:
            yield from self._drop_unsent()
            return False
        if notes is not None and notes.destination is not None:  # invariant: no verdict, no connection
            # An upload that waits would keep the box from being read, and so perhaps the upload that it waits for.
            at_once = bool(self.flow.request.stream)
            connection, error = yield from connection_to(notes.destination, fresh=self._again, at_once=at_once)
        if self.is_cancelled:  # while it waited
            if connection is not None and connection.alpn != b"h2":
                note_idle(connection, True)
            yield from self._drop_unsent()
            return False
        if connection is None or notes is None or notes.last_look is None:
            yield from self.handle_protocol_error(
                ResponseProtocolError(self.stream_id, error or "no connection", ErrorCode.CONNECT_FAILED)
            )
            return False
        assert isinstance(connection, Server)
        refusal = functools.partial(notes.last_look.refusal, self.flow.request, notes)
        if (answer := refusal()) is not None:
            yield from self._give_up_on_the_origin(notes.refused, answer)
            return False
        if connection.alpn == b"h2":
            vars(connection).setdefault("refusals", {})[self.stream_id] = refusal  # it may have to wait for its turn
        self.context.server = self.flow.server_conn = connection
        self._kept = has_served(connection)
        note_served(connection)
        request = self.flow.request
        if request.is_http2 and connection.alpn != b"h2":
            request.headers.pop("te", None)  # of one hop only, in HTTP/1
        if request.stream and request.is_http2 and connection.alpn != b"h2" and "content-length" not in request.headers:
            # HTTP/2 frames a body by itself. Without this an HTTP/1 origin would read the body as its next request.
            request.headers["transfer-encoding"] = "chunked"
        return True

    @property
    def is_cancelled(self) -> bool:
        """Whether the box has given its request up, which this may hear of only later."""
        return self._cancelled or any(isinstance(event, RequestProtocolError) for event in self._paused_event_queue)

    def _drop_unsent(self) -> CommandGenerator[None]:
        """End a request that the box has given up before anything of it went to its origin."""
        self.flow.error = flow.Error("cancelled by client (nothing of it went)")
        yield HttpErrorHook(self.flow)
        self.client_state = self.server_state = self.state_errored
        self.flow.live = False
        yield DropStream(self.stream_id)

    def handle_protocol_error(self, event: RequestProtocolError | ResponseProtocolError) -> CommandGenerator[None]:
        over = (self.state_done, self.state_errored)
        if self.server_state in over and self.client_state in over:
            # All is said, and the connection may be at its next request already, for which this must not be taken.
            self.flow.live = False
            yield DropStream(self.stream_id)
            return
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
        notes = notes_of(self.flow)
        if notes is not None and notes.refusal is not None:
            yield from self._give_up_on_the_origin(notes.refused, notes.refusal)
            return
        if self._may_ask_again():
            yield from self._ask_again()
            return
        message = why_ended(self.context.server, event.message)
        decision_id = notes.decision_id if notes is not None else None
        answer = answers.upstream_failure(message, host=self.flow.request.host, decision_id=decision_id)
        yield from self._give_up_on_the_origin(message, answer)

    def _may_ask_again(self) -> bool:
        """Whether the origin may just have closed an idle connection under a request that changes nothing there."""
        request, notes = self.flow.request, notes_of(self.flow)
        return (
            self._kept
            # Later it is another fault, and the verdict too old.
            and notes is not None
            and time.monotonic() - notes.started < limits_of(self.context.client).connect_s
            and not self._again
            and request.method in _SAFE
            and not request.stream
            and self.client_state == self.state_done
            and self.server_state == self.state_wait_for_response_headers
            and self.flow.response is None
            and not why_ended(self.context.server, "")  # not by us
        )

    def _ask_again(self) -> CommandGenerator[None]:
        """The same request on a connection of its own."""
        self._again = True
        if not (yield from self.make_server_connection()):
            return
        content, server = self.flow.request.raw_content, self.context.server
        yield SendHttp(RequestHeaders(self.stream_id, self.flow.request, not content), server)
        if content:
            yield SendHttp(RequestData(self.stream_id, content), server)
        yield SendHttp(RequestEndOfMessage(self.stream_id), server)

    def _give_up_on_the_origin(self, why: str, answer: Answer) -> CommandGenerator[None]:
        """Answer the box ourselves, and end what was begun with the origin. why: for the outcome."""
        self.flow.error = flow.Error(why)
        yield HttpErrorHook(self.flow)
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
        if self.server_state == self.state_done:  # else the client left, or broke its body, and was not answered
            self.flow.live = False
            yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
        yield DropStream(self.stream_id)


class JudgedHttpLayer(JudgedConnections):
    """mitmproxy's HTTP layer, made of the parts above."""

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, events.Start):
            kind = JudgedHttp2Server if self.context.client.alpn == b"h2" else JudgedHttp1Server
            self.connections[self.context.client] = kind(self.context.fork())
        yield from super()._handle_event(event)

    def make_stream(self, stream_id: int) -> CommandGenerator[None]:
        stream = JudgedStream(forked(self.context), stream_id)
        self.streams[stream_id] = stream
        yield from self.event_to_child(stream, events.Start())


def forked(context: Context) -> Context:
    """`context.fork()`, without the connection to nowhere that the core makes for it and drops at once."""
    made = Context.__new__(Context)
    vars(made).update(vars(context), layers=context.layers.copy())
    return made
