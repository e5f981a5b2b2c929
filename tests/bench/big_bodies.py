"""What a big body does to the gateway's memory, and how fast it passes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.bench import keys, processes, squid
from tests.bench.bed import Bed, Target
from tests.bench.client import BLOCK_BYTES, head, open_tls
from tests.bench.plan import Plan
from tests.bench.rounds import alternate, ratios, spread
from tests.bench.stored import Ratio
from tests.bench.table import Row
from tests.bench.transfer import Transfer

AT_MOST_MIB = 16
OF_DIRECT = 0.45  # or what squid with ssl_bump reaches, where that is more
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
        Body(f"{plan.body_mib} MiB upload, answered early", "/early", size, True, 413),
    )
    with Bed() as bed:
        for number, body in enumerate(bodies):
            yield from _rows(bed, body, min(plan.rounds, ROUNDS), f"body-{number}")
        yield from _left(bed, bodies[0])
        yield from _keyed(bed, bodies[:2], min(plan.rounds, ROUNDS))


def _rows(bed: Bed, body: Body, rounds: int, name: str) -> Iterator[Row]:
    grown: list[float] = []
    cpu_ms: list[float] = []

    def one(through: str) -> Transfer:
        if through == "direct":
            return _transfer(bed.direct(), body, body.status)
        if through == "squid":
            with squid.squid_target(bed) as target:
                return _transfer(target, body, status=0)  # it ends some long uploads in the middle
        with bed.gateway(f"{name}-{len(grown)}") as gateway:
            bed.load(gateway, 1, 0.1)
            before, cpu = processes.forget_peak(gateway.pid), processes.cpu_s(gateway.pid)
            result = _transfer(gateway, body, body.status)
            grown.append((processes.peak_kib(gateway.pid) - before) / 1024)
            cpu_ms.append((processes.cpu_s(gateway.pid) - cpu) * 1000 / (result.bytes / MIB or 1))
        return result

    refused = body.status != 200
    others = [] if refused else ["direct", *(["squid"] if squid.installed() else [])]
    ours, *theirs = alternate(["gateway", *others], rounds, one)
    memory = spread(grown)
    yield Row(
        f"gateway's peak memory, {body.what}",
        f"+{memory.median:.1f} MiB",
        memory.text(".1f"),
        f"< {AT_MOST_MIB} MiB",
        memory.high < AT_MOST_MIB,
        f"over what it had before; {rounds} rounds, all of them count",
    )
    if refused:
        answer = spread([each.answer_s * 1000 for each in ours])
        moved = spread([each.bytes / MIB for each in ours])
        yield Row(
            "  time until the answer is there",
            f"{answer.median:.0f} ms",
            answer.text(".0f"),
            note=f"the client sent {moved.median:.0f} MiB, then: {ours[0].ended_by or 'all was sent'}",
        )
        return
    speeds, straight = [_speed(each) for each in ours], [_speed(each) for each in theirs[0]]
    of_direct = ratios(speeds, straight)
    target = OF_DIRECT
    note = f"{spread(speeds).median:.0f} and {spread(straight).median:.0f} MiB/s; "
    if len(theirs) > 1:
        of_squid = ratios([_speed(each) for each in theirs[1]], straight)
        target = max(target, of_squid.median)
        cut = sum(each.bytes < body.size for each in theirs[1])
        note += f"squid {of_squid.median:.2f} of direct{f', and cut {cut} of {rounds}' if cut else ''}; "
    yield Row(
        "  speed, of direct",
        f"{of_direct.median:.2f}",
        of_direct.text(".2f"),
        f">= {target:.2f}",
        of_direct.median >= target,
        f"{note}the gateway's CPU time is {spread(cpu_ms).median:.1f} ms a MiB",
        Ratio(f"bodies-{'up' if body.is_upload else 'down'}", of_direct.median),
    )


def _left(bed: Bed, body: Body) -> Iterator[Row]:
    """A client that leaves in the middle of a download: how long until the gateway is done with it."""
    with bed.gateway("left") as target:
        assert target.gateway is not None
        bed.load(target, 1, 0.1)
        known = len(target.gateway.outcomes(1))
        before = processes.forget_peak(target.pid)
        with open_tls(target.way) as connection:
            connection.sendall(head(target.way, "GET", body.path))
            read = 0
            while read < body.size // 2:
                read += len(connection.recv(BLOCK_BYTES)) or int(body.size)
        begin = time.perf_counter()
        target.gateway.outcomes(known + 1)
        took = time.perf_counter() - begin
        grown = (processes.peak_kib(target.pid) - before) / 1024
    yield Row(
        f"client leaves in the middle of a {body.what}",
        f"{took * 1000:.0f} ms",
        note=f"until its outcome is in the log; peak memory +{grown:.1f} MiB",
    )


def _keyed(bed: Bed, bodies: Iterable[Body], rounds: int) -> Iterator[Row]:
    """The same beside a gateway that puts a credential on, masks answers, and looks for twelve values in bodies."""
    with (
        bed.gateway("no-keys") as plain,
        bed.gateway("keys", inject="anthropic", more=keys.OTHERS, credentials=keys.credentials()) as keyed,
    ):
        assert keyed.gateway is not None
        plain.headers = keyed.headers = f"x-api-key: {keyed.gateway.sentinel('anthropic').key}\r\n"
        for body in bodies:
            cpu_ms: dict[str, list[float]] = {plain.name: [], keyed.name: []}

            def one(target: Target, body: Body = body, cpu_ms: dict[str, list[float]] = cpu_ms) -> Transfer:
                cpu = processes.cpu_s(target.pid)
                result = _transfer(target, body, body.status)
                cpu_ms[target.name].append((processes.cpu_s(target.pid) - cpu) * 1000 / (body.size / MIB))
                return result

            with_keys, without = alternate([keyed, plain], rounds, one)
            if keyed.gateway.decisions()[-1].get("injected") != ["x-api-key"]:
                raise RuntimeError("nothing was injected")
            of_plain = ratios([_speed(each) for each in with_keys], [_speed(each) for each in without])
            more = spread(cpu_ms[keyed.name]).median, spread(cpu_ms[plain.name]).median
            yield Row(
                f"{body.what} with credentials: speed, of that without",
                f"{of_plain.median:.2f}",
                of_plain.text(".2f"),
                note=f"CPU time {more[0]:.1f} and {more[1]:.1f} ms a MiB; ten credentials, one of them put on",
                ratio=Ratio(f"bodies-{'up' if body.is_upload else 'down'}-keys", of_plain.median),
            )


def _speed(transfer: Transfer) -> float:
    return transfer.bytes / MIB / transfer.seconds


def _transfer(target: Target, body: Body, status: int) -> Transfer:
    """status: what the answer must have; 0 for whatever comes of it."""
    size = body.size if body.is_upload else 0
    order = {"way": target.way.as_dict(), "path": body.path, "upload": size, "headers": target.headers}
    process = processes.start(processes.python("transfer", json.dumps(order)), processes.other_cpu())
    output = processes.said(process, 600)
    if process.returncode:
        raise RuntimeError(f"the {body.what} through {target.name} failed")
    result = Transfer(**json.loads(output))
    if status and (result.status != status or (status == 200 and result.bytes != body.size)):
        raise RuntimeError(f"the {body.what} through {target.name} went wrong: {result}")
    return result
