"""Whatever breaks, the door closes: each with the control that it stood open before."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.certs.authority import ensure_authority
from tests.gateway.conftest import POLICY, Bed
from tests.support.gateway import ROOT, LiveGateway
from tests.support.listening import free_port
from tests.support.origin import Origin, Pki

pytestmark = pytest.mark.gateway


@pytest.mark.attack("112", "113")
@pytest.mark.parametrize(
    "broken",
    [
        "networkPolicies: [",
        "",
        "networkPolicies:\n  - host: a.test\n    polices: []\n",
        "networkPolicies:\n  - host: a.test\n    policies:\n      - {action: ALLOW, method: GET, path: '(?=x)'}\n",
    ],
    ids=["torn", "empty", "unknown-key", "bad-regex"],
)
def test_a_broken_policy_denies_all_until_it_is_mended(bed: Bed, broken: str) -> None:
    assert bed.gateway.get("https://a.test/pub/x").status == 200
    bed.gateway.policy_path.write_text(broken)
    reply = bed.gateway.get("https://a.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (403, "policy-broken")
    bed.gateway.policy_path.write_text(bed.policy)
    assert bed.gateway.get("https://a.test/pub/x").status == 200
    assert len(bed.a.seen) == 2


@pytest.mark.attack("112")
def test_a_policy_that_vanishes_or_becomes_a_folder_denies_all(bed: Bed) -> None:
    path = bed.gateway.policy_path
    path.unlink()
    assert bed.gateway.get("https://a.test/pub/x").json()["reason"] == "policy-broken"
    path.mkdir()
    assert bed.gateway.get("https://a.test/pub/x").json()["reason"] == "policy-broken"
    path.rmdir()
    path.write_text(bed.policy)
    assert bed.gateway.get("https://a.test/pub/x").status == 200


@pytest.mark.attack("115")
def test_a_tightened_policy_holds_on_the_open_connection(bed: Bed) -> None:
    from tests.support.gateway import read_reply

    with bed.gateway.tls("a.test") as connection:
        connection.sendall(b"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n")
        assert read_reply(connection).status == 200
        bed.gateway.policy_path.write_text(bed.policy.replace("/pub/.*", "/nothing"))
        connection.sendall(b"GET /pub/x HTTP/1.1\r\nHost: a.test\r\n\r\n")
        assert read_reply(connection).status == 403


def test_a_log_that_cannot_be_written_denies_all(own_bed: Bed) -> None:
    gateway = own_bed.gateway
    assert gateway.get("https://a.test/pub/x").status == 200
    log = gateway.runs / "decisions.jsonl"
    log.rename(gateway.runs / "kept")
    log.mkdir()
    reply = gateway.get("https://a.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (403, "log-unwritable")
    assert len(own_bed.a.seen) == 1
    assert gateway.told("log-unwritable")
    log.rmdir()
    (gateway.runs / "kept").rename(log)
    assert gateway.get("https://a.test/pub/x").status == 200


def test_a_full_disk_denies_all(tmp_path: Path, pki: Pki) -> None:
    """A tmpfs of one page plays the disk. Control: the same request passes while there is room."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    (tmp_path / "runs").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", tmp_path / "runs"], check=True)
    origin = Origin(pki.context("a.test"))
    gateway = LiveGateway(tmp_path, POLICY.format(a=origin.port, plain=1, ca=pki.ca_path))
    try:
        assert gateway.get("https://a.test/pub/x").status == 200
        statuses = [gateway.get(f"https://a.test/pub/{'y' * 900}").status for _ in range(20)]
        assert statuses[-1] == 403
        # Every request that reached the origin has its whole line.
        recorded = [
            line for line in (gateway.runs / "decisions.jsonl").read_bytes().split(b"\n") if line.endswith(b"}")
        ]
        assert len(origin.seen) == len(recorded)
    finally:
        gateway.stop()
        origin.close()
        subprocess.run(["umount", "-l", tmp_path / "runs"], check=True)


# A gateway with a fault planted in one hook. The control is the unguarded hook: see the next test.
PLANTED = """
    import sys
    from impyard.addon import forwarded, hooks, tunnels
    {unguard}
    def broken(*args, **kwargs):
        raise RuntimeError("planted")
    {plant}
    from impyard.addon.__main__ import main
    sys.argv = ["x", *sys.argv[1:]]
    sys.exit(main())
"""


