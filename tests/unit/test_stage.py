"""A box's output on its way to the view: how much of it may wait, and what happens after the box's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from impyard.runner import engine, stage
from impyard.runner.stage import Line, News, Over, Stage

MIB = 1024 * 1024


class FakeEngine:
    """A container that prints `chunks` and then ends."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.todo = chunks
        self.taken = 0
        self.ended = threading.Event()
        self.killed = 0

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        for chunk in self.todo:
            self.taken += len(chunk)
            yield 1, chunk

    def result(self) -> int:
        self.ended.wait(30)
        return 0

    def close(self) -> None:
        pass

    def kill(self, _container: str) -> None:
        self.killed += 1
        self.ended.set()


def make_stage(monkeypatch: pytest.MonkeyPatch, folder: Path, fake: FakeEngine) -> Stage:
    monkeypatch.setattr(engine, "attach", lambda _container, *, stdin: fake)
    monkeypatch.setattr(engine, "wait_removed", lambda _container: fake)
    monkeypatch.setattr(engine, "start", lambda _container: None)
    monkeypatch.setattr(engine, "kill", fake.kill)
    return Stage("c", folder / "out", folder / "err")


def settled(fake: FakeEngine) -> int:
    """How much has been read of the box once nothing more is taken."""
    before = -1
    while before != fake.taken:
        before = fake.taken
        time.sleep(0.3)
    return before


def test_the_box_waits_when_much_waits_for_a_slow_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeEngine([b"x" * (4 * MIB - 1) + b"\n"] * 40)
    there = make_stage(monkeypatch, tmp_path, fake)
    there.start(60)
    assert 60 * MIB <= settled(fake) <= 72 * MIB
    fake.ended.set()
    items = list(there.items())
    assert sum(isinstance(item, Line) for item in items) == 40
    assert items[-1] == Over(0)


def test_many_short_lines_count_for_more_than_their_letters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stage, "MAX_WAITING_BYTES", MIB)
    fake = FakeEngine([b"\n"] * 20_000)
    there = make_stage(monkeypatch, tmp_path, fake)
    there.start(60)
    assert settled(fake) <= 5000
    fake.ended.set()
    assert len(list(there.items())) == 20_001


def test_a_line_that_is_longer_than_all_that_may_wait_gets_through(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stage, "MAX_WAITING_BYTES", 100)
    fake = FakeEngine([b"x" * 1000 + b"\n"] * 3)
    fake.ended.set()
    there = make_stage(monkeypatch, tmp_path, fake)
    there.start(60)
    assert len(list(there.items())) == 4


def test_news_have_a_bound_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeEngine([])
    there = make_stage(monkeypatch, tmp_path, fake)
    for _ in range(stage.MAX_NEWS + 5):
        there.tell({})
    fake.ended.set()
    there.start(60)
    assert sum(isinstance(item, News) for item in there.items()) == stage.MAX_NEWS


def test_after_the_ceiling_a_slow_reader_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stage, "DRAIN_S", 0.5)
    fake = FakeEngine([b"x\n"] * 1000)
    there = make_stage(monkeypatch, tmp_path, fake)
    there.start(0.2)
    began, shown = time.monotonic(), 0
    for item in there.items():
        shown += isinstance(item, Line)
        time.sleep(0.05)
    assert time.monotonic() - began < 5 and 0 < shown < 100
    assert there.ended_by == "ceiling" and fake.killed == 1


def test_a_box_that_is_over_did_not_reach_its_ceiling_while_it_was_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeEngine([b"x\n"])
    fake.ended.set()
    there = make_stage(monkeypatch, tmp_path, fake)
    there.start(0.5)
    time.sleep(1)
    there.end("gateway-lost")
    assert [type(item) for item in there.items()] == [Line, Over]
    assert there.ended_by is None and not there.ceiling_passed and there.is_over


def test_no_more_is_stored_than_the_host_can_spare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stage, "MAX_STORED_BYTES", 1000)
    fake = FakeEngine([b"x" * 99 + b"\n"] * 9 + [b"y" * 499 + b"\n", b"z\n"])
    fake.ended.set()
    there = make_stage(monkeypatch, tmp_path, fake)
    there.start(60)
    assert sum(isinstance(item, Line) for item in there.items()) == 11, "all of it is shown"
    assert (tmp_path / "out").read_bytes() == (b"x" * 99 + b"\n") * 9, "whole lines, and none after a gap"
    assert there.storage_error == "of the run's output the first 1.0 KB are stored, no more"


@pytest.mark.attack("F53")
def test_a_line_without_an_end_is_stored_as_it_comes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stage, "SHOWN_LINE_BYTES", MIB)
    fake = FakeEngine([b"x" * 65536] * 100)
    fake.ended.set()
    there = make_stage(monkeypatch, tmp_path, fake)
    there.start(60)
    shown = [item.data for item in there.items() if isinstance(item, Line)]
    assert (tmp_path / "out").stat().st_size == 100 * 65536 + bool(shown)
    assert sum(map(len, shown)) <= MIB, "what is not shown is not held either"


@pytest.mark.attack("157", "F53")
def test_an_engine_that_never_tells_of_the_end_does_not_keep_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeEngine([])
    box = make_stage(monkeypatch, tmp_path, fake)
    monkeypatch.setattr(engine, "kill", lambda _container: None)  # it takes the call, and that is all
    monkeypatch.setattr(stage, "END_LIMIT_S", 0.3)
    box.start(600)
    began = time.monotonic()
    box.end("gateway-lost")
    assert list(box.items()) == [Over(None)]
    assert 0.3 <= time.monotonic() - began < 10
    assert box.ended_by == "gateway-lost"
    fake.ended.set()
