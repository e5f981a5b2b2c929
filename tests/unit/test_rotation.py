"""Logs are rotated while gateways write to them: nothing is lost, nothing is read twice, whatever dies in between."""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import stat
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon import log as addon_log
from impyard.addon.decisions import verify
from impyard.addon.judge import Decision, Verdict
from impyard.addon.log import DecisionLog, OutcomeLog
from impyard.addon.logmarks import TORN
from impyard.addon.request import Request
from impyard.runner.decisions import logread, packed, rotation, tend
from impyard.runner.decisions.filelist import FileList
from impyard.runner.decisions.logfiles import Log, Rotated, open_log, rotated, stamp_of

REQUEST = Request("GET", "https", "a.test", 443, "/x")
DENY = Decision(Verdict.DENY, "no-rule")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path


def log_of(runs: Path) -> Path:
    return runs / "decisions.jsonl"


def opened(runs: Path) -> Log:
    found = open_log(log_of(runs))
    assert found is not None
    return found


def lines_of(runs: Path) -> list[bytes]:
    with opened(runs) as log:
        return list(logread.raw_lines(log))


def pack(runs: Path) -> list[packed.Index | object]:
    return list(rotation.pack_all(runs, settled_s=0))


def write(log: DecisionLog, count: int = 1) -> list[bytes]:
    return [log.write(DENY, REQUEST, "sha256:ab").line for _ in range(count)]


def filled(runs: Path, count: int = 1) -> list[bytes]:
    """Lines of a gateway that has gone."""
    log = DecisionLog(log_of(runs), "r")
    lines = write(log, count)
    log.close()
    return lines


PIECES = st.lists(
    st.tuples(st.lists(st.sampled_from([b"", b"a", b"bc", b"0123456789"]), max_size=6), st.booleans()), max_size=5
)


@given(pieces=PIECES, block=st.integers(1, 9), unit=st.integers(1, 9), end=st.booleans())
def test_all_files_read_as_one_text_from_either_end(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[tuple[list[bytes], bool]],
    block: int,
    unit: int,
    end: bool,
) -> None:
    runs = tmp_path_factory.mktemp("runs")
    whole = b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "BLOCK_BYTES", unit)
        for number, (lines, is_packed) in enumerate(pieces):
            data = b"".join(line + b"\n" for line in lines)
            data = data if end or not number else data[:-1]
            whole += data
            log_of(runs).write_bytes(data)
            if number < len(pieces) - 1:
                whole += TORN if data and not data.endswith(b"\n") else b""
                rotation.rotate(runs)
                if is_packed:
                    pack(runs)
        if not pieces:
            assert open_log(log_of(runs)) is None
            return
        patch.setattr(logread, "BLOCK_BYTES", block)
        with opened(runs) as log:
            assert log.size == len(whole)
            assert log.pread(len(whole) + 9, 0) == whole
            texts = [line for line in whole.split(b"\n") if line]
            assert [line.text for line in logread.from_end(log)][::-1] == texts
            assert [line.text for line in logread.forward(log)] == texts
            assert b"".join(logread.raw_lines(log)) == whole
            assert b"".join(piece for _, piece in logread.blocks(log, 0, log.size)) == whole
            for offset in range(len(whole)):
                assert log.pread(3, offset) == whole[offset : offset + 3]
                path, at = log.place(offset)
                text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() + TORN
                assert text[at : at + 1] == whole[offset : offset + 1]


def test_a_packed_file_is_what_zcat_takes(runs: Path) -> None:
    lines = filled(runs, 3000)
    [plain] = rotation.rotate(runs)
    pack(runs)
    assert not plain.exists()
    packed_path = plain.with_name(plain.name + ".gz")
    assert packed_path.stat().st_size < sum(map(len, lines)) / 3
    assert subprocess.run(["zcat", packed_path], check=True, capture_output=True).stdout == b"".join(lines)
    assert lines_of(runs) == lines


def test_a_gateway_goes_on_in_the_new_file_and_its_chain_runs_through(runs: Path) -> None:
    one, two = DecisionLog(log_of(runs), "one"), DecisionLog(log_of(runs), "two")
    lines = write(one, 2) + write(two, 2)
    rotation.rotate(runs)
    lines += write(two) + write(one)
    pack(runs)
    rotation.rotate(runs)
    lines += write(one)
    assert lines_of(runs) == lines
    assert verify(lines_of(runs), receipts={"one": (one.seq, one.last_hash), "two": (two.seq, two.last_hash)}) == []
    assert len(rotated(log_of(runs))) == 2


