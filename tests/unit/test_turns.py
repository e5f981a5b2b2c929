"""Turns: by rate, by the growth of the log, by room; one client after the other."""

from __future__ import annotations

import asyncio

import pytest

from impyard.addon.limits import Limits
from impyard.addon.turns import Bucket, Busy, Queue, Turns


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_so_much_at_once_and_so_much_a_second() -> None:
    clock = Clock()
    bucket = Bucket(3, 2, clock)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    assert 0 < bucket.wait_s() <= 0.5
    clock.now += 1
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    clock.now += 1000
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


def test_what_the_log_grew_by_is_waited_for() -> None:
    clock = Clock()
    turns = Turns(Limits(log_bytes=1000, log_bytes_per_s=100), clock)
    assert turns.decision.take()
    turns.wrote(1500)
    assert not turns.decision.take()
    clock.now += 4
    assert not turns.decision.take()
    clock.now += 2
    assert turns.decision.take()


def test_room_is_bounded_and_comes_back() -> None:
    turns = Turns(Limits(requests=2))
    assert [turns.room.take() for _ in range(3)] == [True, True, False]
    turns.leave()
    assert [turns.room.take() for _ in range(2)] == [True, False]


class Line:
    """A queue whose turns are given by hand, and the order in which they were taken."""

    def __init__(self, most: int = 100, limit_s: float = 5.0) -> None:
        self.free = 0
        self.order: list[str] = []
        self.busy: list[str] = []
        self.queue = Queue(most, limit_s, lambda: 0.0 if self.free else None, self._take)

    def _take(self) -> None:
        self.free -= 1

    async def come(self, client: str) -> None:
        try:
            await self.queue.wait(client, "busy")
            self.order.append(client)
        except Busy:
            self.busy.append(client)

    async def give(self, count: int) -> None:
        for _ in range(count):
            self.free += 1
            self.queue.go_on()
        for _ in range(5):
            await asyncio.sleep(0)


async def start(line: Line, clients: str) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(line.come(client)) for client in clients]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_a_client_with_many_waits_for_itself() -> None:
    async def go() -> None:
        line = Line()
        tasks = await start(line, "aaaaab")
        await line.give(6)
        assert line.order[:2] == ["a", "b"]
        await asyncio.gather(*tasks)

    asyncio.run(go())


def test_when_too_many_wait_the_newest_of_the_client_with_the_most_goes() -> None:
    async def go() -> None:
        line = Line(most=3)
        tasks = await start(line, "aaabb")
        assert sorted(line.busy) == ["a", "b"]
        await line.give(3)
        await asyncio.gather(*tasks)
        assert sorted(line.order) == ["a", "a", "b"]

    asyncio.run(go())


def test_who_waits_too_long_is_told_and_takes_no_turn_away() -> None:
    async def go() -> None:
        line = Line(limit_s=0.05)
        await asyncio.gather(*await start(line, "a"))
        assert line.busy == ["a"]
        tasks = await start(line, "b")
        await line.give(1)
        await asyncio.gather(*tasks)
        assert line.order == ["b"] and line.free == 0

    asyncio.run(go())


def test_those_of_a_client_that_left_wait_no_longer() -> None:
    async def go() -> None:
        line = Line()
        tasks = await start(line, "aab")
        line.queue.drop("a")
        await line.give(1)
        await asyncio.gather(*tasks)
        assert line.busy == ["a", "a"] and line.order == ["b"]

    asyncio.run(go())


def test_a_turn_is_not_taken_past_those_who_wait() -> None:
    async def go() -> None:
        line = Line()
        tasks = await start(line, "a")
        line.free = 1
        assert not line.queue.take()
        await line.give(0)
        line.queue.go_on()
        await asyncio.gather(*tasks)

    asyncio.run(go())


@pytest.mark.parametrize("count", [50])
def test_many_are_let_go_a_few_at_a_time(count: int) -> None:
    async def go() -> None:
        line = Line()
        tasks = await start(line, "a" * count)
        line.free = count
        line.queue.go_on()
        assert line.free > count - 10
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert line.free == 0

    asyncio.run(go())
