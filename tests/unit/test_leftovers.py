"""Telling a dead runner from a living one, and taking its things away. (Its boxes: tests/box.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from impyard.runner import leftovers
from impyard.runner.places import Holds
from impyard.runner.project import RunPaths, new_run
from impyard.runner.receipt import Receipt, read_receipt
from impyard.runner.user import box_user, hand_over


def dead_process() -> dict[str, str]:
    code = "import json\nfrom impyard.runner.leftovers import this_process\nprint(json.dumps(this_process()))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=30).stdout
    return dict(json.loads(out))


def make_run(root: Path, runner: dict[str, str], reason: str = "running", age_h: float = 0.5) -> RunPaths:
    paths = new_run(root)
    for folder in (paths.home, paths.door, paths.workspace):
        folder.mkdir()
    (paths.home / "auth.json").write_text("secret")
    (paths.home / "link").symlink_to(root)
    (paths.workspace / "kept").write_text("work")
    Receipt(
        run=paths.id,
        project=str(root),
        workspace=str(paths.workspace),
        model=None,
        started=(datetime.now(UTC) - timedelta(hours=age_h)).isoformat(),
        impyard="0",
        runner_pid=int(runner["pid"]),
        runner_start=runner["start"],
        runner_space=runner["space"],
        ceiling_s=60,
        exit_reason=reason,
    ).write(paths.receipt)
    return paths


def test_a_process_is_told_by_number_start_and_space() -> None:
    me = leftovers.this_process()
    assert leftovers.lives(**me) is True
    assert leftovers.lives(**dead_process()) is False
    assert leftovers.lives(**{**me, "start": "1"}) is False
    assert leftovers.lives(**{**me, "space": "another machine"}) is None
    assert leftovers.lives("", "", me["space"]) is False


@pytest.mark.attack("155")
def test_a_process_that_nobody_has_asked_for_is_dead_all_the_same() -> None:
    """A zombie keeps its number and the time of its start for as long as its parent likes."""
    with subprocess.Popen(["sleep", "300"]) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        facts = {"pid": str(process.pid), "start": stat[19], "space": leftovers.this_process()["space"]}
        assert leftovers.lives(**facts) is True
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert leftovers.lives(**facts) is False


@pytest.mark.attack("155")
@pytest.mark.parametrize("other", ["start", "space"])
def test_another_process_that_has_the_dead_runners_number_saves_nothing(tmp_path: Path, other: str) -> None:
    """By the time of its start, or, after a reboot, by the run's ceiling, which has long passed."""
    paths = make_run(tmp_path, {**leftovers.this_process(), other: "1"}, age_h=2)
    leftovers.sweep_folders(tmp_path, lambda text: None)
    assert not paths.home.exists()
    assert read_receipt(paths.receipt)["exit_reason"] == "runner-lost"


def test_what_a_dead_runner_left_is_taken_away_and_its_work_stays(tmp_path: Path) -> None:
    paths = make_run(tmp_path, dead_process())
    notes: list[str] = []
    leftovers.sweep_folders(tmp_path, notes.append)
    assert sorted(entry.name for entry in paths.folder.iterdir()) == ["run.json", "workspace"]
    assert (paths.workspace / "kept").read_text() == "work"
    assert read_receipt(paths.receipt)["exit_reason"] == "runner-lost"
    assert paths.id in notes[0]
    leftovers.sweep_folders(tmp_path, notes.append)
    assert len(notes) == 1


def test_what_a_living_runner_needs_is_left_alone(tmp_path: Path) -> None:
    paths = make_run(tmp_path, leftovers.this_process())
    leftovers.sweep_folders(tmp_path, lambda text: None)
    assert (paths.home / "auth.json").exists()
    assert read_receipt(paths.receipt)["exit_reason"] == "running"


def test_a_runner_that_nobody_here_can_see_is_left_alone(tmp_path: Path) -> None:
    paths = make_run(tmp_path, {**leftovers.this_process(), "space": "elsewhere"})
    leftovers.sweep_folders(tmp_path, lambda text: None)
    assert (paths.home / "auth.json").exists()


