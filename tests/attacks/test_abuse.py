"""A box that takes all it can: processes, memory, disks, output. The host stays responsive; the run ends in time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest
import requests

from tests.support.gateway import ROOT
from tests.support.project import Project, Result

pytestmark = [pytest.mark.box, pytest.mark.waits]

# Runs the command behind it, and says how much memory the largest of its processes took.
MEASURE = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[2:]);"
    "open(sys.argv[1], 'w').write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)); sys.exit(code)"
)
MEMORY = 300 * 1000**2  # bytes: what a runner may take; one with nothing to do takes a third of it
# The first process above this one that is pi.
PI = "$(p=$PPID; until grep -qE 'pi|node' /proc/$p/comm; do p=$(cut -d' ' -f4 /proc/$p/stat); done; echo $p)"


def measured(project: Project, *prompt: str, args: tuple[str, ...] = (), limit_s: float = 90) -> tuple[Result, int]:
    """A run, and the bytes of memory of its largest process on this machine."""
    said = project.base / "memory"
    prefix = [sys.executable, "-c", MEASURE, str(said)]
    result = project.demo(*prompt, args=args, prefix=prefix, limit_s=limit_s)
    return result, int(said.read_text())


@pytest.mark.alone
@pytest.mark.attack("148")
def test_a_fork_bomb_is_bounded_and_ends_at_the_ceiling(project: Project) -> None:
    slowest = 0.0

    def look() -> None:
        nonlocal slowest
        project.started_file("there")
        while project.boxes():
            began = time.monotonic()
            assert project.impyard("runs", "list").code == 0
            slowest = max(slowest, time.monotonic() - began)

    bomb = "touch there; b() { b | b & }; while :; do b; sleep 0.1; done"
    result = project.demo(f"run: {bomb}", args=["--ceiling", "0.12", "--pids", "100"], watch=look)
    assert (result.code, result.receipt["exit_reason"]) == (124, "ceiling"), result
    assert result.seconds < 60
    assert 0 < slowest < 30, "the host answers meanwhile"
    assert project.leftovers() == []


@pytest.mark.attack("149", "151")
def test_memory_as_files_and_as_swap_is_bounded_too(project: Project, ordinary_container: Callable[..., str]) -> None:
    fill = "head -c {} /dev/zero > {}/fill 2> /dev/null; stat -c %s {}/fill; rm {}/fill"
    sizes = "df --output=size -B1 /tmp /var/tmp /dev/shm | tail -n 3"
    places = {"/dev/shm": "200M", "/var/tmp": "400M"}
    command = "; ".join(fill.format(amount, *[place] * 3) for place, amount in places.items())
    # Twice as much as the box has, in pages that nobody can throw away.
    hog = "python3 -c 'x = bytearray(10**9); x[::4096] = b\"a\" * len(x[::4096])'; echo $?"
    result = project.demo(
        f"run: ({command}; {sizes}; {hog}) > found 2> /dev/null", "write 4 to answer.txt", args=["--memory", "512m"]
    )
    assert (result.code, result.file("answer.txt")) == (0, "4"), result
    mib = 1024**2
    shm, var, *rest = map(int, result.file("found").split())
    assert (shm, var) == (64 * mib, 256 * mib)
    assert rest == [1024 * mib, 256 * mib, 64 * mib, 137]
    # The control: an ordinary container has neither limit.
    big = "head -c 400M /dev/zero > /var/tmp/fill; stat -c %s /var/tmp/fill"
    assert ordinary_container(big, network_mode="none").strip() == str(400 * mib)


@pytest.mark.attack("F53")
@pytest.mark.parametrize(
    ("command", "stored"),
    [
        pytest.param("head -c 150000000 /dev/zero | tr '\\0' x", 120_000_000, id="without a newline"),
        pytest.param("yes | head -c 60000", 60_000, id="in the shortest lines"),
        pytest.param("head -c 40000000 /dev/zero | tr '\\0' x | fold -w 4000", 40_000_000, id="in lines"),
    ],
)
def test_a_flood_of_output_neither_fills_memory_nor_is_lost(project: Project, command: str, stored: int) -> None:
    """Past pi, which cuts what tools print: straight to the box's own output."""
    result, memory = measured(project, f"run: {command} > /proc/{PI}/fd/1", "write 4 to answer.txt")
    assert (result.code, result.file("answer.txt")) == (0, "4"), (result.err, result.out[-2000:])
    assert result.run is not None
    assert (result.run / "stdout.jsonl").stat().st_size >= stored
    assert memory < MEMORY