def test_what_is_still_open_for_writing_is_not_compressed(runs: Path) -> None:
    log = DecisionLog(log_of(runs), "r")
    write(log)
    [plain] = rotation.rotate(runs)
    [waits] = pack(runs)
    assert isinstance(waits, Rotated)
    assert waits.path == plain
    assert plain.exists()
    write(log)  # it notices, and lets go
    [done] = pack(runs)
    assert isinstance(done, rotation.Packed)
    assert [each.path for each in rotated(log_of(runs))] == [done.path]


def test_a_file_that_is_renamed_and_locked_while_it_is_opened_is_not_written_to(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking, it could be compressed and removed."""
    log_of(runs).write_bytes(b"")
    hold = addon_log._hold
    renamed: list[Path] = []

    def late(fd: int) -> bool:
        if not renamed:
            renamed.append(log_of(runs).rename(runs / "renamed"))
            other = os.open(renamed[0], os.O_RDWR)
            fcntl.flock(other, fcntl.LOCK_EX)
        return hold(fd)

    monkeypatch.setattr(addon_log, "_hold", late)
    [line] = filled(runs)
    assert log_of(runs).read_bytes() == line
    assert renamed[0].read_bytes() == b""


@pytest.mark.timeout(60)
def test_no_line_is_lost_or_doubled_while_several_write_and_others_rotate(runs: Path) -> None:
    logs = [DecisionLog(log_of(runs), f"run{number}") for number in range(4)]
    outcomes = [OutcomeLog(runs / "outcomes.jsonl", log.run) for log in logs]
    ended = threading.Event()
    seen: list[int] = []
    faults: list[Exception] = []

    def guarded(act: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                act()
            except Exception as exc:  # noqa: BLE001 - is looked at below
                faults.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def rotating() -> None:
        while not ended.is_set():
            rotation.rotate(runs)
            pack(runs)
            time.sleep(0.002)

    def reading() -> None:
        while not ended.is_set():
            seen.append(len(lines_of(runs)) if open_log(log_of(runs)) else 0)
            time.sleep(0.005)

    def writing(log: DecisionLog, came: OutcomeLog) -> Callable[[], None]:
        def act() -> None:
            for _ in range(400):
                id = log.write(DENY, REQUEST, "").id
                came.write(id, 200, 1, 1, 1.0, None)

        return act

    others = [guarded(rotating), guarded(reading)]
    for thread in [guarded(writing(*each)) for each in zip(logs, outcomes, strict=True)]:
        thread.join()
    ended.set()
    for thread in others:
        thread.join()
    assert faults == []
    assert verify(lines_of(runs), receipts={log.run: (log.seq, log.last_hash) for log in logs}) == []
    assert len(lines_of(runs)) == 1600
    assert sorted(seen) == seen, "a reader saw fewer lines than before"
    assert [log.lost for log in outcomes] == [0, 0, 0, 0]
    with open_log(runs / "outcomes.jsonl") or pytest.fail("no outcomes") as log:
        assert len(list(logread.raw_lines(log))) == 1600


class Died(BaseException):
    """The process that compresses was killed."""


@pytest.mark.parametrize("where", ["_write_draft", "rename", "fsync", "unlink", "packed"])
@pytest.mark.parametrize("is_after", [False, True])
def test_wherever_compressing_is_killed_each_line_is_there_once(
    runs: Path, monkeypatch: pytest.MonkeyPatch, where: str, is_after: bool
) -> None:
    lines = filled(runs, 50)
    rotation.rotate(runs)
    owner = {"_write_draft": rotation, "packed": FileList}.get(where, os)
    real = getattr(owner, where)

    def dies(*args: Any, **more: object) -> object:
        if where == "unlink" and str(args[0]).endswith(".gz"):
            return real(*args, **more)  # the draft that is taken away
        if where == "fsync" and not stat.S_ISDIR(os.fstat(args[0]).st_mode):
            return real(*args, **more)  # a file's
        if is_after:
            real(*args, **more)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(owner, where, dies)
        with pytest.raises(Died):
            pack(runs)
    assert lines_of(runs) == lines
    pack(runs)
    assert lines_of(runs) == lines
    assert [each.path.suffix for each in rotated(log_of(runs))] == [".gz"]
    assert sorted(path.name for path in runs.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_file_that_cannot_be_read_takes_no_line_of_the_next_with_it(runs: Path, is_packed: bool) -> None:
    log = DecisionLog(log_of(runs), "r")
    write(log)
    [first] = rotation.rotate(runs)
    write(log)
    log.close()
    [second] = lines_of(runs)[1:]
    if is_packed:
        pack(runs)
        first = first.with_name(f"{first.name}.gz")
        data = bytearray(first.read_bytes())
        data[30] ^= 0xFF
        first.write_bytes(data)
    with open_log(log_of(runs)) or pytest.fail("no log") as found:
        if not is_packed:
            os.truncate(first, 0)
        assert list(logread.raw_lines(found))[1:] == [second]


def test_a_file_that_cannot_be_compressed_keeps_no_other_from_it(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "WAIT_S", 0.0)
    monkeypatch.setattr(rotation, "SETTLED_S", 0.0)
    (runs / "decisions-20200101T000000.000Z.jsonl").symlink_to("/etc/hostname")
    (runs / "decisions-20200102T000000.000Z.jsonl").mkdir()
    os.mkfifo(runs / "decisions-20200103T000000.000Z.jsonl")
    idle = DecisionLog(log_of(runs), "idle")
    write(idle)
    [held] = rotation.rotate(runs)
    filled(runs)
    [free] = rotation.rotate(runs)
    with pytest.raises(OSError, match="symbolic links"):
        pack(runs)
    assert held.exists()
    assert not free.exists()
    filled(runs)
    [free] = rotation.rotate(runs)
    rotation.main(runs)
    assert held.exists()
    assert not free.exists()


def test_two_that_compress_the_same_file_do_not_bring_it_back(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one may be through with it, and it removed, between our opening and our lock."""
    filled(runs)
    rotation.rotate(runs)
    lock = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        monkeypatch.undo()
        assert len(pack(runs)) == 1
        assert len(rotation.remove_before(runs, datetime.now(UTC) + timedelta(days=1))) == 1
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert pack(runs) == []
    assert rotated(log_of(runs)) == []


def test_no_file_is_removed_before_an_older_one_that_stays(runs: Path) -> None:
    idle, busy = DecisionLog(log_of(runs), "idle"), DecisionLog(log_of(runs), "busy")
    lines = write(idle) + write(busy)
    rotation.rotate(runs)
    lines += write(busy)
    rotation.rotate(runs)
    lines += write(busy)
    pack(runs)
    assert rotation.remove_before(runs, datetime.now(UTC) + timedelta(days=1)) == []
    idle.close()
    pack(runs)
    assert len(rotation.remove_before(runs, datetime.now(UTC) + timedelta(days=1))) == 2
    assert lines_of(runs) == lines[-1:]
    assert verify(lines_of(runs), before=FileList(runs).read().ends) == []


def test_where_the_chain_of_a_run_stood_is_kept_although_the_run_was_pruned(runs: Path) -> None:
    ended, going_on = "20260101-000000-aaaa", "20260102-000000-bbbb"
    logs = [DecisionLog(log_of(runs), ended), DecisionLog(log_of(runs), going_on)]
    for log in logs:
        write(log)
    rotation.rotate(runs)
    after = write(logs[1])
    logs[0].close()
    pack(runs)
    rotation.remove_before(runs, datetime.now(UTC) + timedelta(days=1))
    assert list(FileList(runs).read().ends) == [going_on]
    assert lines_of(runs) == after
    assert verify(after, before=FileList(runs).read().ends) == []


def test_half_a_line_in_the_list_of_files_does_not_take_the_next_one_with_it(runs: Path) -> None:
    filled(runs)
    (runs / "rotated.jsonl").write_bytes(b'{"file": "decisions-')
    [name] = rotation.rotate(runs)
    pack(runs)
    assert list(FileList(runs).read().sizes) == [f"{name.name}.gz"]


@pytest.mark.parametrize(
    "record",
    [
        '{"file": "NAME", "bytes": 1e999}',
        '{"file": "NAME", "bytes": -1}',
        '{"file": "NAME", "bytes": true}',
        '{"file": "../NAME", "bytes": 1}',
        '{"removed": "NAME", "ends": {"r": [Infinity, ""]}}',
        '{"removed": "NAME", "ends": {"r": ["9", ""]}}',
        '{"removed": "NAME", "ends": [5]}',
        '{"file": ["NAME"], "bytes": 1}',
        "[" * 100_000,
    ],
)
def test_what_is_odd_in_the_list_of_files_is_left_out(runs: Path, record: str) -> None:
    name = "decisions-20260101T000000.000Z.jsonl.gz"
    other = '{"file": "outcomes-20260101T000000.000Z.jsonl.gz", "bytes": 7}'
    (runs / "rotated.jsonl").write_text(f"{record.replace('NAME', name)}\n{other}\n")
    known = FileList(runs).read()
    assert (list(known.sizes.values()), known.ends) == ([7], {})


def test_a_pipe_in_place_of_the_list_of_files_is_named(runs: Path) -> None:
    lines = filled(runs)
    os.mkfifo(runs / "rotated.jsonl")
    rotation.rotate(runs)
    with pytest.raises(OSError, match=r"not an ordinary file.*rotated\.jsonl"):
        pack(runs)
    assert lines_of(runs) == lines


def test_nothing_is_rotated_to_a_name_that_no_reader_takes_for_a_part_of_the_log(runs: Path) -> None:
    last = runs / "decisions-29991231T235959.999Z.jsonl"
    last.touch()
    lines = filled(runs)
    with pytest.raises(OSError, match="so late"):
        rotation.rotate(runs)
    assert lines_of(runs) == lines


def test_nothing_is_rotated_without_locks(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that rotate at once could take each other's name."""

    def none(_descriptor: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    filled(runs)
    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(OSError, match="No locks"):
        rotation.rotate(runs)
    assert log_of(runs).exists()


def test_an_index_that_calls_a_block_larger_than_it_can_be_is_not_believed(runs: Path) -> None:
    """Else a sparse file of gigabytes would be read into memory at once."""
    path = runs / "decisions-20260101T000000.000Z.jsonl.gz"
    claimed = 3 << 30
    index = packed._member(packed._INDEX, struct.pack("<I", claimed))
    end = packed._member(packed._END, packed._TAIL.pack(1 << 20, 100, 1, len(index)))
    with path.open("wb") as file:
        file.truncate(claimed)
        file.seek(claimed)
        file.write(index + end)
    with path.open("rb") as file, pytest.raises(packed.Damaged, match="index"):
        packed.read_index(file.fileno())


@given(data=st.binary(max_size=3000), level=st.integers(0, 9))
def test_no_block_is_larger_than_an_index_may_say(data: bytes, level: int) -> None:
    noise = os.urandom(len(data))
    for text in (data, noise):
        assert len(zlib.compress(text, level, zlib.MAX_WBITS | 16)) <= len(text) + (len(text) >> 8) + 100


def test_a_full_disk_leaves_the_plain_file(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = filled(runs, 50)
    rotation.rotate(runs)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed, "_write", full)
    with pytest.raises(OSError, match="No space"):
        pack(runs)
    assert lines_of(runs) == lines
    assert [path.name for path in runs.iterdir()] == [rotated(log_of(runs))[0].path.name]


def test_a_copy_that_reads_back_as_another_text_is_not_taken(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = filled(runs, 50)
    rotation.rotate(runs)
    monkeypatch.setattr(packed, "_exactly", lambda _fd, length, _offset: b"x" * length)
    with pytest.raises(OSError, match="not what was written"):
        pack(runs)
    assert lines_of(runs) == lines


def test_half_a_line_before_a_rotation_does_not_read_as_a_decision(runs: Path) -> None:
    """It lacks only its newline: its request was denied."""
    log = DecisionLog(log_of(runs), "r")
    [line] = write(log)
    log_of(runs).write_bytes(line[:-1])
    rotation.rotate(runs)
    after = write(log)
    expected = [line[:-1] + TORN, *after]
    assert lines_of(runs) == expected
    pack(runs)
    assert lines_of(runs) == expected


def test_names_follow_each_other_when_the_clock_is_set_back(runs: Path) -> None:
    log = DecisionLog(log_of(runs), "r")
    ahead = stamp_of(datetime.now(UTC) + timedelta(hours=3))
    lines = write(log)
    log_of(runs).rename(runs / f"decisions-{ahead}.jsonl")
    for _ in range(3):
        lines += write(log)
        rotation.rotate(runs)
    assert lines_of(runs) == lines
    assert next(each.stamp for each in rotated(log_of(runs))) == ahead


def test_an_empty_log_is_not_rotated_and_a_link_or_pipe_neither(runs: Path) -> None:
    assert rotation.rotate(runs) == []
    log_of(runs).touch()
    assert rotation.rotate(runs) == []
    log_of(runs).unlink()
    os.mkfifo(log_of(runs))
    (runs / "outcomes.jsonl").symlink_to("/etc/hostname")
    assert rotation.rotate(runs) == []


def test_only_one_rotates_at_a_time(runs: Path) -> None:
    filled(runs)
    handle = os.open(runs, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert rotation.rotate(runs) == []
    finally:
        os.close(handle)
    assert len(rotation.rotate(runs)) == 1


def test_following_goes_on_over_a_rotation_and_sees_what_came_late_to_the_old_file(runs: Path) -> None:
    log = log_of(runs)
    log.write_bytes(b"one\n")
    tail = logread.Tail(log, 0)
    assert [line.text for line in tail.lines()] == [b"one"]
    with log.open("ab") as late:
        rotation.rotate(runs)
        assert list(tail.lines()) == []
        log.write_bytes(b"three\n")
        assert [line.text for line in tail.lines()] == [b"three"]
        late.write(b"two\n")
    assert [line.text for line in tail.lines()] == [b"two"]
    with log.open("ab") as file:
        file.write(b"four\n")
    assert [line.text for line in tail.lines()] == [b"four"]
    tail.close()


def test_following_that_stood_still_over_several_rotations_misses_nothing(runs: Path) -> None:
    log = log_of(runs)
    log.write_bytes(b"old\n")
    rotation.rotate(runs)
    log.write_bytes(b"one\n")
    tail = logread.Tail(log, 0)
    expected = []
    for number in range(4):
        with log.open("ab") as file:
            file.write(b"%d\n" % number)
        expected.append(b"%d" % number)
        rotation.rotate(runs)
        if number == 2:
            pack(runs)
    log.write_bytes(b"new\n")
    assert [line.text for line in tail.lines()] == [b"one", *expected, b"new"]
    assert list(tail.lines()) == []
    tail.close()


def test_it_is_due_by_size_or_by_age(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    assert not tend.is_due(runs, now)
    filled(runs, 100)
    size = log_of(runs).stat().st_size
    monkeypatch.setattr(tend, "SMALL_BYTES", size)
    assert not tend.is_due(runs, now)
    assert tend.is_due(runs, now + timedelta(days=31))
    monkeypatch.setattr(tend, "SMALL_BYTES", size + 1)
    assert not tend.is_due(runs, now + timedelta(days=31))
    monkeypatch.setattr(tend, "SMALL_BYTES", 0)
    monkeypatch.setattr(tend, "LARGE_BYTES", size)
    assert tend.is_due(runs, now)


@pytest.mark.timeout(60)
def test_what_had_to_wait_is_compressed_at_the_end_of_any_run(runs: Path) -> None:
    """A gateway had it open when it was rotated; nothing is due now."""
    log = DecisionLog(log_of(runs), "r")
    lines = write(log, 10)
    rotation.rotate(runs)
    assert isinstance(pack(runs)[0], Rotated)
    log.close()
    tend.tend(runs)
    deadline = time.monotonic() + 45
    while not rotated(log_of(runs))[0].is_packed and time.monotonic() < deadline:
        time.sleep(0.1)
    assert rotated(log_of(runs))[0].is_packed
    assert lines_of(runs) == lines


@pytest.mark.timeout(60)
def test_a_due_log_is_rotated_at_once_and_compressed_by_a_process_that_ends(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = DecisionLog(log_of(runs), "r")
    lines = write(log, 100)
    log.close()
    for name in ("SMALL_BYTES", "LARGE_BYTES"):
        monkeypatch.setattr(tend, name, 1)
    tend.tend(runs)
    assert not log_of(runs).exists()
    deadline = time.monotonic() + 45
    while not rotated(log_of(runs))[0].is_packed and time.monotonic() < deadline:
        time.sleep(0.1)
    assert rotated(log_of(runs))[0].is_packed
    assert lines_of(runs) == lines


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stays", [False, True], ids=["a run, which ends", "a gateway, which stays"])
def test_who_has_logs_compressed_leaves_no_dead_process_and_no_warning(runs: Path, stays: bool) -> None:
    filled(runs, 10)
    [old] = rotation.rotate(runs)
    code = f"""
import gc, pathlib, sys, time
from impyard.runner.decisions import tend
tend.tend(pathlib.Path({str(runs)!r}))
gc.collect()
children = pathlib.Path("/proc/thread-self/children")
assert children.read_text()
while {stays} and children.read_text():
    time.sleep(0.02)
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    while old.exists():  # what goes on by itself must not outlast the test
        time.sleep(0.02)
