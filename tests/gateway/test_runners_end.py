"""The runner's end of a gateway: started, proved, lost and closed, each against a real process."""

from __future__ import annotations

import json
import os
import queue
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential, TokenEndpoint
from impyard.addon.vault.store import Vault
from impyard.certs.authority import ensure_authority
from impyard.certs.throwaway import Pki
from impyard.runner import gateway
from impyard.runner.decisions import rotation
from impyard.runner.gateway import Gateway, spawn
from tests.support.tokenendpoint import TokenEndpoint as Endpoint
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway

POLICY = "networkPolicies:\n  - host: a.test\n    policies:\n      - {action: ALLOW, method: GET, path: /}\n"


class Bench:
    """A project, and what a gateway told of itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.lost = threading.Event()
        self.vault: Path | None = None
        (root / "runs" / "r1").mkdir(parents=True)
        (root / "gateway.yaml").write_text(POLICY)
        ensure_authority(root / "ca")

    @property
    def log(self) -> Path:
        return self.root / "runs" / "decisions.jsonl"

    def configure(self, spawned: gateway.Spawned) -> Gateway:
        config = {
            "run": "r1",
            "door": str(self.root / "runs" / "r1" / "door"),
            "policies": [str(self.root / "gateway.yaml")],
            "root": str(self.root),
            "runs": str(self.root / "runs"),
            "ca": str(self.root / "ca"),
            "vault": str(self.vault) if self.vault else None,
            "secret": secrets.token_hex(32),
            "door_uid": None,
            "door_gid": None,
        }
        return Gateway(spawned, config, self.root / "gateway.log", self.events.put, self.lost.set)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    # Deeper than a socket's address is long: nothing here may depend on that.
    root = tmp_path / ("long-" * 25) / "projéct"
    root.mkdir(parents=True)
    return Bench(root)


@pytest.fixture
def live(bench: Bench) -> Iterator[Gateway]:
    with spawn() as spawned:
        started = bench.configure(spawned)
        try:
            yield started
        finally:
            started.close()


def ask_through(bench: Bench, host: str) -> bytes:
    folder = os.open(bench.root / "runs" / "r1" / "door", os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(f"/proc/self/fd/{folder}/judge.sock")
            door.sendall(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return door.recv(65536)
    finally:
        os.close(folder)


def test_a_gateway_becomes_ready_proves_itself_and_closes_with_its_totals(bench: Bench, live: Gateway) -> None:
    ready = live.ready()
    assert str(ready["policy"]).startswith("sha256:")
    live.prove()
    assert ask_through(bench, "b.test").startswith(b"HTTP/1.1 403")
    assert bench.events.get(timeout=5)["host"] == "b.test"
    closed = live.close()
    assert closed is not None
    assert (closed["decisions"], closed["denied"]) == (2, 2)
    assert not bench.lost.is_set()
    assert live.close() is closed


def test_a_login_that_is_being_renewed_is_waited_for_and_kept(bench: Bench, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    endpoint = Endpoint(pki.context("localhost"))
    endpoint.wait_s = 3.5  # longer than a gateway is given to end by itself
    bench.vault = tmp_path / "vault"
    Vault(bench.vault).put(
        Credential(
            "login",
            "oauth",
            access="access-0",
            refresh="refresh-0",
            expires=1,
            token_endpoint=TokenEndpoint(endpoint.url, "form", ca=str(pki.ca_path)),
        )
    )
    inject = '{credential: login, headers: {authorization: "Bearer {access}"}, over_http: true}'
    (bench.root / "gateway.yaml").write_text(
        f"networkPolicies:\n  - host: a.test\n    port: 80\n    upstream: http://127.0.0.1:9\n    inject: {inject}\n"
        "    policies:\n      - {action: ALLOW, method: GET, path: /}\n"
    )
    with spawn() as spawned, ThreadPoolExecutor() as pool:
        started = bench.configure(spawned)
        started.ready()
        asked = pool.submit(ask_through, bench, "a.test")
        wait_until(lambda: bool(endpoint.spent))
        assert started.close() is not None
        asked.result()
    assert Vault(bench.vault).read().credentials["login"].refresh == "refresh-1"
    endpoint.close()


def test_its_end_is_told_at_once(bench: Bench, live: Gateway) -> None:
    live.ready()
    os.kill(live.pid, signal.SIGKILL)
    assert bench.lost.wait(5)
    assert live.lost
    assert live.close() is None


def test_a_policy_that_is_broken_is_the_gateways_own_refusal(bench: Bench, live: Gateway) -> None:
    assert live.ready()  # the control
    live.close()
    (bench.root / "gateway.yaml").write_text("networkPolicies: 1\n")
    with spawn() as spawned, pytest.raises(ImpyardError, match=r"gateway\.yaml:1:"):
        bench.configure(spawned).ready()


def test_a_gateway_that_cannot_start_is_refused_with_its_last_words(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'no such module' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with spawn() as spawned, pytest.raises(ImpyardError, match="before it was ready: no such module"):
        bench.configure(spawned).ready()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(ImpyardError, match="cannot start the gateway"):
        spawn()


def test_a_slow_start_is_no_failure_and_a_stuck_one_is(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among many runs each gateway gets little of the processors. It needs more than the limit, but is at work."""
    monkeypatch.setattr(gateway, "READY_LIMIT_S", 0.25)
    with spawn() as spawned:
        started = bench.configure(spawned)
        assert started.ready()["event"] == "ready"
        started.close()
    with spawn() as spawned:  # the control
        os.kill(spawned.process.pid, signal.SIGSTOP)
        started = bench.configure(spawned)
        with pytest.raises(ImpyardError, match="does not start"):
            started.ready()
        os.kill(spawned.process.pid, signal.SIGCONT)
        monkeypatch.setattr(gateway, "READY_AT_MOST_S", 0.0)
        with pytest.raises(ImpyardError, match="does not start"):
            started.ready()
        started.close()


