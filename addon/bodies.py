"""Bodies read by HTTP/1, in pieces as large as what is there."""

from __future__ import annotations

from typing import Any

import h11
from h11._readers import ContentLengthReader
from mitmproxy.proxy import events
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import RequestData, ResponseData
from mitmproxy.proxy.layers.http._http1 import Http1Connection


class KnownLength(ContentLengthReader):
    """Reads a body whose length is known."""

    def is_inside(self, size: int) -> bool:
        """Whether the next `size` bytes are of the body and more of it follows; they count as read then."""
        if not 0 < size < self._remaining:
            return False
        self._remaining -= size
        return True


def straight(end: Http1Connection, event: events.Event) -> ReceiveHttp | None:
    """What came, as it came, when all of it is from inside of a body of known length: nothing is to be parsed there.

    None when a parser has to look, by way of a buffer: three copies, and a dozen calls.
    """
    if (
        isinstance(event, events.DataReceived)
        and end.state == end.read_body
        and isinstance(end.body_reader, KnownLength)
        and not end.buf
        and end.body_reader.is_inside(len(event.data))
    ):
        assert end.stream_id is not None
        return ReceiveHttp(end.ReceiveData(end.stream_id, event.data))
    return None


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
