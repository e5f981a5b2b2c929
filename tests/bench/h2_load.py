"""The load of HTTP/2 requests, in a process of its own: `python -m tests.bench.h2_load JSON` prints what it saw.

Closed loop: each connection has `streams` requests under way. A warm-up that is not counted opens the connections.
"""

from __future__ import annotations

import json
import select
import ssl
import sys
import time
from dataclasses import asdict, dataclass, field

from hpack import Decoder

from tests.bench import h2_frames as h2
from tests.bench.client import HOST, Way, client_context, open_tls
from tests.bench.load import PATH, WARM_UP_S, Seen, Tally


@dataclass(slots=True)
class _Lane:
    connection: ssl.SSLSocket
    head: h2.RepeatedHead
    next_stream: int = 1
    sent: dict[int, float] = field(default_factory=dict)  # by stream
    buffer: bytearray = field(default_factory=bytearray)
    decoder: Decoder = field(default_factory=Decoder)

    def requests(self, count: int) -> bytes:
        """The frames of that many new requests."""
        now, out = time.perf_counter(), []
        for _ in range(count):
            out.append(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, self.next_stream, self.head.block()))
            self.sent[self.next_stream] = now
            self.next_stream += 2
        return b"".join(out)


def run(way: Way, connections: int, streams: int, seconds: float) -> Seen:
    """Keep `streams` requests under way on each of `connections` for `seconds` after the warm-up."""
    context = client_context(way, "h2")
    lanes: dict[int, _Lane] = {}
    poll = select.epoll()
    for _ in range(connections):
        connection = open_tls(way, context=context)
        if connection.selected_alpn_protocol() != "h2":
            raise OSError("the other side does not speak HTTP/2")
        lane = _Lane(connection, h2.RepeatedHead(_head(way)))
        connection.sendall(h2.PREFACE + h2.greeting() + lane.requests(streams))
        connection.setblocking(False)
        lanes[connection.fileno()] = lane
        poll.register(connection.fileno(), select.EPOLLIN)
    tally = Tally(time.perf_counter() + min(WARM_UP_S, seconds))
    end, cpu = tally.begin + seconds, 0.0
    while lanes and (now := time.perf_counter()) < end:
        if not cpu and now >= tally.begin:
            cpu = time.process_time()
        for number, _ in poll.poll(end - now):
            try:
                _advance(lanes[number], tally)
            except (OSError, ValueError) as exc:
                tally.errors.append(str(exc))
                poll.unregister(number)
                lanes.pop(number).connection.close()
    used = time.process_time() - cpu
    for lane in lanes.values():
        lane.connection.close()
    return Seen.of([tally], seconds, used)


def _head(way: Way) -> list[tuple[str, str]]:
    return [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", f"{HOST}:{way.port}"),
        (":path", PATH),
        ("user-agent", "impyard-bench"),
        ("accept", "application/json"),
        ("accept-encoding", "gzip, br"),
    ]


def _advance(lane: _Lane, tally: Tally) -> None:
    """Read what is there; for each whole answer send a request. Raises OSError when one failed."""
    while True:
        try:
            data = lane.connection.recv(65536)
        except ssl.SSLWantReadError:
            return
        if not data:
            raise OSError("the connection was closed")
        lane.buffer += data
        done, out = 0, b""
        for kind, flags, stream, payload in h2.frames(lane.buffer):
            if kind == h2.HEADERS:
                status = dict(lane.decoder.decode(h2.block_of(flags, payload), raw=True)).get(b":status")
                if status != b"200":
                    raise OSError(f"status {status!r}")
            elif kind in (h2.RST_STREAM, h2.GOAWAY):
                raise OSError(f"the proxy ended it: frame {kind}, {payload!r}")
            if kind in (h2.HEADERS, h2.DATA) and flags & h2.END_STREAM:
                tally.count(lane.sent.pop(stream), time.perf_counter())
                done += 1
            out += h2.reply(kind, flags, payload)
        if done or out:
            lane.connection.setblocking(True)
            lane.connection.sendall(out + lane.requests(done))
            lane.connection.setblocking(False)


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    print(json.dumps(asdict(run(Way(**order["way"]), order["connections"], order["streams"], order["seconds"]))))