@pytest.mark.attack("109", "F01")
@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("judge", "hooks.judge = broken"),
        ("reading the request", "hooks.request_from = broken"),
        ("recording", "hooks.Record.decide = broken"),
        (
            "policy",
            "from impyard.addon.policysource import PolicySource as P; c = P.current; n = [0]\n"
            "    def fail(self):\n        n[0] += 1\n        if n[0] > 1: raise RuntimeError('planted')\n"
            "        return c(self)\n    P.current = fail",
        ),
        ("connecting", "hooks.JudgeAddon.server_connect = hooks.fail_closed(broken)"),
        ("cleaning", "forwarded.strip_for_origin = broken"),
        ("layers", "tunnels.looks_like_http = broken"),
        ("a body hook", "hooks.JudgeAddon._body_bytes = broken"),
    ],
)
def test_an_exception_anywhere_is_a_denial(tmp_path: Path, pki: Pki, name: str, plant: str) -> None:
    origin = Origin(pki.context("a.test"))
    policy = POLICY.format(a=origin.port, plain=1, ca=pki.ca_path)
    fault = textwrap.dedent(PLANTED).format(unguard="", plant=textwrap.dedent(plant).replace("\n    ", "\n"))
    gateway = LiveGateway(tmp_path, policy, fault=fault)
    assert gateway.first.get("event") == "ready", gateway.stderr_path.read_text()
    try:
        try:
            status = gateway.get("https://a.test/pub/x").status
        except (OSError, AssertionError):
            status = 0  # closed without an answer
        assert status in (0, 403, 502), status
        assert origin.seen == []
        assert "planted" in gateway.stderr_path.read_text()
    finally:
        gateway.stop()
        origin.close()


@pytest.mark.attack("109", "F01", control=True)
def test_control_without_the_guard_the_same_exception_lets_the_request_out(tmp_path: Path, pki: Pki) -> None:
    """What the guard is for: stock mitmproxy logs the exception of a hook and forwards."""
    origin = Origin(pki.context("a.test"))
    script = tmp_path / "addon.py"
    script.write_text("def requestheaders(flow):\n    raise RuntimeError('planted')\n")
    ours, theirs = socket.socketpair()
    ours.close()
    theirs.close()
    port = free_port()
    confdir = tmp_path / "conf"
    mitmdump = Path(sys.executable).with_name("mitmdump")
    options = ["--set", f"confdir={confdir}", "--ssl-insecure", "-q"]
    process = subprocess.Popen([mitmdump, "-s", script, "--listen-host", "127.0.0.1", "-p", str(port), *options])
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        subprocess.run(
            [
                "curl",
                "-sS",
                "-k",
                "-m",
                "10",
                "-x",
                f"http://127.0.0.1:{port}",
                f"https://127.0.0.1:{origin.port}/pub/x",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        assert len(origin.seen) == 1
    finally:
        process.terminate()
        process.wait(10)
        origin.close()


@pytest.mark.parametrize("fault", ["policy", "ca", "door", "missing"])
def test_a_gateway_that_must_not_start_says_why(tmp_path: Path, fault: str) -> None:
    policy = "networkPolicies:\n  - host: a.test\n    policies:\n      - {action: ALLOW, method: GET, path: /x}\n"
    ca = tmp_path / "ca"
    if fault == "policy":
        policy = "networkPolicies: 3"
    elif fault == "ca":
        (ensure_authority(ca).key_path).chmod(0o644)
        with pytest.raises(ImpyardError, match="open to other users"):
            LiveGateway(tmp_path, policy, ca=ca)
        return
    elif fault == "door":
        (tmp_path / "runs" / "r1" / "door").mkdir(parents=True)
        (tmp_path / "runs" / "r1" / "door" / "judge.sock").write_text("in the way")
    elif fault == "missing":
        ensure_authority(ca)
    gateway = LiveGateway(tmp_path, policy, ca=ca)
    if fault == "missing":
        assert gateway.first["event"] == "ready"  # control: nothing is in the way
        gateway.stop()
        return
    assert gateway.first["event"] == "failed"
    assert gateway.first["error"]
    assert gateway.process.wait(10) == 1


def test_the_gateway_ends_with_its_runner(tmp_path: Path) -> None:
    policy = "networkPolicies:\n  - host: a.test\n    policies:\n      - {action: ALLOW, method: GET, path: /x}\n"
    gateway = LiveGateway(tmp_path, policy)
    life = socket.socket(socket.AF_UNIX)
    life.settimeout(5)
    life.connect(f"/proc/self/fd/{gateway._door_fd()}/life.sock")
    assert gateway.process.poll() is None
    gateway._line.shutdown(socket.SHUT_RDWR)  # what the kernel does for a killed runner
    gateway._line.close()
    assert life.recv(1) == b""
    assert gateway.process.wait(5) == 0


def test_a_killed_gateway_ends_the_life_socket(tmp_path: Path) -> None:
    policy = "networkPolicies:\n  - host: a.test\n    policies:\n      - {action: ALLOW, method: GET, path: /x}\n"
    gateway = LiveGateway(tmp_path, policy)
    life = socket.socket(socket.AF_UNIX)
    life.settimeout(5)
    life.connect(f"/proc/self/fd/{gateway._door_fd()}/life.sock")
    gateway.kill()
    with contextlib.suppress(ConnectionResetError):  # either way the end is seen at once
        assert life.recv(1) == b""


def test_a_door_deep_in_long_folders_opens(tmp_path: Path) -> None:
    policy = "networkPolicies:\n  - host: a.test\n    policies:\n      - {action: ALLOW, method: GET, path: /x}\n"
    root = tmp_path / ("long" * 20) / "Ordner mit Umläuten"
    root.mkdir(parents=True)
    gateway = LiveGateway(root, policy, run="20260101-000000-abcd")
    assert gateway.first["event"] == "ready"
    assert gateway.canary()[1]
    assert gateway.stop()["denied"] == 1
    assert str(ROOT) not in (root / "runs" / "decisions.jsonl").read_text()
