"""HTTP/2 from the box, with a bound on what costs its sender nothing: frames that carry nothing, heads without an end.

Pings, settings, priorities, resets, empty data and window updates are worked on and some are answered, so a flood of
them (CVE-2019-9512 and its kin, CVE-2023-44487, CVE-2024-27316) takes the time of everybody else.
"""

from __future__ import annotations

from collections.abc import Buffer
from typing import Any

import h2.config
import h2.errors
import h2.events
import h2.exceptions
import h2.stream
from hyperframe.frame import DataFrame, Frame, HeadersFrame
from mitmproxy.proxy.layers.http._http_h2 import BufferedH2Connection

from impyard.addon.limits import Limits
from impyard.addon.turns import Bucket

# A reader of a download grants a window for each frame that it takes, commonly on the stream and on the connection.
_GRANTS_PER_FRAME = 2
# A head that is a little too large is refused by itself; one that is far too large ends the connection, because its
# rest would have to be unpacked to understand what comes after it.
_UNPACKED = 4


class BoundedH2(BufferedH2Connection):
    """Raises DenialOfServiceError, which ends the connection, when the peer sends more of nothing than it may."""

    def __init__(self, config: h2.config.H2Configuration, limits: Limits) -> None:
        super().__init__(config)
        self._limits = limits
        self._nothing = Bucket(limits.control_frames, limits.control_frames_per_s)
        self.frames = 0  # received so far
        self.decoder.max_header_list_size = _UNPACKED * limits.head_bytes

    def _unfinished(self) -> list[Frame]:
        frames: list[Frame] = vars(self.incoming_buffer)["_headers_buffer"]
        return frames

    @property
    def unfinished(self) -> str:
        """What has begun and not ended: "head" for one in several frames, "rest" for a frame, or nothing."""
        return "head" if self._unfinished() else ("rest" if vars(self.incoming_buffer)["_data"] else "")

    def receive_data(self, data: Buffer) -> Any:
        found = super().receive_data(data)
        # h2 looks at what a frame says of its length only when all of it, up to 16 MiB, is there.
        head = bytes(vars(self.incoming_buffer)["_data"][:3])
        if len(head) == 3 and int.from_bytes(head, "big") > self.max_inbound_frame_size:
            raise h2.exceptions.FrameTooLargeError("a frame is longer than was agreed")
        if sum(len(vars(frame)["data"]) for frame in self._unfinished()) > self._limits.head_bytes:
            raise h2.exceptions.DenialOfServiceError("a head does not come to an end")
        return in_one_piece(found)

    def _receive_frame(self, frame: Frame) -> list[h2.events.Event]:
        self.frames += 1
        carries = isinstance(frame, HeadersFrame) or (isinstance(frame, DataFrame) and (frame.data or frame.flags))
        if not carries and not self._nothing.take():
            raise h2.exceptions.DenialOfServiceError("too many frames that carry nothing")
        try:
            received: list[h2.events.Event] = super()._receive_frame(frame)
        except h2.exceptions.InvalidBodyLengthError:
            # A client that has its answer may well stop in the middle of its body: curl does. That is no fault of the
            # connection, on which it may have other requests.
            if not isinstance(frame, DataFrame) or not self._is_answered(frame.stream_id):
                raise
            self.acknowledge_received_data(frame.flow_controlled_length, frame.stream_id)
            self.reset_stream(frame.stream_id, h2.errors.ErrorCodes.NO_ERROR)
            received = [h2.events.StreamEnded(stream_id=frame.stream_id)]
        return received

    def _is_answered(self, number: int) -> bool:
        """Whether all has been said on a stream from our side."""
        stream = self.streams.get(number)
        return stream is not None and stream.state_machine.state is h2.stream.StreamState.HALF_CLOSED_LOCAL

    def send_data(self, stream_id: int, data: Any, end_stream: bool = False, pad_length: None = None) -> None:
        self._nothing.give(_GRANTS_PER_FRAME)
        super().send_data(stream_id, data, end_stream, pad_length)


def in_one_piece(came: list[h2.events.Event]) -> list[h2.events.Event]:
    """Data frames of one stream that came together as one: each passes through all layers, which costs more than it."""
    pieces: list[h2.events.Event] = []
    for event in came:
        last = pieces[-1] if pieces else None
        if (
            isinstance(event, h2.events.DataReceived)
            and isinstance(last, h2.events.DataReceived)
            and last.stream_id == event.stream_id
        ):
            last.data += event.data
            last.flow_controlled_length += event.flow_controlled_length
            last.stream_ended = event.stream_ended
        else:
            pieces.append(event)
    return pieces
