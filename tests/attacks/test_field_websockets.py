"""A WebSocket works as if nobody stood between, and ends as it ended. Field note F23."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

import pytest
import wsproto
import wsproto.events

from tests.support.gateway import LiveGateway
from tests.support.origin import Seen
from tests.support.streams import Streams

pytestmark = pytest.mark.gateway


class Talk:
    """A WebSocket through the door, event by event."""

    def __init__(self, gateway: LiveGateway, target: str) -> None:
        self._socket = gateway.tls("a.test")
        self._ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._events: deque[wsproto.events.Event] = deque()
        self._socket.sendall(self._ws.send(wsproto.events.Request(host="a.test", target=target)))

    def say(self, event: wsproto.events.Event) -> None:
        self._socket.sendall(self._ws.send(event))

    def hear(self) -> wsproto.events.Event:
        while not self._events:
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            self._ws.receive_data(data or None)
            self._events.extend(self._ws.events())
        return self._events.popleft()

    def message(self) -> bytes:
        whole = b""
        while True:
            event = self.hear()
            assert isinstance(event, wsproto.events.BytesMessage), event
            whole += event.data
            if event.message_finished:
                return whole

    def close(self) -> None:
        self._socket.close()


def far_end(react: Callable[[wsproto.WSConnection, wsproto.events.Event], bytes | None]) -> Callable[..., None]:
    """An origin's WebSocket: `react` gives the bytes for each event, None to hang up without a word."""

    def answer(connection: socket.socket, seen: Seen) -> None:
        ws = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
        received = seen.head
        while True:
            ws.receive_data(received or None)
            for event in ws.events():
                asked = isinstance(event, wsproto.events.Request)
                data = ws.send(wsproto.events.AcceptConnection()) if asked else react(ws, event)
                if data is None:
                    return
                connection.sendall(data)
            if not received:
                return
            received = connection.recv(1 << 16)

    return answer


def echo(ws: wsproto.WSConnection, event: wsproto.events.Event) -> bytes | None:
    match event:
        case wsproto.events.BytesMessage(data=data, message_finished=finished):
            return ws.send(wsproto.events.BytesMessage(bytes(data), message_finished=finished))
        case wsproto.events.Ping():
            return ws.send(event.response())
        case wsproto.events.CloseConnection():
            return ws.send(event.response()) if event.code != 1006 else None
    return b""


@pytest.mark.attack("F23")
def test_a_websocket_carries_large_messages_and_pings_both_ways(streams: Streams) -> None:
    streams.a.answers["/ws/echo"] = far_end(echo)
    talk = Talk(streams.gateway, "/ws/echo")
    assert isinstance(talk.hear(), wsproto.events.AcceptConnection)
    block = bytes(range(256)) * (2 << 12)
    for _ in range(3):
        talk.say(wsproto.events.BytesMessage(block))
        assert talk.message() == block
    talk.say(wsproto.events.Ping(b"are you there"))
    pong = talk.hear()
    assert isinstance(pong, wsproto.events.Pong) and pong.payload == b"are you there"
    talk.say(wsproto.events.CloseConnection(1000))
    talk.hear()
    talk.close()
    outcome = streams.gateway.outcomes(1)[0]
    assert (outcome["status"], outcome["error"]) == (101, None)
    assert min(outcome["bytes_up"], outcome["bytes_down"]) > 3 * len(block)
    assert [line["verdict"] for line in streams.gateway.decisions()] == ["allow"]


@pytest.mark.attack("F23")
@pytest.mark.parametrize("code", [1000, 1009, 1011, 4000, 1006])
def test_the_code_that_a_websocket_was_closed_with_arrives(streams: Streams, code: int) -> None:
    """1006 is no code that is sent, but a connection that ends without one."""

    def hang_up(ws: wsproto.WSConnection, event: wsproto.events.Event) -> bytes | None:
        if isinstance(event, wsproto.events.BytesMessage):
            return ws.send(wsproto.events.CloseConnection(code, "as told")) if code != 1006 else None
        return b""

    streams.a.answers["/ws/close"] = far_end(hang_up)
    talk = Talk(streams.gateway, "/ws/close")
    assert isinstance(talk.hear(), wsproto.events.AcceptConnection)
    talk.say(wsproto.events.BytesMessage(b"close, please"))
    event = talk.hear()
    assert isinstance(event, wsproto.events.CloseConnection) and event.code == code
    talk.close()
    assert len(streams.gateway.outcomes(1)) == 1
    assert streams.gateway.get("https://a.test/pub/after").status == 200


@pytest.mark.attack("F23")
def test_a_denied_websocket_is_answered_before_its_upgrade(streams: Streams) -> None:
    for target in ("/pub/x", "/denied"):
        talk = Talk(streams.gateway, target)
        event = talk.hear()
        assert isinstance(event, wsproto.events.RejectConnection) and event.status_code == 403
        talk.close()
    assert [line["reason"] for line in streams.gateway.decisions()] == ["websocket", "no-rule"]
    assert streams.a.connections == 0
