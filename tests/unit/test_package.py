"""The wheel: one name, every file of the linked folders, and a command that works far from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("addon", "runner", "certs", "box", "policies")


def tracked(*folders: str) -> list[str]:
    """The files of some folders as a clone would have them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git knows, as a build in the checkout would also take what lies about."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    for name in tracked("."):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
        target.chmod((ROOT / name).stat().st_mode)
    for name in FOLDERS:
        (copy / "impyard" / name).symlink_to(f"../{name}")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(copy)]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_it_installs_one_name_only(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"impyard"}


def test_it_holds_every_file_of_the_folders(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    missing = [name for name in tracked(*FOLDERS) if f"impyard/{name}" not in held]
    assert missing == ["policies/gateway.yaml"]  # the checkout's own: default.yaml is what `init` writes


def test_its_command_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    target, project = tmp_path / "site", tmp_path / "project"
    project.mkdir()
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}

    def impyard(*words: str) -> str:
        command = [sys.executable, "-m", "impyard", *words]
        return subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    where = [sys.executable, "-c", "import impyard.box, impyard.addon.judge as j; print(j.__file__)"]
    found = subprocess.run(where, cwd=project, env=environment, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(target)
    impyard("init", "--project", str(project))
    assert (project / "policies" / "gateway.yaml").read_bytes() == (ROOT / "policies" / "default.yaml").read_bytes()
    assert "impyard-box:" in impyard("image", "show")
