"""The lane in real gateways: honest clients of a busy machine are not in it, and floods are."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench import processes
from tests.bench.bed import Bed as BenchBed
from tests.gateway.conftest import POLICY, Bed
from tests.gateway.test_costly import one_byte_chunks
from tests.support.gateway import LiveGateway, read_reply
from tests.support.origin import Origin, Pki

pytestmark = pytest.mark.gateway

CONNECTIONS, STREAMS = 4, 8

# A gateway that writes a dot for each read, and a plus for each that goes through the lane.
COUNTING = """
    import asyncio, sys
    from impyard.addon import backpressure, doorconnection
    notes = open({notes!r}, "a", buffering=1)
    enter, read = backpressure.Lane.enter, backpressure.GatedReader.read
    async def counted_enter(lane):
        notes.write("+\\n")
        await enter(lane)
    async def counted_read(reader, count):
        notes.write(".\\n")
        return await read(reader, count)
    backpressure.Lane.enter, backpressure.GatedReader.read = counted_enter, counted_read
    {plant}
    from impyard.addon.__main__ import main
    sys.argv = ["x", *sys.argv[1:]]
    sys.exit(main())
"""
# As it was: what the loop did for others, while a read waited for the lock of its connection, was the read's.
OLD_CLOCK = (
    "doorconnection._EventLock.acquire = asyncio.Lock.acquire; doorconnection._EventLock.release = asyncio.Lock.release"
)
NO_LANE = "backpressure.GatedReader._is_excused = lambda *_: True"


def counting(notes: Path, plant: str = "") -> str:
    return textwrap.dedent(COUNTING).format(notes=str(notes), plant=plant)


def _share_in_lane(folder: Path, plant: str) -> tuple[float, float]:
    """The share of the reads of an HTTP/2 load that go through the lane, and its p99 by the mean, beside a hog."""
    notes = folder / "notes"
    with BenchBed() as bed, bed.gateway(fault=counting(notes, plant)) as target:
        hog = subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"])
        processes.pin(hog.pid, processes.measured_cpu())
        try:
            bed.load(target, CONNECTIONS, 0.5, kind="h2_load", streams=STREAMS)
            notes.write_text("")
            seen, _ = bed.load(target, CONNECTIONS, 2.0, kind="h2_load", streams=STREAMS)
        finally:
            hog.kill()
            hog.wait()
        assert not seen.errors and seen.per_s
    marks = notes.read_text()
    mean_ms = CONNECTIONS * STREAMS / seen.per_s * 1000
    return marks.count("+") / marks.count("."), seen.p99_ms / mean_ms


def test_an_honest_http2_load_on_a_busy_machine_does_not_go_through_the_lane(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    in_lane, late = _share_in_lane(tmp_path / "new", "")
    assert in_lane < 0.03
    assert late < 12


def test_control_with_the_work_of_others_counted_it_does(tmp_path: Path) -> None:
    in_lane, _ = _share_in_lane(tmp_path, OLD_CLOCK)
    assert in_lane > 0.04


def _answers_per_cpu_s(folder: Path, pki: Pki, flood: Callable[[Bed], None], plant: str) -> float:
    """How many requests are answered beside a flood, for each second of CPU time that the gateway takes."""
    a, plain = Origin(pki.context("a.test", "unknown-ca.test")), Origin()
    policy = POLICY.format(a=a.port, plain=plain.port, ca=pki.ca_path)
    gateway = LiveGateway(folder, policy, fault=counting(folder / "notes", plant))
    try:
        bed = Bed(gateway, a, plain, policy)
        assert gateway.get("https://a.test/pub/x").status == 200
        threads = [threading.Thread(target=flood, args=(bed,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        before, count, end = processes.cpu_s(gateway.process.pid), 0, time.monotonic() + 1.2
        while time.monotonic() < end:
            with gateway.connect() as connection:
                connection.settimeout(60)
                connection.sendall(b"GET http://plain.test/denied HTTP/1.1\r\nHost: plain.test\r\n\r\n")
                assert read_reply(connection).status == 403
            count += 1
        used = processes.cpu_s(gateway.process.pid) - before
        for thread in threads:
            thread.join(20)
        return count / max(used, 0.01)
    finally:
        gateway.stop()
        a.close()
        plain.close()


def test_a_flood_leaves_most_of_the_loop_to_others(tmp_path: Path, pki: Pki) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    beside = _answers_per_cpu_s(tmp_path / "with", pki, one_byte_chunks, "")
    control = _answers_per_cpu_s(tmp_path / "without", pki, one_byte_chunks, NO_LANE)
    assert beside > 3 * control
