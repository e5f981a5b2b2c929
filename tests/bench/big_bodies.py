"""What a big body does to the gateway's memory, and how fast it passes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench import processes
from tests.bench.bed import Bed, Target
from tests.bench.plan import Plan
from tests.bench.rounds import alternate, ratios, spread
from tests.bench.table import Row
from tests.bench.transfer import Transfer

AT_MOST_MIB = 32
ROUNDS = 3
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Body:
    """One kind of transfer. size: bytes. status: what the gateway's client must get."""

    what: str
    path: str
    size: int
    is_upload: bool
    status: int = 200


def measure(plan: Plan) -> Iterator[Row]:
    """A gateway of its own for each transfer, so that none hides behind the peak of another."""
    size = plan.body_mib * MIB
    bodies = (
        Body(f"{plan.body_mib} MiB download", f"/bytes/{size}", size, False),
        Body(f"{plan.body_mib} MiB upload", "/sink", size, True),
        Body(f"{plan.body_mib} MiB upload, denied", "/denied", size, True, 403),
    )
    with Bed() as bed:
        for number, body in enumerate(bodies):
            yield from _rows(bed, body, min(plan.rounds, ROUNDS), f"body-{number}")


def _rows(bed: Bed, body: Body, rounds: int, name: str) -> Iterator[Row]:
    grown: list[float] = []
    cpu_ms: list[float] = []

    def one(through: str) -> Transfer:
        if through == "direct":
            return _transfer(bed.direct(), body, body.status)
        with bed.gateway(f"{name}-{len(grown)}") as gateway:
            bed.load(gateway, 1, 0.1)
            before, cpu = processes.forget_peak(gateway.pid), processes.cpu_s(gateway.pid)
            result = _transfer(gateway, body, body.status)
            grown.append((processes.peak_kib(gateway.pid) - before) / 1024)
            cpu_ms.append((processes.cpu_s(gateway.pid) - cpu) * 1000 / (result.bytes / MIB or 1))
        return result

    denied = body.status != 200
    ours, *direct = alternate(["gateway"] if denied else ["gateway", "direct"], rounds, one)
    memory = spread(grown)
    yield Row(
        f"gateway's peak memory, {body.what}",
        f"+{memory.median:.1f} MiB",
        memory.text(".1f"),
        f"< {AT_MOST_MIB} MiB",
        memory.high < AT_MOST_MIB,
        f"over what it had before; {rounds} rounds, all of them count",
    )
    if denied:
        answer = spread([each.answer_s * 1000 for each in ours])
        moved = spread([each.bytes / MIB for each in ours])
        yield Row(
            "  time until the refusal is there",
            f"{answer.median:.0f} ms",
            answer.text(".0f"),
            note=f"the client sent {moved.median:.0f} MiB, then: {ours[0].ended_by or 'all was sent'}",
        )
        return
    speeds, straight = [_speed(each) for each in ours], [_speed(each) for each in direct[0]]
    of_direct = ratios(speeds, straight)
    yield Row(
        "  speed, of direct",
        f"{of_direct.median:.2f}",
        of_direct.text(".2f"),
        note=f"{spread(speeds).median:.0f} and {spread(straight).median:.0f} MiB/s; "
        f"the gateway's CPU time is {spread(cpu_ms).median:.1f} ms a MiB",
    )


def _speed(transfer: Transfer) -> float:
    return transfer.bytes / MIB / transfer.seconds


def _transfer(target: Target, body: Body, status: int) -> Transfer:
    order = {"way": target.way.as_dict(), "path": body.path, "upload": body.size if body.is_upload else 0}
    process = processes.start(processes.python("transfer", json.dumps(order)), processes.other_cpu())
    output, _ = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"the {body.what} through {target.name} failed")
    result = Transfer(**json.loads(output))
    if result.status != status or (status == 200 and result.bytes != body.size):
        raise RuntimeError(f"the {body.what} through {target.name} went wrong: {result}")
    return result
