"""What the box left behind is removed whole, and nothing else with it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from impyard.runner import user
from impyard.runner.removal import remove_tree, tree_bytes

pytestmark = pytest.mark.attack("136")


def test_a_tree_with_files_folders_and_sockets_is_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "workspace" / "deep" / "er").mkdir(parents=True)
    (run / "workspace" / "deep" / "er" / "file").write_text("x")
    os.mkfifo(run / "pipe")
    remove_tree(run)
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("kept")
    outside.chmod(0o500)
    run = tmp_path / "run"
    (run / "sub").mkdir(parents=True)
    (run / "folder-link").symlink_to(outside)
    (run / "sub" / "folder-link").symlink_to(outside)
    (run / "file-link").symlink_to(outside / "keep")
    remove_tree(run)
    assert not run.exists()
    assert (outside / "keep").read_text() == "kept"
    assert outside.stat().st_mode & 0o777 == 0o500


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "keep").write_text("kept")
    (tmp_path / "run").symlink_to(target)
    with pytest.raises(OSError):
        remove_tree(tmp_path / "run")
    assert (target / "keep").read_text() == "kept"


def test_folders_without_permissions_are_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "shut" / "inner" / "most").mkdir(parents=True)
    (run / "shut" / "inner" / "file").write_text("x")
    (run / "shut" / "inner" / "most").chmod(0)
    (run / "shut" / "inner").chmod(0)
    (run / "shut").chmod(0)
    remove_tree(run)
    assert not run.exists()


def test_folders_nested_deeper_than_a_path_or_a_recursion_are_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    here = os.open(run, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("nested-folder", dir_fd=here)
        inner = os.open("nested-folder", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    remove_tree(run)
    assert not run.exists()


def test_names_like_those_used_while_removing_do_no_harm(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for number in range(1, 4):
        (run / f".gone-{number}" / f".gone-{number}" / "x").mkdir(parents=True)
    remove_tree(run)
    assert not run.exists()


def test_size_counts_files_and_not_what_links_point_to(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * 1_000_000)
    run = tmp_path / "run"
    run.mkdir()
    (run / "link").symlink_to(big)
    assert tree_bytes(run) < 100_000
    (run / "file").write_bytes(b"x" * 500_000)
    assert 500_000 <= tree_bytes(run) < 700_000


# -- links put in the place of a folder between a look and the step after it ---------------------------------------


def swapped(folder: Path, outside: Path) -> None:
    """What a program that runs beside could do: the folder becomes a link to `outside`."""
    folder.rename(folder.with_name("aside"))
    folder.symlink_to(outside)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "keep").write_text("kept")
    return folder


def contents(folder: Path) -> list[tuple[str, int, int, int]]:
    found = [(path, path.stat(follow_symlinks=False)) for path in sorted(folder.rglob("*"))]
    return [(str(path), status.st_mode, status.st_uid, status.st_ino) for path, status in found]


def test_a_folder_that_becomes_a_link_while_it_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outside: Path
) -> None:
    before = contents(outside)
    (tmp_path / "run" / "sub" / "inner").mkdir(parents=True)
    real = os.stat
    done: list[bool] = []

    def stat(path: Any, **options: Any) -> os.stat_result:
        found = real(path, **options)
        if path == "sub" and not done:  # known for a folder now
            done.append(True)
            swapped(tmp_path / "run" / "sub", outside)
        return found

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(OSError):
        remove_tree(tmp_path / "run")
    monkeypatch.undo()
    assert done and contents(outside) == before
    remove_tree(tmp_path / "run")
    assert contents(outside) == before


def test_a_folder_that_becomes_a_link_while_it_is_given_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outside: Path
) -> None:
    before = contents(outside)
    (tmp_path / "run" / "sub" / "inner").mkdir(parents=True)
    visited: list[str] = []

    def change(name: str, _parent: int, _found: os.stat_result) -> None:
        visited.append(name)
        if name == "sub":
            swapped(tmp_path / "run" / "sub", outside)

    missed = user._each(tmp_path / "run", change)
    assert missed == 1 and "keep" not in visited and contents(outside) == before


@pytest.mark.attack("136", control=True)
def test_control_a_walk_by_names_is_led_away(tmp_path: Path, outside: Path) -> None:
    """os.walk by name, with the same change at the same moment."""
    (tmp_path / "run" / "sub" / "inner").mkdir(parents=True)
    seen = []
    for folder, _names, files in os.walk(tmp_path / "run", followlinks=True):
        if folder == str(tmp_path / "run"):
            swapped(tmp_path / "run" / "sub", outside)
        seen += files
    assert seen == ["keep"]


def test_a_tree_that_changes_all_the_time_leads_nowhere(tmp_path: Path, outside: Path) -> None:
    """The same as a race: folders and links swapped by another thread while trees are looked at and removed."""
    before = contents(outside)
    run = tmp_path / "run"
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                (run / "sub" / "inner").mkdir(parents=True, exist_ok=True)
                (run / "sub").rename(run / f"old{time.monotonic_ns()}")
                (run / "sub").symlink_to(outside)
            with contextlib.suppress(OSError):
                (run / "sub").unlink()

    def look(name: str, _parent: int, _found: os.stat_result) -> None:
        visited.add(name)

    thread = threading.Thread(target=swap)
    thread.start()
    visited: set[str] = set()
    try:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            run.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):
                user._each(run, look)
            with contextlib.suppress(OSError):
                remove_tree(run)
    finally:
        over.set()
        thread.join()
    assert "keep" not in visited and contents(outside) == before
