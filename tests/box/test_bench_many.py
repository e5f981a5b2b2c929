"""The benchmark of many runs at once, with two of them: they are real, and what they hold is told apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from impyard.runner import engine
from tests.bench import many_runs
from tests.bench.crowd import Crowd
from tests.bench.footprint import footprint
from tests.bench.table import lines

pytestmark = [
    pytest.mark.box,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to read how much memory the gateways have"),
]


def test_two_runs_at_once_both_finish_and_are_taken_apart(tmp_path: Path) -> None:
    both = many_runs.together(tmp_path / "two", 2)
    assert both.faults == []
    assert len(both.seconds) == 2
    assert all(0 < arrival < seconds for arrival, seconds in zip(both.arrivals, both.seconds, strict=True))
    for part in ("runner", "gateway", "relay", "agent", "shim"):
        assert 2 < both.held.mib[part] < 1000, part
    assert both.held.mib["agent"] > both.held.mib["relay"]
    assert 5 < both.held.group_mib < 2000
    assert 0.2 < both.host_cpu_s < both.cpu_s
    assert set(both.looks) == {"runs", "decisions"}
    table = lines(many_runs.rows(both, both))
    assert "2 runs at once" in table[2]


def test_an_interrupted_crowd_leaves_nothing(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, 1)
    crowd.prepare()
    crowd.start(2)
    crowd.arrive()
    assert len(crowd.boxes()) == 2
    assert crowd.close() == []
    assert crowd.boxes() == []
    assert all(member.ended and member.process.returncode == 130 for member in crowd.members)
    held = footprint([member.process.pid for member in crowd.members], ())
    assert held.run_mib == 0
    assert [box for box in engine.boxes() if str(tmp_path) in box.labels.get("impyard.project", "")] == []


def test_a_run_that_fails_is_named(tmp_path: Path) -> None:
    """The control: without a policy that can be read, no run comes up."""
    crowd = Crowd(tmp_path, 1)
    crowd.prepare()
    (crowd.projects[0] / "policies" / "gateway.yaml").write_text("nothing: here\n")
    try:
        crowd.start(1)
        crowd.arrive()
        crowd.release()
    finally:
        assert crowd.close() == []
    assert crowd.members[0].fault == "it ended early"
