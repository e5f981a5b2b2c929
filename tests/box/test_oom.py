"""Memory: a box that takes too much is killed, and nothing beside it."""

from __future__ import annotations

import pytest

from tests.support.project import OUT_OF_MEMORY, Project

pytestmark = pytest.mark.box

GREEDY = "python3 -c \"x = bytearray(10**10); x[::4096] = b'a' * len(x[::4096])\""


@pytest.mark.attack("149")
def test_an_agent_that_runs_out_of_memory(project: Project) -> None:
    result = project.impyard("run", "--model", "demo", *OUT_OF_MEMORY)
    assert result.code == 137, result
    assert (result.receipt["exit_reason"], result.receipt["exit_status"]) == ("out-of-memory", 137)
    assert result.receipt["limits"]["memory"] == 64 * 1024**2
    assert "out of memory" in result.out and "64 MiB; --memory gives it more" in result.out


@pytest.mark.attack("149", control=True)
def test_a_command_that_runs_out_of_memory_is_killed_alone(project: Project) -> None:
    """The control: the same limit in another place. The agent, who took little, goes on."""
    result = project.demo(f"run: {GREEDY}; echo $? > status", "write 4 to answer.txt", args=["--memory", "512m"])
    assert result.code == 0, result
    assert result.file("status").strip() == "137"
    assert result.file("answer.txt") == "4"


@pytest.mark.attack("148")
@pytest.mark.attack("148", control=True)
def test_more_processes_than_allowed_are_not_made(project: Project) -> None:
    bomb = (
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while made < 300:\n"
        "        if os.fork() == 0: time.sleep(300)\n"
        "        made += 1\n"
        "finally: print(made, flush=True); os.killpg(0, 9)\n"
    )
    (project.root / "bomb.py").write_text(bomb)
    for pids, enough in (("64", False), ("512", True)):
        command = f"run: setsid -w python3 {project.root}/bomb.py > made; true"
        result = project.demo(command, args=["--pids", pids])
        assert result.code == 0, result
        made = int(result.file("made"))
        assert made == 300 if enough else 10 < made < 64, "the second is the control"
        assert result.receipt["limits"]["pids"] == int(pids)
