"""What the box's first process says of the agent's end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from impyard.box.pid1 import agent_status


@pytest.mark.parametrize(
    ("wait_status", "status"),
    [
        *[(code << 8, code) for code in (0, 1, 3, 123, 127, 128, 255)],
        *[(code << 8, 1) for code in (124, 125, 126)],
        (9, 137),
        (15, 143),
    ],
)
def test_an_agent_has_no_status_of_the_relays(wait_status: int, status: int) -> None:
    assert agent_status(wait_status) == status


# A first process that gets no turn between the agent's start and the line that notes it; `sys.argv[1]` is the agent.
SLOW = """
import sys, time
from impyard.box.loop import Loop
from impyard.box.pid1 import Warden, end

class Slow(Warden):
    def fork(self, call):
        pid = super().fork(call)
        time.sleep(0.5)
        return pid

loop = Loop()
warden = Slow(loop, time.monotonic() + float(sys.argv[2]), 1024)
warden.arm()
warden.start(["sh", "-c", sys.argv[1]], {"PATH": "/usr/bin:/bin"}, "/", None)
loop.run(until=lambda: warden.status is not None)
end(warden.status)
"""


WAITING = "for i in $(seq 100); do sleep 0.1; done"  # it outlives a first process that is not process 1


@pytest.mark.parametrize(
    ("agent", "deadline_s", "status"),
    [
        (f"trap 'exit 5' TERM; kill -INT $PPID; {WAITING}", 20, 5),
        (f"trap 'exit 5' TERM; kill -TERM $PPID; {WAITING}", 20, 5),
        (f"trap '' TERM; kill -INT $PPID; {WAITING}", 20, 137),
        ("exit 3", 20, 3),
    ],
)
def test_an_agent_that_was_not_noted_yet_is_told_to_end_too(agent: str, deadline_s: float, status: int) -> None:
    slow = [sys.executable, "-c", SLOW, agent, str(deadline_s)]
    assert subprocess.run(slow, stderr=subprocess.DEVNULL, timeout=30).returncode == status


def test_a_box_that_is_told_to_end_before_its_agent_starts_refuses() -> None:
    early = SLOW.replace("warden.start(", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)\nwarden.start(")
    done = subprocess.run([sys.executable, "-c", early, "exit 3", "20"], capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (125, b"impyard: refused to start: told to end before the agent started\n")
