"""How long a policy of many rules takes to load, and whom a hot reload of it holds up."""

from __future__ import annotations

import gc
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from impyard.addon.policy import read_policy
from tests.bench import processes
from tests.bench.bed import Bed, Target
from tests.bench.plan import Plan
from tests.bench.rounds import alternate, ratios, spread
from tests.bench.stored import Ratio
from tests.bench.table import Row

LOAD_MS = 500.0
STALL_MS = 20.0
IN_FORCE_S = 10.0
_WINDOWS = 3
_RELOADS = 2  # in each of them


def loading(texts: dict[str, bytes], plan: Plan) -> Iterator[Row]:
    """One row for each policy. What is stored is how many times as long as the parsing of its YAML alone it takes."""
    for name, text in texts.items():

        def load(text: bytes = text) -> object:
            return read_policy([(Path("gateway.yaml"), text)])

        def parse(text: bytes = text) -> object:
            return yaml.compose(text, Loader=yaml.CSafeLoader)

        whole, yaml_alone = alternate([load, parse], plan.rounds, _cpu_ms)
        took, parsed, times = spread(whole), spread(yaml_alone), ratios(whole, yaml_alone)
        yield Row(
            f"loading {name}, ms of CPU time",
            f"{took.median:.0f}",
            took.text(".0f"),
            f"<= {LOAD_MS:.0f} ms",
            took.median <= LOAD_MS,
            f"{times.median:.1f} times as long as parsing {len(text) >> 10} KiB of YAML, {parsed.median:.0f} ms",
            Ratio(f"rules-load-{name.rpartition(' ')[2]}", times.median, more=False),
        )


def _cpu_ms(work: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        work()
        return (time.process_time() - began) * 1000
    finally:
        gc.enable()


def reloading(bed: Bed, target: Target, plan: Plan) -> Iterator[Row]:
    """The latest answer to one steady client while the policy is replaced, over the latest while it is not."""
    for anew in (False, True):
        usual, at_rest, late = [], [], []
        for _ in range(min(plan.rounds, _WINDOWS)):
            quiet, busy = _delays(bed, target, plan, anew, 0), _delays(bed, target, plan, anew, _RELOADS)
            usual.append(statistics.median(quiet))
            at_rest.append(max(quiet))
            late.append(max(busy))
        more = spread([a - b for a, b in zip(late, at_rest, strict=True)])
        yield Row(
            f"stall by a reload, {'a connection for each request' if anew else 'kept connection'}, ms",
            f"{more.median:.1f}",
            more.text(".1f"),
            f"<= {STALL_MS:.0f} ms",
            more.median <= STALL_MS,
            f"latest answer {spread(late).median:.1f} ms, without a reload {spread(at_rest).median:.1f}, "
            f"the median one {spread(usual).median:.1f}",
        )


def _delays(bed: Bed, target: Target, plan: Plan, anew: bool, reloads: int) -> list[float]:
    """The delays of a window in which the policy is replaced so often. Raises RuntimeError when one is not loaded."""
    assert target.gateway is not None
    seconds = plan.seconds * 3
    order = json.dumps({"way": target.way.as_dict(), "seconds": seconds, "anew": anew})
    process = processes.start(processes.python("steady", order), processes.other_cpu())
    file = target.gateway.policy_path
    try:
        for number in range(reloads):
            time.sleep(seconds / (reloads + 1))
            new = file.with_name("new.yaml")
            new.write_bytes(file.read_bytes() + b"# %d\n" % number)
            new.rename(file)
        output = processes.said(process, seconds + 60)
    finally:
        processes.stop(process)
    if process.returncode:
        raise RuntimeError("a request failed while the policy was loaded again")
    in_force = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    deadline = time.monotonic() + IN_FORCE_S
    while reloads and bed.load(target, 1, 0.1) and target.gateway.decisions()[-1]["policy"] != in_force:
        if time.monotonic() > deadline:
            raise RuntimeError("the policy was not loaded again")
    delays: list[float] = json.loads(output)
    return delays
