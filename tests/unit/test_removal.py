"""What the box left behind is removed whole, and nothing else with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
