"""The receipt of a run that never was."""

from __future__ import annotations

from typing import Any

from impyard.runner.receipt import Receipt


def receipt(**changes: Any) -> Receipt:
    """One as it is when a run begins, but for `changes`."""
    values: dict[str, Any] = {
        "run": "20261129-120000-ab12",
        "project": "/p",
        "workspace": "/p/runs/20261129-120000-ab12/workspace",
        "model": "demo/demo",
        "started": "2026-11-29T12:00:00.000Z",
        "impyard": "0.1.0",
        "runner_pid": 7,
        "runner_start": "1",
        "runner_space": "s",
        "ceiling_s": 60.0,
    }
    return Receipt(**{**values, **changes})
