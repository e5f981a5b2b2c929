"""Who the box runs as, and that files come back to the caller without any link being followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from impyard.runner.removal import remove_tree
from impyard.runner.user import BoxUser, box_user, give_back, group, hand_over, owned, passwd, share_run

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
STRANGER = 54321


def as_root(uid: int = 1000) -> BoxUser:
    return BoxUser(uid=uid, gid=uid, name="agent", owner_uid=0, owner_gid=0, our_uid=0)


def test_an_ordinary_caller_is_the_user_of_the_box() -> None:
    user = box_user(STRANGER, 77, {"SUDO_UID": "5", "SUDO_GID": "6"})
    assert (user.uid, user.gid, user.is_ours) == (STRANGER, 77, True)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (1000, 1000)),
        ({"SUDO_UID": "1234", "SUDO_GID": "99"}, (1234, 99)),
        ({"SUDO_UID": "1234"}, (1234, 1234)),
        ({"SUDO_UID": "0", "SUDO_GID": "0"}, (1000, 1000)),
        ({"SUDO_UID": "1234", "SUDO_GID": "0"}, (1234, 1234)),
        ({"SUDO_UID": "-1"}, (1000, 1000)),
        ({"SUDO_UID": "4294967295"}, (1000, 1000)),
        ({"SUDO_UID": "x"}, (1000, 1000)),
    ],
)
def test_roots_box_runs_as_the_user_behind_sudo_or_as_1000_never_as_root(
    environ: dict[str, str], expected: tuple[int, int]
) -> None:
    user = box_user(0, 0, environ)
    assert (user.uid, user.gid) == expected
    assert not user.is_ours


def test_plain_root_gets_the_files_and_under_sudo_the_user_behind_it() -> None:
    plain, sudo = box_user(0, 0, {}), box_user(0, 0, {"SUDO_UID": "1234", "SUDO_GID": "99"})
    assert (plain.owner_uid, plain.owner_gid) == (0, 0)
    assert (sudo.owner_uid, sudo.owner_gid) == (1234, 99)


def test_the_generated_passwd_names_the_user_and_nobody_else_of_the_host() -> None:
    user = BoxUser(1234, 99, "ada", 1234, 99, 1234)
    lines = passwd(user, Path("/p/runs/x/.pihome")).splitlines()
    assert "ada:x:1234:99::/p/runs/x/.pihome:/bin/bash" in lines
    assert [line.split(":")[0] for line in lines] == ["root", "ada", "nobody"]
    assert "ada:x:99:" in group(user).splitlines()


def test_a_home_with_a_colon_does_not_break_the_passwd_file() -> None:
    for line in passwd(BoxUser(1, 1, "a", 1, 1, 1), Path("/p:q\n0:0/h")).splitlines():
        assert line.count(":") == 6


def test_the_callers_own_files_are_left_alone(tmp_path: Path) -> None:
    user = BoxUser(os.geteuid(), os.getegid(), "me", os.geteuid(), os.getegid(), os.geteuid())
    (tmp_path / "f").write_text("")
    assert hand_over(tmp_path, user) == {}
    assert give_back(tmp_path, user) == 0


@root_only
def test_files_of_the_box_are_given_back_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name, uid in (("d/box", 1000), ("other", STRANGER)):
        (tmp_path / name).write_text("")
        os.chown(tmp_path / name, uid, uid)
    os.chown(tmp_path / "d", 1000, 1000)
    assert give_back(tmp_path, as_root()) == 0
    assert [(tmp_path / name).stat().st_uid for name in ("d", "d/box", "other")] == [0, 0, STRANGER]


@root_only
def test_a_link_out_of_the_folder_is_given_back_itself_and_not_what_it_names(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    for path in (outside, outside / "deep"):
        os.chown(path, 1000, 1000)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    os.lchown(inside / "link", 1000, 1000)
    give_back(inside, as_root())
    assert (inside / "link").lstat().st_uid == 0
    assert outside.stat().st_uid == 1000
    assert (outside / "deep").stat().st_uid == 1000


@root_only
def test_an_existing_folder_is_handed_over_and_comes_back_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("")
    (tmp_path / "theirs").write_text("")
    (tmp_path / "boxs").write_text("")
    os.chown(tmp_path / "theirs", STRANGER, STRANGER)
    os.chown(tmp_path / "boxs", 1000, 1000)
    owners = hand_over(tmp_path, as_root())
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {1000}
    (tmp_path / "new").write_text("")
    os.chown(tmp_path / "new", 1000, 1000)
    give_back(tmp_path, as_root(), owners)
    found = {path.name: path.stat().st_uid for path in tmp_path.iterdir()}
    assert found == {"old": 0, "theirs": STRANGER, "boxs": 1000, "new": 0}
    assert tmp_path.stat().st_uid == 0


@root_only
def test_under_sudo_the_whole_run_and_the_logs_belong_to_the_user_behind_it(tmp_path: Path) -> None:
    runs, run = tmp_path / "runs", tmp_path / "runs" / "r"
    (run / "workspace").mkdir(parents=True)
    other = runs / "other"
    other.mkdir()
    for file in (run / "run.json", runs / "decisions.jsonl", tmp_path / "outside"):
        file.write_text("")
    (runs / "outcomes.jsonl").symlink_to(tmp_path / "outside")
    share_run(runs, run, box_user(0, 0, {"SUDO_UID": str(STRANGER)}))
    theirs = [runs, run, run / "workspace", run / "run.json", runs / "decisions.jsonl"]
    assert {path.stat().st_uid for path in theirs} == {STRANGER}
    assert {path.stat().st_uid for path in (tmp_path, other, tmp_path / "outside")} == {0}


@root_only
def test_plain_root_keeps_its_runs(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    share_run(tmp_path, tmp_path / "r", box_user(0, 0, {}))
    assert (tmp_path / "r").stat().st_uid == 0


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A run of root's in a user's project, with a file in it."""
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True)
    (run / "f").write_text("")
    for path in (tmp_path, run.parent):
        os.chown(path, STRANGER, STRANGER)
    return run


