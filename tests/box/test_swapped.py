"""What is swapped behind a run's back: its image, its workspace, the clock; and an agent that says all went well."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engineproxy import engine_proxy
from tests.support.project import Project
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.box, pytest.mark.waits]


@pytest.mark.attack("163")
def test_an_agent_that_says_done_although_all_was_denied(project: Project) -> None:
    asking = "for n in 1 2 3; do curl -sS -m 5 -o /dev/null https://evil.test/$n; done; echo done"
    result = project.demo(f"run: {asking}")
    denied = result.receipt["decisions"]
    assert (result.code, denied["denied"], denied["denied_hosts"]) == (0, 3, {"evil.test": 3})
    assert "3 denied" in result.out and "evil.test (3)" in result.out
    honest = project.demo("run: echo done")  # the control: nothing was denied, and nothing is said to be
    assert honest.receipt["decisions"]["denied"] == 0 and "evil.test" not in honest.out


@pytest.fixture
def movable_tag(box_image: str) -> Iterator[str]:
    """A name of the box's image that the test may move."""
    name = f"impyard-test-swap:{os.getpid()}"
    subprocess.run(["docker", "tag", box_image, name], check=True)
    yield name
    subprocess.run(["docker", "rmi", "--no-prune", name], check=True, capture_output=True)


def image_of(name: str) -> str:
    return subprocess.run(
        ["docker", "image", "inspect", "-f", "{{.Id}}", name], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.attack("164")
def test_an_image_whose_name_is_moved_while_the_run_begins(project: Project, movable_tag: str, box_image: str) -> None:
    """The box is made of what was looked up, by its id; the receipt names it."""
    others = subprocess.run(["docker", "image", "ls", "-q", "--no-trunc"], check=True, capture_output=True, text=True)
    other = next(name for name in others.stdout.split() if name != box_image)
    made: list[str] = []

    def watch() -> None:
        assert proxy.held.wait(60), proxy.calls
        subprocess.run(["docker", "tag", other, movable_tag], check=True)
        proxy.release()
        wait_until(lambda: [box for box in project.boxes() if box.state == "running"])
        made.append(
            subprocess.run(
                ["docker", "inspect", "-f", "{{.Image}}", project.boxes()[0].id],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.strip()
        )

    with engine_proxy(hold="/containers/create") as proxy:
        result = project.demo(
            "run: sleep 1", args=["--image", movable_tag], env={"DOCKER_HOST": proxy.host}, watch=watch
        )
    assert image_of(movable_tag) == other, "the name was moved"
    assert result.code == 0, result
    assert made == [box_image] == [result.receipt["image"]["id"]]


@pytest.mark.attack("136")
@pytest.mark.parametrize("named", [False, True], ids=["the run's own", "--workspace"])
def test_a_workspace_that_becomes_a_link_in_mid_run(project: Project, named: bool) -> None:
    """Somebody on this machine puts a link in its place: nothing behind it is listed, given away or changed."""
    outside = project.base / "outside"
    outside.mkdir()
    (outside / "secret").write_text("as it was")
    given = project.base / "given"
    given.mkdir()
    project.own(project.base)
    if os.geteuid() == 0:
        os.chown(outside / "secret", 12345, 12345)
    before = (outside / "secret").stat()

    def swap() -> None:
        workspace = given if named else project.started_file("there").parent
        wait_until((workspace / "there").exists)
        workspace.rename(workspace.with_name("moved"))
        workspace.symlink_to(outside)
        (workspace.with_name("moved") / "go").touch()

    prompt = "run: touch there; until [ -e go ]; do sleep 0.1; done"
    result = project.demo(prompt, args=["--workspace", str(given)] if named else [], watch=swap)
    assert result.code == 0, result
    after = (outside / "secret").stat()
    assert (after.st_uid, after.st_mode, after.st_mtime_ns) == (before.st_uid, before.st_mode, before.st_mtime_ns)
    assert "secret" not in str(result.receipt["files"]) + result.out
    assert project.leftovers() == []


CLOCK = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
/* The wall clock goes back an hour once the file named in the environment is there; the monotonic one goes on. */
int clock_gettime(clockid_t id, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, out);
    const char *mark = getenv("CLOCK_MARK");
    if (id == CLOCK_REALTIME && mark && access(mark, F_OK) == 0) out->tv_sec -= 3600;
    return result;
}
"""


@pytest.mark.attack("131")
def test_a_clock_that_goes_back_an_hour_in_mid_run(project: Project, tmp_path: Path) -> None:
    """For runner and gateway: the ceiling holds, the log stays in order, and the receipt's duration is the real one."""
    library, mark = tmp_path / "clock.so", project.base / "back"
    (tmp_path / "clock.c").write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True)
    asking = "curl -sS -m 5 -o /dev/null https://evil.test/$n"
    prompt = f"run: for n in 1 2; do {asking}; done; touch there; sleep 2; for n in 3 4; do {asking}; done; sleep 300"

    def watch() -> float:
        project.started_file("there")
        mark.touch()
        return time.time()

    env = {"LD_PRELOAD": str(library), "CLOCK_MARK": str(mark)}
    ceiling_s = project.ceiling_in_mid_run(5)
    began = time.monotonic()
    result = project.demo(prompt, args=["--ceiling", f"{ceiling_s / 60:.3f}"], env=env, watch=watch)
    assert (result.code, result.receipt["exit_reason"]) == (124, "ceiling")
    assert 0.9 * ceiling_s < result.receipt["duration_s"] < time.monotonic() - began + 1
    lines = [line for line in project.decisions() if line["host"] == "evil.test"]
    assert [line["path"] for line in lines] == ["/1", "/2", "/3", "/4"]
    assert [line["seq"] for line in lines] == sorted(line["seq"] for line in lines)
    assert lines[0]["ts"] > lines[-1]["ts"], "the clock did go back"
    assert project.impyard("decisions", "--verify").code == 0
    assert project.demo("write 4 to answer.txt").code == 0
    assert project.leftovers() == []