@pytest.mark.attack("F53", "F54")
def test_all_output_of_an_agent_that_ends_at_once_arrives(project: Project) -> None:
    """However soon, and whatever its status: it is the status of the first process."""
    quick = f"run: echo last words > /proc/{PI}/fd/1; kill -9 {PI}"
    result = project.demo(quick)
    assert (result.code, result.receipt["agent_exit"]) == (1, 137), result
    assert result.receipt["exit_reason"] == "agent-error"
    assert result.run is not None and b"last words\n" in (result.run / "stdout.jsonl").read_bytes()


# docker-py gives up on an answer after 60 s. A shorter limit of its own shows in seconds whether that is in the way.
SHORT = """
import docker.client, docker.api.client
docker.client.DEFAULT_TIMEOUT_SECONDS = docker.api.client.DEFAULT_TIMEOUT_SECONDS = {limit}
"""


@pytest.mark.attack("F53")
def test_an_agent_that_is_silent_for_longer_than_the_engines_client_waits(
    project: Project, tmp_path: Path, box_image: str
) -> None:
    limit = 2
    (tmp_path / "sitecustomize.py").write_text(SHORT.format(limit=limit))
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    result = project.demo(f"run: sleep {limit + 2}", "write 4 to answer.txt", env=env)
    assert (result.code, result.file("answer.txt")) == (0, "4"), result
    assert result.receipt["exit_reason"] == "finished"


@pytest.mark.attack("F53", control=True)
def test_control_the_engines_client_alone_gives_up(box_image: str) -> None:
    client = docker.from_env(timeout=2)
    options: dict[str, Any] = {"entrypoint": "/bin/bash", "network_mode": "none"}
    container = client.containers.create(box_image, ["-c", "sleep 30"], **options)
    try:
        api: Any = client.api
        container.start()
        with pytest.raises(requests.exceptions.ConnectionError, match="Read timed out"):
            api._post(api._url("/containers/{0}/wait", container.id))  # a call as the client makes it by itself
    finally:
        container.remove(force=True)
        client.close()


MANY = """
import os
for number in range(20_000):
    if number % 1000 == 0: os.mkdir(f"d{number}")
    open(f"d{number - number % 1000}/{number}", "w").close()
os.mkdir("deep"); os.chdir("deep")
for _ in range(60):
    os.mkdir("x" * 250); os.chdir("x" * 250)
os.symlink("/etc/passwd", "link"); open("odd\\nname\\tof\\x1b[31m", "w").close()
"""


@pytest.mark.attack("151", "136")
def test_a_great_many_files_and_a_path_too_long_for_the_system(project: Project) -> None:
    (project.root / "many.py").write_text(MANY)
    result, memory = measured(project, f"run: python3 {project.root}/many.py", "write 4 to answer.txt")
    assert result.code == 0, result
    receipt = result.receipt
    assert len(receipt["files"]) == 200 and receipt["files_more"] >= 19_800
    assert receipt["error"] is None or "could not be given back" in receipt["error"]
    assert "more" in result.out
    assert memory < MEMORY
    assert result.run is not None
    assert json.loads((result.run / "run.json").read_bytes())["exit_reason"] == "finished"
    assert project.impyard("runs", "show").code == 0
    began = time.monotonic()
    assert project.impyard("runs", "prune", "--keep", "0", "--yes").code == 0
    assert time.monotonic() - began < 120 and project.run_folders() == []
