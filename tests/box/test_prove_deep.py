"""`impyard prove --deep` on a real engine: the attempts that ship, made from inside a box."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from impyard.box.attacks.bed import chosen
from impyard.runner import engine, engine_image
from tests.support.project import Project
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.box, pytest.mark.waits]
SHORT = "impyard-test-short-of-one:latest"


@pytest.fixture
def temporary(project: Project) -> Iterator[Path]:
    """The folder for temporary files of the project's commands, which must leave none."""
    folder = project.base / "tmp"
    folder.mkdir()
    project.own(folder)
    project.env["TMPDIR"] = str(folder)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("temporary")
def test_every_attempt_from_a_box_is_held(project: Project) -> None:
    result = project.impyard("prove", "--deep", "--json", "--group", "C", "--group", "F", limit_s=240)
    document = json.loads(result.out)
    assert [claim for claim in document["claims"] if not claim["ok"]] == []
    attempts = document["attempts"]
    assert attempts["failed"] == []
    assert {key: group["held"] for key, group in attempts["groups"].items()} == {
        key: len(chosen(key)) for key in ("C", "F")
    }
    assert (result.code, document["ok"]) == (0, True)
    assert project.run_folders() == []


@pytest.mark.usefixtures("temporary")
def test_a_box_that_leaves_one_out_is_found_out(project: Project, box_image: str) -> None:
    """The control: the scoreboard counts what our own list holds, not what a box says it made."""
    change = "cd /opt/impyard/impyard/box/attacks && echo 'ATTEMPTS = ATTEMPTS[1:]' >> bed.py && rm -r __pycache__"
    dockerfile = f"FROM {box_image}\nRUN {change}\n".encode()
    short = engine_image.build_image(engine_image.pack({"Dockerfile": (dockerfile, 0o644)}), SHORT, {}, lambda _: None)
    try:
        result = project.impyard("prove", "--deep", "--group", "C", "--image", short, limit_s=240)
    finally:
        engine.client().images.remove(SHORT, force=True)
    first, count = chosen("C")[0], len(chosen("C"))
    assert result.code == 1
    assert f"FAIL  C  proxy protocol            {count} made, {count - 1} held, 1 failed" in result.out
    assert f"  {first.key}: it was not made\n" in result.out
    assert f"{count - 1} of {count} attempts were held" in result.out
    assert max(map(len, result.out.splitlines()[:-2])) <= 80


@pytest.mark.usefixtures("temporary")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_among_the_attempts_ends_it(project: Project, number: signal.Signals) -> None:
    process = project.start("prove", "--deep")
    wait_until(lambda: any(line["host"] == "ok.test" for line in project.decisions()), 60)
    process.send_signal(number)
    result = project.finish(process)
    assert (result.code, result.out) == (130, "")
    assert "interrupted: nothing was proved" in result.err
    assert project.run_folders() == []
