"""`python -m tests.bench.stamped FILE ARGUMENT ...`: impyard with a stamp at each step of a run, written to FILE.

The steps are functions of the runner, watched from outside (sys.monitoring): each function that is none of them is seen
once and never again, so that a run with stamps is hardly slower than one without.
"""

from __future__ import annotations

import json
import sys
import time
from types import CodeType
from typing import Any

# Function -> what has been reached when it begins ("+") or has returned ("-").
STEPS: dict[tuple[str, str], dict[str, str]] = {
    ("runner/cli.py", "main"): {"+": "runner up"},
    ("runner/gateway.py", "spawn"): {"+": "gateway process asked for", "-": "gateway process started"},
    ("runner/run.py", "run"): {"+": "runner loaded"},
    ("runner/run_plan.py", "make_plan"): {"-": "plan made"},
    ("runner/keys/firstuse.py", "bring"): {"-": "vault ready"},
    ("runner/engine.py", "describe"): {"-": "engine asked"},
    ("runner/leftovers.py", "sweep"): {"-": "leftovers swept"},
    ("runner/image.py", "ensure_image"): {"-": "image found"},
    ("runner/keys/handover.py", "write_files"): {"-": "files written"},
    ("runner/gateway.py", "Gateway.ready"): {"+": "waits for the gateway", "-": "gateway ready"},
    ("runner/gateway.py", "Gateway.prove"): {"-": "canary denied"},
    ("runner/engine.py", "create"): {"+": "container asked for", "-": "container created"},
    ("runner/engine.py", "wait_removed"): {"-": "attached"},
    ("runner/engine.py", "start"): {"+": "start asked for", "-": "container started"},
    ("runner/run.py", "_Run._give_terminal"): {"+": "relay's probes done"},
    ("runner/view.py", "JsonView.event"): {"-": "event"},
    ("runner/run.py", "_Run.finish"): {"+": "box over", "-": "run finished"},
    ("runner/enclosure.py", "Enclosure.close"): {"+": "taking down", "-": "taken down"},
    ("runner/gateway.py", "Gateway.close"): {"+": "gateway told to end", "-": "gateway ended"},
    ("runner/engine.py", "make_gone"): {"+": "container", "-": "container gone"},
}


def main() -> int:
    file, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    stamps: list[tuple[str, float]] = []
    monitoring = sys.monitoring
    tool = monitoring.PROFILER_ID

    def step(code: CodeType, sign: str) -> Any:
        name = "/".join(code.co_filename.split("/")[-3:])
        for (path, function), reached in STEPS.items():
            if code.co_qualname == function and name.endswith(path):
                if sign in reached:
                    stamps.append((reached[sign], time.time()))
                return None
        return monitoring.DISABLE

    monitoring.use_tool_id(tool, "stamps")
    monitoring.register_callback(tool, monitoring.events.PY_START, lambda code, _at: step(code, "+"))
    monitoring.register_callback(tool, monitoring.events.PY_RETURN, lambda code, _at, _value: step(code, "-"))
    monitoring.set_events(tool, monitoring.events.PY_START | monitoring.events.PY_RETURN)
    try:
        from impyard.runner.__main__ import main as impyard

        return impyard()
    finally:
        stamps.append(("command over", time.time()))
        with open(file, "w") as out:
            json.dump(stamps, out)


if __name__ == "__main__":
    sys.exit(main())
