"""The command line of the benchmark: what it says at its end, what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench import stored
from tests.bench.plan import Plan
from tests.bench.stored import Ratio
from tests.bench.table import FAILED, Row, lines, summary

MET, MISSED, BARE = Row("a", "1", target="< 2", ok=True), Row("b", "3", target="< 2", ok=False), Row("c", "5")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Row]:
    """What the one measure `kept` finds; ratios are stored in a folder of ours."""
    rows: list[Row] = []

    def measure(_: Plan) -> Iterator[Row]:
        yield from rows

    monkeypatch.setattr(bench, "MEASURES", {"kept": (measure, "requests/s")})
    monkeypatch.setattr(stored, "STORED", tmp_path / "ratios.json")
    return rows


def test_the_last_line_counts_the_targets(measured: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    measured += [MET, MISSED, BARE]
    assert bench.main([]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "1 of 2 targets met, 1 missed; a miss does not change the exit status"
    assert summary([MET, BARE]) == "1 of 1 targets met"


def test_a_check_without_stored_ratios_says_how_to_store_them(
    measured: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured.append(Row("a", "2", ratio=Ratio("kept-1", 2.0)))
    assert bench.main(["--check"]) == 1
    told = capsys.readouterr()
    assert told.err == f"error: no ratios are stored in {tmp_path}/ratios.json: `--store` measures and stores them\n"
    assert told.out == ""
    assert bench.main(["--store"]) == 0 and bench.main(["--check"]) == 0
    measured[0] = Row("a", "1", ratio=Ratio("kept-1", 1.0))
    assert bench.main(["--check"]) == 1
    assert "kept-1: 1.00, stored 2.00: 50% lost" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", "[]", '{"kept": null}', "\xff"])
def test_stored_ratios_that_are_none_are_an_error(
    content: str, measured: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ratios.json").write_bytes(content.encode("latin-1"))
    assert bench.main(["--check"]) == 1
    assert capsys.readouterr().err.startswith("error: the stored ratios cannot be read: ") and not measured


@pytest.mark.parametrize("option", ["--rounds", "--seconds", "--body", "--at-once", "--decisions"])
@pytest.mark.parametrize("value", ["0", "-1", "x", "", "nan", "1,,2", "0,1"])
def test_a_wrong_value_is_a_usage_error(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main([f"{option}={value}"])
    assert ended.value.code == 2
    assert f"argument {option}: " in (said := capsys.readouterr().err) and "is no " in said


def test_the_names_stand_each_in_a_line_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--help"])
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[said.index("names:") + 1 :]] == list(bench.MEASURES)


def test_a_failure_of_many_lines_is_one_row() -> None:
    table = lines([Row("kept", FAILED, note="it did not start:\n  first\n  second\n"), MET])
    assert table[2].split("  ")[0] == "kept" and table[2].endswith("it did not start: first second")
    assert len(table) == 4
