"""The benchmark of a run's start measures a real one."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from impyard.runner import engine
from tests.bench import run_start
from tests.bench.plan import Plan

pytestmark = [
    pytest.mark.box,
    pytest.mark.skipif(shutil.which("docker") is None, reason="needs the docker command, to compare with"),
]


def test_the_start_of_a_run_is_measured_and_leaves_no_container() -> None:
    more, preflight, end, steps = run_start.measure(Plan(rounds=1))
    assert more.ratio is not None and more.ratio.value > 1, more
    assert preflight.figure.endswith(" ms") and end.figure.endswith(" s")
    assert "gateway ready +" in steps.note and "first event +" in steps.note, steps
    left = [box for box in engine.boxes() if "impyard-bench-" in box.labels.get("impyard.project", "")]
    assert not left
    names = subprocess.run(
        ["docker", "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True, check=True
    )
    assert f"impyard-bench-{os.getpid()}-" not in names.stdout
