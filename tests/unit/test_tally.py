"""Counting a run's decisions in the log itself."""

from __future__ import annotations

from pathlib import Path

from impyard.addon.decisions import line_hash
from impyard.addon.judge import Decision, Verdict
from impyard.addon.log import DecisionLog
from impyard.addon.request import Request
from impyard.runner.tally import Tally, tally

REQUEST = Request(method="GET", scheme="https", host="a.example", port=443, path="/", query="", host_header="a.example")


def write(log: DecisionLog, verdict: Verdict) -> bytes:
    decision = Decision(verdict=verdict, reason="rule", rule=None, at=None)
    return log.write(decision, REQUEST, "sha256:0").line


def test_the_lines_of_one_run_are_counted_among_those_of_others(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    one, other = DecisionLog(path, "20261129-120000-aaaa"), DecisionLog(path, "20261129-120000-bbbb")
    for _ in range(3):
        write(one, Verdict.DENY)
        write(other, Verdict.DENY)
    last = write(one, Verdict.ALLOW)
    write(other, Verdict.ALLOW)
    assert tally(path, "20261129-120000-aaaa") == Tally(1, 3, 4, line_hash(last.rstrip(b"\n")))


def test_a_torn_last_line_and_an_unknown_run_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    write(DecisionLog(path, "r"), Verdict.ALLOW)
    with path.open("ab") as log:
        log.write(b'{"run":"r","seq":2,"verd')
    assert tally(path, "r").allowed == 1
    assert tally(path, "unknown") == Tally()


def test_a_log_that_is_not_there_counts_as_empty(tmp_path: Path) -> None:
    assert tally(tmp_path / "none", "r") == Tally()
    (tmp_path / "folder").mkdir()
    assert tally(tmp_path / "folder", "r") == Tally()
