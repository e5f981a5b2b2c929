"""Runs and logs that belong to somebody else: who could write nothing down is told so before anything starts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner import cli
from impyard.runner.plan import Plan
from impyard.runner.records import NAMES, check_records
from impyard.runner.signals import Signals
from tests.support.recorded import Recorded

USER = 54321
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project of an ordinary user, who is this process meanwhile."""
    for name in ("docker", "impyard.runner.doctor", "impyard.runner.gateway_cmd", "impyard.runner.enclosure"):
        import_module(name)  # while we are still who may read Python's own files
    for name in ("impyard.addon.policy", "impyard.addon.gateway", "impyard.addon.vault.store"):
        import_module(name)
    folder = Path(tempfile.mkdtemp(prefix="impyard-test-"))
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(folder / "data"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/none.sock")
    os.chown(folder, USER, USER)
    os.seteuid(USER)
    try:
        made = Recorded(folder / "project").root
        for name in NAMES:
            (made / "runs" / name).touch(0o600)
        monkeypatch.chdir(made)
        yield made
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


def by_root(path: Path, mode: int | None = None) -> None:
    os.seteuid(0)
    try:
        os.chown(path, 0, 0)
        if mode is not None:
            path.chmod(mode)
    finally:
        os.seteuid(USER)


def checked(root: Path) -> str:
    with pytest.raises(ImpyardError) as caught:
        check_records(root)
    return f"{caught.value.message}\n{caught.value.hint}"


def test_ones_own_are_fine_and_so_is_a_project_without_any(project: Path) -> None:
    check_records(project)
    before = sorted(project.iterdir())
    shutil.rmtree(project / "runs")
    check_records(project)
    assert not (project / "runs").exists() and len(before) == 2


@pytest.mark.parametrize("name", [".", *NAMES])
def test_the_file_its_owner_and_the_command_that_helps_are_named(project: Path, name: str) -> None:
    path = project / "runs" / name
    by_root(path)
    option = "-R " if path.is_dir() else ""
    assert checked(project) == (
        f"cannot read and write {path}: permission denied, as it belongs to another user (uid 0)\n"
        f"sudo chown {option}{USER} {str(path)!r}"
    )


def test_a_project_that_is_not_writable_is_named_itself(project: Path) -> None:
    shutil.rmtree(project / "runs")
    by_root(project)
    assert checked(project).startswith(f"cannot read and write {project}: permission denied, as it belongs to")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/etc/hostname", path), os.mkdir])
def test_what_is_no_file_is_no_log(project: Path, make: Callable[[Path], None]) -> None:
    (project / "runs" / "outcomes.jsonl").unlink()
    make(project / "runs" / "outcomes.jsonl")
    assert f"cannot read and write {project / 'runs' / 'outcomes.jsonl'}: " in checked(project)


@pytest.mark.parametrize("args", [["doctor"], ["gateway", "--listen", "127.0.0.1:0"]])
@pytest.mark.parametrize("name", [".", "decisions.jsonl"])
def test_the_commands_say_so_and_fail(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: list[str], name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    by_root(project / "runs" / name)
    message, hint = checked(project).split("\n")
    assert cli.main(args) == 1
    out, err = capsys.readouterr()
    assert message in out + err and hint in out + err
    assert "judging on" not in err


def test_a_run_says_so_before_it_makes_a_folder(project: Path) -> None:
    from impyard.runner.enclosure import Enclosure

    by_root(project / "runs" / "decisions.jsonl")
    message = checked(project).split("\n")[0]
    before = sorted((project / "runs").iterdir())
    plan = Plan(root=project, policies=(project / "policies" / "gateway.yaml",), ceiling_s=60)
    with Signals() as signals, pytest.raises(ImpyardError) as caught:
        Enclosure(plan, "0", signals, print).open()
    assert caught.value.message == message
    assert sorted((project / "runs").iterdir()) == before
