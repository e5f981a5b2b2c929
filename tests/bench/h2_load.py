"""The load of HTTP/2 requests, in a process of its own: `python -m tests.bench.h2_load JSON` prints what it saw.

Closed loop: each connection has `streams` requests under way. A warm-up that is not counted opens the connections.
"""

from __future__ import annotations

import json
import ssl
import sys
import time
from dataclasses import asdict

from hpack import Decoder

from tests.bench import h2_frames as h2
from tests.bench.client import HOST, Way, client_context, open_tls
from tests.bench.load import PATH, Seen, Tally, drive, send


def run(way: Way, connections: int, streams: int, seconds: float) -> Seen:
    """Keep `streams` requests under way on each of `connections`, as `load.drive` does."""
    context = client_context(way, "h2")
    return drive([_Lane(open_tls(way, context=context), _head(way), streams) for _ in range(connections)], seconds)


class _Lane:
    """Some requests at once, in HTTP/2."""

    def __init__(self, connection: ssl.SSLSocket, head: list[tuple[str, str]], streams: int) -> None:
        if connection.selected_alpn_protocol() != "h2":
            raise OSError("the other side does not speak HTTP/2")
        self.connection = connection
        self._head = h2.RepeatedHead(head)
        self._next_stream = 1
        self._sent: dict[int, float] = {}  # by stream
        self._buffer = bytearray()
        self._decoder = Decoder()
        send(connection, h2.PREFACE + h2.greeting() + self._requests(streams))

    def advance(self, tally: Tally) -> None:
        while True:
            data = self.connection.recv(65536)
            if not data:
                raise OSError("the connection was closed")
            self._buffer += data
            done, out = 0, b""
            for kind, flags, stream, payload in h2.frames(self._buffer):
                if kind == h2.HEADERS:
                    status = dict(self._decoder.decode(h2.block_of(flags, payload), raw=True)).get(b":status")
                    if status != b"200":
                        raise OSError(f"status {status!r}")
                elif kind in (h2.RST_STREAM, h2.GOAWAY):
                    raise OSError(f"the proxy ended it: frame {kind}, {payload!r}")
                if kind in (h2.HEADERS, h2.DATA) and flags & h2.END_STREAM:
                    tally.count(self._sent.pop(stream), time.perf_counter())
                    done += 1
                out += h2.reply(kind, flags, payload)
            if done or out:
                send(self.connection, out + self._requests(done))

    def _requests(self, count: int) -> bytes:
        """The frames of that many new requests."""
        now, out = time.perf_counter(), []
        for _ in range(count):
            out.append(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, self._next_stream, self._head.block()))
            self._sent[self._next_stream] = now
            self._next_stream += 2
        return b"".join(out)


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


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    print(json.dumps(asdict(run(Way(**order["way"]), order["connections"], order["streams"], order["seconds"]))))
