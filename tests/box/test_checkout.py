"""`--workspace` on a git checkout: the agent commits in it, but what git runs by itself stays the caller's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.boxes import MakeProject
from tests.support.project import Caller, Project, Result
from tests.support.waiting import wait_until

pytestmark = pytest.mark.box

# Argument: the checkout. Each attempt would make the caller's next git command run something, and says what happened.
ATTEMPTS = r"""
cd "$1"; EVIL="$1/evil"
try() { what=$1; shift; if said=$("$@" 2>&1); then echo "$what: done"; else echo "$what: ${said##*: }"; fi; }
append() { printf '%s\n' "$2" >> "$1"; }
mkdir -p "$EVIL"; cp -r .git/objects .git/refs "$EVIL"
printf '[core]\n\tfsmonitor = touch %s/ran\n' "$1" > "$EVIL/config"
try 'new hook' append .git/hooks/pre-commit 'touch ran'
try 'settings' append .git/config '[core] fsmonitor = touch ran'
try 'settings by git' git config core.fsmonitor 'touch ran'
try 'settings by a mode' chmod 777 .git/config
try 'settings by a rename' mv -f "$EVIL/config" .git/config
try 'settings removed' rm -f .git/config
try 'settings linked' ln -f "$EVIL/config" .git/config
try 'second name of the settings' ln .git/config second
try 'settings elsewhere' append .git/commondir '../evil'
try 'settings elsewhere, renamed' mv -f README.md .git/commondir
try 'settings elsewhere, removed' rm -f .git/commondir
try 'settings of the worktree' append .git/config.worktree '[core] fsmonitor = touch ran'
try 'repository of a submodule' mkdir -p .git/modules/lib/hooks
try 'where a remote leads' mkdir -p .git/remotes/new
try 'where a branch leads' append .git/branches/origin "$EVIL"
try 'objects of another' append .git/objects/info/alternates "$EVIL/objects"
try 'objects of another, renamed' mv -f README.md .git/objects/info/alternates
try 'objects renamed' mv .git/objects .git/aside
try 'worktree in a bare one' append bare.git/tree/.git '../evil'
try 'named hooks' append .githooks/pre-commit 'touch ran'
try 'named hooks renamed' mv .githooks aside
try 'folder on the way' mv tools aside
try 'included settings' append tools/git/settings '[core] fsmonitor = touch ran'
try 'inner settings' append vendor/inner/.git/config '[core] fsmonitor = touch ran'
try 'inner checkout renamed' mv vendor/inner vendor/aside
try 'its folder renamed' mv vendor aside
try 'bare settings' append bare.git/config '[core] fsmonitor = touch ran'
try 'linked checkout' append linked/.git 'gitdir: evil'
try 'linked checkout renamed' mv linked/.git linked/aside
try 'linked checkout removed' rm -f linked/.git
try 'through the root of the process' append "/proc/self/root$1/.git/hooks/pre-commit" 'touch ran'
try 'mount' mount --bind "$EVIL" .git/hooks
try 'unmount' umount .git/config
try 'hooks renamed' mv .git/hooks .git/aside
try 'hooks removed' rm -rf .git/hooks
try 'repository renamed' mv .git aside
try 'repository removed' rmdir .git
"""
REFUSED = {
    "Read-only file system",
    "Device or resource busy",
    "Invalid cross-device link",
    "Permission denied",
    "command not found",
}
# What an agent that commits changes.
OWN = {"objects", "refs", "logs", "index", "HEAD", "COMMIT_EDITMSG", "new.txt"}


TRUSTING = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}


def git(folder: Path, *words: str) -> str:
    """git as the caller uses it, with no settings but the repository's."""
    env = {**os.environ, **TRUSTING, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    env |= {f"GIT_{who}_{what}": "a@b.test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(["git", *words], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def checkout(folder: Path) -> Path:
    """A checkout with hooks in the tree, included settings, an inner repository, a bare one, and a linked one."""
    for path in (folder, folder / "vendor" / "inner"):
        path.mkdir(parents=True)
        git(path, "init", "--quiet", "--initial-branch=main", "--template=")
        (path / "README.md").write_text("as it was\n")
        git(path, "add", "README.md")
        git(path, "commit", "--quiet", "--message=first")
    (folder / "tools" / "git").mkdir(parents=True)
    (folder / "tools" / "git" / "settings").write_text("[core]\n\tabbrev = 9\n")
    git(folder, "config", "include.path", "../tools/git/settings")
    git(folder, "config", "core.hooksPath", ".githooks")
    git(folder, "config", "extensions.worktreeConfig", "true")
    git(folder, "init", "--quiet", "--bare", "bare.git")
    git(folder, "worktree", "add", "--quiet", "linked")
    git(folder, "worktree", "add", "--quiet", "bare.git/tree")
    return folder


def state(folder: Path) -> dict[str, bytes]:
    """Names, modes, owners and contents of what git obeys."""
    found = {}
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if inner.parts[0] != "evil" and not OWN & set(inner.parts):
            status = path.stat()
            found[f"{inner} {status.st_mode:o} {status.st_uid}"] = path.read_bytes() if path.is_file() else b""
    return found


def said(output: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in output.splitlines())


@pytest.mark.attack("137")
def test_what_git_runs_by_itself_cannot_be_written(project: Project, ordinary_container: Callable[..., str]) -> None:
    place = checkout(project.base / "work")
    copy = project.base / "copy"
    shutil.copytree(place, copy, symlinks=True)
    project.own(place)
    before = state(place)
    project.script("attempts.sh", ATTEMPTS)
    commit = "git -c user.name=agent -c user.email=agent@b.test commit --quiet --message=second"
    result = project.demo(
        f"run: echo new > new.txt; git add new.txt && {commit} && git status --short && git log --oneline",
        f"run: bash {project.root}/attempts.sh {place} > evil.txt; true",
        args=["--workspace", str(place)],
    )
    assert result.code == 0, result
    found = said((place / "evil.txt").read_text())
    (place / "evil.txt").unlink()
    assert {name: answer for name, answer in found.items() if answer not in REFUSED} == {}
    assert len(found) == ATTEMPTS.count("\ntry '")
    assert state(place) == before, "what was made for the run is gone too"
    assert result.receipt["made"] == [] and result.receipt["error"] is None
    assert git(place, "log", "--format=%s").split() == ["second", "first"], "the agent could commit"
    git(place, "status")
    assert not (place / "ran").exists()

    # The control: the same mounts without what is read-only.
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o777)
    files = {str(copy): {"bind": str(copy), "mode": "rw"}, str(project.root): {"bind": "/project", "mode": "ro"}}
    made = f"mkdir {copy}/.githooks {copy}/.git/hooks; "
    done = said(
        ordinary_container(
            f"{made} bash /project/attempts.sh {copy}", volumes=files, environment=TRUSTING, network_mode="none"
        )
    )
    worked = {name for name, answer in done.items() if answer == "done"}
    assert {"new hook", "settings", "settings by git", "hooks renamed", "repository renamed"} <= worked, done
    assert {"where a remote leads", "objects of another", "worktree in a bare one", "objects renamed"} <= worked
    assert {"settings elsewhere", "named hooks", "inner settings", "bare settings", "linked checkout"} <= worked


@pytest.mark.attack("137", control=True)
@pytest.mark.parametrize("way", ["settings", "commondir"])
def test_what_is_guarded_would_run_on_the_host(tmp_path: Path, way: str) -> None:
    """The control of the guard's list: git obeys these files at a mere `status`."""
    git(tmp_path, "init", "--quiet")
    where = tmp_path / ".git"
    if way == "commondir":
        where = tmp_path / "evil"
        for name in ("objects", "refs"):
            shutil.copytree(tmp_path / ".git" / name, where / name)
        (tmp_path / ".git" / "commondir").write_text("../evil\n")
    with open(where / "config", "a") as settings:
        settings.write(f"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = touch {tmp_path}/ran; false\n")
    git(tmp_path, "status")
    assert (tmp_path / "ran").exists()


@pytest.mark.attack("137", control=True)
def test_an_old_kind_of_remote_would_run_on_the_host(tmp_path: Path) -> None:
    """The control of the guard's list: a push runs the hooks of a repository that a file in `remotes` names."""
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message=first")
    git(tmp_path, "init", "--quiet", "--bare", "evil")
    hook = tmp_path / "evil" / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    (tmp_path / ".git" / "remotes").mkdir()
    (tmp_path / ".git" / "remotes" / "origin").write_text("URL: evil\n")
    git(tmp_path, "push", "--quiet", "origin", "main")
    assert (tmp_path / "ran").exists()


@pytest.mark.attack("137")
def test_a_repository_that_the_agent_makes_is_named(project: Project) -> None:
    """It cannot be kept from the agent, and git runs what its settings say: from the checkout above, too."""
    place = project.base / "work"
    place.mkdir()
    git(place, "init", "--quiet")
    project.own(place)
    make = "git init -q inner; cd inner; echo 1 > file; git add file; git -c user.name=a -c user.email=a@b commit -qm 1"
    plant = f"git config core.fsmonitor 'touch {place}/ran; false'; cd ..; git add inner 2> /dev/null"
    result = project.demo(f"run: {make}; {plant}", args=["--workspace", str(place)])
    assert result.code == 0 and result.receipt["repositories"] == ["inner/.git"], result
    assert "inner/.git is new: look at it before you use git here" in result.out
    (place / "ran").unlink(missing_ok=True)
    git(place, "-c", "diff.ignoreSubmodules=all", "status")
    assert not (place / "ran").exists(), "what the documents advise"
    git(place, "status")
    assert (place / "ran").exists(), "the control: why it has to be named"


@pytest.mark.attack("137")
def test_a_link_where_git_writes_is_named(project: Project) -> None:
    """git's own files can be links, and git writes where they lead: names of branches, say, into your .bashrc."""
    place = project.base / "work"
    place.mkdir()
    git(place, "init", "--quiet", "--initial-branch=main")
    git(place, "commit", "--quiet", "--allow-empty", "--message=first")
    project.own(place)
    mine = project.base / ".bashrc"
    mine.write_text("# mine\n")
    result = project.demo(f"run: ln -sf {mine} .git/logs/HEAD", args=["--workspace", str(place)])
    assert result.code == 0 and result.receipt["links"] == [".git/logs/HEAD"], result
    assert ".git/logs/HEAD is a link: remove it before git here writes where it leads" in result.out
    assert mine.read_text() == "# mine\n"
    git(place, "checkout", "--quiet", "-b", "$(touch${IFS}ran)")
    assert "$(touch" in mine.read_text(), "the control: why it has to be named"


def test_it_is_said_before_the_run_that_a_linked_worktree_takes_no_commit(project: Project) -> None:
    place = checkout(project.base / "main") / "linked"
    project.own(place)
    result = project.demo("run: git add README.md && echo added || echo cannot", args=["--workspace", str(place)])
    assert result.code == 0 and "│ cannot" in result.out, result
    note = f"the agent cannot commit in {place}: its repository lies outside of the workspace; a clone would do"
    assert note in result.out.split("run: git add")[0]


@pytest.mark.attack("137")
def test_what_reaches_out_of_an_ordinary_users_checkout_is_named(
    make_project: MakeProject, ordinary_user: Caller
) -> None:
    """A folder that nobody may list hides a repository, but not from git; a file may have a second name elsewhere."""
    project = make_project(caller=ordinary_user)
    place, store = project.base / "work", project.base / "store"
    place.mkdir()
    store.write_text("as it was\n")
    (place / "package").hardlink_to(store)
    git(place, "init", "--quiet")
    for path in (place, store):
        project.own(path)
    plant = f"git config core.fsmonitor 'touch {place}/ran; false'; git commit -q --allow-empty -m 1; chmod 0311 ."
    script = f"git init -q inner; cd inner; git config user.name a; git config user.email a@b; {plant}"
    result = project.demo(
        f"run: {script}; cd ..; git add inner 2> /dev/null; rm -f ran; echo changed > package",
        args=["--workspace", str(place)],
    )
    assert result.code == 0 and result.receipt["repositories"] == ["inner"], result
    assert "files in the workspace with a name outside of it too: 1 " in result.out
    assert store.read_text() == "changed\n", "the control: why it has to be said"
    git(place, "status")
    assert (place / "ran").exists(), "the control: why it has to be named"


def test_a_killed_runner_leaves_nothing_in_the_checkout(project: Project) -> None:
    place = project.base / "work"
    place.mkdir()
    git(place, "init", "--quiet", "--template=")
    project.own(place)
    if os.geteuid() == 0:
        (place / "theirs").touch()
        os.chown(place / "theirs", 54321, 54321)
    before = state(place)
    process = project.start(
        "run", "--model", "demo", "--workspace", str(place), "run: touch there; git status --short > seen; sleep 300"
    )
    wait_until((place / "seen").exists)
    assert (place / ".git" / "commondir").read_text() == ".\n"
    git(place, "status")  # the caller's own git works on meanwhile
    process.send_signal(signal.SIGKILL)
    project.finish(process)
    wait_until(lambda: not project.boxes())
    assert project.demo("write 4 to answer.txt").code == 0, "the next run cleans up"
    for name in ("there", "seen"):
        (place / name).unlink()
    assert state(place) == before


def test_a_second_run_in_one_checkout_is_refused(project: Project, make_project: MakeProject) -> None:
    """When the first ends, what it made is gone, and the second's covers would be gone with it."""
    place = project.base / "work"
    place.mkdir()
    git(place, "init", "--quiet", "--template=")
    before = state(place)
    project.own(place)
    second: list[Result] = []

    def try_another() -> None:
        wait_until((place / "there").exists)
        second.append(make_project().demo("run: true", args=["--workspace", str(place)]))
        (place / "there").unlink()

    first = project.demo(
        "run: touch there; while [ -e there ]; do sleep 0.1; done", args=["--workspace", str(place)], watch=try_another
    )
    assert first.code == 0 and first.receipt["error"] is None, first
    assert second[0].code != 0 and f"another run works in {place}" in second[0].err
    assert state(place) == before


def test_settings_replaced_by_the_caller_end_the_run(project: Project) -> None:
    """A rename over a file takes the mount off it: the box could write the new one."""
    place = project.base / "work"
    place.mkdir()
    git(place, "init", "--quiet")
    project.own(place)

    def change() -> None:
        wait_until((place / "there").exists)
        git(place, "config", "user.name", "me")

    result = project.demo("run: touch there; sleep 60", args=["--workspace", str(place)], watch=change)
    assert (result.code, result.receipt["exit_reason"]) == (1, "exposed"), result
    assert ".git/config" in result.receipt["error"] and "before you use git" in result.receipt["error"]
    assert "me" in (place / ".git" / "config").read_text()
