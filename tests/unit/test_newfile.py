"""Whose the logs are when root writes them, or rotates them, in a user's project. A log that root takes over denies
every request of the user's next run."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError, LogUnwritable
from impyard.addon.judge import Decision, Verdict
from impyard.addon.log import DecisionLog, OutcomeLog
from impyard.addon.newfile import begin, make_folder, opened
from impyard.addon.request import Request
from impyard.runner.decisions import rotation
from impyard.runner.decisions.filelist import FileList
from impyard.runner.project import new_run

USER, GROUP = 54321, 54322
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def runs() -> Iterator[Path]:
    """The folder of a user's runs, which he can reach: not below pytest's own, which each session of root's closes."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o711)
        folder = Path(place, "runs")
        folder.mkdir()
        os.chown(folder, USER, GROUP)
        yield folder


def write(runs: Path) -> None:
    decisions, outcomes = DecisionLog(runs / "decisions.jsonl", "r"), OutcomeLog(runs / "outcomes.jsonl", "r")
    decisions.write(Decision(Verdict.DENY, "no-rule"), Request("GET", "https", "a.test", 443, "/x"), "sha256:ab")
    outcomes.write("r.1", 200, 1, 2, 3.0, None)
    decisions.close()
    outcomes.close()
    assert outcomes.lost == 0


def as_user(act: Callable[[], object]) -> str:
    """Call something as the user of the project, in a process of its own. What it raised, in words."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "did not get so far"
        try:
            os.setgroups([])
            os.setgid(GROUP)
            os.setuid(USER)
            act()
            said = ""
        except (OSError, ImpyardError) as exc:
            said = f"{exc} / {getattr(exc, 'hint', '')}"
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with open(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def owners(runs: Path) -> set[tuple[int, int]]:
    return {(path.stat().st_uid, path.stat().st_gid) for path in runs.iterdir()}


@needs_root
def test_what_root_writes_in_a_users_project_is_that_users(runs: Path) -> None:
    write(runs)
    assert owners(runs) == {(USER, GROUP)}
    assert as_user(lambda: write(runs)) == ""


@needs_root
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_what_root_rotates_stays_as_it_was(runs: Path, mode: int) -> None:
    assert as_user(lambda: write(runs)) == ""
    for path in runs.iterdir():
        path.chmod(mode)
    rotation.rotate(runs)
    write(runs)
    rotation.rotate(runs)
    list(rotation.pack_all(runs, settled_s=0))
    write(runs)
    assert {path.suffix for path in runs.iterdir()} == {".gz", ".jsonl"}
    assert owners(runs) == {(USER, GROUP)}
    logs = [path for path in runs.iterdir() if path.name != "rotated.jsonl"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in logs} == {mode}
    assert as_user(lambda: write(runs)) == ""


@needs_root
def test_nothing_that_was_there_changes_hands(runs: Path, tmp_path: Path) -> None:
    """A user may give files of root's a second name in his own folder."""
    roots = tmp_path / "of-root"
    roots.write_text('{"file": "x"}\n')
    for name in ("decisions.jsonl", "outcomes.jsonl", "rotated.jsonl"):
        os.link(roots, runs / name)
    write(runs)
    FileList(runs).packed("decisions-20260101T000000.000Z.jsonl.gz", 1)
    begin_in(runs, "decisions.jsonl", USER, GROUP, 0o644)
    found = roots.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o644 & ~_umask())


def begin_in(folder: Path, name: str, uid: int, gid: int, mode: int) -> None:
    with opened(folder) as descriptor:
        begin(descriptor, name, uid, gid, mode)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@needs_root
@pytest.mark.parametrize("act", [write, lambda runs: rotation.rotate(runs), lambda runs: list(_packed(runs))])
def test_a_link_in_the_place_of_the_folder_leads_nobody_to_roots(
    runs: Path, tmp_path: Path, act: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user exchanges his folder for a link to one of root's, just before something is made in it or renamed."""
    assert as_user(lambda: write(runs)) == ""
    if act is write:
        for path in runs.iterdir():
            path.unlink()
    else:
        (runs / "decisions.jsonl").chmod(0o640)
        rotation.rotate(runs)
        assert as_user(lambda: write(runs)) == ""
        (runs / "decisions.jsonl").chmod(0o640)
    roots = tmp_path / "of-root"
    roots.mkdir()
    really = {name: getattr(os, name) for name in ("open", "rename")}

    def exchanging(name: str) -> Callable[..., object]:
        def call(*args: Any, **options: Any) -> object:
            creates = name == "rename" or args[1] & (os.O_CREAT | os.O_TMPFILE) not in (0, os.O_DIRECTORY)
            if creates and not runs.is_symlink():
                really["rename"](runs, runs.with_name("moved"))
                runs.symlink_to(roots)
            return really[name](*args, **options)

        return call

    for name in really:
        monkeypatch.setattr(os, name, exchanging(name))
    with contextlib.suppress(OSError, LogUnwritable):
        act(runs)
    assert runs.is_symlink()
    assert {path.stat().st_uid for path in roots.iterdir()} <= {0}


def _packed(runs: Path) -> Iterator[object]:
    return rotation.pack_all(runs, settled_s=0)


@needs_root
@pytest.mark.parametrize("flag", [os.O_TMPFILE, 0o40000000])
def test_a_file_is_begun_where_there_are_none_without_a_name_too(
    runs: Path, flag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", flag)
    begin_in(runs, "a", USER, GROUP, 0o640)
    begin_in(runs, "a", 0, 0, 0o600)
    assert owners(runs) == {(USER, GROUP)}
    assert stat.S_IMODE((runs / "a").stat().st_mode) == 0o640
    (runs / "link").symlink_to(runs / "b")
    begin_in(runs, "link", USER, GROUP, 0o640)
    assert not (runs / "b").exists()


@needs_root
def test_the_folder_of_all_runs_is_the_users_from_the_first_run_of_roots_on(runs: Path) -> None:
    first = new_run(runs)
    assert (first.runs.stat().st_uid, first.runs.stat().st_gid) == (USER, GROUP)
    assert stat.S_IMODE(first.runs.stat().st_mode) == 0o755
    assert first.folder.stat().st_uid == 0, "it is root's, and closed, as long as root works there"
    assert as_user(lambda: new_run(runs)) == ""


@needs_root
def test_a_folder_of_roots_that_was_there_before_stays_roots(runs: Path) -> None:
    (runs / "runs").mkdir()
    make_folder(runs / "runs")
    assert (runs / "runs").stat().st_uid == 0


@needs_root
def test_a_log_of_another_user_is_named_with_what_helps(runs: Path) -> None:
    write(runs)
    os.chown(runs / "decisions.jsonl", 0, 0)
    said = as_user(lambda: write(runs))
    assert "permission denied, as it belongs to another user (uid 0)" in said
    assert f"sudo chown {USER} " in said
    with pytest.raises(LogUnwritable, match="ordinary file"):
        (runs / "decisions.jsonl").unlink()
        os.mkfifo(runs / "decisions.jsonl")
        reader = os.open(runs / "decisions.jsonl", os.O_RDONLY | os.O_NONBLOCK)
        try:
            write(runs)
        finally:
            os.close(reader)
