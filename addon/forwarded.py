"""The judge's hooks around what was let go: its place among those in progress, its answer, and its outcome line.

They decide nothing: who may go is settled before (addon/hooks.py). Every hook denies when it fails, as those do.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Coroutine
from typing import Any

from mitmproxy import http
from mitmproxy.connection import Client
from mitmproxy.net.http.http1 import expected_http_body_size

from impyard.addon.destination import Destination
from impyard.addon.failclosed import fail_closed
from impyard.addon.lastlook import LastLook
from impyard.addon.limits import Limits
from impyard.addon.notes import Notes, client_left, notes_of
from impyard.addon.record import Record
from impyard.addon.redirects import Redirects
from impyard.addon.routes import Routed
from impyard.addon.tunnels import TunnelHooks
from impyard.addon.vault.masking import MaskStream
from impyard.addon.wire import is_event_stream, mask_fields, strip_for_origin, to_response

# Bodies of unknown length, event streams, and what is longer than this are passed on as they come; the rest in one
# piece: it is quicker.
STREAM_OVER_BYTES = 64 * 1024
_ROOM = "impyard-room"  # on a flow that takes one of the places of those in progress
_TOO_MUCH_IN_PROGRESS = "too many of its requests are in progress"


class ForwardedHooks(TunnelHooks):
    """The hooks of allowed requests. record: where outcomes go. limits: how many there may be at once. last_look: at
    what was held back."""

    def __init__(self, record: Record, limits: Limits, last_look: LastLook) -> None:
        super().__init__(record, limits)
        self._last_look = last_look
        self._redirects = Redirects()
        self.begun: dict[str, dict[str | None, http.HTTPFlow]] = {}  # by client and decision: what was let go

    def _enter(self, flow: http.HTTPFlow) -> bool:
        """Take room for a request, if there is some now."""
        if _ROOM not in flow.metadata and self.turns.room.take():
            flow.metadata[_ROOM] = True
        return _ROOM in flow.metadata

    async def _enter_in_turn(self, flow: http.HTTPFlow) -> None:
        """Take room for a request as soon as there is some. Raises Busy."""
        if not self._enter(flow):
            await self.turn(flow.client_conn, self.turns.room, _TOO_MUCH_IN_PROGRESS)
            flow.metadata[_ROOM] = True

    def _let_go(self, flow: http.HTTPFlow, notes: Notes, destination: Destination) -> None:
        request, notes.destination = notes.request, destination
        strip_for_origin(flow.request, request.host, request.port, request.scheme)
        self.begun.setdefault(flow.client_conn.id, {})[notes.decision_id] = flow
        flow.request.stream = request.body_bytes is None or request.body_bytes > STREAM_OVER_BYTES

    def give_up(self, client: Client, why: str) -> None:
        """Close the record of all that is in progress for a client."""
        for flow in self.begun.pop(client.id, {}).values():
            if (notes := notes_of(flow)) is not None:
                self.record.close(notes, None, why, client_left=client_left(flow, why))
            self._leave(flow)

    @fail_closed
    def request(self, flow: http.HTTPFlow) -> Coroutine[Any, Any, None] | None:
        """Look at what came in one piece, before anything of its request goes to the origin."""
        notes = notes_of(flow)
        if notes is None or notes.destination is None or flow.request.stream:
            return None  # refused, or looked at as it came
        if self._last_look.is_due(notes) and (renewal := self._last_look.renewal(notes)) is not None:
            return self._renewed(flow, notes, renewal)
        self._look_through(flow, notes)
        return None

    async def _renewed(self, flow: http.HTTPFlow, notes: Notes, renewal: Coroutine[Any, Any, Routed]) -> None:
        await self.while_there(flow.client_conn, renewal, Routed(notes.decision))
        if notes.closed:  # it was given up
            flow.kill()
        else:
            self._look_through(flow, notes)

    def _look_through(self, flow: http.HTTPFlow, notes: Notes) -> None:
        answer = self._last_look.refusal(flow.request, notes, body_is_new=True)
        if answer is not None:
            notes.destination = None  # first, whatever fails then
            flow.response = to_response(answer)
            self._close(flow, notes, None, notes.refused)

    # -- answers and ends -------------------------------------------------------------------------------------------

    @fail_closed
    def responseheaders(self, flow: http.HTTPFlow) -> None:
        notes, response = notes_of(flow), flow.response
        if notes is None or response is None:
            raise RuntimeError("an answer without a verdict")
        if notes.destination is None:
            return  # our own answer
        if response.status_code == 101 and not notes.request.upgrade:
            self._close(flow, notes, 101, "the origin switched protocols unasked")
            flow.kill()
            return
        if 300 <= response.status_code < 400:
            location = response.headers.get("location", "")
            notes.redirect = self._redirects.note(location, notes.request.host, notes.decision_id)
        size = expected_http_body_size(flow.request, response)
        if size is None or size < 0 or size > STREAM_OVER_BYTES or is_event_stream(response):
            response.stream = functools.partial(
                _count_down, notes, notes.mask.stream() if notes.mask is not None else None
            )

    @fail_closed
    def response(self, flow: http.HTTPFlow) -> None:
        notes, response = notes_of(flow), flow.response
        if notes is None or notes.destination is None or response is None or flow.websocket is not None:
            return
        if not notes.uploaded:
            notes.uploaded = len(flow.request.raw_content or b"")
        if not response.stream and (content := response.raw_content):
            notes.downloaded = len(content)
            if notes.mask is not None:
                response.raw_content = notes.mask.whole(content)
        if notes.mask is not None and response.trailers:
            mask_fields(response.trailers, notes.mask)
        self._close(flow, notes, response.status_code, None)

    @fail_closed
    def error(self, flow: http.HTTPFlow) -> None:
        notes = notes_of(flow)
        if notes is not None and notes.destination is not None:
            status = flow.response.status_code if flow.response else None
            self._close(flow, notes, status, flow.error.msg if flow.error else "unknown")

    @fail_closed
    def websocket_message(self, flow: http.HTTPFlow) -> None:
        notes = notes_of(flow)
        if notes is None or notes.watch is None or flow.websocket is None:
            raise RuntimeError("a WebSocket without a verdict")
        message = flow.websocket.messages[-1]
        flow.websocket.messages.clear()  # the core would keep every message until the end
        if message.from_client:
            if notes.watch.piece(message.content, "message") is not None:
                message.drop()  # JudgedWebsocket ends the rest
        elif notes.mask is not None:
            message.content = notes.mask.whole(message.content)

    @fail_closed
    def websocket_end(self, flow: http.HTTPFlow) -> None:
        notes = notes_of(flow)
        if notes is not None:
            self._close(flow, notes, 101, None)

    def _close(self, flow: http.HTTPFlow, notes: Notes, status: int | None, error: str | None) -> None:
        self.record.close(notes, status, error, client_left=client_left(flow, error))
        if begun := self.begun.get(flow.client_conn.id):
            begun.pop(notes.decision_id, None)
        self._leave(flow)

    def _leave(self, flow: http.HTTPFlow) -> None:
        if flow.metadata.pop(_ROOM, False):
            self.turns.leave()


def _count_down(notes: Notes, mask: MaskStream | None, chunk: bytes) -> bytes | list[bytes]:
    """What of a streamed answer goes to the box; an empty chunk says that it has ended."""
    notes.downloaded += len(chunk)
    notes.touched = time.monotonic()
    if mask is None:
        return chunk
    # An empty piece would end the answer.
    return [piece] if (piece := mask.feed(chunk) if chunk else mask.end()) else []
