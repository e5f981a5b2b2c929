"""`impyard prove --deep --proxy`: the same scoreboard for any proxy. A bare one fails most of it, ours none."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from impyard.box.attacks.bed import chosen
from tests.attacks.conftest import Mitmdump
from tests.support.listening import free_port

pytestmark = pytest.mark.gateway
ROOT = Path(__file__).resolve().parents[2]


class Proof:
    """`prove --deep --proxy` at a port where no proxy is yet; `policy` is what it asks `impyard gateway` to take."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.env = {**os.environ, "IMPYARD_DATA_DIR": str(folder / "data"), "PYTHONPATH": str(ROOT)}
        url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "impyard", "prove", "--deep", "--proxy", url, *options],
            env={**self.env, "TMPDIR": str(self.temporary), "COLUMNS": "1000"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        said = self.process.stderr.readline() + self.process.stderr.readline()
        found = re.search(r"--policy (\S+)\)", said)
        assert found, said
        self.policy = found[1]

    def end(self) -> tuple[int, str, str]:
        """Its exit status, output and errors; it must have left nothing."""
        try:
            out, err = self.process.communicate(timeout=260)
        finally:
            self.process.kill()
        assert list(self.temporary.iterdir()) == []
        return self.process.returncode, out, err


@contextmanager
def judged(proof: Proof, folder: Path) -> Iterator[None]:
    """`impyard gateway` as it was asked for."""
    listen = f"127.0.0.1:{proof.port}"
    argv = [sys.executable, "-m", "impyard", "gateway", "--listen", listen, "--policy", proof.policy]
    gateway = subprocess.Popen(
        [*argv, "--project", str(folder)],
        env=proof.env,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield
    finally:
        gateway.terminate()
        _out, err = gateway.communicate(timeout=10)
    assert "Traceback" not in err


def held(document: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {group: (item["attempts"], item["held"]) for group, item in document["groups"].items()}


def test_our_own_gateway_holds_all(tmp_path: Path) -> None:
    proof = Proof(tmp_path, "--json", "--group", "C")
    with judged(proof, tmp_path):
        status, out, err = proof.end()
    document = json.loads(out)
    assert document["failed"] == [], err
    assert held(document) == {group: (len(chosen(group)), len(chosen(group))) for group in "C"}
    assert (status, document["ok"]) == (0, True)


def test_a_proxy_that_judges_nothing_is_seen_through(tmp_path: Path) -> None:
    """The control: the same attempts, and what got out is named."""
    proof = Proof(tmp_path, "--json", "--group", "C")
    with Mitmdump(tmp_path, 0, proof.port):
        status, out, err = proof.end()
    document = json.loads(out)
    failed = {item["attempt"]: item["faults"] for item in document["failed"]}
    assert (status, document["ok"]) == (1, False), err
    assert len(failed) == sum(made - ours for made, ours in held(document).values())
    assert all(ours < made * 0.8 for made, ours in held(document).values()), held(document)
    assert failed["C29 a path in no rule behind a tunnel that was granted"][1:] == [
        "the origin got GET /private, and should get nothing"
    ]
    assert not [key for key, faults in failed.items() if "it was not made" in faults]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_signal_ends_it_and_leaves_nothing(tmp_path: Path, number: signal.Signals, when: str) -> None:
    proof = Proof(tmp_path)
    if when == "before":
        proof.process.send_signal(number)
        status, out, err = proof.end()
    else:
        with judged(proof, tmp_path):
            assert proof.process.stderr is not None
            assert "making" in proof.process.stderr.readline()
            proof.process.send_signal(number)
            status, out, err = proof.end()
    assert (status, out) == (130, "")
    assert err == "interrupted: nothing was proved\n"


def test_options_that_mean_nothing_without_it_are_refused() -> None:
    for options in (["--group", "C"], ["--proxy", "http://127.0.0.1:1"], ["--deep", "--ca", __file__]):
        argv = [sys.executable, "-m", "impyard", "prove", *options]
        result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        assert result.returncode == 2, options


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "http://127.0.0.1", "http://127.0.0.1:99999", "socks5://a:1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    argv = [sys.executable, "-m", "impyard", "prove", "--deep", "--proxy", url]
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 1
    assert "is no proxy's address" in result.stderr
