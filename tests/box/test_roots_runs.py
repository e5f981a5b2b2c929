"""Root runs impyard in a user's project, plainly or by sudo: what it leaves is the user's, who goes on with it."""

from __future__ import annotations

import copy
import signal
from pathlib import Path

import pytest

from tests.support.boxes import MakeProject
from tests.support.project import Caller, Project


@pytest.fixture
def theirs(make_project: MakeProject, ordinary_user: Caller, needs_root: None) -> Project:
    """A user's project."""
    return make_project(caller=ordinary_user)


@pytest.fixture(params=["root", "sudo"])
def as_root(request: pytest.FixtureRequest, theirs: Project, this_user: Caller) -> Project:
    """The same project in the hands of root, who has a data folder of its own."""
    project = copy.copy(theirs)
    project.caller = this_user
    project.data = theirs.base / "roots-data"
    project.env = {**theirs.env, "IMPYARD_DATA_DIR": str(project.data), "HOME": str(this_user.home)}
    if request.param == "sudo":
        project.env |= {"SUDO_UID": str(theirs.caller.uid), "SUDO_GID": str(theirs.caller.gid)}
    return project


def owners(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder.parent)): path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def test_a_user_goes_on_with_what_root_ran_in_his_project(theirs: Project, as_root: Project) -> None:
    ready: list[int] = []

    def look() -> None:
        waiting = as_root.started_file("there")
        ready.append(theirs.runs.stat().st_uid)
        (waiting.parent / "go").touch()

    make = (
        "run: mkdir a; echo 4 > a/b; ln a/b a/c; ln -s b a/d; touch there; until [ -e go ]; do sleep 0.1; done; rm go"
    )
    first = as_root.demo(make, watch=look)
    assert (first.code, ready) == (0, [theirs.caller.uid]), (first, "while the run lasts the folder of all runs is his")
    assert first.run is not None and first.receipt["user"]["uid"] != 0
    strangers = {name: uid for name, uid in owners(theirs.runs).items() if uid != theirs.caller.uid}
    assert strangers == {}

    second = theirs.demo("run: true")
    assert second.code == 0, second
    name = first.run.name
    for command in (("runs",), ("runs", "show", name), ("report", name), ("decisions", "--run", name)):
        result = theirs.impyard(*command)
        assert (result.code, name in result.out + result.err) == (0, True), result
    assert (first.run / "report.html").is_file()
    resumed = theirs.impyard("runs", "resume", name, "run: cat a/b")
    assert resumed.code == 0, resumed
    assert resumed.run is not None
    assert theirs.impyard("runs", "prune", "--keep", "0", "--yes").code == 0
    assert theirs.run_folders() == []


def test_what_a_killed_run_of_roots_left_is_the_users_once_root_has_cleaned_up(
    theirs: Project, as_root: Project
) -> None:
    process = as_root.start("run", "--model", "demo", "run: touch there; sleep 60")
    as_root.started_file("there")
    process.send_signal(signal.SIGKILL)
    as_root.finish(process)
    assert "cleaned up after run" in as_root.demo("run: true").out
    assert set(owners(theirs.runs).values()) == {theirs.caller.uid}
    assert theirs.impyard("runs", "prune", "--keep", "0", "--yes").code == 0
    assert theirs.run_folders() == []


def test_a_workspace_of_the_users_stays_his(theirs: Project, as_root: Project) -> None:
    folder = theirs.base / "work"
    folder.mkdir()
    (folder / "old").touch()
    theirs.own(folder)
    (folder / "roots").touch()
    result = as_root.demo("run: touch new", args=["--workspace", str(folder)])
    assert result.code == 0, result
    user = theirs.caller.uid
    assert owners(folder) == {"work": user, "work/old": user, "work/new": user, "work/roots": 0}
