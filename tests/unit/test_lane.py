"""Which reads go through the lane: those whose bytes cost much and are no requests."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from impyard.addon.backpressure import Gate, GatedReader, Lane


async def _waits_for_the_lane(messages: int, cpu_s: float) -> bool:
    """Whether a reader has to wait for a lane that is taken, after a read that began `messages` and took that long."""
    here, there = socket.socketpair()
    with here, there:
        stream, gate, lane = asyncio.StreamReader(), Gate(), Lane()
        reader = GatedReader(stream, gate, lane, here.fileno(), lambda: None)
        stream.feed_data(b"x" * 100)
        await reader.read(100)
        gate.messages += messages
        end = time.thread_time() + cpu_s
        while time.thread_time() < end:
            pass
        reader.done()
        await lane.enter()  # somebody else is in there
        stream.feed_data(b"x" * 100)
        try:
            await asyncio.wait_for(reader.read(100), 0.2)
        except TimeoutError:
            return True
        return False


@pytest.mark.parametrize(
    ("messages", "cpu_s", "waits"),
    [(0, 0.02, True), (1, 0.02, True), (8, 0.02, False), (8, 0.08, True), (0, 0.0, False)],
    ids=["bytes of nothing", "one costly request", "several requests", "several costly requests", "cheap bytes"],
)
def test_what_several_requests_cost_is_no_reason_to_wait(messages: int, cpu_s: float, waits: bool) -> None:
    assert asyncio.run(_waits_for_the_lane(messages, cpu_s)) is waits


async def _waits_after(heads: int) -> bool:
    """Whether a reader still has to wait for the lane, after a costly read and then cheap ones, some with a head."""
    here, there = socket.socketpair()
    with here, there:
        stream, gate, lane = asyncio.StreamReader(), Gate(), Lane()
        reader = GatedReader(stream, gate, lane, here.fileno(), lambda: None)
        for number in range(5):
            stream.feed_data(b"x" * 10)
            await reader.read(100)
            end = time.thread_time() + (0.0 if number else 0.02)
            while time.thread_time() < end:
                pass
            gate.heads += bool(0 < number <= heads)
            reader.done()
        await lane.enter()  # somebody else is in there
        stream.feed_data(b"x" * 10)
        try:
            await asyncio.wait_for(reader.read(100), 0.2)
        except TimeoutError:
            return True
        return False


@pytest.mark.parametrize(("heads", "waits"), [(0, True), (1, True), (2, False), (4, False)])
def test_after_a_costly_handshake_cheap_requests_of_any_size_leave_the_lane(heads: int, waits: bool) -> None:
    assert asyncio.run(_waits_after(heads)) is waits
