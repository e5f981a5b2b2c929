"""`impyard prove` on a real engine: what it claims holds, and it would notice if it did not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import impyard as package
from impyard.runner import engine
from impyard.runner.canaries import Canaries

CHECKOUT = Path(str(package.__file__)).parent.parent
CANARY = "canary-5f0e2c9d71"
PLAIN = "impyard-test-without-relay:latest"

pytestmark = pytest.mark.box


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "projéct of mine"
    for folder in (root, root / "deep" / "er"):
        folder.mkdir(parents=True)
        (folder / ".env").write_text(f"API={CANARY}\n")
    (root / "deep" / "id_rsa").write_text(f"{CANARY}\n")
    (root / ".npmrc").write_text(f"//registry.test/:_authToken={CANARY}\n")
    (root / "policies").mkdir()
    (root / "policies" / "gateway.yaml").write_text(
        "networkPolicies:\n  - host: open.test\n    policies:\n      - {action: ALLOW, method: GET, path: /.*}\n"
    )
    if os.geteuid() == 0:  # the box's user is another one then, and must find its way in
        for folder in (tmp_path, *tmp_path.parents):
            if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
                folder.chmod(0o755)
    return root


def command(project: Path, *args: str) -> tuple[list[str], dict[str, str]]:
    env = {**os.environ, "IMPYARD_DATA_DIR": str(project.parent / "data"), "PYTHONPATH": str(CHECKOUT)}
    return [sys.executable, "-m", "impyard.runner", *args, "--project", str(project)], env


@pytest.fixture
def nothing_left(project: Path) -> Iterator[None]:
    yield
    mine = [box.name for box in engine.boxes() if box.labels.get("impyard.project") == str(project)]
    assert mine == []
    runs = project / "runs"
    left = [path.name for path in runs.iterdir()] if runs.exists() else []
    assert [name for name in left if name != "decisions.jsonl"] == []


@pytest.mark.usefixtures("nothing_left")
def test_every_claim_holds_and_nothing_is_left(project: Path) -> None:
    argv, env = command(project, "prove", "--json")
    result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)
    document = json.loads(result.stdout)
    failed = [claim for claim in document["claims"] if not claim["ok"]]
    assert failed == []
    assert (result.returncode, document["ok"]) == (0, True)
    found = {claim["name"]: claim["found"] for claim in document["claims"]}
    assert found["secret files covered"] == "4 of 4"
    assert found["listeners reached by the box"] == "0 times"
    assert found["listeners reached by this machine"] != "0 times"
    lines = [json.loads(line) for line in (project / "runs" / "decisions.jsonl").read_text().splitlines()]
    assert {line["run"] for line in lines} == {document["run"]}
    assert {line["verdict"] for line in lines} == {"deny"}
    assert CANARY not in result.stdout + result.stderr


@pytest.mark.usefixtures("nothing_left")
def test_people_see_a_table_with_its_sum(project: Path) -> None:
    argv, env = command(project, "prove")
    result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0
    assert "FAIL" not in result.stdout
    assert "seen from this machine" in result.stdout
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80


def test_the_same_attempts_succeed_in_an_ordinary_container() -> None:
    """The control: what cannot be reached from the box can be reached, and is counted."""
    from impyard.runner.image import ensure_image

    image = ensure_image(lambda _line: None)
    script = (
        "import json, socket, sys\n"
        "for address, port in json.loads(sys.argv[1]):\n"
        "    try:\n"
        "        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (address, port))\n"
        "        socket.create_connection((address, port), 2).close()\n"
        "    except OSError as exc:\n"
        "        print(address, exc)\n"
    )
    with Canaries() as canaries:
        engine.client().containers.run(
            image, ["-c", script, json.dumps(canaries.addresses)], entrypoint="python3", remove=True
        )
        deadline = time.monotonic() + 5
        while canaries.hits < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert canaries.hits >= 2


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("delay_s", [0.5, 1.0, 1.5, 1.6, 1.8, 2.0])
def test_an_interrupted_proof_leaves_nothing(project: Path, delay_s: float) -> None:
    argv, env = command(project, "prove")
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(delay_s)
    process.send_signal(signal.SIGTERM)
    _out, err = process.communicate(timeout=60)
    assert process.returncode in (130, 0, -15)  # -15: so early that nothing of it was loaded; 0: it was quicker
    assert "Traceback" not in err


def test_an_image_without_a_relay_is_refused(project: Path) -> None:
    from impyard.runner import engine_image
    from impyard.runner.image import ensure_image

    dockerfile = f"FROM {ensure_image(lambda _line: None)}\nRUN rm -rf /opt/impyard\n".encode()
    context = engine_image.pack({"Dockerfile": (dockerfile, 0o644)})
    plain = engine_image.build_image(context, PLAIN, {}, lambda _line: None)
    try:
        argv, env = command(project, "prove", "--image", plain)
        result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    finally:
        engine.client().images.remove(PLAIN, force=True)
    assert result.returncode == 1
    assert "without its report" in result.stderr


@pytest.mark.usefixtures("nothing_left")
def test_a_missing_policy_and_a_dead_engine_are_refused(project: Path, tmp_path: Path) -> None:
    argv, env = command(project, "prove")
    env["DOCKER_HOST"] = f"unix://{tmp_path}/none.sock"
    result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "systemctl start docker" in result.stderr
    shutil.rmtree(project / "policies")
    argv, env = command(project, "prove")
    result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "impyard init" in result.stderr
