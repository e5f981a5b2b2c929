"""Lines are read from either end and while they come, whatever state the file is in."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.errors import ImpyardError
from impyard.runner.decisions import logread
from impyard.runner.decisions.logfiles import open_log


def lines_of(path: Path) -> list[logread.Line]:
    """The file's lines, read from its end, in the file's order."""
    log = open_log(path)
    assert log is not None
    with log:
        return list(logread.from_end(log))[::-1]


def raw_lines_of(path: Path) -> list[bytes]:
    log = open_log(path)
    assert log is not None
    with log:
        return list(logread.raw_lines(log))


@given(data=st.lists(st.sampled_from([b"", b"a", b"bc", b"\n", b"0123456789"])).map(b"".join), block=st.integers(1, 7))
def test_reading_from_the_end_gives_the_lines_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, block: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logread, "BLOCK_BYTES", block)
        lines = lines_of(path)
        followed = Follower(path).run()
    assert [line.text for line in lines] == [line for line in data.split(b"\n") if line]
    assert followed == [line.text for line in lines if line.ended]
    assert all(data[line.offset :].startswith(line.text) for line in lines)
    assert all(line.ended for line in lines[:-1])
    if lines:
        assert lines[-1].ended == data.endswith(b"\n")


@given(data=st.lists(st.sampled_from([b"a", b"bc", b"\n", b"0123456789"])).map(b"".join), block=st.integers(1, 7))
def test_no_line_with_the_needle_is_left_out(tmp_path_factory: pytest.TempPathFactory, data: bytes, block: int) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(data)
    log = open_log(path)
    assert log is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logread, "BLOCK_BYTES", block)
        found = logread.last(log, 1000, lambda line: b"abc" in line.text, needles=[b"abc"])
    log.close()
    assert [line.text for line in found] == [line for line in data.split(b"\n") if b"abc" in line]


@given(data=st.lists(st.sampled_from([b"", b"a", b"bc", b"\n", b"0123456789"])).map(b"".join))
def test_raw_lines_are_all_lines(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(data)
    assert raw_lines_of(path) == data.splitlines(keepends=True)


def test_an_endless_line_is_cut_and_the_others_are_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\nBEGIN" + b"x" * (5 * logread.LINE_CAP) + b"\nlast\n")
    first, endless, last = lines_of(path)
    assert (first.text, last.text) == (b"first", b"last")
    assert len(endless.text) == logread.LINE_CAP
    assert endless.text.startswith(b"BEGIN")
    assert path.read_bytes()[last.offset :] == b"last\n"
    raw = raw_lines_of(path)
    assert (raw[0], raw[2], len(raw)) == (b"first\n", b"last\n", 3)
    assert raw[1] == endless.text + b"\n"


def test_only_the_wanted_lines_are_given_and_reading_stops_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(1000)))
    asked = []

    def is_even(line: logread.Line) -> bool:
        asked.append(line)
        return int(line.text) % 2 == 0

    log = open_log(path)
    assert log is not None
    try:
        assert [line.text for line in logread.last(log, 3, is_even)] == [b"994", b"996", b"998"]
    finally:
        log.close()
    assert len(asked) == 6


def test_a_missing_log_is_none_and_a_pipe_or_folder_is_an_error(tmp_path: Path) -> None:
    assert open_log(tmp_path / "none") is None
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImpyardError, match="not an ordinary file"):
        open_log(tmp_path / "pipe")
    with pytest.raises(ImpyardError, match="not an ordinary file"):
        open_log(tmp_path)


class Follower:
    """Follows a log; `step` does something to the file at each pause, and the pauses end when there are none left."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.seen: list[bytes] = []
        self._path, self._start = path, start

    def run(self, *steps: object) -> list[bytes]:
        todo: Iterator[object] = iter([*steps, None, None])

        class Done(Exception):
            pass

        def pause(_seconds: float) -> None:
            try:
                step = next(todo)
            except StopIteration:
                raise Done from None
            if callable(step):
                step()

        try:
            for line in logread.follow(self._path, self._start, sleep=pause):
                self.seen.append(line.text)
        except Done:
            pass
        return self.seen


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_following_gives_appended_lines_once_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    steps = [lambda: append(path, b"hal"), lambda: append(path, b"f\nnext\n")]
    assert Follower(path, start=4).run(*steps) == [b"half", b"next"]


def test_following_waits_for_a_log_that_does_not_exist_yet(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "log"
    assert Follower(path).run(path.parent.mkdir, lambda: append(path, b"one\n")) == [b"one"]


def test_following_goes_on_in_the_new_file_when_the_log_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")

    def replace() -> None:
        append(path, b"two\n")
        path.rename(tmp_path / "log.1")
        path.write_bytes(b"three\n")

    assert Follower(path).run(replace, lambda: append(path, b"four\n")) == [b"one", b"two", b"three", b"four"]


def test_following_begins_anew_when_the_log_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    assert Follower(path).run(lambda: path.write_bytes(b"new\n")) == [b"one", b"two", b"new"]


def test_appends_from_another_thread_arrive_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    wanted = [b"line %d" % number for number in range(200)]

    def write() -> None:
        for line in wanted:
            append(path, line + b"\n")

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    for line in logread.follow(path, 0, sleep=lambda _s: None):
        seen.append(line.text)
        if len(seen) == len(wanted):
            break
    writer.join()
    assert seen == wanted
