"""An agent works on a clone: it sees no secret and no history, and what it did is shown and taken over on the host."""

from __future__ import annotations

import contextlib
import os
import secrets

import pytest

from tests.box.test_checkout import git
from tests.support.project import Project
from tests.support.repository import commit, new_repository

pytestmark = pytest.mark.box


def test_an_agent_works_on_a_clone_of_the_project(project: Project) -> None:
    canary = f"canary{secrets.token_hex(12)}"
    root = new_repository(project.root, {"old.txt": f"{canary}-old\n", ".env": f"KEY={canary}\n", "a.txt": "a\n"})
    (root / "old.txt").unlink()
    commit(root, {".npmrc": f"//registry.example.org/:_authToken={canary}\n"}, "second")
    git(root, "remote", "add", "origin", f"https://x:{canary}@git.example.org/a.git")
    (root / "b.txt").write_text("not committed\n")
    project.own(project.base)
    look = (
        f"(grep -rhs 'c[a]nary' {root} . ; git log --all -p; git -C {root} log --all -p; git config --list; cat .npmrc;"
        " git cat-file --batch-all-objects --batch) 2>&1 | tr -cd '[:print:]\\n' > /tmp/read; cp /tmp/read read.txt"
    )
    work = "echo agent >> a.txt; git commit --quiet --all --message='Add a line'; echo new > new.txt"
    evil = "printf '[core]\\nfsmonitor = touch /tmp/ran\\n' >> .git/config || echo kept; touch .git/hooks/post-checkout"
    result = project.demo(f"run: {look}", f"run: {work}", f"run: {evil} || echo kept", args=["--clone"])
    assert result.code == 0 and result.out.count("│ kept") == 2, result
    assert "a.txt" in (seen := result.file("read.txt")) and canary not in seen, "neither files, history nor settings"
    assert "The project as committed" in seen
    clone, run = result.receipt["clone"], result.receipt["run"]
    assert clone["commit"] == git(root, "rev-parse", "HEAD").strip() and clone["left_out"] == [".env", ".npmrc"]
    assert str(root / ".git") in {item["path"] for item in result.receipt["kept"]}
    assert f"impyard runs diff {run}" in result.out and f"impyard runs apply {run}" in result.out
    assert "not in the clone; --with-changes takes" in result.out, "a new file, too"

    shown = project.impyard("runs", "diff", run)
    assert shown.code == 0 and "+agent" in shown.out and "+new" in shown.out, shown
    project.env["GIT_PAGER"] = "cat"
    process, terminal = project.on_terminal("runs", "diff", "last")
    page = b""
    with contextlib.suppress(OSError):  # as a terminal ends whose last process is gone
        while more := os.read(terminal, 4096):
            page += more
    os.close(terminal)
    assert process.wait(timeout=20) == 0
    assert b"not all of it is committed there" in page and b"Add a line" in page and b"\x1b[32m+agent" in page, page

    again = project.impyard(
        "runs", "resume", run, "--model", "demo", "run: echo more >> new.txt; echo x >> .git/config"
    )
    assert again.code == 0 and "Read-only file system" in again.out, again
    taken = project.impyard("runs", "apply", "last", "--yes")
    assert taken.code == 0 and (root / "new.txt").read_text() == "new\nmore\n", taken
    assert (root / "a.txt").read_text() == "a\nagent\n" and (root / "new.txt").stat().st_uid == project.caller.uid

    control = project.demo(
        f"run: git log --all -p > read.txt; git log --oneline | wc -l > count.txt; cat {root}/b.txt",
        args=["--clone", "--with-history", "--allow-file", ".env"],
    )
    assert canary in control.file("read.txt"), "the control: the history has it, and so has the file that was named"
    assert control.file("count.txt").strip() == "3", control
    assert project.leftovers() == []
