"""The box's end of an HTTP connection: mitmproxy's parsers, bounded, and with a record of what they refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator

import h2.errors
import h2.events
import h2.exceptions
from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    HttpEvent,
    RequestHeaders,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._http1 import Http1Server
from mitmproxy.proxy.layers.http._http2 import Http2Server, StreamState

from impyard.addon import answers
from impyard.addon.answers import Answer
from impyard.addon.backpressure import gate_of_client, note_cancelled, note_frames, note_message
from impyard.addon.bodies import joined, straight
from impyard.addon.clocks import owes
from impyard.addon.destination import Refusal, RefusedHook
from impyard.addon.frames import BoundedH2
from impyard.addon.h2writes import HeldWrites
from impyard.addon.heads import head_excess, seen, unfinished_excess
from impyard.addon.limits import limits_of
from impyard.addon.wire import to_response

# The core takes these from the ends of a value before the judge sees it; with them `chunked` is no longer `chunked`.
_STRIPPED_BY_THE_CORE = re.compile(rb"[\x0b\x0c]")
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
    _half_closed = False  # the box has said all that it will say, and waits for its answer
    _steps = 0

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        self._steps += 1
        if (piece := straight(self, event)) is not None:
            yield piece
        else:
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
        yield from joined(super().read_body(event))

    def wait(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, events.ConnectionClosed) and event.connection.state is ConnectionState.CAN_WRITE:
            # `nc` and scripts do so; the core would take it for a client that is gone.
            self._half_closed = True
            return
        yield from super().wait(event)

    def mark_done(self, *, request: bool = False, response: bool = False) -> CommandGenerator[None]:
        yield from super().mark_done(request=request, response=response)
        if self._half_closed and self.state in (self.read_headers, self.read_body, self.passthrough):
            self._half_closed = False
            yield from self.state(events.ConnectionClosed(self.conn))

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
            what = "answer" if self._half_closed else ""
        owes(self.conn, what, {"rest": self._received - pending, "answer": self._steps}.get(what, 0))
        held = pending if self.state == self.wait else 0
        if held != self._held and (gates := getattr(self.conn, "gates", None)) is not None:
            gates.uploads.add(held - self._held)
            self._held = gates.later = held

    def read_headers(self, event: events.ConnectionEvent) -> CommandGenerator[None]:
        limits = limits_of(self.conn)
        if excess := unfinished_excess(self.buf, limits):
            yield from self._refuse("too-large", *excess)
            return
        head = seen(self.buf)
        if _STRIPPED_BY_THE_CORE.search(head, 0, max(head.find(b"\r\n\r\n"), 0)):
            yield from self._refuse("malformed", "a header holds a control byte")
            return
        for command in super().read_headers(event):
            if isinstance(command, ReceiveHttp) and isinstance(command.event, RequestHeaders):
                request = command.event.request
                if excess := head_excess(request.data.path, request.headers.fields, limits):
                    yield from self._refuse("too-large", *excess)
                    return
                note_message(gate_of_client(self.conn))
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


class JudgedHttp2Server(HeldWrites, Http2Server):
    """The box's side of an HTTP/2 connection: what breaks the protocol ends it with a record."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.h2_conn: BoundedH2 = BoundedH2(self.h2_conf, limits_of(self.conn))
        self._unwanted = 0
        self._ended: set[int] = set()  # whose last byte is in what is being worked on
        note_frames(gate_of_client(self.conn))

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        answer = error_answer(self.context, event) if isinstance(event, ResponseProtocolError) else None
        if isinstance(event, ResponseProtocolError) and answer is not None and self._may_answer(event.stream_id):
            number = event.stream_id
            yield from super()._handle_event(ResponseHeaders(number, to_response(answer), False))
            yield from super()._handle_event(ResponseData(number, answer.body))
            yield from super()._handle_event(ResponseEndOfMessage(number))
        else:
            yield from super()._handle_event(event)
        if isinstance(event, events.DataReceived):
            self._ended.clear()
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
            note_message(gate_of_client(self.conn))
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
        if isinstance(event, h2.events.StreamEnded):
            self._ended.add(event.stream_id)
        if isinstance(event, h2.events.StreamReset) and event.stream_id in self._ended:
            # Of a request that is cancelled in the same read the core sees a stream that is closed when it ends: it
            # would forget it there, and go on with it.
            self.streams[event.stream_id] = StreamState.HEADERS_RECEIVED
        if isinstance(event, h2.events.StreamReset) and event.stream_id in self.streams:
            note_cancelled(gate_of_client(self.conn))
        if isinstance(event, h2.exceptions.DenialOfServiceError):
            yield from self.protocol_error(str(event), h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            return True
        for command in (steps := _Returning(super().handle_h2_event(event))):
            if isinstance(command, ReceiveHttp) and isinstance(command.event, RequestHeaders):
                # All of what was read has been parsed: a reset may be in there, too.
                vars(command.event)["cancelled"] = self.is_closed(command.event.stream_id)
            yield command
        return steps.returned

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


class _Returning:
    """The commands of a step that asks for no reply, and then what it returned."""

    returned = False

    def __init__(self, steps: CommandGenerator[bool]) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[commands.Command]:
        self.returned = bool((yield from self._steps))


def is_cancelled(event: RequestHeaders) -> bool:
    """Whether the box cancelled a request in the same breath as it asked."""
    return bool(vars(event).get("cancelled"))


def error_answer(context: Context, event: ResponseProtocolError) -> Answer | None:
    """Our words for an error of the core, None where it has no status to give."""
    status = event.code.http_status_code()
    if status is None:
        return None
    if event.code in _FAULTS_OF_THE_BOX:
        return answers.protocol_error(status, event.message)
    host = context.server.address[0] if context.server.address else "the origin"
    return answers.upstream_failure(event.message, host=host, decision_id=None)