def test_a_gateway_that_the_kernel_kills_is_named_as_that(bench: Bench) -> None:
    with spawn() as spawned:
        os.kill(spawned.process.pid, signal.SIGKILL)
        with pytest.raises(ImpyardError, match=r"before it was ready: it was killed, as .* memory is short"):
            bench.configure(spawned).ready()


def test_a_gateway_that_died_right_after_its_start_is_refused(bench: Bench, live: Gateway) -> None:
    live.ready()
    os.kill(live.pid, signal.SIGKILL)
    assert bench.lost.wait(5)
    with pytest.raises(ImpyardError, match="ended right after its start"):
        live.prove()


def test_an_impostor_at_the_door_is_refused(bench: Bench, live: Gateway) -> None:
    live.ready()
    live.prove()  # the control
    door = bench.root / "runs" / "r1" / "door"
    (door / "judge.sock").unlink()
    code = (
        "import os, socket, sys\nos.chdir(sys.argv[1])\ns = socket.socket(socket.AF_UNIX)\ns.bind('judge.sock')\n"
        "s.listen()\nprint('up', flush=True)\nwhile True:\n c, _ = s.accept(); c.recv(65536)\n"
        " c.sendall(b'HTTP/1.1 403 x\\r\\nx-impyard-decision: r1.1\\r\\n\\r\\n'); c.close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(door)], stdout=subprocess.PIPE) as impostor:
        try:
            assert impostor.stdout is not None and impostor.stdout.readline() == b"up\n"
            with pytest.raises(ImpyardError, match="listens there, not the gateway"):
                live.prove()
        finally:
            impostor.kill()


def test_an_answer_without_the_shared_word_is_refused(bench: Bench, live: Gateway) -> None:
    live.ready()
    live._config = {**live._config, "secret": secrets.token_hex(32)}
    with pytest.raises(ImpyardError, match="not this run's gateway"):
        live.prove()


def test_a_log_that_cannot_be_written_is_named(bench: Bench, live: Gateway) -> None:
    live.ready()
    bench.log.mkdir()
    with pytest.raises(ImpyardError, match=r"cannot write .*decisions\.jsonl"):
        live.prove()


def test_a_denial_that_is_not_in_the_log_is_refused(bench: Bench, live: Gateway, tmp_path: Path) -> None:
    live.ready()
    live._config = {**live._config, "runs": str(tmp_path)}
    with pytest.raises(ImpyardError, match="is not in"):
        live.prove()


def test_a_denial_whose_log_was_rotated_since_counts(
    bench: Bench, live: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.ready()
    ask = live._ask

    def asked_and_rotated(url: str, host: str) -> tuple[int, dict[str, str]]:
        answer = ask(url, host)
        assert rotation.rotate(bench.log.parent)
        bench.log.write_text("of others\n")
        return answer

    monkeypatch.setattr(live, "_ask", asked_and_rotated)
    live.prove()


def test_a_line_that_only_mentions_the_decision_does_not_count(bench: Bench, live: Gateway, tmp_path: Path) -> None:
    live.ready()
    lines = [{"id": f"r1.{number}", "host": "x", "reason": "rule", "verdict": "deny"} for number in range(9)]
    (tmp_path / "decisions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    live._config = {**live._config, "runs": str(tmp_path)}
    with pytest.raises(ImpyardError, match="is not in"):
        live.prove()


def test_a_process_that_was_never_configured_is_gone_afterwards() -> None:
    with spawn() as spawned:
        process = spawned.process
        assert process.poll() is None
    assert process.poll() is not None


def test_its_environment_has_no_secrets_of_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "GH_TOKEN", "MY_SECRET", "db_password", "SSLKEYLOGFILE"):
        monkeypatch.setenv(name, "a-value-to-hide")
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "a-backend")
    with spawn() as spawned:
        path = Path(f"/proc/{spawned.process.pid}/environ")
        wait_until(lambda: b"PYTHON" in path.read_bytes())  # until it has become the gateway's program, there is none
        environ = path.read_bytes().split(b"\0")
    assert not [each for each in environ if b"a-value-to-hide" in each]
    assert b"PYTHON_KEYRING_BACKEND=a-backend" in environ


def test_a_gateway_ends_when_its_runner_is_killed() -> None:
    code = (
        "import time\nfrom impyard.runner.gateway import spawn\nwith spawn() as s:\n"
        " print(s.process.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as runner:
        assert runner.stdout is not None
        handle = os.pidfd_open(int(runner.stdout.readline()))
        runner.kill()
    poll = select.poll()
    poll.register(handle)
    try:
        assert poll.poll(15_000), "the gateway outlived its runner"
    finally:
        os.close(handle)


def test_what_it_printed_is_kept_in_the_run(bench: Bench) -> None:
    with spawn() as spawned:
        started = bench.configure(spawned)
        started.ready()
        os.write(spawned.words.fileno(), b"a warning\n")
        started.close()
    assert (bench.root / "gateway.log").read_text() == "a warning\n"
