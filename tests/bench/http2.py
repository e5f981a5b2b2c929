"""HTTP/2 requests per second on kept connections with several streams, beside a proxy that judges nothing."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench import processes
from tests.bench.bed import Bed
from tests.bench.kept_connections import compare, headroom, rate, rows
from tests.bench.plan import Plan
from tests.bench.rounds import spread
from tests.bench.table import Row

CONNECTIONS, STREAMS = 4, 8
AT_LEAST = 1.2


def measure(plan: Plan) -> Iterator[Row]:
    """Small answers, TLS on both sides, decision log written; an origin of either version of HTTP."""
    for version in ("1.1", "2"):
        label = f"HTTP/2 with {CONNECTIONS} x {STREAMS} streams, origin HTTP/{version}"
        # By default mitmdump asks the origin first, and speaks to the client what the origin speaks.
        settings = () if version == "2" else ("connection_strategy=lazy",)
        with Bed(h2=version == "2") as bed, bed.bare_mitmdump(*settings) as bare, bed.gateway() as gateway:
            targets = (gateway, bare, bed.direct()) if version == "2" else (gateway, bare)
            before = processes.cpu_s(bed.origin_pid)
            ours, theirs, *direct = compare(bed, targets, plan, CONNECTIONS, kind="h2_load", streams=STREAMS)
            yield from rows(label, "bare", AT_LEAST, ours, theirs, f"h2-{version}")
            if direct:
                yield headroom(label, ours, theirs, direct[0])
                continue
            # There is no way to ask this origin directly: what it and the load took of their processor.
            origin = (processes.cpu_s(bed.origin_pid) - before) / sum(seen.total for seen, _ in (*ours, *theirs))
            shares = [seen.own_cpu_s + origin * seen.per_s for seen, _ in ours]
            spare = spread([1 / share for share in shares])
            yield Row(
                f"  headroom of load and origin, {label}",
                f"{spare.median:.1f}x",
                spare.text(".1f"),
                ">= 2x",
                spare.median >= 2,
                f"for {spread(rate(ours)).median:.0f}/s they took {spread(shares).median:.0%} of a core",
            )
