"""Bringing an agent's changes together with a checkout that has gone on meanwhile."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner import leftovers
from impyard.runner.cli import main
from impyard.runner.clone import apply_cmd
from impyard.runner.clone import places as cloneplaces
from impyard.runner.clone.git import SCRATCH, Scratch
from impyard.runner.clone.make import Clone
from impyard.runner.project import RunPaths
from impyard.runner.receipt import read_receipt, write_json
from tests.support.repository import clone_of, commit, git, new_repository

LINES = "".join(f"line {number}\n" for number in range(20))
FILES = {"a.txt": LINES, "b.txt": "b\n", "gone.txt": "gone\n", "dir/x": "x\n", ".gitignore": "runs/\n"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = new_repository(tmp_path_factory.mktemp("made") / "p", FILES)
    clone_of(root)
    return root


@pytest.fixture
def run(made: Path, tmp_path: Path) -> RunPaths:
    shutil.copytree(made, tmp_path / "p", symlinks=True)
    return RunPaths(tmp_path / "p", "20260101-000000-0001")


def impyard(run: RunPaths, *words: str) -> int:
    return main(["runs", *words[:1], run.id, "--project", str(run.root), *words[1:]])


def test_all_kinds_of_changes_are_taken_over(run: RunPaths, capsys: Any) -> None:
    work = run.workspace
    (work / "a.txt").write_text(LINES.replace("line 3", "line three"))
    (work / "gone.txt").unlink()
    (work / "dir" / "x").unlink()
    (work / "dir").rmdir()
    (work / "dir").write_text("a file now\n")
    (work / "b.txt").unlink()
    (work / "b.txt").mkdir()
    (work / "b.txt" / "in").write_text("in\n")
    (work / "tool.sh").write_text("#!/bin/sh\n")
    (work / "tool.sh").chmod(0o755)
    (work / "-n").write_text("dash\n")
    (work / "link").symlink_to("a.txt")
    (work / os.fsdecode(b"caf\xe9")).write_text("latin\n")
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message=all of it")
    (work / "later").write_text("not committed\n")
    assert impyard(run, "apply", "--yes") == 0
    said = capsys.readouterr().out
    assert "A tool.sh  (a program)" in said and "A -n  (its name looks like an option)" in said
    assert "D gone.txt" in said and "A link  (a link)" in said
    root = run.root
    left = {os.path.relpath(path, root): path for path in root.rglob("*") if ".git/" not in f"{path}/"}
    assert sorted(name for name in left if not name.startswith("runs")) == sorted(
        [".gitignore", "-n", "a.txt", "b.txt", "b.txt/in", os.fsdecode(b"caf\xe9"), "dir", "later", "link", "tool.sh"]
    )
    assert "line three" in (root / "a.txt").read_text() and (root / "dir").read_text() == "a file now\n"
    assert (root / "tool.sh").stat().st_mode & 0o111 and os.readlink(root / "link") == "a.txt"
    assert git(root, "diff", "--cached") == "", "the index is left alone"
    assert impyard(run, "apply", "--yes") == 0 and "all of it already" in capsys.readouterr().out


def test_what_was_committed_since_is_merged(run: RunPaths, capsys: Any) -> None:
    (run.workspace / "a.txt").write_text(LINES.replace("line 3\n", "agent\n"))
    commit(run.root, {"a.txt": LINES.replace("line 15\n", "mine\n")}, "mine")
    assert impyard(run, "apply", "--yes") == 0 and "M a.txt  (merged with yours)" in capsys.readouterr().out
    assert (run.root / "a.txt").read_text() == LINES.replace("line 3\n", "agent\n").replace("line 15\n", "mine\n")
    git(run.root, "checkout", "--quiet", ".")
    commit(run.root, {"a.txt": LINES.replace("line 3\n", "mine\n")}, "the same line")
    assert impyard(run, "apply", "--yes") == 1 and "the same lines" in capsys.readouterr().err
    assert git(run.root, "status", "--short") == ""


REFUSED = {
    "changed": "you have changed it and not committed that",
    "staged": "you have changed it and not committed that",
    "removed": "you have changed it and not committed that",
    "in the way": "a file of yours is there",
    "gone": "you have removed it, the agent has changed it",
    "both": "both of you have made it",
    "binary": "it is no text to merge",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_committed_is_never_touched(run: RunPaths, what: str, capsys: Any) -> None:
    root, work = run.root, run.workspace
    (work / "a.txt").write_text("agent\n")
    (work / "new.txt").write_text("agent\n")
    (work / "b.txt").write_text("b\0agent\n")
    if what in ("changed", "staged"):
        (root / "a.txt").write_text("mine\n")
        git(root, *(["add", "a.txt"] if what == "staged" else ["status"]))
    elif what == "removed":
        (root / "a.txt").unlink()
    elif what == "in the way":
        (root / "new.txt").write_text("mine\n")
    elif what == "gone":
        git(root, "rm", "--quiet", "a.txt")
        git(root, "commit", "--quiet", "--message=gone")
    elif what == "both":
        commit(root, {"new.txt": "mine\n"}, "mine")
    else:
        commit(root, {"b.txt": "b\0mine\n"}, "mine")
    before = {path: path.read_bytes() for path in root.glob("*.txt")}
    assert impyard(run, "apply", "--yes") == 1
    said = capsys.readouterr().err
    assert REFUSED[what] in said and "1 of the agent's changes" in said and "--branch NAME" in said
    assert {path: path.read_bytes() for path in root.glob("*.txt")} == before
    if what not in ("both", "gone", "binary"):
        git(root, "stash", "--quiet", "--include-untracked")
        assert impyard(run, "apply", "--yes") == 0, "the control: once it is out of the way"


def test_changes_that_the_agent_was_given_are_built_upon(run: RunPaths) -> None:
    (run.root / "b.txt").write_text("not committed\n")
    paths, _ = clone_of(run.root, Clone(changes=True), number=2)
    (paths.workspace / "b.txt").write_text("not committed\nagent\n")
    assert impyard(paths, "apply", "--yes") == 0
    assert (run.root / "b.txt").read_text() == "not committed\nagent\n"
    assert impyard(paths, "apply", "--yes", "--branch", "x") == 1, "its commit has nothing of that"


def test_line_ends_are_those_of_your_checkout_and_filters_are_not_run(tmp_path: Path, capsys: Any) -> None:
    root = new_repository(tmp_path / "p", {".gitattributes": "*.bat eol=crlf\n*.bin filter=mine\n", "y.bat": LINES})
    commit(root, {"x.bin": "x\n"}, "second")
    git(root, "config", "filter.mine.smudge", f"touch {tmp_path}/ran; cat")
    git(root, "checkout", "--quiet", "--force", ".")
    paths, _ = clone_of(root)
    (paths.workspace / "y.bat").write_text(LINES.replace("line 3\n", "agent\n"))
    (paths.workspace / "x.bin").write_text("agent\n")
    assert impyard(paths, "apply", "--yes") == 0
    assert (root / "y.bat").read_bytes() == LINES.replace("line 3\n", "agent\n").replace("\n", "\r\n").encode()
    assert (root / "x.bin").read_text() == "x\n" and not (tmp_path / "ran").exists()
    assert "x.bin: your git has a filter for it (`mine`), which is not run here" in capsys.readouterr().err
    commit(root, {}, "taken over")
    assert git(root, "diff", "--stat", "HEAD~1").splitlines()[0].split("|")[1].split() == ["2", "+-"]
    assert impyard(paths, "apply", "--yes", "--branch", "all") == 0
    assert git(root, "show", "all:x.bin") == "agent" and not (tmp_path / "ran").exists()
    git(root, "checkout", "--quiet", "all")
    assert (tmp_path / "ran").exists(), "the control: git runs it when you check that out"


def test_not_a_process_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    many = {f"{kind}{number}": f"{number}\n" for kind in ("text", "tool") for number in range(40)}
    root = new_repository(tmp_path / "p", {**many, "odd\nname": "odd\n", "merged": LINES, "later": "1\n"})
    git(root, "config", "core.autocrlf", "true")
    for name in (*many, "odd\nname", "merged"):
        (root / name).write_bytes((root / name).read_bytes().replace(b"\n", b"\r\n"))
    paths, _ = clone_of(root)
    for number in range(40):
        (paths.workspace / f"text{number}").write_text(f"agent\n\0\n{number}" if number % 2 else f"agent\n{number}")
        (paths.workspace / f"tool{number}").chmod(0o755)
    (paths.workspace / "odd\nname").write_text("agent\nodd\n")
    (paths.workspace / "merged").write_text(LINES.replace("line 3\n", "agent\n"))
    mine = LINES.replace("line 15\n", "mine\n")
    commit(root, {"merged": mine}, "mine")
    started: list[Any] = []
    own = subprocess.Popen.__init__

    def counted(*words: Any, **options: Any) -> None:
        started.append(words)
        own(*words, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", counted)
    assert impyard(paths, "apply", "--yes", "--take", "odd\nname") == 0
    assert 10 < len(started) < 40, "of 82 changes"
    for number in range(40):
        content = f"agent\n\0\n{number}" if number % 2 else f"agent\r\n{number}"  # git converts no NUL
        assert (root / f"text{number}").read_bytes() == content.encode()
        tool = root / f"tool{number}"
        assert tool.read_bytes() == f"{number}\r\n".encode() and tool.stat().st_mode & 0o100
    assert (root / "odd\nname").read_bytes() == b"agent\r\nodd\r\n"
    assert (root / "merged").read_bytes() == mine.replace("line 3\n", "agent\n").replace("\n", "\r\n").encode()
    (paths.workspace / "later").write_text("2\n")
    (root / "later").write_text("not committed\r\n")
    assert impyard(paths, "apply", "--yes") == 1 and "later: you have changed it" in capsys.readouterr().err


def test_a_branch_has_the_changes_on_top_of_what_was_cloned(run: RunPaths, capsys: Any) -> None:
    root, work = run.root, run.workspace
    was = git(root, "rev-parse", "HEAD")
    (work / "b.txt").write_text("agent\n")
    git(work, "commit", "--quiet", "--all", "--message=Mend b\n\nlonger")
    (work / "gone.txt").unlink()
    (root / "b.txt").write_text("mine, not committed\n")
    commit(root, {"a.txt": "mine\n"}, "mine")
    git(root, "config", "user.name", "Ada")
    git(root, "config", "user.email", "ada@b.test")
    hook = root / ".git" / "hooks" / "reference-transaction"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {root}/ran\n")
    hook.chmod(0o755)
    assert impyard(run, "apply", "--yes", "--branch", "agent/b") == 0
    assert git(root, "log", "--format=%s", "agent/b").splitlines() == ["Mend b", "first"]
    assert git(root, "rev-parse", "agent/b~1") == was
    assert git(root, "diff", "--name-status", was, "agent/b").split() == ["M", "b.txt", "D", "gone.txt"]
    assert git(root, "rev-parse", "--abbrev-ref", "HEAD") == "main" and not (root / "ran").exists()
    hook.unlink()
    git(root, "fsck", "--strict")
    for name, words in (("agent/b", "already"), ("-x", "cannot be the name"), ("a..b", "cannot be the name")):
        assert impyard(run, "apply", "--yes", f"--branch={name}") == 1 and words in capsys.readouterr().err


def test_a_part_of_a_repository_and_a_worktree(tmp_path: Path) -> None:
    top = new_repository(tmp_path / "p", {"other": "other\n", "sub/a": "a\n", ".gitattributes": "sub/a eol=crlf\n"})
    git(top, "checkout", "--quiet", "--force", ".")
    git(top, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    for place in (top / "sub", tmp_path / "linked"):
        paths, _ = clone_of(place)
        inner = "" if place.name == "sub" else "sub/"
        (paths.workspace / inner / "a").write_text("agent\n")
        (paths.workspace / inner / "new").write_text("new\n")
        assert impyard(paths, "apply", "--yes") == 0
        assert (place / inner / "a").read_bytes() == b"agent\r\n" and (place / inner / "new").exists()
    paths, _ = clone_of(top / "sub", number=3)
    (paths.workspace / "a").write_text("branch\n")
    assert impyard(paths, "apply", "--yes", "--branch", "x") == 0
    assert git(top, "show", "x:sub/a") == "branch" and git(top, "show", "x:other") == "other"


def test_a_change_of_yours_in_between_is_seen(run: RunPaths) -> None:
    place = cloneplaces.look(run.root, b"b.txt")
    (run.root / "b.txt").write_text("mine\n")
    drafts = cloneplaces.Drafts(run.root, run.id)
    drafts.put(b"b.txt", b"x", is_program=False, is_link=False)
    with pytest.raises(ImpyardError, match="changed meanwhile"):
        drafts.move(b"b.txt", place.stamp)
    with pytest.raises(ImpyardError, match="changed meanwhile"):
        cloneplaces.remove(run.root, b"b.txt", place.stamp)
    with pytest.raises(ImpyardError, match="changed meanwhile"):
        drafts.move(b"b.txt", None)
    drafts.discard()
    assert (run.root / "b.txt").read_text() == "mine\n"
    assert sorted(path.name for path in run.root.iterdir()) == sorted(
        [".git", ".gitignore", "a.txt", "b.txt", "dir", "gone.txt", "runs"]
    )


def test_without_yes_somebody_must_be_there(run: RunPaths, capsys: Any) -> None:
    (run.workspace / "b.txt").write_text("agent\n")
    assert impyard(run, "apply") == 1 and "give --yes" in capsys.readouterr().err
    assert (run.root / "b.txt").read_text() == "b\n"


@pytest.mark.parametrize("options", [(), ("--branch", "theirs")])
def test_a_no_changes_nothing_and_is_no_success(
    run: RunPaths, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """So that no command behind `&&` takes it for one."""
    (run.workspace / "b.txt").write_text("agent\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert impyard(run, "apply", *options) == 1 and "nothing was changed" in capsys.readouterr().out
    assert (run.root / "b.txt").read_text() == "b\n" and not git(run.root, "branch", "--list", "theirs").strip()


def test_a_run_without_a_clone_says_so(run: RunPaths, capsys: Any) -> None:
    receipt = run.receipt.read_text()
    run.receipt.write_text(receipt.replace('"clone"', '"other"'))
    for command in ("diff", "apply"):
        assert impyard(run, command) == 1 and "had no clone" in capsys.readouterr().err
    run.receipt.write_text(receipt.replace(run.id, "../../../../etc", 99))
    assert impyard(run, "diff") == 1
    run.receipt.write_text(receipt)
    shutil.rmtree(run.workspace)
    run.workspace.symlink_to("/etc")
    assert impyard(run, "diff") == 1 and "is gone" in capsys.readouterr().err


@pytest.mark.parametrize("inner", ["an empty folder", "a link to a folder"])
def test_a_folder_with_something_of_yours_is_refused_before_anything_is_written(
    run: RunPaths, inner: str, capsys: Any
) -> None:
    (run.workspace / "dir" / "x").unlink()
    (run.workspace / "dir").rmdir()
    (run.workspace / "dir").write_text("a file now\n")
    if inner == "an empty folder":
        (run.root / "dir" / "in").mkdir()
    else:
        (run.root / "dir" / "in").symlink_to("/etc")
    assert impyard(run, "apply", "--yes") == 1 and "something else has its place" in capsys.readouterr().err
    assert (run.root / "dir" / "x").read_text() == "x\n"
    (run.root / "dir" / "in").rmdir() if inner == "an empty folder" else (run.root / "dir" / "in").unlink()
    assert impyard(run, "apply", "--yes") == 0 and (run.root / "dir").read_text() == "a file now\n"


def test_what_was_merged_is_there_already(run: RunPaths, capsys: Any) -> None:
    (run.workspace / "a.txt").write_text(LINES.replace("line 3\n", "agent\n"))
    commit(run.root, {"a.txt": LINES.replace("line 15\n", "mine\n")}, "mine")
    assert impyard(run, "apply", "--yes") == 0
    for words in ((), ("add", "a.txt"), ("commit", "--quiet", "--message=taken")):
        git(run.root, *(words or ("status",)))
        capsys.readouterr()
        assert impyard(run, "apply", "--yes") == 0 and "all of it already" in capsys.readouterr().out


@pytest.mark.parametrize("number", range(1, 6))
def test_an_apply_that_was_killed_can_be_repeated(
    run: RunPaths, number: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """At each of its steps: the same is there in the end, and nothing more."""
    (run.workspace / "a.txt").write_text(LINES.replace("line 3\n", "agent\n"))
    commit(run.root, {"a.txt": LINES.replace("line 15\n", "mine\n")}, "mine")
    (run.workspace / "gone.txt").unlink()
    (run.workspace / "b.txt").write_text("agent\n")
    (run.workspace / "new").mkdir()
    (run.workspace / "new" / "file").write_text("agent\n")

    class Killed(BaseException):
        pass

    done = 0

    check = cloneplaces._check  # before each removal, and each move

    def step(folder: int, name: bytes, path: bytes, before: cloneplaces.Stamp | None) -> None:
        nonlocal done
        done += 1
        if done == number:
            raise Killed
        check(folder, name, path, before)

    monkeypatch.setattr(cloneplaces, "_check", step)
    monkeypatch.setattr(cloneplaces.Drafts, "discard", lambda _: None)  # as nobody does it then
    if number == 5:
        assert impyard(run, "apply", "--yes") == 0, "the control: there are four of them"
    else:
        with pytest.raises(Killed):
            impyard(run, "apply", "--yes")
        assert ".impyard-" in git(run.root, "status", "--short")
    monkeypatch.undo()
    assert impyard(run, "apply", "--yes") == 0, capsys.readouterr()
    changed = ["M a.txt", " M b.txt", " D gone.txt", "?? new/", "?? runs/"]
    assert [line for line in git(run.root, "status", "--short").splitlines() if line != "?? runs/"] == changed[:4]


def test_a_new_file_of_yours_stops_it_before_anything_is_written(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (run.workspace / "b.txt").write_text("agent\n")
    (run.workspace / "zew").write_text("agent\n")
    monkeypatch.setattr(apply_cmd, "_agreed", lambda *_, **__: (run.root / "zew").write_text("mine\n"))
    assert impyard(run, "apply") == 1 and "has changed meanwhile; nothing was changed" in capsys.readouterr().err
    assert git(run.root, "status", "--short") == "?? zew" and (run.root / "zew").read_text() == "mine\n"


def test_the_hint_on_a_conflict_helps(run: RunPaths, capsys: Any) -> None:
    (run.workspace / "b.txt").write_text("agent\n")
    (run.root / "b.txt").write_text("mine\n")
    assert impyard(run, "apply", "--yes") == 1 and "commit or stash" in capsys.readouterr().err
    commit(run.root, {}, "mine")
    assert impyard(run, "apply", "--yes") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "commit or stash" not in said and f"runs apply {run.id}" in said and "--branch NAME" in said


def test_what_a_killed_command_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Scratch("sha1", []) as held:
        (tmp_path / f"{SCRATCH}dead").mkdir()
        for path in tmp_path.iterdir():
            os.utime(path, (0, 0))
        with Scratch("sha1", []) as other:
            assert {path.name for path in tmp_path.iterdir()} == {one.folder.parent.name for one in (held, other)}


def test_no_clone_is_applied_while_a_run_works_in_it(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("impyard.runner.engine.boxes", lambda _run=None: [])
    (run.workspace / "b.txt").write_text("agent\n")
    other = RunPaths(run.root, "20260101-000000-0002")
    other.folder.mkdir()
    me = {f"runner_{name}": value for name, value in leftovers.this_process().items()}
    receipt = {"run": other.id, "workspace": str(run.workspace), "exit_reason": "running", **me}
    write_json(other.receipt, receipt)
    assert impyard(run, "apply", "--yes") == 1 and f"run {other.id} is still at work" in capsys.readouterr().err
    assert impyard(run, "diff") == 0 and f"run {other.id} is still at work" in capsys.readouterr().err
    write_json(other.receipt, {**receipt, "runner_space": "another"})
    for command, status in (("apply", 1), ("diff", 0)):
        assert impyard(run, command, *(["--yes"] if status else [])) == status
        assert f"run {other.id} may " in (said := capsys.readouterr().err) and "still be at work" in said, command
    write_json(other.receipt, {**receipt, "exit_reason": "finished"})
    assert impyard(run, "apply", "--yes") == 0, "the control"


def test_what_a_sparse_checkout_leaves_out_is_said(run: RunPaths, capsys: Any) -> None:
    (run.workspace / "dir" / "x").write_text("agent\n")
    git(run.root, "status")  # else git takes the copied files for changed ones
    git(run.root, "sparse-checkout", "set", "--no-cone", "/*", "!/dir")
    assert impyard(run, "apply", "--yes") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "dir/x: your sparse checkout leaves it out" in said and "stash" not in said and "--branch NAME" in said


def test_what_the_difference_does_not_show_is_marked(run: RunPaths, capsys: Any) -> None:
    (run.workspace / "s.sh").write_bytes(b"#!/bin/sh\n#\0\n: hidden\n")
    (run.workspace / "t.sh").write_bytes(b"#!/bin/sh\n: shown\n")
    assert impyard(run, "apply", "--yes") == 0
    said = capsys.readouterr().out
    assert "A s.sh  (no text: `runs diff` does not show it)" in said and "A t.sh\n" in said


def test_a_named_file_that_the_run_did_not_change_is_said(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    (run.workspace / "a.txt").write_text("another\n")
    (run.workspace / "dir" / "y").write_text("y\n")
    for named, said in (
        (["nofile"], "the run did not change nofile\n"),
        (["a.txt", "./b.txt"], "the run did not change ./b.txt\n"),
        (["a.txt", "dir/", "."], ""),
    ):
        assert impyard(run, "diff", *named) == 0
        assert capsys.readouterr().err == said


@pytest.mark.parametrize("branch", [[], ["--branch", "agent/a"]])
def test_a_receipt_says_that_the_changes_were_applied(run: RunPaths, branch: list[str]) -> None:
    (run.workspace / "a.txt").write_text("another\n")
    before = read_receipt(run.receipt)
    assert impyard(run, "apply", "--yes", "--take", "nofile") == 1
    assert read_receipt(run.receipt) == before
    assert impyard(run, "apply", "--yes", *branch) == 0
    after = read_receipt(run.receipt)
    assert after["clone"].pop("applied") and after == before
    assert impyard(run, "diff") == 0, "it is a clone as before"
