"""A decision is in the log, whole, when `write` returns; else the caller is told."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from impyard.addon.decisions import GENESIS, line_hash, verify
from impyard.addon.errors import LogUnwritable
from impyard.addon.judge import Decision, Verdict
from impyard.addon.log import DecisionLog, OutcomeLog, now
from impyard.addon.request import Request

REQUEST = Request("GET", "https", "a.test", 443, "/x")
DECISION = Decision(Verdict.DENY, "no-rule")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.jsonl"


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_decisions_are_written_in_a_chain(path: Path) -> None:
    log = DecisionLog(path, "r")
    assert (log.seq, log.last_hash) == (0, GENESIS)
    recorded = [log.write(DECISION, REQUEST, "sha256:ab") for _ in range(3)]
    assert [each.id for each in recorded] == ["r.1", "r.2", "r.3"]
    assert [each.line for each in recorded] == lines(path)
    assert (log.seq, log.last_hash) == (3, line_hash(recorded[-1].line))
    assert verify(lines(path), receipts={"r": (log.seq, log.last_hash)}) == []


def test_nothing_is_created_before_the_first_decision(path: Path) -> None:
    DecisionLog(path, "r")
    assert not path.exists()


def test_the_log_is_for_its_owner_only(path: Path) -> None:
    DecisionLog(path, "r").write(DECISION, REQUEST, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_each_line_is_one_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    write = os.write

    def counted(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        return write(fd, data)

    monkeypatch.setattr(os, "write", counted)
    recorded = DecisionLog(path, "r").write(DECISION, REQUEST, "")
    assert sizes == [len(recorded.line)]


def test_a_link_is_not_followed(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_text("")
    path.symlink_to(target)
    with pytest.raises(LogUnwritable):
        DecisionLog(path, "r").write(DECISION, REQUEST, "")
    assert target.read_text() == ""


@pytest.mark.timeout(10)
def test_a_pipe_or_folder_in_its_place_is_unwritable_and_holds_nothing_up(path: Path) -> None:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(LogUnwritable, match="not an ordinary file"):
            DecisionLog(path, "r").write(DECISION, REQUEST, "")
    finally:
        os.close(reader)
    path.unlink()
    path.mkdir()
    with pytest.raises(LogUnwritable, match="is a directory"):
        DecisionLog(path, "r").write(DECISION, REQUEST, "")


def test_a_missing_folder_is_unwritable_until_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "decisions.jsonl"
    log = DecisionLog(path, "r")
    with pytest.raises(LogUnwritable) as caught:
        log.write(DECISION, REQUEST, "")
    assert caught.value.hint
    assert (log.seq, log.last_hash) == (0, GENESIS)
    path.parent.mkdir()
    assert log.write(DECISION, REQUEST, "").seq == 1


def test_a_full_disk_is_unwritable(path: Path) -> None:
    path.symlink_to("/dev/full")
    with pytest.raises(LogUnwritable):
        DecisionLog(path, "r").write(DECISION, REQUEST, "")


def test_a_log_that_was_taken_away_is_opened_again(path: Path) -> None:
    log = DecisionLog(path, "r")
    log.write(DECISION, REQUEST, "")
    path.unlink()
    log.write(DECISION, REQUEST, "")
    assert [json.loads(line)["seq"] for line in lines(path)] == [2]
    path.rename(path.with_name("rotated"))
    path.write_text("")
    log.write(DECISION, REQUEST, "")
    assert [json.loads(line)["seq"] for line in lines(path)] == [3]


def test_a_log_whose_place_became_a_link_is_unwritable(path: Path) -> None:
    log = DecisionLog(path, "r")
    log.write(DECISION, REQUEST, "")
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))
    with pytest.raises(LogUnwritable):
        log.write(DECISION, REQUEST, "")


@pytest.mark.parametrize("left", [1, 100, -1])
def test_a_short_write_is_a_failure_that_cannot_be_taken_for_a_decision(
    path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    log = DecisionLog(path, "r")
    log.write(DECISION, REQUEST, "")
    before = log.seq, log.last_hash
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:left]))
    with pytest.raises(LogUnwritable, match="only"):
        log.write(Decision(Verdict.ALLOW, "rule"), REQUEST, "")
    monkeypatch.undo()
    assert (log.seq, log.last_hash) == before
    log.write(DECISION, REQUEST, "")
    log.write(DECISION, REQUEST, "")
    assert len(lines(path)) == 4
    faults = verify(lines(path), receipts={"r": (log.seq, log.last_hash)})
    assert [(fault.line, fault.what) for fault in faults] == [(2, "not a decision: torn or overwritten")]


@pytest.mark.attack("130")
@pytest.mark.parametrize(
    "half", [b'{"ts":"2026-11-29T', b"\0" * 100], ids=["a killed gateway", "a machine that went down"]
)
def test_half_a_line_of_another_run_does_not_swallow_the_next(path: Path, half: bytes) -> None:
    first = DecisionLog(path, "a")
    first.write(DECISION, REQUEST, "")
    first.close()
    with path.open("ab") as file:
        file.write(half)
    second = DecisionLog(path, "b")
    for _ in range(2):
        second.write(DECISION, REQUEST, "")
    receipts = {"a": (1, first.last_hash), "b": (2, second.last_hash)}
    faults = verify(lines(path), receipts=receipts)
    assert [(fault.line, fault.what) for fault in faults] == [(2, "not a decision: torn or overwritten")]


def test_failing_writes_are_unwritable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    log = DecisionLog(path, "r")
    log.write(DECISION, REQUEST, "")
    monkeypatch.setattr(os, "write", full)
    for _ in range(2):
        with pytest.raises(LogUnwritable, match="no space left on device"):
            log.write(DECISION, REQUEST, "")
    monkeypatch.undo()
    assert log.write(DECISION, REQUEST, "").seq == 2
    assert verify(lines(path)) == []


def test_many_processes_share_a_log_without_torn_lines(path: Path) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from impyard.addon.judge import Decision, Verdict\n"
        "from impyard.addon.log import DecisionLog\n"
        "from impyard.addon.request import Request\n"
        "log = DecisionLog(Path(sys.argv[1]), sys.argv[2])\n"
        "request = Request('GET', 'https', 'a.test', 443, '/' + 'x' * 3000)\n"
        "for _ in range(300): log.write(Decision(Verdict.DENY, 'no-rule'), request, '')\n"
        "print(log.seq, log.last_hash)\n"
    )

    def write(run: str) -> tuple[str, tuple[int, str]]:
        root = Path(__file__).parents[2]
        out = subprocess.run(
            [sys.executable, "-c", script, str(path), run], cwd=root, check=True, capture_output=True, text=True
        ).stdout.split()
        return run, (int(out[0]), out[1])

    with ThreadPoolExecutor(4) as pool:
        receipts = dict(pool.map(write, ["a", "b", "c", "d"]))
    assert len(lines(path)) == 1200
    assert verify(lines(path), receipts=receipts) == []


def test_descriptors_are_closed(path: Path) -> None:
    log = DecisionLog(path, "r")
    for _ in range(50):
        log.write(DECISION, REQUEST, "")
        path.unlink()
    open_now = len(os.listdir("/proc/self/fd"))
    log.close()
    assert len(os.listdir("/proc/self/fd")) == open_now - 1


def test_outcomes_are_written_and_never_raise(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "outcomes.jsonl"
    log = OutcomeLog(path, "r")
    log.write("r.1", 200, 1, 2, 3.0, None)
    assert log.lost == 1
    path.parent.mkdir()
    log.write("r.2", None, 0, 0, 1.5, "could not connect")
    assert log.lost == 1
    entry = json.loads(path.read_text())
    assert (entry["id"], entry["status"], entry["error"]) == ("r.2", None, "could not connect")


def test_time_stamps_are_in_utc_with_milliseconds() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", now())
