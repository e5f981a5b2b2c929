"""Runs at the same time: each has its own door and its own box, and they share one log without tearing it."""

from __future__ import annotations

import json
import re

import pytest

from impyard.addon.decisions import verify
from tests.support.project import Project
from tests.support.waiting import wait_until

pytestmark = pytest.mark.box

RUNS = 4
REQUESTS = 12
# Waits for the others, then asks under a name of its own; long paths make lines that would tear.
SCRIPT = """
touch there; until [ -e go ]; do sleep 0.05; done
for n in $(seq {requests}); do
  curl -sS -m 10 -o body "https://$1.test/$n/$(head -c 3000 /dev/zero | tr '\\0' x)" -w '%{{http_code}}\\n'
done > statuses
ls -A {runs} > seen; hostname > host; ls /proc | grep -c '^[0-9]' > processes
ls -i /run/impyard/door/judge.sock | cut -d' ' -f1 > door
"""


@pytest.mark.attack("124")
@pytest.mark.attack("11")
def test_four_runs_at_once(project: Project) -> None:
    project.script("ask.sh", SCRIPT.format(requests=REQUESTS, runs=project.runs))
    processes = [
        project.start("run", "--model", "demo", f"run: bash {project.root}/ask.sh name{number}")
        for number in range(RUNS)
    ]

    def all_there() -> bool:
        return len([folder for folder in project.run_folders() if (folder / "workspace" / "there").exists()]) == RUNS

    wait_until(all_there, 90)
    assert len(project.boxes()) == RUNS
    gateways = [pid for pid, line in project.processes().items() if "impyard.addon" in line]
    assert len(gateways) == RUNS
    for folder in project.run_folders():
        (folder / "workspace" / "go").touch()
    for process in processes:
        result = project.finish(process)
        assert result.code == 0, result

    raw = project.log.read_bytes()
    assert raw.endswith(b"\n")
    lines = [json.loads(line) for line in raw.splitlines()]
    folders = {folder.name: folder for folder in project.run_folders()}
    assert {line["run"] for line in lines} == set(folders)
    doors = set()
    for run, folder in folders.items():
        workspace = folder / "workspace"
        assert (workspace / "statuses").read_text().split() == ["403"] * REQUESTS
        assert (workspace / "seen").read_text().split() == [run], "no run sees another's folder"
        assert int((workspace / "processes").read_text()) < 15, "nor its processes"
        doors.add((workspace / "door").read_text().strip())
        mine = [line for line in lines if line["run"] == run]
        assert [line["seq"] for line in mine] == list(range(1, len(mine) + 1))
        hosts = {line["host"] for line in mine if re.fullmatch(r"name\d\.test", line["host"])}
        assert len(hosts) == 1, "what came through a door is on its own run's account"
        asked = [line for line in mine if line["host"] in hosts]
        assert [line["path"].split("/")[1] for line in asked] == [str(n) for n in range(1, REQUESTS + 1)]
        receipt = json.loads((folder / "run.json").read_bytes())
        assert receipt["decisions"]["seq"] == len(mine)
        assert receipt["decisions"]["denied_hosts"] == dict.fromkeys(hosts, REQUESTS)
    assert len(doors) == RUNS
    assert {line["host"] for line in lines} >= {f"name{number}.test" for number in range(RUNS)}

    receipts = {}
    for run, folder in folders.items():
        decisions = json.loads((folder / "run.json").read_bytes())["decisions"]
        receipts[run] = (decisions["seq"], decisions["last"])
    assert list(verify(raw.splitlines(keepends=True), receipts=receipts)) == []
    assert project.impyard("decisions", "--verify").code == 0
    # The control: one letter of one line.
    project.log.write_bytes(raw.replace(b"name2.test", b"name3.test", 1))
    assert project.impyard("decisions", "--verify").code != 0