def test_a_finished_run_keeps_its_reason_when_only_its_folders_were_left(tmp_path: Path) -> None:
    paths = make_run(tmp_path, dead_process(), reason="ceiling")
    leftovers.sweep_folders(tmp_path, lambda text: None)
    assert read_receipt(paths.receipt)["exit_reason"] == "ceiling"
    assert not paths.home.exists()


@pytest.mark.attack("155")
def test_a_runner_that_was_killed_before_its_receipt_leaves_nothing_for_long(tmp_path: Path) -> None:
    notes: list[str] = []
    paths, young = new_run(tmp_path), new_run(tmp_path)
    os.utime(paths.folder, (0, 0))
    leftovers.sweep_folders(tmp_path, notes.append)
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == [young.id]
    assert paths.id in notes[0] and len(notes) == 1


@pytest.mark.attack("155")
@pytest.mark.parametrize("reason", ["running", "finished"])
def test_a_runner_that_was_killed_over_its_receipt_leaves_no_draft(tmp_path: Path, reason: str) -> None:
    """At the very end: everything is taken down, and the final receipt is on its way."""
    paths = make_run(tmp_path, dead_process(), reason=reason)
    assert leftovers.clean_folder(paths) == []
    draft = paths.folder / ".run.json.0123abcd"
    draft.write_text("{")
    leftovers.sweep_folders(tmp_path, lambda text: None)
    assert sorted(entry.name for entry in paths.folder.iterdir()) == ["run.json", "workspace"]
    assert read_receipt(paths.receipt)["exit_reason"] == {"running": "runner-lost"}.get(reason, reason)


def test_cleaning_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("")
    paths = new_run(tmp_path)
    paths.home.symlink_to(outside)
    assert leftovers.clean_folder(paths) == []
    assert (outside / "f").exists()
    assert not os.path.lexists(paths.home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands files to another user")
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_workspace_gets_its_owners_back_unless_the_note_may_be_a_strangers(tmp_path: Path, is_ours: bool) -> None:
    """A project may come with runs: their notes must not give anybody's files away."""
    work = tmp_path / "work"
    work.mkdir()
    for name, owner in (("mine", 0), ("theirs", 54321), ("the box's", 1000)):
        (work / name).touch()
        os.chown(work / name, owner, owner)
    facts = dead_process()
    paths = make_run(tmp_path, facts if is_ours else {**facts, "space": "another boot"}, age_h=2)
    leftovers.note_owners(paths, work, hand_over(work, box_user(0, 0, {})))
    assert {path.stat().st_uid for path in work.iterdir()} == {1000}
    leftovers.sweep_folders(tmp_path, lambda text: None)
    assert read_receipt(paths.receipt)["exit_reason"] == "runner-lost"
    found = {path.name: path.stat().st_uid for path in work.iterdir()}
    assert found == ({"mine": 0, "theirs": 54321, "the box's": 1000} if is_ours else dict.fromkeys(found, 1000))


@pytest.mark.attack("155")
def test_a_receipt_that_came_with_a_project_removes_nothing_of_anybodys(tmp_path: Path) -> None:
    """What it says was made for the run is removed only as impyard makes it; and no such receipt stops a run."""
    secret = tmp_path / "secret"
    secret.write_text("key")
    paths = make_run(tmp_path, dead_process())
    text = json.loads(paths.receipt.read_text())
    paths.receipt.write_text(json.dumps({**text, "made": [{"path": str(secret), "content": "key"}, 7, "x"]}))
    leftovers.sweep_folders(tmp_path, lambda text: None)
    assert secret.exists() and not paths.home.exists()
    paths = make_run(tmp_path, dead_process())
    paths.receipt.write_text("[" * 100_000)
    leftovers.sweep_folders(tmp_path, lambda text: None)
    assert paths.home.exists(), "what nobody can read is left alone"


def test_what_a_dead_runner_left_stays_while_another_run_works_there(tmp_path: Path) -> None:
    """What the dead one made in a checkout is another's cover by now."""
    paths = make_run(tmp_path, dead_process())
    other = Holds()
    other.hold(paths.workspace, True)
    leftovers.sweep_folders(tmp_path, lambda text: None)
    assert read_receipt(paths.receipt)["exit_reason"] == "running"
    other.close()
    leftovers.sweep_folders(tmp_path, lambda text: None)
    assert read_receipt(paths.receipt)["exit_reason"] == "runner-lost"
