"""A disk that fills up at any of the writes of a run: a defined end, and no half of anything."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from impyard.runner.receipt import EXITS
from tests.support.boxes import MakeProject
from tests.support.project import Project

pytestmark = [pytest.mark.box, pytest.mark.attack("130", "157")]

# Sizes of runs/ in KiB, and how many files it may hold; the last has room for all.
DISKS = [(12, 99), (400, 99), (600, 99), (4000, 4), (4000, 14), (4000, 18), (4000, 22), (4000, 26), (8000, 999)]
PROMPT = "run: head -c 40000 /dev/zero > big; sleep 0.2"


@contextmanager
def small(folder: Path, kib: int, files: int) -> Iterator[None]:
    options = f"size={kib}k,nr_inodes={files},mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def run_on(project: Project, kib: int, files: int) -> tuple[int, list[str]]:
    """The exit status of a run on such a disk, and what is not as it must be."""
    project.runs.mkdir()
    with small(project.runs, kib, files):
        result = project.demo(PROMPT)
        wrong = [line for line in project.leftovers() if not line.startswith(f"none {project.runs} tmpfs")]
        if result.code not in EXITS.values():
            wrong.append(f"status {result.code}")
        folders = project.run_folders()
        if result.code == 125:
            wrong += [f"{folder} stays" for folder in folders]
            if [line.partition(":")[0] for line in result.err.splitlines()] != ["error", "hint"]:
                wrong.append(result.err)
        else:
            said = json.loads((folders[0] / "run.json").read_bytes())
            if (said["exit_status"], EXITS[said["exit_reason"]]) != (result.code, result.code):
                wrong.append(f"ended with {result.code}, its receipt says {said['exit_reason']}")
            if project.impyard("decisions", "--verify").code != 0:
                wrong.append("the log does not verify")
        return result.code, [f"{kib} KiB, {files} files: {text}" for text in wrong]


def test_every_write_may_be_the_one_that_finds_no_room(make_project: MakeProject, needs_root: None) -> None:
    projects = [make_project(name=f"project{number}") for number in range(len(DISKS))]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda project, disk: run_on(project, *disk), projects, DISKS))
    assert [text for _, wrong in results for text in wrong] == []
    codes = [code for code, _ in results]
    assert codes[-1] == 0, "the control: a disk with room"
    assert codes[0] == 125 and 0 not in codes[:2]
