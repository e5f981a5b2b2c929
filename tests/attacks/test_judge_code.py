"""The judge's code, edited or taken away while it runs, changes no verdict. Attacks 110 and 133, field note F02."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.test_script import POLICY, curl, start
from tests.support.gateway import ROOT, LiveGateway
from tests.support.origin import Origin, Pki

pytestmark = pytest.mark.gateway

# A gateway whose code lies in a folder of the test's own.
FROM_A_COPY = """
import sys
sys.path.insert(0, {copy!r})
import impyard
assert impyard.__file__.startswith({copy!r}), impyard.__file__
from impyard.addon.__main__ import main
sys.argv = ["x", *sys.argv[1:]]
sys.exit(main())
"""
PACKAGES = ("addon", "box", "certs", "impyard", "policies", "runner")


def garble(folder: Path) -> None:
    for file in folder.glob("addon/*.py"):
        with file.open("a") as text:
            text.write("\nthis is no Python (\n")


def raise_on_import(folder: Path) -> None:
    for file in folder.glob("*/*.py"):
        file.write_text("raise RuntimeError('edited')\n")


def allow_all(folder: Path) -> None:
    (folder / "addon" / "judge.py").write_text("def judge(request, policy):\n    return 'allow'\n")


def delete(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.attack("110", "F02")
def test_verdicts_stand_whatever_becomes_of_the_files(tmp_path: Path, pki: Pki) -> None:
    copy = tmp_path / "code"
    copy.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    origin = Origin(pki.context("a.test"))
    policy = POLICY.format(port=origin.port, ca=pki.ca_path)
    gateway = LiveGateway(tmp_path / "project", policy, fault=FROM_A_COPY.format(copy=str(copy)))
    assert gateway.first.get("event") == "ready", gateway.stderr_path.read_text()
    spoils: list[Callable[[Path], None]] = [lambda folder: None, garble, raise_on_import, allow_all, delete]
    try:
        for number, spoil in enumerate(spoils, 1):
            spoil(copy)
            denied = gateway.get("https://a.test/other")
            assert (denied.status, denied.json()["reason"]) == (403, "no-rule"), spoil
            assert gateway.get("https://a.test/pub/x").status == 200, spoil
            assert [seen.target for seen in origin.seen] == ["/pub/x"] * number
        assert [line["verdict"] for line in gateway.decisions()] == ["deny", "allow"] * len(spoils)
    finally:
        gateway.stop()
        origin.close()


def wait_until(done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not (found := done()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


@pytest.mark.attack("110", "F02")
def test_the_judge_in_a_mitmdump_of_your_own_outlives_its_file(tmp_path: Path, pki: Pki) -> None:
    """mitmproxy reloads a script that changes; the file is a copy that loads the judge."""
    origin = Origin(pki.context("a.test"))
    policy = tmp_path / "policies" / "gateway.yaml"
    policy.parent.mkdir()
    policy.write_text(POLICY.format(port=origin.port, ca=pki.ca_path))
    script = tmp_path / "script.py"
    script.write_text((ROOT / "addon" / "script.py").read_text())
    process, port = start(tmp_path, policy=policy, script=script)
    try:
        assert wait_until(lambda: curl(port, "https://a.test/pub/x").stdout == b"hello from the origin\n")
        origin.clear()
        loaded = tmp_path / "loaded"
        script.write_text(f"open({str(loaded)!r}, 'w').close()\nraise RuntimeError('edited')\n")
        assert wait_until(loaded.exists), "mitmproxy has loaded the edited file"
        assert b"Access denied by egress policy" in curl(port, "https://a.test/other").stdout
        script.unlink()
        time.sleep(2.5)  # mitmproxy looks once a second
        assert b"Access denied by egress policy" in curl(port, "https://a.test/other").stdout
        assert origin.connections == 0
        assert curl(port, "https://a.test/pub/x").stdout == b"hello from the origin\n"
    finally:
        process.terminate()
        process.wait(10)
        origin.close()


@pytest.mark.attack("110", "F02", control=True)
def test_control_an_ordinary_script_that_breaks_judges_no_more(tmp_path: Path, pki: Pki) -> None:
    origin = Origin(pki.context("a.test"))
    script = tmp_path / "script.py"
    script.write_text(
        "from mitmproxy import http\n"
        "def server_connect(data):\n"
        f"    data.server.address = ('127.0.0.1', {origin.port})\n"
        "def request(flow):\n    flow.response = http.Response.make(403, b'denied')\n"
    )
    process, port = start(tmp_path, policy=tmp_path / "none", script=script)
    try:
        there = f"https://127.0.0.1:{origin.port}/other"
        assert wait_until(lambda: curl(port, there).stdout == b"denied")
        script.write_text("this is no Python (")
        assert wait_until(lambda: curl(port, there).stdout == b"hello from the origin\n")
    finally:
        process.terminate()
        process.wait(10)
        origin.close()


@pytest.mark.attack("133")
def test_a_module_planted_where_the_agent_works_is_not_loaded(tmp_path: Path) -> None:
    """Everything of the gateway's that the box may write to is a folder that Python never imports from."""
    project = tmp_path / "project"
    for folder in (project, project / "runs" / "r1" / "workspace", project / "runs" / "r1" / "door"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("re2.py", "yaml.py", "mitmproxy.py", "sitecustomize.py", "impyard.py"):
            (folder / name).write_text(f"open({str(tmp_path / 'planted')!r}, 'w')\n")
    gateway = LiveGateway(project, "networkPolicies: []\n")
    try:
        assert gateway.get("https://a.test/x").json()["reason"] == "unlisted-host"
        assert not (tmp_path / "planted").exists()
        maps = Path(f"/proc/{gateway.process.pid}/maps").read_text()
        assert str(tmp_path) not in maps
    finally:
        gateway.stop()


@pytest.mark.attack("133", control=True)
def test_control_in_a_folder_on_the_path_it_would_be(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'w')\n")
    subprocess.run([sys.executable, "-c", "import yaml"], cwd=tmp_path, check=True)
    assert (tmp_path / "planted").exists()
