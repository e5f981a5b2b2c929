"""Bodies read by HTTP/1, in pieces as large as what is there."""

from __future__ import annotations

from typing import Any

import h11
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import RequestData, ResponseData


class ChunkedBody:
    """Reads a chunked body: the chunks that are there in one piece, and no trailers.

    Each piece passes all layers and becomes a chunk for the other side, so chunks of one byte would keep the gateway
    busy for seconds. Trailers were judged by nobody, and mitmproxy cannot forward them.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._end: Any = None  # what came behind the piece that was handed out last
        self._fault: h11.ProtocolError | None = None

    def __call__(self, buf: Any) -> Any:
        if self._fault is not None:
            raise self._fault
        if self._end is not None:
            return self._end
        pieces = []
        try:
            while isinstance(event := self._reader(buf), h11.Data):
                pieces.append(event.data)
        except h11.ProtocolError as exc:
            if not pieces:
                raise
            self._fault, event = exc, None
        if isinstance(event, h11.EndOfMessage):
            self._end = event = h11.EndOfMessage()
        return h11.Data(data=b"".join(pieces)) if pieces else event

    def read_eof(self) -> Any:
        return self._reader.read_eof()


def joined(found: CommandGenerator[None]) -> CommandGenerator[None]:
    """The same, with what is read of a body at once in one piece: a chunk of one byte costs as much as a big one."""
    pieces: list[RequestData | ResponseData] = []
    for command in found:
        if isinstance(command, ReceiveHttp) and isinstance(command.event, RequestData | ResponseData):
            pieces.append(command.event)
            continue
        if pieces:
            yield _in_one(pieces)
            pieces = []
        yield command
    if pieces:
        yield _in_one(pieces)


def _in_one(pieces: list[RequestData | ResponseData]) -> ReceiveHttp:
    first = pieces[0]
    return ReceiveHttp(type(first)(first.stream_id, b"".join(piece.data for piece in pieces)))
