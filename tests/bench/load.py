"""The load of requests, in a process of its own: `python -m tests.bench.load JSON` prints what it saw as JSON.

Closed loop: each connection has one request under way. A warm-up that is not counted opens the connections.
"""

from __future__ import annotations

import json
import select
import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

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
class _Lane:
    connection: ssl.SSLSocket
    sent: float = 0.0
    buffer: bytes = b""


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


def run(way: Way, connections: int, seconds: float, *, body: bytes = b"", headers: str = "") -> Seen:
    """Send requests on `connections` kept connections for `seconds` after the warm-up, which is never longer.

    body: what is sent to /sink; without one /small is asked for. headers: further lines, each ending in CR LF.
    """
    request = head(way, "POST", "/sink", len(body)) if body else head(way, "GET", PATH)
    request = request.removesuffix(b"\r\n") + headers.encode() + b"\r\n" + body
    lanes: dict[int, _Lane] = {}
    poll = select.epoll()
    for _ in range(connections):
        connection = open_tls(way)
        connection.sendall(request)
        connection.setblocking(False)
        lanes[connection.fileno()] = _Lane(connection, time.perf_counter())
        poll.register(connection.fileno(), select.EPOLLIN)
    tally = Tally(time.perf_counter() + min(WARM_UP_S, seconds))
    end, cpu = tally.begin + seconds, 0.0
    while lanes and (now := time.perf_counter()) < end:
        if not cpu and now >= tally.begin:
            cpu = time.process_time()
        for number, _ in poll.poll(end - now):
            if not _advance(lanes[number], request, tally):
                poll.unregister(number)
                lanes.pop(number).connection.close()
    used = time.process_time() - cpu
    for lane in lanes.values():
        lane.connection.close()
    return Seen.of([tally], seconds, used)


def _advance(lane: _Lane, request: bytes, tally: Tally) -> bool:
    """Read what is there; after a whole answer send the next request. Whether the connection is still good."""
    try:
        data = lane.connection.recv(65536)
        if not data:
            raise OSError("the connection was closed")
        buffer = lane.buffer + data
        split = buffer.find(b"\r\n\r\n")
        if split < 0:
            lane.buffer = buffer
            return True
        status, length = parse_head(buffer[: split + 2])
        if len(buffer) - split - 4 < length:
            lane.buffer = buffer
            return True
        now = time.perf_counter()
        if status != 200:
            raise OSError(f"status {status}")
        tally.count(lane.sent, now)
        lane.buffer, lane.sent = b"", now
        lane.connection.setblocking(True)
        lane.connection.sendall(request)
        lane.connection.setblocking(False)
        return True
    except ssl.SSLWantReadError:
        return True  # a record of TLS itself
    except (OSError, ValueError) as exc:
        tally.errors.append(str(exc))
        return False


def _at(values: list[float], share: float) -> float:
    return values[int(share * (len(values) - 1))] if values else 0.0


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    whole = Path(order["body"]).read_bytes() if order.get("body") else b""
    seen = run(Way(**order["way"]), order["connections"], order["seconds"], body=whole, headers=order["headers"])
    print(json.dumps(asdict(seen)))