@root_only
@pytest.mark.parametrize("environ", [{}, {"SUDO_UID": "77"}], ids=["root", "sudo"])
def test_a_run_in_a_users_project_is_that_users_in_the_end(theirs: Path, environ: dict[str, str]) -> None:
    user = box_user(0, 0, environ)
    (theirs / "session").mkdir()
    os.chown(theirs / "session", user.uid, user.gid)
    assert give_back(theirs / "session", owned(user, theirs.parent.parent)) == 0
    share_run(theirs.parent, theirs, user)
    assert {path.stat().st_uid for path in (theirs, *theirs.iterdir())} == {STRANGER}


@root_only
def test_the_owner_of_a_project_gets_nothing_else_of_roots(theirs: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("")
    os.link(secret, theirs / "second-name")
    (theirs / "link").symlink_to(secret)
    own = theirs.with_name("own")  # put in a run's place, with a file of root's in it
    own.mkdir()
    (own / "f").write_text("")
    os.chown(own, STRANGER, STRANGER)
    for run in (theirs, own, theirs.with_name("gone")):
        share_run(theirs.parent, run, box_user(0, 0, {}))
    assert (secret.stat().st_uid, (own / "f").stat().st_uid) == (0, 0)
    assert (theirs / "f").stat().st_uid == STRANGER, "the control"


@root_only
def test_what_is_new_in_a_users_folder_is_that_users(tmp_path: Path) -> None:
    os.chown(tmp_path, STRANGER, STRANGER)
    owners = hand_over(tmp_path, as_root())
    (tmp_path / "new").write_text("")
    os.chown(tmp_path / "new", 1000, 1000)
    assert give_back(tmp_path, as_root(), owners) == 0
    assert {tmp_path.stat().st_uid, (tmp_path / "new").stat().st_uid} == {STRANGER}


@root_only
def test_a_file_with_a_second_name_elsewhere_is_not_handed_over(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("")
    (tmp_path / "w").mkdir()
    os.link(tmp_path / "secret", tmp_path / "w" / "name")
    hand_over(tmp_path / "w", as_root())
    assert (tmp_path / "secret").stat().st_uid == 0


@root_only
def test_folders_deeper_than_a_path_can_name_are_given_back_or_counted(tmp_path: Path) -> None:
    start = os.open(tmp_path, os.O_RDONLY)
    handle = start
    for _ in range(1500):
        os.mkdir("d" * 50, dir_fd=handle)
        os.chown("d" * 50, 1000, 1000, dir_fd=handle)
        inner = os.open("d" * 50, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    try:
        missed = give_back(tmp_path, as_root())
        assert (tmp_path / ("d" * 50)).stat().st_uid == 0
        assert missed in (0, 1)
    finally:
        remove_tree(tmp_path / ("d" * 50))  # pytest's own clean-up cannot
