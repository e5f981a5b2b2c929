"""What breaks while a run goes on: everything is denied until it is mended, and then it works again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.origin import Origin
from tests.support.project import Project, Result
from tests.support.waiting import wait_until

pytestmark = pytest.mark.box

# Asks once for each file `go.N` that appears, and says that it has by `done.N`. All in one command of the agent's: the
# model itself is judged like the rest.
SCRIPT = """
for n in $(seq {}); do
  until [ -e go.$n ]; do sleep 0.05; done
  curl -sS -m 10 -o body.$n -w '%{{http_code}}' https://open.test/pub/$n > status.$n
  touch done.$n
done
"""


@pytest.fixture
def origin() -> Iterator[Origin]:
    origin = Origin()
    yield origin
    origin.close()


def asked_between(project: Project, origin: Origin, *steps: Callable[[], object]) -> tuple[Result, list[str]]:
    """A run whose agent asks for open.test before each of the steps and once more at the end; the statuses it got."""
    project.policy.write_text(policy(origin))
    count = len(steps) + 1
    prompt = project.script("ask.sh", SCRIPT.format(count))

    def watch() -> list[str]:
        wait_until(lambda: [box for box in project.boxes() if box.state == "running"])
        wait_until(project.run_folders)
        workspace = project.run_folders()[0] / "workspace"
        for number, step in enumerate((*steps, _nothing), 1):
            (workspace / f"go.{number}").touch()
            wait_until((workspace / f"done.{number}").exists)
            step()
        return [(workspace / f"status.{number}").read_text() for number in range(1, count + 1)]

    result = project.demo(prompt, watch=watch)
    return result, result.watched


def _nothing() -> None:
    pass


def policy(origin: Origin) -> str:
    return (
        f"networkPolicies:\n  - host: open.test\n    upstream: http://127.0.0.1:{origin.port}\n"
        "    policies:\n      - {action: ALLOW, method: GET, path: /pub/.*}\n"
    )


def reasons(project: Project) -> list[str]:
    return [line["reason"] for line in project.asked() if line["host"] == "open.test"]


@pytest.mark.attack("112")
def test_a_broken_policy_denies_everything_until_it_is_mended(project: Project, origin: Origin) -> None:
    good = policy(origin)
    path = project.policy

    def replace(text: str) -> Callable[[], object]:
        return lambda: path.write_text(text)

    def away() -> None:
        path.rename(path.with_suffix(".away"))

    def folder() -> None:
        path.mkdir()

    def back() -> None:
        path.rmdir()
        path.with_suffix(".away").rename(path)

    steps = [
        replace(good + "    surprise: 1\n"),
        replace(""),
        replace(good),
        away,
        folder,
        back,
        replace(good.replace("/pub/.*", "/other")),
        replace(good),
    ]
    result, statuses = asked_between(project, origin, *steps)
    assert statuses == ["200", "403", "403", "200", "403", "403", "200", "403", "200"]
    broken = "policy-broken"
    assert reasons(project) == ["rule", broken, broken, "rule", broken, broken, "rule", "no-rule", "rule"]
    assert [seen.target for seen in origin.seen] == ["/pub/1", "/pub/4", "/pub/7", "/pub/9"]
    assert result.code == 0 and result.run is not None, result
    body = (result.run / "workspace" / "body.2").read_text()
    assert "Access denied by egress policy" in body and "surprise" not in body.split('"hint"')[0]
    assert len({line["policy"] for line in project.asked() if line["verdict"] == "allow"}) >= 1
    assert project.impyard("decisions", "--verify").code == 0


def test_a_policy_that_stays_broken_denies_the_model_too(project: Project) -> None:
    prompt = project.script("wait.sh", "touch there; until [ -e go ]; do sleep 0.05; done")

    def spoil() -> None:
        there = project.started_file("there")
        project.policy.write_text("networkPolicies: 1\n")
        (there.parent / "go").touch()

    result = project.demo(prompt, watch=spoil)
    assert result.code == 1, result
    assert result.receipt["exit_reason"] == "agent-error"
    assert [line["verdict"] for line in project.asked()][:2] == ["allow", "deny"]
    assert {line["reason"] for line in project.asked()[1:]} == {"policy-broken"}
    assert "policy" in result.out


def test_a_log_that_cannot_be_written_denies_everything(project: Project, origin: Origin) -> None:
    aside = project.base / "decisions.jsonl"

    def folder() -> None:
        project.log.rename(aside)
        project.log.mkdir()

    def link() -> None:
        project.log.rmdir()
        project.log.symlink_to(project.base / "elsewhere")

    def back() -> None:
        project.log.unlink()
        aside.rename(project.log)

    result, statuses = asked_between(project, origin, folder, link, back)
    assert statuses == ["200", "403", "403", "200"]
    assert [seen.target for seen in origin.seen] == ["/pub/1", "/pub/4"], "no decision on record, no request"
    assert reasons(project) == ["rule", "rule"]
    assert not (project.base / "elsewhere").exists()
    assert result.code == 0, result
    assert "the decision log cannot be written, so every request is denied" in result.out
    assert result.run is not None and "log-unwritable" in (result.run / "workspace" / "body.2").read_text()
    assert project.impyard("decisions", "--verify").code == 0


def test_a_disk_that_fills_up_denies_everything(project: Project, origin: Origin, needs_root: None) -> None:
    project.runs.mkdir()
    disk = project.base / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], check=True)
    try:
        (disk / "log").touch()
        project.log.touch()
        subprocess.run(["mount", "--bind", str(disk / "log"), str(project.log)], check=True)
        try:

            def fill() -> None:
                with open(disk / "filler", "wb", buffering=0) as filler:
                    try:
                        while filler.write(bytes(512)):
                            pass
                    except OSError:
                        return

            def make_room() -> None:
                (disk / "filler").unlink()

            # What is left of the log's last page is used up first.
            _result, statuses = asked_between(project, origin, fill, *[_nothing] * 12, make_room)
            lines = project.log.read_bytes().splitlines()
        finally:
            subprocess.run(["umount", str(project.log)], check=True)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert statuses[0] == statuses[-1] == "200" and "403" in statuses[:-1]
    allowed = [number for number, status in enumerate(statuses, 1) if status == "200"]
    assert [seen.target for seen in origin.seen] == [f"/pub/{number}" for number in allowed]
    whole = [line for line in lines if line.endswith(b"}")]
    assert len([line for line in whole if b'"open.test"' in line]) >= len(allowed)


@pytest.mark.attack("130")
def test_a_request_that_waits_while_the_gateway_dies_is_not_forwarded(project: Project, origin: Origin) -> None:
    """Killed at any moment, it has let out only what is on record."""
    project.policy.write_text(policy(origin))
    prompt = project.script("ask.sh", "touch there; while :; do curl -sS -m 5 -o out https://open.test/pub/x; done")
    process = project.start("run", "--model", "demo", prompt)
    project.started_file("there")
    wait_until(lambda: origin.seen)
    os.kill(project.gateway(), 9)
    assert project.finish(process).code == 126
    seen = len(origin.seen)
    assert reasons(project) == ["rule"] * seen or reasons(project) == ["rule"] * (seen + 1)
