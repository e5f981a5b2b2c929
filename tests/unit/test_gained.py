"""Which files the workspace gained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from impyard.runner.gained import GainedFile, Snapshot, gained, new_links, new_repositories, snapshot


def test_new_and_changed_files_are_told_apart_and_others_left_out(tmp_path: Path) -> None:
    for name in ("same", "changed", "gone"):
        (tmp_path / name).write_text("1")
    before = snapshot(tmp_path)
    (tmp_path / "changed").write_text("22")
    (tmp_path / "gone").unlink()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "new").write_text("333")
    assert gained(before, snapshot(tmp_path)) == [GainedFile("changed", 2, True), GainedFile("sub/new", 3, False)]


def test_links_are_named_and_not_followed(tmp_path: Path) -> None:
    inside = tmp_path / "w"
    inside.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("")
    (inside / "link").symlink_to(tmp_path / "outside")
    (inside / "loop").symlink_to(inside)
    assert [file.path for file in gained(Snapshot(), snapshot(inside))] == ["link", "loop"]


def test_a_link_says_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "passwd").symlink_to("/etc/passwd")
    os.symlink(b"\x1b[31m\xff" + b"x" * 1000, tmp_path / "odd")
    (tmp_path / "loop").symlink_to("loop")
    loop, odd, passwd = gained(Snapshot(), snapshot(tmp_path))
    assert passwd.record() == {"path": "passwd", "bytes": 11, "changed": False, "target": "/etc/passwd"}
    assert odd.target is not None and odd.target.startswith("\x1b[31m\udcffxxx") and len(odd.target) == 200
    assert loop.target == "loop"
    (tmp_path / "odd").unlink()
    (tmp_path / "odd").write_text("4")
    assert "target" not in gained(Snapshot(), snapshot(tmp_path))[1].record()


def test_gits_own_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a" / ".git").mkdir(parents=True)
    (tmp_path / "a" / ".git" / "index").write_text("")
    (tmp_path / ".gitignore").write_text("")
    assert [file.path for file in gained(Snapshot(), snapshot(tmp_path))] == [".gitignore"]


def test_a_look_ends_whatever_there_is(tmp_path: Path) -> None:
    """Folders count too: a box can make a million of them without a file."""
    for number in range(60):
        (tmp_path / str(number) / "in").mkdir(parents=True)
    assert not snapshot(tmp_path, 100).complete
    assert snapshot(tmp_path, 120).complete, "the control: just as many as there are"
    for number in range(60):
        (tmp_path / str(number) / "in" / "file").touch()
    found = snapshot(tmp_path, 100)
    assert not found.complete and len(found.files) <= 100


def test_repositories_that_came_are_named(tmp_path: Path) -> None:
    for folder in ("old/.git", "old/.git/modules/x", "new/.git", "new/.git/modules/.git", "new/inner/.git"):
        (tmp_path / folder).mkdir(parents=True)
        if folder.startswith("old"):
            before = snapshot(tmp_path)
    for name in ("objects", "refs"):
        (tmp_path / "bare" / name).mkdir(parents=True)
    (tmp_path / "bare" / "HEAD").touch()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".git").write_text("gitdir: elsewhere")
    found = ["bare", "linked/.git", "new/.git", "new/inner/.git"]
    assert new_repositories(before, snapshot(tmp_path)) == found
    for name in ("objects", "refs", "HEAD"):
        (tmp_path / name).mkdir()
    assert "." in new_repositories(before, snapshot(tmp_path)), "the folder itself is one now"


@pytest.mark.attack("137")
def test_a_repository_in_a_git_folder_is_named(tmp_path: Path) -> None:
    """A remote or a submodule may lead there."""
    (tmp_path / ".git" / "modules").mkdir(parents=True)
    before = snapshot(tmp_path)
    for name in ("HEAD", "objects", "refs"):
        (tmp_path / ".git" / "hidden" / name).mkdir(parents=True)
        (tmp_path / ".git" / name).mkdir()
    assert new_repositories(before, snapshot(tmp_path)) == [".git/hidden"]


@pytest.mark.attack("137")
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """git finds the .git in it by its name; who lists folders does not. Root reads all, so another user looks."""
    (tmp_path / "inner" / ".git").mkdir(parents=True)
    look = (
        "import os, sys; from pathlib import Path; from impyard.runner.gained import *; top = Path('.');"
        "os.setuid(65534) if os.geteuid() == 0 else None;"
        "print(new_repositories(Snapshot(), snapshot(top)))"
    )

    def found() -> str:
        done = subprocess.run([sys.executable, "-c", look], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    tmp_path.chmod(0o755)
    assert found() == "['inner/.git']"
    (tmp_path / "inner").chmod(0o311)
    try:
        assert found() == "['inner']"
    finally:
        (tmp_path / "inner").chmod(0o755)


@pytest.mark.attack("137")
def test_links_in_repositories_are_named(tmp_path: Path) -> None:
    (tmp_path / ".git" / "logs").mkdir(parents=True)
    for name in ("HEAD", "objects", "refs"):
        (tmp_path / "bare" / name).mkdir(parents=True)
    for name in (".git/old", ".git/turned", "src"):
        (tmp_path / name).symlink_to("/nowhere")
    before = snapshot(tmp_path)
    (tmp_path / ".git" / "turned").unlink()
    new = [".git/logs/HEAD", ".git/turned", "bare/index", "bare/refs/x"]
    for name in (*new, "other", "bare/tree"):
        if name == "bare/tree":
            (tmp_path / name).mkdir()
            name += "/link"
        (tmp_path / name).symlink_to("/elsewhere")
    assert new_links(before, snapshot(tmp_path)) == new


def test_files_with_a_name_elsewhere_are_counted(tmp_path: Path) -> None:
    inside = tmp_path / "w"
    inside.mkdir()
    for name in ("one", "two", "out"):
        (inside / name).touch()
    (inside / "second").hardlink_to(inside / "two")
    assert snapshot(inside).shared == 0, "the control: both names are here"
    for number, name in enumerate(("out", "two")):
        (tmp_path / f"{number}").hardlink_to(inside / name)
        assert snapshot(inside).shared == number + 1
    assert snapshot(inside, 3).shared == 0, "what is not all looked at says nothing"


def test_a_path_longer_than_the_system_takes_does_no_harm(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("x" * 200, dir_fd=here)
        inner = os.open("x" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    (tmp_path / "file").touch()
    assert [file.path for file in gained(Snapshot(), snapshot(tmp_path))] == ["file"]
