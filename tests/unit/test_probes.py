"""What the probes find on this machine and in a namespace of their own: a probe that finds nothing proves nothing."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from impyard.box import probes

ROOT = Path(__file__).resolve().parents[2]

in_a_namespace = pytest.mark.skipif(
    subprocess.run(["unshare", "-Urn", "true"], capture_output=True).returncode != 0,
    reason="this machine gives no user namespace",
)


def alone(*steps: str) -> list[str]:
    """What each step, a Python expression, gives in a network namespace where one may do all."""
    code = (
        "import json, fcntl, socket, struct\nfrom impyard.box import probes\n"
        "def up(name):\n"
        "    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:\n"
        "        fcntl.ioctl(s, 0x8914, struct.pack('16sh22x', name.encode(), 1))\n"
        f"print(json.dumps([{', '.join(steps)}]))"
    )
    result = subprocess.run(
        ["unshare", "-Urn", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=20,
    )
    found: list[str] = json.loads(result.stdout)
    return found


@in_a_namespace
def test_only_interfaces_that_are_up_count() -> None:
    assert alone("probes.interfaces()", "up('lo')", "probes.interfaces()") == ["none", None, "lo"]


def test_interfaces_and_routes_of_this_machine_are_seen() -> None:
    names = {name for _index, name in socket.if_nameindex()}
    assert "lo" in probes.interfaces().split() and set(probes.interfaces().split()) <= names
    with open("/proc/net/route") as file:
        lines = file.readlines()[1:]
    if not lines:
        pytest.skip("this machine has no route either")
    assert lines[0].split()[0] in probes.routes().split()


@in_a_namespace
def test_without_a_route_nothing_leaves() -> None:
    address = "'198.51.100.1'"
    assert alone("probes.routes()", f"probes.connect({address}, 443)", f"probes.send({address}, 53)") == [
        "none",
        "no route",
        "no route",
    ]


def test_a_connection_that_is_made_or_refused_is_told_from_no_route() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert probes.connect(*address) == "connected"
        assert probes.send(*address) == "sent"
    assert probes.connect(*address) == "Connection refused"


def test_files_that_can_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    assert probes.writable([str(tmp_path)]) == f"{tmp_path} is writable"
    assert probes.writable([str(tmp_path / "file")]) == f"{tmp_path / 'file'} is writable"
    assert (tmp_path / "file").read_text() == "kept"


def test_permissions_alone_are_not_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refused)  # root, as CI is, may open everything
    assert probes.writable([str(tmp_path)]) == f"{tmp_path}: Permission denied, on a writable mount"


def test_nothing_to_check_is_a_failure() -> None:
    assert probes.writable([]) != "read-only"


def test_files_with_content_are_named_and_covered_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "empty").write_text("")
    (tmp_path / "covered").symlink_to("/dev/null")
    (tmp_path / "device").symlink_to("/dev/zero")
    paths = [str(tmp_path / name) for name in ("secret", "empty", "covered", "device", "absent")]
    assert probes.readable(paths) == f"{tmp_path}/secret {tmp_path}/device"
    assert probes.present([*paths[:1], "/none"]) == paths[0]
    assert probes.present(["/none"]) == "absent"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nX-Impyard-Verdict: deny\r\n\r\n{}", "403 deny"),
        (b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "403 without a verdict"),
        (b"HTTP/1.1 200 OK\r\nx-impyard-verdict: allow\r\n\r\n", "200 allow"),
        (b"", "no answer without a verdict"),
        (b"\xff\xfe\r\n\r\n", "no answer without a verdict"),
    ],
)
def test_only_a_denial_by_the_judge_counts(answer: bytes, found: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(4096)
                client.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        assert probes.ask(server.getsockname(), "http://a.invalid/", "a.invalid") == found


def test_a_probe_that_cannot_find_out_has_failed() -> None:
    def broken() -> str:
        raise OSError("no /proc")

    results = probes.judge_all([("good", "a", lambda: "a"), ("bad", "a", lambda: "b"), ("broken", "a", broken)])
    assert [(result["ok"], result["found"]) for result in results] == [
        (True, "a"),
        (False, "b"),
        (False, "OSError: no /proc"),
    ]
