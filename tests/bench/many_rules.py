"""What the number of rules on one host costs."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.bed import Bed
from tests.bench.kept_connections import compare, rows
from tests.bench.plan import Plan
from tests.bench.table import Row

FEW = 20
AT_LEAST = 0.95


def measure(plan: Plan) -> Iterator[Row]:
    """Two gateways of which one has many rules; the rule that allows is the first of them."""
    with Bed() as bed, bed.gateway("few", rules=FEW) as few, bed.gateway("many", rules=plan.rules) as many:
        connections = plan.connections[-1]
        with_many, with_few = compare(bed, (many, few), plan, connections)
        label = f"{plan.rules} rules on one host, {connections} connections"
        yield from rows(label, f"{FEW} rules", AT_LEAST, with_many, with_few, "rules")
