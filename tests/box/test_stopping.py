"""`impyard runs stop` and `prune` on a run that is really going on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import impyard as package
from impyard.runner import engine

CHECKOUT = Path(str(package.__file__)).parent.parent

pytestmark = [pytest.mark.box, pytest.mark.waits]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "policies").mkdir(parents=True)
    (root / "policies" / "gateway.yaml").write_text(
        "networkPolicies:\n  - host: open.test\n    policies:\n      - {action: ALLOW, method: GET, path: /.*}\n"
    )
    for folder in (tmp_path, *tmp_path.parents):  # a root that runs the tests boxes another user
        if folder.is_relative_to("/tmp") and folder != Path("/tmp") and os.geteuid() == 0:
            folder.chmod(0o755)
    return root


def start(project: Path, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "IMPYARD_DATA_DIR": str(project.parent / "data"), "PYTHONPATH": str(CHECKOUT)}
    argv = [sys.executable, "-m", "impyard.runner", *args]
    return subprocess.Popen(argv, env=env, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def impyard(project: Path, *args: str) -> tuple[int, str, str]:
    process = start(project, *args)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def my_boxes(project: Path) -> list[engine.Container]:
    return [box for box in engine.boxes() if box.labels.get("impyard.project") == str(project)]


@pytest.fixture
def going_on(project: Path) -> Iterator[subprocess.Popen[str]]:
    """A run whose agent sleeps."""
    process = start(project, "run", "--model", "demo", "--json", "run: sleep 300")
    deadline = time.monotonic() + 120
    while not any(box.state == "running" for box in my_boxes(project)) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()
    for box in my_boxes(project):
        engine.remove(box.id)


def test_a_running_run_is_not_pruned_and_is_gone_once_stopped(project: Path, going_on: subprocess.Popen[str]) -> None:
    status, out, _err = impyard(project, "runs", "list", "--json")
    assert status == 0
    run = json.loads(out)
    assert run["state"] == "running"

    status, _out, err = impyard(project, "runs", "prune", "--keep", "0", "--yes")
    assert status == 0
    assert "it is running" in err
    assert (project / "runs" / run["run"] / "run.json").exists()
    assert my_boxes(project)

    assert impyard(project, "runs", "stop", "last")[:2] == (0, f"stopped {run['run']}\n")
    assert my_boxes(project) == []
    assert going_on.wait(20) == 130
    assert impyard(project, "runs", "stop", "--all")[:2] == (0, "no run is running\n")
    assert impyard(project, "decisions", "--verify")[0] == 0

    assert impyard(project, "runs", "prune", "--keep", "0", "--yes")[0] == 0
    assert [path.name for path in (project / "runs").iterdir() if path.is_dir()] == []


def test_stop_ends_the_box_of_a_runner_that_hangs(project: Path, going_on: subprocess.Popen[str]) -> None:
    going_on.send_signal(19)  # SIGSTOP: it hears no SIGTERM
    status, _out, err = impyard(project, "runs", "stop", "last")
    assert my_boxes(project) == []
    assert status == 1
    assert f"kill -9 {going_on.pid}" in err
