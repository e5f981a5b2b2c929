"""What the box's first process says of the agent's end."""

from __future__ import annotations

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
