"""Outcomes have no chain; the check finds by the receipts that some are gone, and never where none were written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.record import Record
from impyard.runner import cli
from impyard.runner.decisions import rotation
from tests.support.called import Command, Result
from tests.support.recorded import ALLOW, UNLISTED, Recorded, request

FIRST, SECOND = "20260101-000000-aaaa", "20260102-000000-bbbb"


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(rotation, "SETTLED_S", 0.0)

    def run(*args: str) -> Result:
        return Result(cli.main(["decisions", "--project", str(tmp_path), *args]), *capsys.readouterr())

    return run


def written(project: Path, run: str, allowed: int = 3, **traffic: Any) -> Path:
    """A run that has ended, and its receipt as the gateway's last word makes it, or with this traffic. The file of
    outcomes."""
    recorded = Recorded(project, run)
    recorded.decide(UNLISTED, request(host="evil.test"))
    for number in range(allowed):
        recorded.decide(ALLOW, request(path=f"/{number}"))
    totals = Record(recorded.log, recorded.outcomes, lambda event: None).totals()
    recorded.end(
        traffic=traffic or {"bytes_up": 0, "bytes_down": 0, "upstream_errors": 0} | {"outcomes": totals["outcomes"]}
    )
    return recorded.paths.runs / "outcomes.jsonl"


def faults(call: Command) -> list[dict[str, Any]]:
    result = call("--verify", "--json")
    found: list[dict[str, Any]] = json.loads(result.out)["faults"]
    assert result.status == (1 if found else 0)
    return found


def gone(run: str, there: int, count: int) -> dict[str, Any]:
    what = f"outcomes of run {run} are missing: there are {there} of at least {count}"
    return {"file": "outcomes.jsonl", "line": 0, "byte": 0, "what": what}


def without_one(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))


@pytest.mark.parametrize(
    ("tamper", "there"),
    [(Path.unlink, 0), (lambda path: path.write_bytes(b""), 0), (without_one, 2)],
    ids=["deleted", "emptied", "cut"],
)
@pytest.mark.parametrize("rotates", [False, True])
def test_outcomes_that_are_gone_are_named_also_after_a_rotation_and_another_run(
    tmp_path: Path, call: Command, tamper: Callable[[Path], object], there: int, rotates: bool
) -> None:
    path = written(tmp_path, FIRST)
    assert faults(call) == []
    tamper(path)
    said = call("--verify")
    assert (said.status, said.out) == (1, "") and f"outcomes of run {FIRST} are missing" in said.err
    if rotates:
        call("rotate")
    assert faults(call) == [gone(FIRST, there, 3)]
    written(tmp_path, SECOND)
    assert faults(call) == [gone(FIRST, there, 3)]
    assert call("--verify", "--run", SECOND).status == 0
    assert call("--verify", "--run", FIRST).status == 1


def test_a_receipt_that_does_not_count_them_tells_of_one_by_its_bytes(tmp_path: Path, call: Command) -> None:
    path = written(tmp_path, FIRST, bytes_up=0, bytes_down=7, upstream_errors=0)
    without_one(path)
    assert faults(call) == []
    path.unlink()
    assert faults(call) == [gone(FIRST, 0, 1)]


@pytest.mark.parametrize(
    "traffic",
    [
        {"bytes_up": 0, "bytes_down": 0, "upstream_errors": 0, "outcomes": 0},
        {"bytes_up": None, "bytes_down": None, "upstream_errors": None, "outcomes": None},
        {"bytes_up": None, "bytes_down": None, "upstream_errors": None},
        {"outcomes": "many"},
    ],
    ids=["lost on a full disk", "killed", "killed, earlier", "odd"],
)
def test_where_none_is_known_of_none_is_missed(tmp_path: Path, call: Command, traffic: dict[str, Any]) -> None:
    written(tmp_path, FIRST, **traffic).unlink()
    assert faults(call) == []


def test_of_denials_only_there_is_nothing_to_miss(tmp_path: Path, call: Command) -> None:
    assert not written(tmp_path, FIRST, 0).exists()
    assert faults(call) == []


def test_what_was_removed_on_purpose_is_not_missed_but_what_came_later_is(tmp_path: Path, call: Command) -> None:
    written(tmp_path, FIRST)
    call("rotate")
    path = written(tmp_path, SECOND)
    assert "removed 2 files" in call("rotate", "--older-than", "0", "--yes", "--if-due").out
    assert faults(call) == []
    path.unlink()
    assert faults(call) == [gone(SECOND, 0, 3)]
