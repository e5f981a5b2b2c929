"""`impyard init` puts a valid policy into a project, and never destroys what somebody wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import impyard as package
from impyard.addon.policy import load_policy
from impyard.runner import cli
from tests.support.called import Command, Result

ROOT = Path(str(package.__file__)).parent.parent


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path.resolve() / "my project"
    (root / ".git").mkdir(parents=True)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def init(project: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*args: str) -> Result:
        return Result(cli.main(["init", *args]), *capsys.readouterr())

    return call


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_new_project_gets_policy_schema_and_ignore_line(project: Path, init: Command) -> None:
    result = init()
    assert (result.status, result.err) == (0, "")
    assert set(contents(project)) == {"policies/gateway.yaml", "policies/gateway.schema.json", ".gitignore"}
    assert (project / ".gitignore").read_text() == "runs/\n"
    assert "impyard run --model demo" in result.out
    json.loads((project / "policies" / "gateway.schema.json").read_bytes())


def test_the_written_policy_loads_and_is_the_shipped_one(project: Path, init: Command) -> None:
    init()
    assert load_policy([project / "policies" / "gateway.yaml"], root=project).entries
    shipped = Path(str(files("impyard"))) / "policies" / "default.yaml"
    assert (project / "policies" / "gateway.yaml").read_bytes() == shipped.read_bytes()


def committed(name: str) -> bytes:
    """The policy as git has it for the next commit: who works in the checkout edits the file. Where git has none, as in
    an unpacked archive, the file."""
    git = ["git", "-C", str(ROOT), "-c", "safe.directory=*", "show", f":policies/{name}"]
    found = subprocess.run(git, capture_output=True)
    return found.stdout if found.returncode == 0 else (ROOT / "policies" / name).read_bytes()


def test_the_checkouts_own_policy_is_the_shipped_one() -> None:
    assert committed("gateway.yaml") == committed("default.yaml")


def test_in_a_checkout_an_edited_policy_is_not_taken_for_the_shipped_one(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name in ("impyard", "addon", "runner", "certs", "policies"):
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    edited = checkout / "policies" / "gateway.yaml"
    edited.write_text("# mine\n")
    command = [sys.executable, "-m", "impyard", "init", "--project"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run([*command, str(project)], cwd=checkout, env=environment, check=True, capture_output=True)
    shipped = (ROOT / "policies" / "default.yaml").read_bytes()
    assert (project / "policies" / "gateway.yaml").read_bytes() == shipped
    kept = subprocess.run([*command, str(checkout)], cwd=checkout, env=environment, capture_output=True, check=False)
    assert (kept.returncode, edited.read_text()) == (1, "# mine\n")
    subprocess.run([*command, str(checkout), "--force"], cwd=checkout, env=environment, check=True, capture_output=True)
    assert edited.read_bytes() == shipped


@pytest.mark.parametrize("place", ["home", "data"])
def test_what_a_run_refuses_gets_no_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: Command, place: str
) -> None:
    for name in ("home", "data"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IMPYARD_DATA_DIR", str(tmp_path / "data"))
    result = init("--project", str(tmp_path / place))
    assert result.status == 1
    assert result.err.startswith("error: the project root ")
    assert "hint: " in result.err
    assert not list((tmp_path / place).iterdir())


def test_a_second_time_changes_nothing(project: Path, init: Command) -> None:
    init()
    before = contents(project)
    result = init()
    assert result.status == 0
    assert contents(project) == before
    assert result.out.count("unchanged") == 3


def test_an_edited_policy_is_kept_and_said_so(project: Path, init: Command) -> None:
    (project / "policies").mkdir()
    (project / "policies" / "gateway.yaml").write_text("# mine\n")
    result = init()
    assert result.status == 1
    assert (project / "policies" / "gateway.yaml").read_text() == "# mine\n"
    assert "error: policies/gateway.yaml" in result.err
    assert "--force" in result.err


def test_force_replaces_an_edited_policy(project: Path, init: Command) -> None:
    init()
    shipped = contents(project)
    (project / "policies" / "gateway.yaml").write_text("# mine\n")
    result = init("--force")
    assert result.status == 0 and "the old one is gateway.yaml.bak\n" in result.out
    assert contents(project) == {**shipped, "policies/gateway.yaml.bak": b"# mine\n"}
    assert init("--force").out.count("unchanged") == 3, "nothing to keep"


def test_each_replaced_policy_has_a_copy_of_its_own(project: Path, init: Command, tmp_path: Path) -> None:
    policies = project / "policies"
    policies.mkdir()
    (policies / "gateway.yaml.bak.1").symlink_to(tmp_path / "elsewhere")
    for text, name in (("# 1\n", ""), ("# 2\n", ".2"), ("# 1\n", ""), ("# 3\n", ".3")):
        (policies / "gateway.yaml").write_text(text)
        (policies / "gateway.yaml").chmod(0o640)
        assert f"the old one is gateway.yaml.bak{name}\n" in init("--force").out
        copy = policies / f"gateway.yaml.bak{name}"
        assert copy.read_text() == text and copy.stat().st_mode & 0o137 == 0
    assert not (tmp_path / "elsewhere").exists()


def test_the_schema_follows_the_installed_version(project: Path, init: Command) -> None:
    init()
    shipped = contents(project)
    (project / "policies" / "gateway.schema.json").write_text("{}")
    assert init().status == 0
    assert contents(project) == shipped


@pytest.mark.parametrize("line", ["runs/", "runs", "/runs/", "/runs", " runs/ ", "runs/*"])
def test_a_line_that_ignores_runs_already_is_enough(project: Path, init: Command, line: str) -> None:
    (project / ".gitignore").write_text(f"*.pyc\n{line}\n")
    init()
    assert (project / ".gitignore").read_text() == f"*.pyc\n{line}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"runs/\n"),
        (b"a", b"a\nruns/\n"),
        (b"a\n", b"a\nruns/\n"),
        (b"a\r\nb", b"a\r\nb\r\nruns/\r\n"),
        (b"# runs/\nold-runs/\n", b"# runs/\nold-runs/\nruns/\n"),
        (b"caf\xe9\n", b"caf\xe9\nruns/\n"),
    ],
)
def test_the_line_is_added_as_the_file_is_written(project: Path, init: Command, before: bytes, after: bytes) -> None:
    (project / ".gitignore").write_bytes(before)
    init()
    assert (project / ".gitignore").read_bytes() == after


def test_git_itself_ignores_the_runs_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.chdir(root)
    assert cli.main(["init"]) == 0
    (root / "runs").mkdir()
    (root / "runs" / "decisions.jsonl").touch()
    seen = subprocess.run(
        ["git", "status", "--porcelain", "-uall"], cwd=root, check=True, capture_output=True, text=True
    )
    assert "runs" not in seen.stdout
    assert "policies/gateway.yaml" in seen.stdout


def test_outside_of_git_no_gitignore_appears(project: Path, init: Command) -> None:
    (project / ".git").rmdir()
    result = init("--project", str(project))
    assert result.status == 0
    assert not (project / ".gitignore").exists()
    assert "no git repository" in result.out


def test_from_a_subfolder_the_project_above_is_meant(
    project: Path, init: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src").mkdir()
    monkeypatch.chdir(project / "src")
    result = init()
    assert f"project {project}\n" in result.out
    assert (project / "policies" / "gateway.yaml").exists()
    assert not (project / "src" / "policies").exists()


def test_nothing_is_written_through_a_link(project: Path, init: Command, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (project / "policies").mkdir()
    (project / "policies" / "gateway.yaml").symlink_to(precious)
    result = init("--force")
    assert result.status == 1
    assert "is a link" in result.err
    (project / "policies" / "gateway.yaml").unlink()
    (project / ".gitignore").symlink_to(precious)
    assert init("--force").status == 1
    assert precious.read_text() == "keep"


def test_a_link_in_the_place_of_the_folder_is_refused(project: Path, init: Command, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (project / "policies").symlink_to(tmp_path / "elsewhere")
    assert init().status == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("blocking", ["policies", "policies/gateway.yaml/x", ".gitignore/x"])
def test_something_in_the_way_is_one_clear_error(project: Path, init: Command, blocking: str) -> None:
    path = project / blocking
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("in the way")
    result = init("--force")
    assert result.status == 1
    assert result.err.count("error:") == 1
    assert "internal error" not in result.err
    assert path.read_text() == "in the way"


def test_a_folder_that_cannot_be_written_is_one_clear_error(project: Path, init: Command) -> None:
    project.chmod(0o500)
    if os.access(project, os.W_OK):
        pytest.skip("this user may write everywhere")
    try:
        result = init()
    finally:
        project.chmod(0o700)
    assert result.status == 1
    assert "cannot write" in result.err


def test_a_project_that_does_not_exist_is_one_clear_error(init: Command) -> None:
    result = init("--project", "/nowhere/at/all")
    assert result.status == 1
    assert "does not exist" in result.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_writes_into_a_users_project_is_that_users(project: Path, init: Command) -> None:
    user, group = 54321, 54322
    os.chown(project, user, group)
    assert init().status == 0
    policy = project / "policies" / "gateway.yaml"
    made = {path: path.stat() for path in (policy.parent, *policy.parent.iterdir(), project / ".gitignore")}
    assert {(found.st_uid, found.st_gid) for found in made.values()} == {(user, group)}
    policy.write_text("# mine\n")
    policy.chmod(0o640)
    assert init("--force").status == 0
    for path in (policy, policy.with_name("gateway.yaml.bak")):
        found = path.stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (user, group, 0o640)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_copy_of_what_was_roots_in_a_users_project_stays_roots(project: Path, init: Command) -> None:
    policy = project / "policies" / "gateway.yaml"
    policy.parent.mkdir()
    policy.write_text("# of root\n")
    policy.chmod(0o600)
    for folder in (project, policy.parent):
        os.chown(folder, 54321, 54322)
    assert init("--force").status == 0
    found = policy.with_name("gateway.yaml.bak").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (0, 0o600)
