"""How long a server-sent event is under way, while the origin holds back the next one."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator

from tests.bench.bed import Bed, Target
from tests.bench.client import head, open_tls, read_answer
from tests.bench.many_streams import event_delays_ms
from tests.bench.origin import HELD_BACK_S
from tests.bench.plan import Plan
from tests.bench.rounds import alternate, spread
from tests.bench.table import Row

# What the gateway may add.
FIRST_MS, FURTHER_MS = 5.0, 1.0
TICKS = 50
_EVENT = re.compile(rb"data: (\d+)\n\n")


def measure(plan: Plan) -> Iterator[Row]:
    """The first event's delay by the clock of this machine, through a gateway, bare mitmdump and directly."""
    with Bed() as bed, bed.gateway() as gateway, bed.bare_mitmdump() as bare:
        direct = bed.direct()

        def delay(target: Target) -> float:
            return first_event_ms(target, direct)

        delay(gateway)
        ours, straight = alternate([gateway, direct], plan.rounds, delay)
        theirs = first_event_ms(bare, direct)
        later, straight_later = alternate([gateway, direct], min(plan.rounds, 5), _later_ms)
    in_time = all(ms < HELD_BACK_S * 1000 for ms in ours)
    yield Row(
        "first server-sent event, ms under way",
        f"{spread(ours).median:.1f}",
        spread(ours).text(".1f"),
        "before the 2nd",
        in_time,
        f"directly {spread(straight).median:.1f} ms; bare mitmdump {theirs:.0f} ms, with the second event",
    )
    for what, more, most in (
        ("first event, more than direct", [a - b for a, b in zip(ours, straight, strict=True)], FIRST_MS),
        ("each further event", [a - b for a, b in zip(later, straight_later, strict=True)], FURTHER_MS),
    ):
        found = spread(more)
        yield Row(f"  {what}", f"{found.median:.2f} ms", found.text(".2f"), f"<= {most:.0f} ms", found.median <= most)


def _later_ms(target: Target) -> float:
    """Milliseconds that an event of a running stream is under way; the median of some."""
    return spread(event_delays_ms(target, TICKS)[1:]).median


def first_event_ms(target: Target, direct: Target) -> float:
    """Milliseconds from the origin's sending to our reading. Only then is the second event let go."""
    with open_tls(target.way) as connection:
        connection.sendall(head(target.way, "GET", "/events"))
        sent, read = _event(connection)
        with open_tls(direct.way) as other:
            other.sendall(head(direct.way, "GET", "/release"))
            read_answer(other)
        while connection.recv(65536):
            if connection.pending() == 0:
                break
    return (read - sent) / 1e6


def _event(connection: ssl.SSLSocket) -> tuple[int, int]:
    buffer = b""
    while not (found := _EVENT.search(buffer)):
        data = connection.recv(65536)
        if not data:
            raise OSError("no event came")
        buffer += data
    return int(found[1]), time.monotonic_ns()
