"""`impyard gateway`, started as people start it, in front of a real curl."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import impyard as package
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Vault
from tests.support.service import Given, Service

CHECKOUT = Path(str(package.__file__)).parent.parent
POLICY = """\
networkPolicies:
  - host: open.test
    scheme: http
    upstream: http://127.0.0.1:{port}
    policies:
      - {{action: ALLOW, method: GET, path: /ok}}
"""
# Port 9 (discard) of loopback: nobody listens there.
NOBODY = """\
  - host: nobody.test
    scheme: http
    upstream: http://127.0.0.1:9
    policies:
      - {action: ALLOW, method: GET, path: /.*}
"""

pytestmark = [
    pytest.mark.gateway,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


class Running(NamedTuple):
    process: subprocess.Popen[str]
    proxy: str
    curl: list[str]  # the command that it tells people to use, without its URL
    project: Path
    said: str  # the lines after that command


@pytest.fixture
def origin() -> Iterator[int]:
    """A plain HTTP server on loopback that answers everything; its port."""
    service = Service(lambda asked: Given(b"origin"))
    yield service.port
    service.close()


def start(project: Path, *args: str) -> Running:
    env = {**os.environ, "IMPYARD_DATA_DIR": str(project.parent / "data"), "PYTHONPATH": str(CHECKOUT)}
    env.pop("PYTHONUNBUFFERED", None)  # it hides what is held back until the end
    process = subprocess.Popen(
        [sys.executable, "-m", "impyard.runner", "gateway", "--listen", "127.0.0.1:0", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=project,
        env=env,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", first)
    assert found, first + process.stderr.read()
    command = process.stderr.readline().split()
    said = process.stderr.readline()
    while "Ctrl-C ends it" not in said:
        said += process.stderr.readline()
    return Running(process, found[0], command[:-1], project, said)


@pytest.fixture
def running(tmp_path: Path, origin: int) -> Iterator[Running]:
    project = tmp_path / "project"
    (project / "policies").mkdir(parents=True)
    (project / "policies" / "gateway.yaml").write_text(POLICY.format(port=origin))
    found = start(project)
    yield found
    if found.process.poll() is None:
        found.process.kill()
    found.process.communicate()


def curl(running: Running, url: str) -> str:
    command = [*running.curl, "-sS", "-m", "10", url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_it_judges_shows_and_records_what_comes_through(running: Running) -> None:
    assert running.process.stdout is not None
    assert curl(running, "http://open.test/ok") == "origin"
    shown = running.process.stdout.readline().split("\t")
    assert shown[1:5] == ["allow", "GET", "http://open.test/ok", "rule"]
    assert json.loads(curl(running, "http://open.test/other"))["reason"] == "no-rule"
    assert running.process.stdout.readline().split("\t")[1:3] == ["deny", "GET"]
    # Inside TLS: the printed command trusts the certificate.
    assert json.loads(curl(running, "https://closed.test/"))["reason"] == "unlisted-host"
    assert running.process.stdout.readline().split("\t")[3] == "https://closed.test/"
    lines = (running.project / "runs" / "decisions.jsonl").read_text().splitlines()
    assert [json.loads(line)["verdict"] for line in lines] == ["allow", "deny", "deny"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_makes_in_a_users_project_is_the_users(tmp_path: Path, origin: int) -> None:
    project = tmp_path / "project"
    (project / "policies").mkdir(parents=True)
    (project / "policies" / "gateway.yaml").write_text(POLICY.format(port=origin))
    os.chown(project, 54321, 54322)
    running = start(project)
    curl(running, "http://open.test/ok")
    running.process.send_signal(signal.SIGINT)
    running.process.communicate(timeout=10)
    runs = project / "runs"
    found = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in (runs, *runs.iterdir())}
    assert found == dict.fromkeys(("runs", "decisions.jsonl", "outcomes.jsonl"), (54321, 54322))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(running: Running, number: signal.Signals) -> None:
    curl(running, "http://open.test/other")
    running.process.send_signal(number)
    out, err = running.process.communicate(timeout=10)
    assert running.process.returncode == 0
    assert out.count("\n") == 1
    assert "Traceback" not in err
    assert "impyard decisions --run gateway-" in err


def test_a_port_that_is_taken_is_one_clear_error(running: Running) -> None:
    address = running.proxy.removeprefix("http://")
    env = {**os.environ, "IMPYARD_DATA_DIR": str(running.project.parent / "data"), "PYTHONPATH": str(CHECKOUT)}
    second = subprocess.run(
        [sys.executable, "-m", "impyard.runner", "gateway", "--listen", address],
        capture_output=True,
        text=True,
        cwd=running.project,
        env=env,
        timeout=30,
        check=False,
    )
    assert second.returncode == 1
    assert f"cannot listen on {address}" in second.stderr
    assert second.stderr.count("error:") == second.stderr.count("hint:") == 1


def test_it_goes_on_judging_when_nobody_reads_what_it_shows(running: Running) -> None:
    assert running.process.stdout is not None
    running.process.stdout.close()
    for _ in range(3):
        assert json.loads(curl(running, "http://open.test/other"))["reason"] == "no-rule"
    running.process.stdout = None
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(10) == 0


def test_an_allowed_request_that_comes_to_nothing_is_shown_as_failed(running: Running) -> None:
    """Control: the one that is answered has one line."""
    policy = running.project / "policies" / "gateway.yaml"
    with policy.open("a") as file:
        file.write(NOBODY)
    assert running.process.stdout is not None
    assert curl(running, "http://open.test/ok") == "origin"
    curl(running, "http://nobody.test/x")
    shown = [running.process.stdout.readline().rstrip("\n").split("\t") for _ in range(3)]
    assert [line[1] for line in shown] == ["allow", "allow", "failed"]
    assert shown[2][3:5] == ["http://nobody.test/x", "rule"]
    assert shown[2][7] == "connection refused"
    seen = subprocess.run(
        [sys.executable, "-m", "impyard.runner", "decisions"],
        capture_output=True,
        text=True,
        cwd=running.project,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        check=True,
    )
    found = [line.split("\t") for line in seen.stdout.splitlines()]
    assert [(line[1], line[7]) for line in found] == [("allow", "200"), ("failed", shown[2][7])]


def test_a_client_without_the_authority_is_named_once_with_the_option_that_mends_it(running: Running) -> None:
    command = ["curl", "-sS", "-m", "10", "-x", running.proxy]
    for url in ("https://a.test/", "https://a.test/again", "https://b.test/"):
        assert subprocess.run([*command, url], capture_output=True, check=False).returncode == 60
    running.process.send_signal(signal.SIGTERM)
    _, err = running.process.communicate(timeout=10)
    said = [line for line in err.splitlines() if "trust" in line]
    assert [line.split(":")[0] for line in said] == ["a.test", "b.test"]
    assert all(f"--cacert {running.curl[2]}" in line for line in said)
    assert "Client TLS handshake" not in err


@pytest.mark.parametrize(("host", "said"), [("api.github.com", "allows this one"), ("other.test", "does not allow")])
def test_it_says_what_its_sample_command_will_show(tmp_path: Path, host: str, said: str) -> None:
    (tmp_path / "policies").mkdir()
    rules = f"networkPolicies: [{{host: {host}, policies: [{{action: ALLOW, method: GET, path: /}}]}}]"
    (tmp_path / "policies" / "gateway.yaml").write_text(rules)
    env = {**os.environ, "IMPYARD_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-m", "impyard", "gateway", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=env)
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(4)]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert said in lines[2]


def test_a_broken_policy_is_refused_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").write_text("networkPolicies:\n  - hosts: a.test\n")
    env = {**os.environ, "IMPYARD_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(CHECKOUT)}
    result = subprocess.run(
        [sys.executable, "-m", "impyard.runner", "gateway", "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
        timeout=30,
        check=False,
    )
    assert result.returncode == 1
    assert "policies/gateway.yaml:2:" in result.stderr
    assert "Traceback" not in result.stderr


INJECTING = """\
  - host: keyed.test
    scheme: http
    upstream: http://127.0.0.1:{port}
    inject: {{credential: one, headers: {{x-key: "{{key}}"}}, over_http: true}}
    policies:
      - {{action: ALLOW, method: GET, path: /.*}}
