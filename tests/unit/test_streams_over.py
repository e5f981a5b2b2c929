"""What a connection of HTTP/2 to an origin remembers of requests that are over: nothing, however many there were."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
from mitmproxy import http
from mitmproxy.connection import Client, ConnectionState, Server
from mitmproxy.proxy import commands, context, events
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    HttpEvent,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
)

from impyard.addon.gateway import make_options
from impyard.addon.originends import JudgedHttp2Client

REQUESTS = 40


class Conversation:
    """Our end of such a connection, and an origin's that answers each request but those it is told to keep."""

    def __init__(self) -> None:
        client = Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), timestamp_start=0.0)
        self._server = Server(address=("a.test", 443))
        self._server.state, self._server.alpn = ConnectionState.OPEN, b"h2"
        around = context.Context(client, make_options())
        around.server = self._server
        self.layer = JudgedHttp2Client(around)
        self._origin = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._origin.initiate_connection()
        self.resets = 0
        self._feed(events.Start())

    def ask(self, number: int, *, answered: bool = True) -> None:
        vars(self._server).setdefault("refusals", {})[number] = lambda: None
        request = http.Request.make("GET", "https://a.test/pub/x")
        request.authority = "a.test"
        self._feed(RequestHeaders(number, request, True), answered=answered)
        self._feed(RequestEndOfMessage(number), answered=answered)

    def give_up(self, number: int) -> None:
        self._feed(RequestProtocolError(number, "given up", ErrorCode.CANCEL))

    def _feed(self, event: events.Event | HttpEvent, *, answered: bool = True) -> None:
        said = b"".join(
            command.data for command in self.layer.handle_event(event) if isinstance(command, commands.SendData)
        )
        for heard in self._origin.receive_data(said) if said else []:
            if isinstance(heard, h2.events.RequestReceived) and answered:
                self._origin.send_headers(heard.stream_id, [(":status", "200")], end_stream=True)
            self.resets += isinstance(heard, h2.events.StreamReset)
        if reply := self._origin.data_to_send():
            self._feed(events.DataReceived(self._server, reply))

    def remembered(self) -> int:
        layer = self.layer
        return len(layer.our_stream_id) + len(layer.their_stream_id) + len(layer.streams)


def test_answered_requests_are_forgotten() -> None:
    here = Conversation()
    for number in range(1, 2 * REQUESTS, 2):
        here.ask(number)
    assert here.remembered() == 0


def test_cancelled_requests_are_forgotten_and_the_origin_hears_of_them() -> None:
    here = Conversation()
    for number in range(1, 2 * REQUESTS, 2):
        here.ask(number, answered=False)
        assert here.remembered() == 3
        here.give_up(number)
    assert (here.remembered(), here.resets) == (0, REQUESTS)
