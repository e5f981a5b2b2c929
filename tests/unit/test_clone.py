"""What is in a clone that an agent gets, and what is not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.clone.make import Clone, covered_folders, find_project, uncommitted, words_about_changes
from tests.support.repository import clone_of, commit, git, new_repository

TOKEN = "//registry.example.org/:_authToken=0123456789abcdef0123"
FILES = {
    "README.md": "as it was\n",
    "src/a.py": "a = 1\n",
    ".env": "KEY=secret-in-env\n",
    ".npmrc": f"{TOKEN}\nfund=false\n",
}


def receipt_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_bytes())["clone"]
    return found


def names(folder: Path) -> set[str]:
    found = set()
    for path, inner, files in os.walk(folder):
        inner[:] = [name for name in inner if name != ".git"]
        found |= {os.path.relpath(f"{path}/{name}", folder) for name in files}
    return found


@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_a_clone_has_what_is_committed_and_no_secret(tmp_path: Path, form: str) -> None:
    root = new_repository(tmp_path / "p", FILES, form=form)
    git(root, "remote", "add", "origin", "https://user:secret-in-url@git.example.org/a.git")
    (root / "README.md").write_text("changed\n")
    (root / "new.txt").write_text("new\n")
    paths, notes = clone_of(root)
    work = paths.workspace
    assert names(work) == {"README.md", "src/a.py", ".npmrc"}
    assert (work / "README.md").read_text() == "as it was\n"
    assert "0123456789abcdef0123" not in (work / ".npmrc").read_text()
    assert git(work, "status", "--short") == ""
    assert git(work, "log", "--format=%s") == "The project as committed"
    assert git(work, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert git(work, "fsck", "--strict") == ""
    assert git(work, "remote") == ""
    assert notes == [
        "not as they are in the clone, as they hold secrets: .env, .npmrc; `--allow-file PATH` puts one in"
    ]
    said = receipt_of(paths.folder)
    assert said["commit"] == git(root, "rev-parse", "HEAD") and said["base"] == git(work, "rev-parse", "HEAD")
    assert said["left_out"] == [".env", ".npmrc"]
    everything = git(work, "cat-file", "--batch-all-objects", "--batch") + (work / ".git" / "config").read_text()
    assert "secret-in" not in everything and "0123456789abcdef0123" not in everything
    assert git(root, "log", "-p").count("secret-in-env"), "the control: the project's own has it"
    shared = [path for path in work.rglob("*") if path.is_file() and path.stat().st_nlink > 1]
    assert shared == []
    assert uncommitted(find_project(root, Clone())) == 2, "one changed, one new"
    assert words_about_changes(1).endswith("takes it along") and words_about_changes(2).endswith("takes them along")


def test_a_secret_comes_along_when_it_is_named(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", FILES)
    paths, notes = clone_of(root, allowed=(".env", ".npmrc"))
    assert (paths.workspace / ".env").read_text() == FILES[".env"]
    assert TOKEN in (paths.workspace / ".npmrc").read_text() and notes == []


def test_what_is_not_committed_comes_on_request(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {**FILES, ".gitignore": "*.o\nruns/\n", "gone.txt": "1\n"})
    (root / "README.md").write_text("changed\n")
    (root / "staged.txt").write_text("staged\n")
    (root / "new.txt").write_text("new\n")
    (root / "a.o").write_text("built\n")
    (root / "later.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    (root / "gone.txt").unlink()
    git(root, "add", "staged.txt")
    before = git(root, "status", "--porcelain"), git(root, "count-objects")
    paths, _ = clone_of(root, Clone(changes=True))
    assert names(paths.workspace) == {"README.md", "src/a.py", ".npmrc", ".gitignore", "staged.txt", "new.txt"}
    assert (paths.workspace / "README.md").read_text() == "changed\n"
    assert git(paths.workspace, "status", "--short") == ""
    after = git(root, "status", "--porcelain"), git(root, "count-objects")
    assert after == before, "nothing of the caller's has changed"


def test_other_runs_never_come_along(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p [1]" / "sub", FILES).parent
    top = new_repository(root, {"runs/old": "tracked\n"})
    (root / "sub" / "runs" / "other").mkdir(parents=True)
    (root / "sub" / "runs" / "other" / "log").touch()
    (root / "runs" / "new").write_text("new\n")
    for folder in (top, root / "sub"):
        for number, wanted in enumerate((Clone(), Clone(changes=True)), 1):
            paths, _ = clone_of(folder, wanted, number=number)
            assert not (paths.workspace / "runs").exists() and (paths.workspace / "README.md").exists() == (
                folder != top
            )


def test_the_history_comes_on_request(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", {"a": "1\n"})
    commit(root, {"a": "2\n"}, "second")
    paths, _ = clone_of(root, Clone(history=True))
    assert git(paths.workspace, "log", "--format=%s").split() == ["second", "first"]
    assert git(paths.workspace, "rev-parse", "HEAD") == git(root, "rev-parse", "HEAD")
    commit(root, {".env": "KEY=1\n"}, "third")
    paths, _ = clone_of(root, Clone(history=True), number=2)
    assert git(paths.workspace, "log", "--format=%s").splitlines()[:2] == ["The project as committed", "third"]
    assert git(paths.workspace, "status", "--short") == ""


def test_a_part_of_a_repository_is_cloned_alone(tmp_path: Path) -> None:
    top = new_repository(tmp_path / "p", {".gitignore": "node_modules\n/out\n", "other/x": "x\n", "sub/a": "a\n"})
    paths, _ = clone_of(top / "sub")
    assert names(paths.workspace) == {"a"}
    (paths.workspace / "node_modules").mkdir()
    (paths.workspace / "node_modules" / "x").touch()
    assert git(paths.workspace, "status", "--short") == "", "what is ignored above is ignored here"
    assert covered_folders(top / "sub") == []
    with pytest.raises(ImpyardError, match="the project is a part of it"):
        find_project(top / "sub", Clone(history=True))


def test_nothing_is_converted_and_no_filter_runs(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    attributes = "*.bin filter=mark\n*.bat eol=crlf\n"
    root = new_repository(tmp_path / "p", {".gitattributes": attributes, "x.bin": pointer, "y.bat": "a\n"})
    git(root, "config", "filter.mark.smudge", f"touch {tmp_path}/ran; cat")
    git(root, "config", "filter.mark.clean", "cat")
    paths, _ = clone_of(root)
    assert (paths.workspace / "x.bin").read_text() == pointer and not (tmp_path / "ran").exists()
    assert (paths.workspace / "y.bat").read_bytes() == b"a\n"
    assert git(paths.workspace, "status", "--short") == ""
    (root / "x.bin").unlink()
    git(root, "reset", "--quiet", "--hard")
    assert (tmp_path / "ran").exists(), "the control"


def test_links_modes_submodules_and_odd_names(tmp_path: Path) -> None:
    inner = new_repository(tmp_path / "inner", {"z": "z\n"})
    root = new_repository(tmp_path / "p", {"run.sh": "#!/bin/sh\n", "-n": "dash\n", "a\nb": "line\n"})
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("/etc/hostname")
    (root / os.fsdecode(b"caf\xe9")).write_text("latin\n")
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")
    commit(root, {}, "more")
    paths, _ = clone_of(root)
    assert (paths.workspace / "run.sh").stat().st_mode & 0o100
    assert os.readlink(paths.workspace / "link") == "/etc/hostname"
    assert (paths.workspace / "a\nb").exists() and (paths.workspace / os.fsdecode(b"caf\xe9")).exists()
    assert list((paths.workspace / "sub").iterdir()) == [], "a submodule stays empty"
    assert git(paths.workspace, "status", "--short") == ""


def test_worktrees_shallow_clones_and_a_detached_head(tmp_path: Path) -> None:
    first = new_repository(tmp_path / "p", {"a": "1\n"})
    commit(first, {"a": "2\n"}, "second")
    git(first, "worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"), "HEAD~1")
    paths, _ = clone_of(tmp_path / "linked")
    assert (paths.workspace / "a").read_text() == "1\n" and receipt_of(paths.folder)["branch"] is None
    git(tmp_path, "clone", "--quiet", "--depth=1", first.as_uri(), "shallow")
    paths, _ = clone_of(tmp_path / "shallow", Clone(history=True))
    assert git(paths.workspace, "log", "--format=%s") == "second"


def test_what_cannot_be_cloned_is_said(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(ImpyardError, match="needs a git repository") as refused:
        find_project(tmp_path / "plain", Clone())
    assert "git init" in str(refused.value.hint)
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet", "--template=")
    with pytest.raises(ImpyardError, match="no commit") as refused:
        find_project(empty, Clone())
    assert "--with-changes" in str(refused.value.hint)
    (empty / "a").write_text("a\n")
    paths, _ = clone_of(empty, Clone(changes=True))
    assert names(paths.workspace) == {"a"} and receipt_of(paths.folder)["commit"] is None


def test_what_git_cannot_take_along_is_left_out_and_said(tmp_path: Path) -> None:
    root = new_repository(tmp_path / "p", FILES)
    git(root, "init", "--quiet", "nested")
    (root / "new.txt").write_text("new\n")
    paths, notes = clone_of(root, Clone(changes=True))
    assert (paths.workspace / "new.txt").exists() and not (paths.workspace / "nested").exists()
    assert any("takes them for a repository: nested/" in note for note in notes)
