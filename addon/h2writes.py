"""HTTP/2 frames go out in one piece for each event that made them.

The core sends each frame by itself: a record of TLS, a walk through all layers and a system call for the head of an
answer, for its body and for its end, and the same for each of the requests that came together.
"""

from __future__ import annotations

import functools

from mitmproxy.connection import Connection
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http import HttpLayer, HTTPMode
from mitmproxy.proxy.layers.http._http2 import Http2Connection


class Flush(events.Event):
    """Send what is held back."""


class FlushingLayer(HttpLayer):
    """Has its connections send what they hold back, at the end of each event."""

    def __init__(self, context: Context, mode: HTTPMode) -> None:
        super().__init__(context, mode)
        self.unsent: dict[Connection, None] = {}

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        yield from super()._handle_event(event)
        while self.unsent:
            connection, _ = self.unsent.popitem()
            if (handler := self.connections.get(connection)) is not None:
                yield from self.event_to_child(handler, Flush())


class HeldWrites(Http2Connection):
    """Holds back what it sends until the layer that it belongs to has worked on the whole of an event.

    In an HTTP layer of somebody else's, which flushes nothing, it holds back nothing.
    """

    @functools.cached_property
    def _unsent(self) -> list[bytes]:
        return []

    @functools.cached_property
    def _flushing(self) -> FlushingLayer | None:
        return next((one for one in reversed(self.context.layers) if isinstance(one, FlushingLayer)), None)

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        if isinstance(event, Flush):
            yield from self._flush()
            return
        steps, reply = super()._handle_event(event), None
        while True:
            try:
                command = steps.send(reply)
            except StopIteration:
                return
            reply = None
            own = isinstance(command, commands.ConnectionCommand) and command.connection is self.conn
            if own and self._flushing is not None and isinstance(command, commands.SendData):
                self._unsent.append(command.data)
                self._flushing.unsent[self.conn] = None
                continue
            if own and self._flushing is not None:  # it is closed: nothing is sent, or flushed, after that
                self._flushing.unsent.pop(self.conn, None)
                yield from self._flush()
            reply = yield command

    def _flush(self) -> CommandGenerator[None]:
        if self._unsent:
            data = b"".join(self._unsent)
            self._unsent.clear()
            yield commands.SendData(self.conn, data)
