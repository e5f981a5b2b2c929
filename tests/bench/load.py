"""The load of requests, in a process of its own: `python -m tests.bench.load JSON` prints what it saw as JSON.

Closed loop: each connection has one request under way. A warm-up that is not counted opens the connections.
"""

from __future__ import annotations

import json
import select
import ssl
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from tests.bench.client import Way, head, open_tls, parse_head

PATH = "/small"
WARM_UP_S = 0.3


@dataclass(slots=True)
class Seen:
    """What a load saw. per_s: answers with status 200 per second in the window; total: those of the warm-up too.

    own_cpu_s: CPU time of this process per second of the window. errors: other answers, and connections that ended.
    """

    per_s: float = 0.0
    total: int = 0
    errors: int = 0
    median_ms: float = 0.0
    p99_ms: float = 0.0
    own_cpu_s: float = 0.0
    first_error: str = ""

    @classmethod
    def of(cls, tallies: Sequence[Tally], seconds: float, own_cpu_s: float) -> Seen:
        """What several parts of one load have seen together in its window."""
        delays = sorted(delay for tally in tallies for delay in tally.delays)
        errors = [error for tally in tallies for error in tally.errors]
        return cls(
            per_s=sum(tally.counted for tally in tallies) / seconds,
            total=sum(tally.total for tally in tallies),
            errors=len(errors),
            median_ms=_at(delays, 0.5),
            p99_ms=_at(delays, 0.99),
            own_cpu_s=own_cpu_s / seconds,
            first_error=errors[0] if errors else "",
        )


@dataclass(slots=True)
class Tally:
    """What one part of a load has seen. begin: when the warm-up ends, by time.perf_counter."""

    begin: float
    counted: int = 0
    total: int = 0
    errors: list[str] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)

    def count(self, sent: float, now: float) -> None:
        """An answer with status 200 to what was sent then is there."""
        self.total += 1
        if now >= self.begin:
            self.counted += 1
            self.delays.append((now - sent) * 1000)


class Lane(Protocol):
    """A connection that has its first requests under way, and does not block."""

    @property
    def connection(self) -> ssl.SSLSocket: ...

    def advance(self, tally: Tally) -> None:
        """Read what is there; after each whole answer send the next request. Raises OSError or ValueError for any other
        answer, and SSLWantReadError when there was only a record of TLS itself."""


def drive(lanes: Iterable[Lane], seconds: float) -> Seen:
    """Keep the lanes busy for `seconds` after the warm-up, which is never longer, and close them."""
    open_lanes = {lane.connection.fileno(): lane for lane in lanes}
    poll = select.epoll()
    for number in open_lanes:
        poll.register(number, select.EPOLLIN)
    tally = Tally(time.perf_counter() + min(WARM_UP_S, seconds))
    end, cpu = tally.begin + seconds, 0.0
    while open_lanes and (now := time.perf_counter()) < end:
        if not cpu and now >= tally.begin:
            cpu = time.process_time()
        for number, _ in poll.poll(end - now):
            try:
                open_lanes[number].advance(tally)
            except ssl.SSLWantReadError:
                continue
            except (OSError, ValueError) as exc:
                tally.errors.append(str(exc))
                poll.unregister(number)
                open_lanes.pop(number).connection.close()
    used = time.process_time() - cpu
    poll.close()
    for lane in open_lanes.values():
        lane.connection.close()
    return Seen.of([tally], seconds, used)


def send(connection: ssl.SSLSocket, data: bytes) -> None:
    """All of `data`, however long that takes, on a connection that does not block otherwise."""
    connection.setblocking(True)
    connection.sendall(data)
    connection.setblocking(False)


def run(way: Way, connections: int, seconds: float, *, body: bytes = b"", headers: str = "") -> Seen:
    """Send requests on `connections` kept connections, as `drive` does.

    body: what is sent to /sink; without one /small is asked for. headers: further lines, each ending in CR LF.
    """
    request = head(way, "POST", "/sink", len(body)) if body else head(way, "GET", PATH)
    request = request.removesuffix(b"\r\n") + headers.encode() + b"\r\n" + body
    return drive([_Lane(open_tls(way), request) for _ in range(connections)], seconds)


class _Lane:
    """One request after the other, in HTTP/1.1."""

    def __init__(self, connection: ssl.SSLSocket, request: bytes) -> None:
        self.connection = connection
        self._request = request
        self._buffer = b""
        send(connection, request)
        self._sent = time.perf_counter()

    def advance(self, tally: Tally) -> None:
        data = self.connection.recv(65536)
        if not data:
            raise OSError("the connection was closed")
        buffer = self._buffer + data
        split = buffer.find(b"\r\n\r\n")
        if split < 0:
            self._buffer = buffer
            return
        status, length = parse_head(buffer[: split + 2])
        if len(buffer) - split - 4 < length:
            self._buffer = buffer
            return
        now = time.perf_counter()
        if status != 200:
            raise OSError(f"status {status}")
        tally.count(self._sent, now)
        self._buffer, self._sent = b"", now
        send(self.connection, self._request)


def _at(values: list[float], share: float) -> float:
    return values[int(share * (len(values) - 1))] if values else 0.0


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    whole = Path(order["body"]).read_bytes() if order.get("body") else b""
    seen = run(Way(**order["way"]), order["connections"], order["seconds"], body=whole, headers=order["headers"])
    print(json.dumps(asdict(seen)))
