"""What the number of rules costs, where they stand, and how long they take to load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from impyard.addon.judge import judge
from impyard.addon.policy import Policy, read_policy
from impyard.addon.request import Request
from tests.bench import policy_loading
from tests.bench.bed import Bed
from tests.bench.kept_connections import compare, rows
from tests.bench.plan import Plan
from tests.bench.rounds import alternate, spread
from tests.bench.table import Row

FEW = 20
EACH = 10  # rules of a host, of many hosts
AT_LEAST = 0.97


def measure(plan: Plan) -> Iterator[Row]:
    """Three gateways of which two have many rules; the rule that allows is the first of its host."""
    many = plan.rules
    with (
        Bed() as bed,
        bed.gateway("few", rules=FEW) as few,
        bed.gateway("one", rules=many) as one,
        bed.gateway("hosts", rules=EACH, more=_hosts(many // EACH - 1)) as hosts,
    ):
        connections = plan.connections[-1]
        on_one, with_few, on_hosts = compare(bed, (one, few, hosts), plan, connections)
        label = f"{many} rules on one host, {connections} connections"
        yield from rows(label, f"{FEW} rules", AT_LEAST, on_one, with_few, "rules")
        label = f"{many} rules over {many // EACH} hosts, {connections} connections"
        yield from rows(label, f"{FEW} rules", AT_LEAST, on_hosts, with_few, "rules-hosts")
        yield from _places(plan)
        texts = {}
        for name, target in (("one-host", one), ("many-hosts", hosts)):
            assert target.gateway is not None
            texts[f"{many} rules, {name}"] = target.gateway.policy_path.read_bytes()
        yield from policy_loading.loading(texts, plan)
        yield from policy_loading.reloading(bed, one, plan)


def _hosts(count: int) -> str:
    return "".join(
        f"  - host: h{host}.example.org\n    policies:\n"
        + "".join(
            f"      - {{action: ALLOW, method: GET, path: '/v{n % 7}/(users|repos|orgs)/[^/]+/item{host}-{n}(/.*)?'}}\n"
            for n in range(EACH)
        )
        for host in range(count)
    )


def _places(plan: Plan) -> Iterator[Row]:
    """The judge alone: one request that the first rule, the last one or none is about; and where none can be told apart
    by how it begins, so that all of them have to be asked."""
    few, many = _policy(FEW, "/v{}/item"), _policy(plan.rules, "/v{}/item")
    alike = _policy(plan.rules, "/[a-z0-9]+/item")
    last = plan.rules - 1
    asked = {
        f"the first of {FEW} rules": (few, "/v0/item0"),
        f"the first of {plan.rules}": (many, "/v0/item0"),
        f"the last of {plan.rules}": (many, f"/v{last % 7}/item{last}"),
        f"the last of {plan.rules} that begin alike": (alike, f"/v0/item{last}"),
        f"none of {FEW}": (few, "/v0/other"),
        f"none of {plan.rules}": (many, "/v0/other"),
    }
    results = alternate(list(asked.values()), plan.rounds, lambda each: _judge_us(*each, plan))
    for name, found in zip(asked, results, strict=True):
        took = spread(found)
        yield Row(f"  the judge alone, us, {name}", f"{took.median:.1f}", took.text(".1f"))


def _policy(rules: int, begin: str) -> Policy:
    lines = (f"      - {{action: ALLOW, method: GET, path: '{begin.format(n % 7)}{n}(/.*)?'}}\n" for n in range(rules))
    text = "networkPolicies:\n  - host: a.test\n    policies:\n" + "".join(lines)
    return read_policy([(Path("gateway.yaml"), text.encode())])


def _judge_us(policy: Policy, path: str, plan: Plan) -> float:
    request = Request("GET", "https", "a.test", 443, path, host_header="a.test")
    judge(request, policy)  # RE2 makes its states as it needs them
    count = int(2000 * plan.seconds)
    began = time.process_time()
    for _ in range(count):
        judge(request, policy)
    return (time.process_time() - began) / count * 1e6
