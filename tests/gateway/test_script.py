"""The same judge in somebody's own mitmdump."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import ROOT
from tests.support.listening import free_port
from tests.support.origin import Origin, Pki

pytestmark = pytest.mark.gateway

POLICY = """\
networkPolicies:
  - host: a.test
    upstream: https://127.0.0.1:{port}
    upstream_ca: {ca}
    policies:
      - {{action: ALLOW, method: GET, path: /pub/.*}}
"""


SCRIPT = ROOT / "addon" / "script.py"


def start(tmp_path: Path, *, policy: Path, script: Path = SCRIPT) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    settings = [f"confdir={tmp_path / 'conf'}", f"impyard_policy={policy}", f"impyard_runs={tmp_path / 'runs'}"]
    options = [word for setting in settings for word in ("--set", setting)]
    program = [str(Path(sys.executable).with_name("mitmdump")), "-q", "-s", str(script), *options]
    # ssl_insecure: stock TLS settings verify the origin, and know nothing of the entry's upstream_ca.
    options = ["--ssl-insecure", "--listen-host", "127.0.0.1", "-p", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (tmp_path / "out").open("wb") as out:
        return subprocess.Popen([*program, *options], cwd=tmp_path, env=environment, stdout=out, stderr=out), port


@pytest.fixture
def origin(pki: Pki) -> Iterator[Origin]:
    origin = Origin(pki.context("a.test"))
    yield origin
    origin.close()


def curl(port: int, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["curl", "-sS", "-k", "-m", "10", "-x", f"http://127.0.0.1:{port}", *words], capture_output=True, check=False
    )


def test_it_allows_and_denies_and_records(tmp_path: Path, origin: Origin, pki: Pki) -> None:
    policy = tmp_path / "policies" / "gateway.yaml"
    policy.parent.mkdir()
    policy.write_text(POLICY.format(port=origin.port, ca=pki.ca_path))
    process, port = start(tmp_path, policy=policy)
    try:
        for _ in range(100):
            if curl(port, "https://a.test/pub/x").stdout == b"hello from the origin\n":
                break
            time.sleep(0.1)
        count = len(origin.seen)
        assert count == 1
        answer = json.loads(curl(port, "https://a.test/other").stdout)
        assert answer["reason"] == "no-rule"
        (tmp_path / "blob").write_bytes(bytes(3_000_000))
        upload = curl(port, "--data-binary", f"@{tmp_path / 'blob'}", "https://a.test/other")
        assert json.loads(upload.stdout)["reason"] == "no-rule"
        assert len(origin.seen) == count
        lines = [json.loads(line) for line in (tmp_path / "runs" / "decisions.jsonl").read_text().splitlines()]
        found = [(line["verdict"], line["reason"], line["method"]) for line in lines]
        assert found[-3:] == [("allow", "rule", "GET"), ("deny", "no-rule", "GET"), ("deny", "no-rule", "POST")]
    finally:
        process.terminate()
        process.wait(10)


def test_a_broken_policy_ends_mitmdump(tmp_path: Path) -> None:
    policy = tmp_path / "gateway.yaml"
    policy.write_text("networkPolicies: [")
    process, _ = start(tmp_path, policy=policy)
    assert process.wait(30) == 1
    assert "gateway.yaml:2:1: is not YAML" in (tmp_path / "out").read_text()


def test_what_the_policy_injects_on_is_denied_as_there_is_no_vault(tmp_path: Path, origin: Origin, pki: Pki) -> None:
    policy = tmp_path / "policies" / "gateway.yaml"
    policy.parent.mkdir()
    bound = "    inject: {credential: one, template: npm}\n    policies:\n"
    policy.write_text(POLICY.format(port=origin.port, ca=pki.ca_path).replace("    policies:\n", bound))
    process, port = start(tmp_path, policy=policy)
    try:
        done = curl(port, "--retry", "40", "--retry-delay", "1", "--retry-connrefused", "https://a.test/pub/x")
    finally:
        process.terminate()
        process.wait(10)
    assert json.loads(done.stdout)["reason"] == "credential-unavailable"
    assert "puts no credentials" in json.loads(done.stdout)["error"]
    assert origin.seen == []
