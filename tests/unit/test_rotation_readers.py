"""What people see of decisions in rotated files, and what the check says of such files that were tampered with."""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import re
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.decisions import encode_outcome
from impyard.runner import cli, doctor, tally
from impyard.runner.decisions import check, logread, packed, rotation, summary
from impyard.runner.decisions.logfiles import Log, open_log, rotated, stamp_of
from impyard.runner.text import size_text
from tests.support.called import Result
from tests.support.recorded import ALLOW, UNLISTED, Recorded, request

FIRST, SECOND = "20260101-000000-aaaa", "20260102-000000-bbbb"


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setattr(rotation, "SETTLED_S", 0.0)

    def run(*args: str) -> Result:
        return Result(cli.main(["decisions", "--project", str(tmp_path), *args]), *capsys.readouterr())

    return run


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two compressed files and the one of now; of two runs, both in all of them. Of the first, each answer is in the
    file behind that of its decision."""
    runs = [Recorded(tmp_path, FIRST), Recorded(tmp_path, SECOND)]
    ids: list[str] = []
    for number in range(3):
        for id in ids:
            runs[0].outcomes.write(id, 200, 10, 20, 1.0, None)
        ids = [runs[0].log.write(ALLOW, request(path=f"/{number}/{n}"), "").id for n in range(30)]
        for n in range(30):
            runs[1].decide(UNLISTED, request(host="evil.test", path=f"/{number}/{n}"))
        if number < 2:
            rotation.rotate(tmp_path / "runs")
    for run in runs:
        run.log.close()
        run.outcomes.close()
        run.end()
        document = json.loads(run.paths.receipt.read_text())
        document |= {"ended": "2026-01-03T00:00:00.000Z"}
        document["decisions"] = {"seq": run.log.seq, "last": run.log.last_hash}
        run.paths.receipt.write_text(json.dumps(document))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "BLOCK_BYTES", 4096)
        list(rotation.pack_all(tmp_path / "runs", settled_s=0))
    return [each.path for each in rotated(tmp_path / "runs" / "decisions.jsonl")]


def test_every_view_goes_through_all_files(files: list[Path], call: Callable[..., Result], tmp_path: Path) -> None:
    everything = call("-n", "all", "--all").out.splitlines()
    assert len(everything) == 180
    assert [line.split("\t")[-1] for line in everything if "a.test" in line] == ["200"] * 60 + ["-"] * 30
    assert len(call("-n", "100").out.splitlines()) == 100
    assert len(call("--run", FIRST, "-n", "500").out.splitlines()) == 90
    assert len(call("--denied", "-n", "500").out.splitlines()) == 90
    assert len(call("--json", "-n", "all").out.splitlines()) == 180
    assert len(call("--csv").out.splitlines()) == 181
    summed = {line["host"]: line for line in map(json.loads, call("--summary", "--json").out.splitlines())}
    assert (summed["a.test"]["allowed"], summed["a.test"]["bytes_down"]) == (90, 60 * 20)
    assert summed["evil.test"]["denied"] == 90
    assert "200" in call("aaaa.3").out
    assert "unlisted-host" in call(f"{SECOND}.3").out
    assert (call("--verify").status, call("--verify", "--run", FIRST).status) == (0, 0)
    found = tally.tally(tmp_path / "runs" / "decisions.jsonl", SECOND)
    assert (found.allowed, found.denied, found.seq) == (0, 90, 90)


def test_the_times_in_names_spare_reading_and_hide_nothing(files: list[Path], call: Callable[..., Result]) -> None:
    now = datetime.now(UTC)
    for path, days in zip(files, (90, 30), strict=True):
        path.rename(path.with_name(f"decisions-{stamp_of(now - timedelta(days=days))}.jsonl.gz"))
    # The lines are of today, whatever the names say: a day of slack is all that is given.
    assert len(call("--since", "1h", "-n", "500").out.splitlines()) == 60
    assert len(call("--since", "60d", "-n", "500").out.splitlines()) == 120
    assert len(call("-n", "500").out.splitlines()) == 180


def edited(path: Path) -> None:
    text = re.sub(rb'"path":"/(.)/7"', rb'"path":"/\1/x"', gzip.decompress(path.read_bytes()), count=1)
    plain = path.with_suffix("")
    plain.write_bytes(text)
    path.unlink()
    os.utime(plain, (0, 0))


def bit_flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def begun_later(path: Path) -> None:
    path.write_bytes(path.read_bytes()[40:])


def removed(path: Path) -> None:
    path.unlink()


def renamed(path: Path) -> None:
    path.rename(path.with_name(path.name.replace("decisions-2", "decisions-1")))


def exchanged(path: Path) -> None:
    other = next(each for each in sorted(path.parent.glob("decisions-*.gz"))[::-1] if each != path)
    path.rename(path.with_name("x"))
    other.rename(path)
    path.with_name("x").rename(other)


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(5000))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def a_bomb(path: Path) -> None:
    """Says that it holds what it held; its first block becomes 64 MiB."""
    with path.open("rb") as file:
        index = packed.read_index(file.fileno())
    squeezed = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    bomb = b"".join(squeezed.compress(bytes(1 << 20)) for _ in range(64)) + squeezed.flush()
    rest = path.read_bytes()[index.starts[1] : index.starts[-1]]
    sizes = [end - start for start, end in zip(index.starts, index.starts[1:], strict=False)]
    sizes[0] = len(bomb)
    table = packed._member(packed._INDEX, struct.pack(f"<{len(sizes)}I", *sizes))
    tail = packed._TAIL.pack(index.block_bytes, index.size, len(sizes), len(table))
    path.write_bytes(bomb + rest + table + packed._member(packed._END, tail))


def an_endless_index(path: Path) -> None:
    tail = packed._TAIL.pack(16 << 20, (16 << 20) * 16_000, 16_000, (1 << 32) - 1)
    path.write_bytes(path.read_bytes() + packed._member(packed._END, tail))


TAMPERED: list[tuple[Callable[[Path], None], str]] = [
    (edited, "edited: the lines around it do not agree with it"),
    (bit_flipped, "was changed"),
    (cut, "its end is missing"),
    (begun_later, "parts of it are missing"),
    (removed, "it is missing"),
    (renamed, "it is missing"),
    (exchanged, "out of order"),
    (a_link, "it is a link"),
    (a_pipe, "not an ordinary file"),
    (a_folder, "not an ordinary file"),
    (garbage, "its end is missing"),
    (empty, "its end is missing"),
    (a_bomb, "was changed"),
    (an_endless_index, "its index was changed"),
]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("tamper", "what"), TAMPERED, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("which", [0, 1])
def test_tampering_with_a_rotated_file_is_named_and_the_rest_is_still_read(
    files: list[Path], call: Callable[..., Result], tamper: Callable[[Path], None], what: str, which: int
) -> None:
    assert call("--verify").status == 0
    tamper(files[which])
    result = call("--verify", "--json")
    faults: list[dict[str, Any]] = json.loads(result.out)["faults"]
    assert result.status == 1
    assert any(what in fault["what"] for fault in faults), faults
    if what.startswith(("edited", "out of order")):
        assert all(fault["line"] > 0 for fault in faults if what in fault["what"])
    assert result.err.startswith("error: ")
    shown = call("-n", "500")
    assert shown.status == 0
    assert len(shown.out.splitlines()) >= (180 if what.startswith(("edited", "out of order")) else 110)
    assert call("--summary").status == 0


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_file_of_outcomes_that_is_gone_or_cut_is_named(
    files: list[Path], call: Callable[..., Result], tmp_path: Path, is_cut: bool
) -> None:
    path = rotated(tmp_path / "runs" / "outcomes.jsonl")[0].path
    if is_cut:
        os.truncate(path, 100)
    else:
        path.unlink()
    result = call("--verify", "--json")
    assert [fault["file"] for fault in json.loads(result.out)["faults"]] == [path.name]
    assert result.status == 1
    assert call("--verify").out == ""


def test_removing_goes_on_when_compressing_fails(
    files: list[Path], call: Callable[..., Result], tmp_path: Path
) -> None:
    """It makes room on a full disk."""
    last = tmp_path / "runs" / f"decisions-{stamp_of(datetime.now(UTC) + timedelta(hours=1))}.jsonl"
    last.mkdir()
    result = call("rotate", "--if-due", "--older-than", "now", "--yes")
    assert result.status == 1
    assert last.name in result.err.replace("\n  ", "")
    assert not any(path.exists() for path in files)


def test_a_fault_is_named_by_file_line_and_byte(files: list[Path], call: Callable[..., Result]) -> None:
    edited(files[0])
    text = files[0].with_suffix("").read_bytes()
    line = text[: text.index(b"/0/x")].count(b"\n") + 1
    byte = text.rindex(b"\n", 0, text.index(b"/0/x")) + 1
    error = call("--verify").err
    assert f"{files[0].with_suffix('').name}:{line}: edited" in error.replace("\n ", "")
    assert f"(byte {byte})" in error.replace("\n ", "")


def test_old_files_are_removed_so_that_the_check_still_holds(
    files: list[Path], call: Callable[..., Result], tmp_path: Path
) -> None:
    before = call("--verify")
    assert "ok: 180 lines" in before.out
    result = call("rotate", "--if-due", "--older-than", "now", "--yes")
    assert result.status == 0, result.err
    assert not any(path.exists() for path in files)
    after = call("--verify")
    assert (after.status, "ok: 60 lines" in after.out) == (0, True), after
    assert "note: 120 older lines in 2 files" in after.err.replace("\n  ", " ")
    assert "90 older" not in call("--verify", "--run", FIRST).out
    assert call("--verify", "--run", FIRST).status == 0
    # What comes after is still checked against what went.
    log = tmp_path / "runs" / "decisions.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[1:]))
    assert "1 line of run" in call("--verify").err.replace("\n  ", " ")


def test_files_that_are_removed_on_purpose_while_the_check_reads_are_no_fault(
    files: list[Path], call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = open_log

    def late(log: Path, **more: Any) -> Log | None:
        monkeypatch.setattr(check, "open_log", read)
        assert rotation.remove_before(tmp_path / "runs", datetime.now(UTC))
        return read(log, **more)

    monkeypatch.setattr(check, "open_log", late)
    result = call("--verify")
    assert (result.status, "ok: 60 lines" in result.out) == (0, True), result


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "goes"), [("n\n", False), ("", False), ("y\n", True)])
def test_nothing_is_removed_before_somebody_agreed(
    files: list[Path], call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, answer: str, goes: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    result = call("rotate", "--if-due", "--older-than", "0")
    form = r"remove (\d) files, [\d.]+ KB, with (\d+) decisions (?:of|from \S+ to) (\S+), for good\?"
    asked = re.search(form, result.out)
    assert asked is not None, result
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    assert asked.groups()[:2] == ("3", "120") and asked[3] == today
    assert [path.exists() for path in files] == [not goes] * 2
    assert ("removed 3 files" in result.out) == goes
    assert ("nothing removed" in result.out + result.err) == (not goes)


def test_without_a_terminal_removing_needs_yes_and_nothing_is_begun(
    files: list[Path], call: Callable[..., Result], tmp_path: Path
) -> None:
    result = call("rotate", "--older-than", "0")
    assert (result.status, "give --yes" in result.err) == (1, True)
    assert (tmp_path / "runs" / "decisions.jsonl").exists() and all(path.exists() for path in files)


@pytest.mark.parametrize(
    ("age", "words"),
    [("2999-01-01", "a time to come"), ("nonsense", "is no age; such are 90d"), ("999999d", "that a date can say")],
)
def test_an_age_is_of_the_past(files: list[Path], call: Callable[..., Result], age: str, words: str) -> None:
    result = call("rotate", "--older-than", age, "--yes")
    assert (result.status, words in " ".join(result.err.split())) == (2, True), result
    assert all(path.exists() for path in files)


@pytest.mark.parametrize("processes", [1, 2])
def test_old_files_that_are_removed_meanwhile_count_for_all_or_for_nothing(
    files: list[Path], call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """Whenever that happens: at the opening of any file, or of none."""
    runs, saved = (
        tmp_path / "runs",
        {path: path.read_bytes() for path in (tmp_path / "runs").iterdir() if path.is_file()},
    )
    monkeypatch.setattr(summary, "PARALLEL_BYTES", 1 if processes == 2 else 1 << 40)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    opened = 0
    removes_at = -1
    open_really = os.open

    def hooked(path: Any, *args: Any, **more: Any) -> int:
        nonlocal opened
        opened += str(path).endswith((".jsonl.gz", "s.jsonl"))
        if opened == removes_at and str(path).endswith((".jsonl.gz", "s.jsonl")):
            with monkeypatch.context() as patch:
                patch.setattr(os, "open", open_really)
                assert len(rotation.remove_before(runs, datetime.now(UTC))) == 3
        return open_really(path, *args, **more)

    def summed(at: int) -> tuple[Result, Result]:
        nonlocal opened, removes_at
        opened, removes_at = 0, at
        for path, data in saved.items():
            path.write_bytes(data)
        (runs / "rotated.jsonl").unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", hooked)
            result = call("--summary", "--json")
        return result, call("--summary", "--json")

    before, _ = summed(-1)
    after, then = summed(1)
    assert [json.loads(result.out.splitlines()[0])["bytes_down"] for result in (before, after)] == [60 * 20, 0]
    assert after == then
    total = None
    for at in range(2, 40):
        result, then = summed(at)
        if opened < at:
            total = at
            break
        assert result in (before, after), at
        assert then == after, "the control: they are gone"
    assert total is not None and total > 5


def test_removed_decisions_are_said_wherever_one_looks_for_them(
    files: list[Path], call: Callable[..., Result], tmp_path: Path
) -> None:
    call("rotate")
    assert call("rotate", "--older-than", "0", "--yes").status == 0
    assert not list((tmp_path / "runs").glob("decisions*"))
    for args in ((), ("--denied", "-n", "all"), ("--summary",), ("aaaa.3",), ("show", f"{SECOND}.1")):
        result = call(*args)
        words = " ".join(result.err.split())
        assert "180 older lines in 3 files" in words and "rotate --older-than`" in words, (args, result)
        assert "impyard run` makes" not in words
    checked = json.loads(call("--verify", "--json").out)
    assert checked == {"ok": True, "lines": 0, "removed": {"files": 3, "lines": 180}, "faults": []}


def test_what_cannot_be_read_of_a_file_is_said_once_and_by_its_name(
    files: list[Path], call: Callable[..., Result]
) -> None:
    bit_flipped(files[1])
    for args in (("-n", "500"), ("-n", "all"), ("--csv",), ("--summary",)):
        words = " ".join(call(*args).err.replace("\n  ", "").split())
        assert words.count("was changed") == 1, words
        assert "1 damaged part with any number of lines left out: byte" in words
        assert re.search(rf"byte \d+ of \S*{re.escape(files[1].name)} begins a part that cannot be read", words), words


def test_cron_hears_nothing_when_there_was_nothing_to_do(files: list[Path], call: Callable[..., Result]) -> None:
    assert call("rotate", "--if-due", "--older-than", "90", "--yes") == (0, "", "")
    assert "removed 3 files" in call("rotate", "--if-due", "--older-than", "0", "--yes").out


def test_the_command_rotates_and_says_what_it_did(files: list[Path], call: Callable[..., Result]) -> None:
    result = call("rotate")
    assert result.status == 0
    assert "decisions-" in result.out and " in " in result.out
    again = call("rotate").out
    assert again.startswith("nothing to rotate: the log is empty\n") and "in all: 5 old files, " in again
    assert len(call("-n", "500").out.splitlines()) == 180
    assert call("--verify").status == 0


def test_cron_hears_nothing_of_a_project_without_a_run(
    tmp_path: Path, call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").touch()
    assert call("rotate", "--if-due", "--older-than", "90d", "--yes") == (0, "", "")
    result = call("rotate")
    assert (result.status, result.out) == (1, "") and "there are no logs" in result.err
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    result = call("rotate", "--if-due")
    assert result.status == 0 and "nothing to rotate: " in result.out and "does not exist yet" in result.out


def test_that_somebody_else_rotates_is_not_called_an_empty_log(
    files: list[Path], call: Callable[..., Result], tmp_path: Path
) -> None:
    handle = os.open(tmp_path / "runs", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert call("rotate").out.startswith("nothing to rotate: somebody else is at it\n")
    finally:
        os.close(handle)
    assert "nothing to rotate" not in call("rotate").out


def test_doctor_says_how_large_the_logs_are(files: list[Path], tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in (tmp_path / "runs").glob("*.jsonl*") if path.name != "rotated.jsonl")
    [check] = doctor._logs(tmp_path)
    assert check.found == f"{size_text(size)} in 5 files in {tmp_path / 'runs'}"
    assert list(doctor._logs(tmp_path / "policies")) == []


def test_times_before_or_after_all_files_have_no_decisions_though_there_is_a_log(
    files: list[Path], call: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "runs" / "decisions.jsonl").unlink()
    for times in (("--since", "2999-01-01"), ("--until", "1999-01-01")):
        assert "no decisions that these options ask for" in call(*times).err


def test_what_failed_is_found_without_reading_on_when_there_is_no_more(
    files: list[Path], call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = tmp_path / "runs" / "outcomes.jsonl"
    with outcomes.open("ab") as file:
        file.write(encode_outcome(ts="2026-01-03T00:00:00.000Z", id=f"{FIRST}.65", run=FIRST, status=None, up=0,
                                  down=0, ms=1.0, error="timeout", redirect=None))  # fmt: skip
    read: list[Path] = []
    real = packed.read_block

    def noted(descriptor: int, index: packed.Index, number: int) -> bytes:
        read.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        return real(descriptor, index, number)

    monkeypatch.setattr(packed, "read_block", noted)
    monkeypatch.setattr(logread, "BLOCK_BYTES", 500)
    assert len(call("--failed").out.splitlines()) == 1
    assert {path.name.split("-")[0] for path in read} == {"outcomes"}


def test_a_run_is_found_by_its_end_where_only_packed_files_know_it(
    files: list[Path], call: Callable[..., Result], tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "runs" / FIRST)
    call("rotate")
    assert rotated(tmp_path / "runs" / "decisions.jsonl")[-1].is_packed
    for run in (FIRST, FIRST[:10], "aaaa"):
        result = call("--run", run, "-n", "500")
        assert (result.status, len(result.out.splitlines())) == (0, 90), run
    assert call("--verify", "--run", "aaaa").status == 0
    result = call("--run", "cccc")
    assert (result.status, "there is no run 'cccc' in" in result.err, "any more" in result.err) == (1, True, False)
    other = Recorded(tmp_path, "20260103-000000-aaaa")
    other.decide(UNLISTED, request())
    shutil.rmtree(other.paths.folder)
    result = call("--run", "aaaa")
    assert result.status == 1 and "'aaaa' means more than one run" in result.err
    assert FIRST in result.err and other.run in result.err


def test_of_a_run_whose_lines_were_removed_it_is_said_that_they_were_and_when(
    files: list[Path], call: Callable[..., Result], tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "runs" / FIRST)
    call("rotate")
    assert call("rotate", "--older-than", "0", "--yes").status == 0
    for args in ((), ("--summary",), ("--csv",), ("-n", "all")):
        result = call("--run", "bbbb", *args)
        words = " ".join(result.err.split())
        told = f"90 lines of run {SECOND} were removed by `impyard decisions rotate --older-than` on "
        assert result.status == 0 and f"{told}{datetime.now(UTC):%Y-%m-%d}" in words, words
    for run in (FIRST, "aaaa"):
        result = call("--run", run)
        words = " ".join(result.err.split())
        assert (result.status, f"there is no run '{run}'" in words, "any more, or there never was" in words) == (
            1,
            True,
            True,
        )
        assert "180 older lines in 3 files" in words