"""


@pytest.mark.parametrize("inject", [False, True])
def test_credentials_go_on_requests_only_when_it_is_told_to(tmp_path: Path, inject: bool) -> None:
    project = tmp_path / "project"
    (project / "policies").mkdir(parents=True)
    origin = Service(lambda asked: Given(b"origin"))
    text = POLICY.format(port=origin.port) + INJECTING.format(port=origin.port)
    (project / "policies" / "gateway.yaml").write_text(text)
    Vault(tmp_path / "data" / "vault").put(Credential(name="one", kind="api_key", key="a-key-of-somebody"))
    running = start(project, *(["--inject"] if inject else []))
    try:
        answer = curl(running, "http://keyed.test/x")
        if inject:
            assert answer == "origin"
            assert [asked.headers["x-key"] for asked in origin.asked] == ["a-key-of-somebody"]
        else:
            assert json.loads(answer)["reason"] == "credential-unavailable"
            assert origin.asked == []
    finally:
        running.process.send_signal(signal.SIGTERM)
        out, words = running.process.communicate(timeout=20)
        origin.close()
    assert "keyed.test" in running.said
    assert ("everyone who can connect" in running.said) is inject
    assert ("--inject" in running.said) is not inject
    assert "a-key-of-somebody" not in out + words + running.said
