"""Waiting for something to become true, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(what: Callable[[], object], limit_s: float = 60.0) -> None:
    """Wait until `what` gives something true."""
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, f"nothing happened within {limit_s} s: {what}"
        time.sleep(0.03)
