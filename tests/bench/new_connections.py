"""New connections per second (CONNECT, TLS on both sides, one small answer, close), beside a proxy that judges nothing.

Each product uses the keys that it makes by itself: mitmdump an RSA key for its authority and all certificates, impyard
EC keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.bed import Bed
from tests.bench.kept_connections import compare, headroom, rows
from tests.bench.plan import Plan
from tests.bench.table import Row

AT_ONCE = (1, 16)
AT_LEAST = 1.4


def measure(plan: Plan) -> Iterator[Row]:
    """One host, no TLS session resumed by the load, decision log written."""
    with Bed() as bed, bed.bare_mitmdump() as bare, bed.gateway() as gateway:
        for at_once in AT_ONCE:
            label = f"{at_once} new connection{'s' if at_once > 1 else ''} at a time"
            ours, theirs, direct = compare(bed, (gateway, bare, bed.direct()), plan, at_once, kind="new_load")
            yield from rows(label, "bare", AT_LEAST, ours, theirs, f"new-{at_once}")
            yield headroom(label, ours, theirs, direct)
