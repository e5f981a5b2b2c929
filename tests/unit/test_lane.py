"""Which reads go through the lane: those whose bytes cost much and are no requests."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from impyard.addon.backpressure import Gate, GatedReader, Lane, note_cancelled, note_message, note_unopened
from impyard.addon.limits import DEFAULTS, Limits


async def _waits_for_the_lane(messages: int, cpu_s: float, cancelled: int = 0) -> bool:
    """Whether a reader has to wait for a lane that is taken, after a read that began `messages`, of which or of earlier
    ones so many were `cancelled`, and took that long."""
    here, there = socket.socketpair()
    with here, there:
        stream, gate, lane = asyncio.StreamReader(), Gate(), Lane()
        reader = GatedReader(stream, gate, lane, here.fileno(), lambda: None)
        stream.feed_data(b"x" * 100)
        await reader.read(100)
        for _ in range(messages):
            note_message(gate)
        for _ in range(cancelled):
            note_cancelled(gate)
        _work(cpu_s)
        reader.done()
        await lane.enter()  # somebody else is in there
        stream.feed_data(b"x" * 100)
        return await _stands(reader)


@pytest.mark.parametrize(
    ("messages", "cpu_s", "waits"),
    [(0, 0.02, True), (1, 0.02, True), (8, 0.01, False), (8, 0.03, True), (0, 0.0, False)],
    ids=["bytes of nothing", "one costly request", "several requests", "several costly requests", "cheap bytes"],
)
def test_what_several_requests_cost_is_no_reason_to_wait(messages: int, cpu_s: float, waits: bool) -> None:
    assert asyncio.run(_waits_for_the_lane(messages, cpu_s)) is waits


async def _waits_after(heads: int, limits: Limits = DEFAULTS) -> bool:
    """Whether a reader still has to wait for the lane, after a costly read and then cheap ones, some with a head."""
    here, there = socket.socketpair()
    with here, there:
        stream, gate, lane = asyncio.StreamReader(), Gate(), Lane(limits)
        reader = GatedReader(stream, gate, lane, here.fileno(), lambda: None)
        for number in range(5):
            stream.feed_data(b"x" * 10)
            await reader.read(100)
            _work(0.0 if number else 0.02)
            gate.messages += bool(0 < number <= heads)
            reader.done()
        await lane.enter()  # somebody else is in there
        stream.feed_data(b"x" * 10)
        return await _stands(reader)


@pytest.mark.parametrize(("heads", "waits"), [(0, True), (1, False), (4, False)])
def test_after_a_costly_read_one_cheap_request_of_any_size_leaves_the_lane(heads: int, waits: bool) -> None:
    assert asyncio.run(_waits_after(heads)) is waits


def test_no_more_requests_count_than_may_be_decided() -> None:
    assert asyncio.run(_waits_after(4, Limits(decisions=0, decisions_per_s=1)))


async def _waits_after_records(opened: bool) -> bool:
    """The same after a costly read and then cheap ones: of whole records of TLS, or of parts of one."""
    here, there = socket.socketpair()
    with here, there:
        stream, gate, lane = asyncio.StreamReader(), Gate(), Lane()
        reader = GatedReader(stream, gate, lane, here.fileno(), lambda: None)
        for number in range(6):
            stream.feed_data(b"x" * 10_000)
            await reader.read(100)
            _work(0.0 if number else 0.02)
            if number and not opened:
                note_unopened(gate)
            reader.done()
        await lane.enter()  # somebody else is in there
        stream.feed_data(b"x" * 100)
        return await _stands(reader)


@pytest.mark.parametrize(("opened", "waits"), [(True, False), (False, True)], ids=["whole records", "parts of one"])
def test_a_part_of_a_record_says_nothing_about_what_is_in_it(opened: bool, waits: bool) -> None:
    assert asyncio.run(_waits_after_records(opened)) is waits


async def _sizes_of_reads(parts: int) -> list[int]:
    """How much is read at once while records of TLS come in so many parts or more."""
    here, there = socket.socketpair()
    sizes = []
    with here, there:
        stream, gate = asyncio.StreamReader(limit=1 << 20), Gate()
        reader = GatedReader(stream, gate, Lane(), here.fileno(), lambda: None)
        for _ in range(parts):
            stream.feed_data(b"x" * 200_000)
            sizes.append(len(await reader.read(1 << 20)))
            note_unopened(gate)
            reader.done()
    return sizes


def test_reads_grow_unseen_up_to_one_record() -> None:
    sizes = asyncio.run(_sizes_of_reads(10))
    assert sizes[0] < 4096 and 16 * 1024 < sizes[-1] < 17 * 1024


def test_a_request_that_was_cancelled_excuses_nothing() -> None:
    waits = [asyncio.run(_waits_for_the_lane(8, 0.01, cancelled)) for cancelled in (0, 8, 12)]
    assert waits == [False, True, True]


async def _waits_after_work(others_s: float, own_s: float, aside_s: float) -> bool:
    """The same after a read that the loop came to only after that much work of others, and of its client's hooks."""
    here, there = socket.socketpair()
    with here, there:
        stream, lane, aside = asyncio.StreamReader(), Lane(), [1.0]
        reader = GatedReader(stream, Gate(), lane, here.fileno(), lambda: None, lambda: aside[0])
        stream.feed_data(b"x" * 100)
        await reader.read(100)
        _work(others_s)
        aside[0] += aside_s
        reader.begin()
        _work(own_s)
        reader.done()
        await lane.enter()  # somebody else is in there
        stream.feed_data(b"x" * 100)
        return await _stands(reader)


@pytest.mark.parametrize(
    ("others_s", "own_s", "aside_s", "waits"),
    [(0.02, 0.0, 0.0, False), (0.0, 0.02, 0.0, True), (0.0, 0.0, 0.02, True)],
    ids=["others", "its own", "behind its hooks"],
)
def test_what_a_read_costs_is_its_own_work(others_s: float, own_s: float, aside_s: float, waits: bool) -> None:
    assert asyncio.run(_waits_after_work(others_s, own_s, aside_s)) is waits


def _work(cpu_s: float) -> None:
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


async def _stands(reader: GatedReader) -> bool:
    """Whether what is there is not read."""
    try:
        await asyncio.wait_for(reader.read(100), 0.2)
    except TimeoutError:
        return True
    return False
