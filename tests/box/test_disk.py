"""A box that fills a disk is ended before the disk is full, and says so. Each disk here is small and a test's own."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.project import Project

pytestmark = [pytest.mark.box, pytest.mark.usefixtures("needs_root"), pytest.mark.attack("151")]

FILL = "while :; do head -c 1000000 /dev/zero >> {0}/$RANDOM || break; done; sleep 60"
MAKE = "mkdir {0}/in; cd {0}/in; n=0; while : > $n; do n=$((n+1)); done; sleep 60"


@contextlib.contextmanager
def small_disk(place: Path, options: str) -> Iterator[Path]:
    """A file system of its own at `place`, until the end of the block."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=777,{options}", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize(
    ("options", "command", "words"),
    [
        pytest.param("size=16m", FILL, "is full but for", id="bytes"),
        pytest.param("size=16m,nr_inodes=3000", MAKE, "more files only", id="files"),
    ],
)
def test_a_workspace_that_is_filled(project: Project, options: str, command: str, words: str) -> None:
    with small_disk(project.base / "small", options) as place:
        result = project.demo(f"run: {command.format('.')}", args=["--workspace", str(place)])
        assert result.code == 1, result
        assert result.receipt["exit_reason"] == "disk-full"
        assert words in result.receipt["error"] and str(place) in result.receipt["error"]
        assert "ended, as the disk is full" in result.out
        assert result.seconds < 55, "it was not waited for the agent"
        again = project.impyard("run", "--model", "demo", "--workspace", str(place), "write 4 to answer.txt")
        assert again.code == 125 and words in again.err, "nor does a run begin there"
    assert project.leftovers() == []


@pytest.mark.parametrize("place", [".", "$HOME"])
def test_the_runs_own_folders_that_are_filled(project: Project, place: str) -> None:
    """The receipt is written all the same, and the log stays valid."""
    with small_disk(project.runs, "size=24m,mode=755"):
        result = project.demo(f"run: {FILL.format(place)}")
        assert (result.code, result.receipt["exit_reason"]) == (1, "disk-full"), result
        assert result.receipt["ended"] and result.receipt["decisions"]["seq"]
        assert project.impyard("decisions", "--verify").code == 0
        left = project.leftovers()
        assert [line for line in left if "tmpfs" not in line] == []
        assert project.impyard("runs", "prune", "--keep", "0", "--yes").code == 0


def test_a_disk_with_room_is_no_reason(project: Project, ordinary_container: Callable[..., str]) -> None:
    """The control, twice: a run that writes less goes on, and a container's own engine would let it fill the disk."""
    with small_disk(project.base / "small", "size=16m") as place:
        args = ["--workspace", str(place)]
        result = project.demo("run: head -c 10000000 /dev/zero > some; sleep 1", "write 4 to answer.txt", args=args)
        assert (result.code, result.receipt["exit_reason"]) == (0, "finished"), json.dumps(result.receipt)
        files = {str(place): {"bind": "/small", "mode": "rw"}}
        command = "head -c 1G /dev/zero > /small/more; df --output=avail /small | tail -n 1"
        assert ordinary_container(command, volumes=files, network_mode="none").strip() == "0"
