"""Many streams at once: how much memory they take, and whether each gets its share."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator

from tests.bench import processes
from tests.bench.bed import Bed, Target
from tests.bench.client import BLOCK_BYTES, head, open_tls, read_answer
from tests.bench.plan import Plan
from tests.bench.rounds import spread
from tests.bench.table import Row

STREAMS = 64
TICKS = 100
MIB = 1 << 20
_EVENT = re.compile(rb"data: (\d+)\n\n")


def measure(plan: Plan) -> Iterator[Row]:
    """Downloads and event streams, 64 of them at once through one gateway."""
    size = max(plan.body_mib // STREAMS, 1) * MIB
    with Bed() as bed, bed.gateway() as gateway:
        _at_once(gateway, lambda: _download_s(gateway, MIB))
        for kind, what in (("first", 1), ("same again, four times as long", 4)):
            grown, took = _at_once(gateway, functools.partial(_download_s, gateway, size * what))
            yield Row(
                f"{STREAMS} downloads at once, gateway's peak memory, {kind}",
                f"+{grown:.1f} MiB",
                note=f"{size * what // MIB} MiB each; "
                f"the first ended after {min(took):.1f} s, the last {max(took):.1f} s",
            )
        grown, late = _at_once(gateway, lambda: _event_ms(gateway))
        lates = spread(late)
        yield Row(
            f"{STREAMS} event streams at once, an event under way",
            f"{lates.median:.1f} ms",
            lates.text(".1f"),
            note=f"the median of each stream's {TICKS} events; +{grown:.1f} MiB",
        )


def _at_once(gateway: Target, one: Callable[[], float]) -> tuple[float, list[float]]:
    """MiB that the gateway's peak grew by, and what each stream said."""
    said: list[float] = []
    wrong: list[OSError] = []

    def ask() -> None:
        try:
            said.append(one())
        except OSError as exc:
            wrong.append(exc)

    before = processes.forget_peak(gateway.pid)
    threads = [threading.Thread(target=ask, daemon=True) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if len(said) != STREAMS:
        raise RuntimeError(f"{STREAMS - len(said)} of {STREAMS} streams did not come to their end {wrong[:1]}")
    return (processes.peak_kib(gateway.pid) - before) / 1024, said


def _download_s(target: Target, size: int) -> float:
    with open_tls(target.way, 100) as connection:
        begin = time.perf_counter()
        connection.sendall(head(target.way, "GET", f"/bytes/{size}"))
        if read_answer(connection) != (200, size):
            raise OSError("the download went wrong")
        return time.perf_counter() - begin


def _event_ms(target: Target) -> float:
    return spread(event_delays_ms(target, TICKS)).median


def event_delays_ms(target: Target, count: int) -> list[float]:
    """For each of some events, milliseconds from the origin's sending to our reading."""
    delays: list[float] = []
    with open_tls(target.way) as connection:
        connection.sendall(head(target.way, "GET", f"/ticks/{count}"))
        rest = b""
        while len(delays) < count:
            data = connection.recv(BLOCK_BYTES)
            now = time.monotonic_ns()
            if not data:
                raise OSError("the events were cut")
            rest += data
            for found in _EVENT.finditer(rest):
                delays.append((now - int(found[1])) / 1e6)
            rest = rest.rpartition(b"\n\n")[2]
    return delays
