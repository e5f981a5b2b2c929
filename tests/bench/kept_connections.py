"""Judged requests per second on kept connections, beside a proxy of the same kind that judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.bench.bed import Bed, Target
from tests.bench.load import Seen
from tests.bench.plan import Plan
from tests.bench.rounds import Spread, alternate, ratios, spread
from tests.bench.stored import Ratio
from tests.bench.table import Row

AT_LEAST = {1: 1.6, 16: 1.6, 64: 1.4}


def measure(plan: Plan) -> Iterator[Row]:
    """Small answers, TLS on both sides, decision log written."""
    with Bed() as bed, bed.bare_mitmdump() as bare, bed.gateway() as gateway:
        for connections in plan.connections:
            targets = (gateway, bare, bed.direct())
            ours, theirs, direct = compare(bed, targets, plan, connections)
            label = f"{connections} connection{'s' if connections > 1 else ''}"
            yield from rows(label, "bare", AT_LEAST.get(connections, 1.4), ours, theirs, f"kept-{connections}")
            yield headroom(label, ours, theirs, direct)


Results = Sequence[tuple[Seen, float]]


def compare(
    bed: Bed, targets: Sequence[Target], plan: Plan, connections: int, *, kind: str = "load", streams: int = 1
) -> list[list[tuple[Seen, float]]]:
    """Alternating loads through each target. Raises RuntimeError when a request fails: a denial would be fast."""

    def one(target: Target) -> tuple[Seen, float]:
        for longer in (1, 4, 16):  # a busy machine may answer nothing in a short time
            seen, cpu = bed.load(target, connections, plan.seconds * longer, kind=kind, streams=streams)
            if seen.errors or seen.per_s:
                break
        if seen.errors or not seen.per_s:
            raise RuntimeError(f"{target.name}: {seen.errors} failed requests, {seen.first_error or 'no answer'}")
        return seen, cpu

    for target in targets:
        bed.load(
            target, connections, min(plan.seconds, 0.5), kind=kind, streams=streams
        )  # caches, connections, certificates
    return alternate(targets, plan.rounds, one)


def rows(label: str, other: str, at_least: float, ours: Results, theirs: Results, name: str = "") -> Iterator[Row]:
    """The comparison by the clock, and by CPU time, which other work on the machine disturbs less; its best rounds
    the least. name: under which the ratio is stored, "" for one that is not."""
    by_clock = ratios(rate(ours), rate(theirs))
    yield Row(
        f"judged requests/s of {other}, {label}",
        f"{by_clock.median:.2f}",
        by_clock.text(".2f"),
        f">= {at_least:.2f}",
        by_clock.median >= at_least,
        f"{spread(rate(ours)).median:.0f}/s and {spread(rate(theirs)).median:.0f}/s; "
        f"median answer {delay(ours).median:.2f} and {delay(theirs).median:.2f} ms",
        Ratio(name, by_clock.median) if name else None,
    )
    by_cpu = ratios(cpu_us(theirs), cpu_us(ours))
    yield Row(
        f"  the same by CPU time, {label}",
        f"{by_cpu.median:.2f}",
        by_cpu.text(".2f"),
        note=f"{spread(cpu_us(ours)).median:.0f} and {spread(cpu_us(theirs)).median:.0f} us a request; "
        f"best rounds {min(cpu_us(ours)):.0f} and {min(cpu_us(theirs)):.0f} us, "
        f"ratio {min(cpu_us(theirs)) / min(cpu_us(ours)):.2f}",
    )


def headroom(label: str, ours: Results, theirs: Results, direct: Results) -> Row:
    """How much more load and origin could do than was asked of them."""
    spare = spread([d / max(o, t) for d, o, t in zip(rate(direct), rate(ours), rate(theirs), strict=True)])
    busy, straight = spread([seen.own_cpu_s for seen, _ in ours]), spread(rate(direct))
    return Row(
        f"  headroom of load and origin, {label}",
        f"{spare.median:.1f}x",
        spare.text(".1f"),
        ">= 2x",
        spare.median >= 2,
        f"straight to the origin {straight.median:.0f}/s; the load took {busy.median:.0%} of a core",
    )


def rate(results: Results) -> list[float]:
    return [seen.per_s for seen, _ in results]


def delay(results: Results) -> Spread:
    return spread([seen.median_ms for seen, _ in results])


def cpu_us(results: Results) -> list[float]:
    """Microseconds of the proxy's CPU time for each request."""
    return [max(cpu, 0.01) / seen.total * 1e6 for seen, cpu in results]
