"""Every run ends: by its ceiling, by a signal, by the death of either half. Nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.support.engineproxy import engine_proxy
from tests.support.project import Project
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.box, pytest.mark.waits]

STUBBORN = (
    "trap '' TERM INT HUP; setsid bash -c \"trap '' TERM; while :; do sleep 1; done\" & touch there;"
    "while :; do sleep 0.2; done"
)
WAITING = "run: touch there; sleep 300"


@pytest.mark.attack("F54")
@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(["run: touch there; while :; do sleep 0.2; done"], id="a command that loops"),
        pytest.param([f"run: {STUBBORN}"], id="children that trap TERM"),
        pytest.param(["run: sleep 0.01"] * 4000, id="an agent that loops"),
    ],
)
@pytest.mark.attack("154")
def test_a_run_is_killed_at_its_ceiling(project: Project, prompt: list[str]) -> None:
    began = time.monotonic()
    result = project.demo(*prompt, args=["--ceiling", "0.1"])
    assert result.code == 124, result
    assert 5.4 < time.monotonic() - began < 20  # the agent is warned by SIGTERM a tenth of the time before
    receipt = result.receipt
    assert (receipt["exit_reason"], receipt["exit_status"], receipt["ceiling_s"]) == ("ceiling", 124, 6.0)
    assert "ceiling" in result.out
    assert project.leftovers() == []


@pytest.mark.attack("154", "F54", control=True)
def test_a_run_that_is_quicker_than_its_ceiling_is_not_killed(project: Project) -> None:
    """The control."""
    result = project.demo("run: sleep 1", args=["--ceiling", "0.5"])
    assert (result.code, result.receipt["exit_reason"]) == (0, "finished")


def kill_and_wait(project: Project, victim: Callable[[], int], number: int) -> float:
    """Kill something in mid-run, wait until box and gateway are gone, and return how long that took."""
    project.started_file("there")
    assert project.boxes() and project.gateway()
    began = time.monotonic()
    os.kill(victim(), number)
    wait_until(lambda: not project.boxes() and not [line for line in project.processes().values() if "addon" in line])
    return time.monotonic() - began


@pytest.mark.attack("155")
def test_a_killed_runner_takes_gateway_and_box_with_it(project: Project) -> None:
    process = project.start("run", "--model", "demo", f"run: {STUBBORN}")
    assert kill_and_wait(project, lambda: process.pid, signal.SIGKILL) < 10
    assert project.finish(process).code == -signal.SIGKILL
    (folder,) = project.run_folders()
    assert (folder / ".pihome").exists(), "nobody could clean up yet"

    after = project.demo("write 4 to answer.txt")  # the next call does
    assert after.code == 0
    assert f"cleaned up after run {folder.name}" in after.out
    assert project.leftovers() == []
    assert '"runner-lost"' in (folder / "run.json").read_text()
    assert project.impyard("decisions", "--verify").code == 0


@pytest.mark.attack("130")
def test_a_killed_gateway_ends_the_box(project: Project) -> None:
    process = project.start("run", "--model", "demo", f"run: {STUBBORN}")
    assert kill_and_wait(project, project.gateway, signal.SIGKILL) < 10
    result = project.finish(process)
    assert result.code == 126
    (folder,) = project.run_folders()
    result.run = folder
    assert (result.receipt["exit_reason"], result.receipt["exit_status"]) == ("gateway-lost", 126)


def test_the_ceiling_holds_although_the_gateway_stands_still(project: Project) -> None:
    asking = WAITING.replace("sleep", "curl -sS https://open.test/ > out; sleep")
    ceiling = f"{project.ceiling_in_mid_run(2) / 60:.3f}"
    process = project.start("run", "--model", "demo", "--ceiling", ceiling, asking)
    project.started_file("there")
    gateway = project.gateway()
    os.kill(gateway, signal.SIGSTOP)
    assert project.finish(process).code == 124


# A call to the engine that stands for a stage of the run.
STAGES = {
    "before the engine is asked": "/info",
    "before the box is made": "POST /containers/create",
    "before the box is listened to": "/attach",
    "before the box is started": "/start",
}


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        *[(stage, signal.SIGINT) for stage in STAGES],
        ("before the box is made", signal.SIGTERM),
        ("before the box is started", signal.SIGTERM),
        ("before the box is started", signal.SIGHUP),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_signal_before_the_agent_started(project: Project, stage: str, number: signal.Signals) -> None:
    with engine_proxy(hold=STAGES[stage]) as proxy:
        process = project.start("run", "--model", "demo", WAITING, env={"DOCKER_HOST": proxy.host})
        assert proxy.held.wait(60), proxy.calls
        process.send_signal(number)
        time.sleep(0.2)
        proxy.release()
        result = project.finish(process)
    assert result.code == 130, result
    assert project.leftovers() == []
    for folder in project.run_folders():
        assert not (folder / "workspace" / "there").exists()


@pytest.mark.attack("F54")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_while_the_agent_works(project: Project, number: signal.Signals) -> None:
    process = project.start("run", "--model", "demo", WAITING)
    project.started_file("there")
    process.send_signal(number)
    result = project.finish(process)
    assert result.code == 130, result
    (result.run,) = project.run_folders()
    assert result.receipt["exit_reason"] == "interrupted"
    assert "interrupted" in result.out
    assert project.leftovers() == []


def test_a_second_signal_does_not_wait_for_a_stubborn_agent(project: Project) -> None:
    seconds = []
    for signals in (2, 1):  # one signal is the control: it gives the agent five seconds to store its work
        process = project.start("run", "--model", "demo", "run: touch there; kill -STOP $PPID; sleep 300")
        there = project.started_file("there")
        time.sleep(0.3)
        began = time.monotonic()
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert project.finish(process).code == 130
        seconds.append(time.monotonic() - began)
        there.unlink()
    assert seconds[0] < 4 < seconds[1] < 12, seconds


@pytest.mark.attack("F54")
@pytest.mark.parametrize("delay_s", [0.02, 0.1, 0.2, 0.3, 0.45])
def test_a_signal_right_after_the_start(project: Project, delay_s: float) -> None:
    process = project.start("run", "--model", "demo", WAITING)
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    if process.returncode != 130:  # then Python itself was still starting, which is not ours to change
        assert out == b"" and b"runner/" not in err and b"internal error" not in err
    else:
        assert b"Traceback" not in out + err
    wait_until(lambda: not project.leftovers(), 5)  # a gateway that was just coming up ends by itself


def test_a_signal_while_everything_is_taken_down(project: Project) -> None:
    with engine_proxy(hold="DELETE /containers/") as proxy:
        process = project.start("run", "--model", "demo", "write 4 to answer.txt", env={"DOCKER_HOST": proxy.host})
        assert proxy.held.wait(60), proxy.calls
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)
        time.sleep(0.2)
        proxy.release()
        result = project.finish(process)
    assert result.code == 0, result
    assert project.leftovers() == []


def read_until(terminal: int, word: bytes) -> bytes:
    """Read a terminal until it shows a word."""
    text = b""
    while word not in text:
        text += os.read(terminal, 65536)
    return text


def test_a_terminal_that_stands_still_does_not_put_the_end_off(project: Project) -> None:
    process, terminal = project.on_terminal(
        "run", "--model", "demo", "--ceiling", "0.15", "\n".join(["run: seq 20"] * 4000)
    )
    try:
        assert process.wait(40) == 124
    finally:
        os.close(terminal)
    (folder,) = project.run_folders()
    assert json.loads((folder / "run.json").read_bytes())["exit_reason"] == "ceiling"
    assert project.leftovers() == []


def test_a_reader_that_stands_still_does_not_keep_a_finished_run(project: Project) -> None:
    flood = "for i in $(seq 400); do printf '%0200d\\n' $i; done"
    process = project.start("run", "--json", "--model", "demo", "\n".join([f"run: {flood}"] * 5))
    assert process.wait(40) == 0
    (folder,) = project.run_folders()
    receipt = json.loads((folder / "run.json").read_bytes())
    assert (receipt["exit_reason"], receipt["error"]) == ("finished", "nobody reads the output any more")
    assert project.leftovers() == []


@pytest.mark.attack("F54")
def test_a_terminal_that_closes_ends_the_run(project: Project) -> None:
    process, terminal = project.on_terminal("run", "--model", "demo", WAITING)
    try:
        read_until(terminal, b"touch there; sleep")
        project.started_file("there")
    finally:
        os.close(terminal)
    assert process.wait(60) == 130
    assert project.leftovers() == []


def test_a_terminal_that_closes_early_ends_the_run(project: Project) -> None:
    process, terminal = project.on_terminal("run", "--model", "demo", WAITING)
    wait_until(project.processes)
    os.close(terminal)
    assert process.wait(60) in (130, -signal.SIGHUP)
    wait_until(lambda: not project.leftovers(), 5)


def test_ctrl_c_on_a_terminal(project: Project) -> None:
    process, terminal = project.on_terminal("run", "--model", "demo", WAITING)
    try:
        read_until(terminal, b"touch there; sleep")
        project.started_file("there")
        os.write(terminal, b"\x03")
        shown = read_until(terminal, b"interrupted")
        assert b"Traceback" not in shown
        while end := _read(terminal):
            shown += end
    finally:
        os.close(terminal)
    assert process.wait(60) == 130
    assert b"Traceback" not in shown
    assert project.leftovers() == []


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["run", "--model", "demo", WAITING], b"interrupted before the agent started"),
        (["prove"], b"interrupted: nothing was proved"),
    ],
    ids=["run", "prove"],
)
def test_an_early_ctrl_c_is_answered_and_leaves_no_empty_line(
    project: Project, command: list[str], words: bytes
) -> None:
    with engine_proxy(hold="/info") as proxy:
        project.env["DOCKER_HOST"] = proxy.host
        process, terminal = project.on_terminal(*command)
        try:
            assert proxy.held.wait(60), proxy.calls
            os.write(terminal, b"\x03")
            shown = read_until(terminal, b"^C")
            proxy.release()
            while more := _read(terminal):
                shown += more
        finally:
            os.close(terminal)
    assert process.wait(60) == 130
    assert words in shown and b"Traceback" not in shown
    assert not shown.endswith(b"\n\r\n"), shown


def test_output_that_nobody_reads_any_more_ends_the_run(project: Project) -> None:
    """`impyard run … | head -1`, and with a reader that goes before the box starts."""
    waiting = WAITING.replace("sleep", "for i in 1 2 3 4; do echo $i; sleep 1; done; sleep")
    for lines in (1, 0):
        process = project.start("run", "--model", "demo", waiting)
        assert process.stdout is not None and process.stderr is not None
        while lines and not process.stdout.readline().startswith(b"run "):
            pass  # what is said before: the demo model's account
        process.stdout.close()
        assert process.wait(30) == 130
        assert process.stderr.read() == b"nobody reads the output any more: ending the run\n"
    (folder,) = project.run_folders()  # of the first: the second had no box
    receipt = json.loads((folder / "run.json").read_bytes())
    assert (receipt["exit_reason"], receipt["error"]) == ("interrupted", "nobody reads the output any more")
