"""Which files the workspace gained."""

from __future__ import annotations

from pathlib import Path

from impyard.runner.gained import GainedFile, gained, snapshot


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
    assert [file.path for file in gained({}, snapshot(inside))] == ["link", "loop"]


def test_gits_own_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "a" / ".git").mkdir(parents=True)
    (tmp_path / "a" / ".git" / "index").write_text("")
    (tmp_path / ".gitignore").write_text("")
    assert [file.path for file in gained({}, snapshot(tmp_path))] == [".gitignore"]
