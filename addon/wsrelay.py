"""A WebSocket between the box and an origin: every byte is counted, bounded and looked at, not only whole messages."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import cast

import wsproto.connection
import wsproto.events
from mitmproxy import flow as mflow
from mitmproxy import http
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http._hooks import HttpErrorHook
from mitmproxy.proxy.layers.websocket import WebsocketLayer, WebsocketMessageHook

from impyard.addon.backpressure import gate_of_client, gate_of_origin, note_frames
from impyard.addon.bodywatch import BodyWatch
from impyard.addon.limits import limits_of
from impyard.addon.notes import Notes
from impyard.addon.turns import Bucket

TOO_BIG = 1009  # RFC 6455, 7.4.1

_REFUSED = wsproto.events.CloseConnection(code=1008, reason="denied by egress policy (secret-in-request)")


class JudgedWebsocket(WebsocketLayer):
    """Control frames and unfinished messages count too: they carry data like any other."""

    def __init__(self, context: Context, flow: http.HTTPFlow, notes: Notes) -> None:
        super().__init__(context, flow)
        self._notes = notes
        self._watching = False
        self._at_once: Callable[[commands.StartHook], bool] | None = getattr(context.client, "at_once", None)
        note_frames(gate_of_client(context.client))
        note_frames(gate_of_origin(context.server))
        limits = limits_of(context.client)
        self._nothing = Bucket(limits.control_frames, limits.control_frames_per_s)

    def _watched(self, source: Callable[[], Iterator[wsproto.events.Event]]) -> Iterator[wsproto.events.Event]:
        """What the box sends, up to a frame that holds what must not go to the origin. The hook looks at messages."""
        for event in source():
            carried = b""
            if isinstance(event, wsproto.events.Ping | wsproto.events.Pong):
                carried = bytes(event.payload)
            elif isinstance(event, wsproto.events.CloseConnection):
                carried = (event.reason or "").encode()
            if carried and self._watch.piece(carried, "message") is not None:
                return
            yield event

    def _masked(self, source: Callable[[], Iterator[wsproto.events.Event]]) -> Iterator[wsproto.events.Event]:
        """What the origin sends, with the real values masked in its control frames. The hook masks messages."""
        mask = self._notes.mask
        for event in source():
            if mask is None:
                pass
            elif isinstance(event, wsproto.events.Ping | wsproto.events.Pong):
                event = dataclasses.replace(event, payload=mask.whole(bytes(event.payload)))
            elif isinstance(event, wsproto.events.CloseConnection) and event.reason:
                # Of the same length: it may not grow over what a control frame holds.
                event = dataclasses.replace(event, reason=mask.whole(event.reason.encode()).decode())
            yield event

    @property
    def _watch(self) -> BodyWatch:
        if self._notes.watch is None:
            raise RuntimeError("a WebSocket that nobody looks at")
        return self._notes.watch

    def relay_messages(self, event: events.Event) -> CommandGenerator[None]:
        if not self._watching:
            self._watching = True
            self.client_ws.__dict__["events"] = functools.partial(self._watched, self.client_ws.events)
            self.server_ws.__dict__["events"] = functools.partial(self._masked, self.server_ws.events)
        if isinstance(event, events.DataReceived):
            notes, size, from_box = self._notes, len(event.data), event.connection == self.context.client
            notes.touched = time.monotonic()
            if from_box:
                notes.uploaded += size
            else:
                notes.downloaded += size
            if notes.max_body is not None and notes.uploaded > notes.max_body:
                yield from self._cut(f"the messages grew over max_body of {notes.max_body} bytes")
                return
            source = self.client_ws if from_box else self.server_ws
            limits, fragments = limits_of(self.context.client), source.frame_buf
            if size + sum(map(len, fragments)) > limits.message_bytes:
                yield from self._cut("a message is too large")
                return
            if len(fragments) > limits.message_fragments:
                yield from self._cut("a message has too many fragments")
                return
            if not isinstance(fragments[-1], bytearray):
                # The core adds each piece to the last one: bytes would be copied whole each time.
                cast(list[bytes | bytearray], fragments)[-1] = bytearray(fragments[-1])
        elif isinstance(event, events.ConnectionClosed):
            # Whoever is left must see that the end is missing: the core would make an orderly close of it.
            who = "box" if event.connection == self.context.client else "origin"
            yield from self._end(f"the {who} left the WebSocket without closing it", None)
            return
        yield from in_one_write(self._relayed(event))

    def _relayed(self, event: events.Event) -> CommandGenerator[None]:
        for command in super().relay_messages(event):
            # The core says so of each ping and pong.
            if isinstance(command, commands.Log) and not self._nothing.take():
                yield from self._cut("too many frames that carry nothing")
                return
            if not isinstance(command, WebsocketMessageHook):
                yield command
                continue
            # Within the read that brought it. Through the loop, as the core does it, a connection would be read on
            # while its messages wait one by one, and would keep all that comes.
            if self._at_once is None or not self._at_once(command):
                yield command
            if self.flow.error is not None:
                yield from self._end(self.flow.error.msg, _REFUSED)  # the hook failed
                return
        if self._watch.why:
            yield from self._end(self._watch.why, _REFUSED)

    def _cut(self, why: str) -> CommandGenerator[None]:
        yield from self._end(why, wsproto.events.CloseConnection(code=TOO_BIG, reason="too large"))

    def _end(self, why: str, farewell: wsproto.events.CloseConnection | None) -> CommandGenerator[None]:
        self.flow.error = mflow.Error(why)
        yield HttpErrorHook(self.flow)
        for end in (self.client_ws, self.server_ws):
            if farewell is not None and end.state is wsproto.connection.ConnectionState.OPEN:
                yield end.send2(farewell)
            yield commands.CloseConnection(end.conn)
        self.flow.live = False
        self._handle_event = self.done


def in_one_write(steps: CommandGenerator[None]) -> CommandGenerator[None]:
    """What is sent to one connection in a row, as one piece: a frame of a byte would be a record of TLS and a write."""
    unsent: list[commands.SendData] = []
    for command in steps:
        if isinstance(command, commands.Log):
            yield command
            continue
        if unsent and not (isinstance(command, commands.SendData) and command.connection is unsent[0].connection):
            yield from _joined(unsent)
        if isinstance(command, commands.SendData):
            unsent.append(command)
        else:
            yield command
    yield from _joined(unsent)


def _joined(unsent: list[commands.SendData]) -> Iterator[commands.SendData]:
    if unsent:
        yield commands.SendData(unsent[0].connection, b"".join(command.data for command in unsent))
        unsent.clear()
