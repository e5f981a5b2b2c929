"""What commands print on a real terminal: no escapes for who wants none, no line that a narrow one breaks in a word."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from impyard.addon.decisions import line_hash
from tests.support.gateway import ROOT

RUN = "20260203-040506-00bb"
POLICY = """\
networkPolicies:
  - host: api.example.org
    policies:
      - {action: ALLOW, method: GET, path: /v1/.*}
      - {action: DENY, method: POST, path: /v1/upload.*, name: no-uploads}
"""
COMMANDS: tuple[list[str], ...] = (
    [],
    ["nothing"],
    ["runs", "--lst"],
    ["decisions"],
    ["decisions", "--denied", "-n", "5"],
    ["decisions", "--summary"],
    ["decisions", "show", "d2"],
    ["decisions", "--verify"],
    ["runs"],
    ["runs", "show", "last"],
    ["runs", "stop", "nothing"],
    ["vault"],
    ["policy"],
    ["policy", "check"],
    ["policy", "explain", "GET", "https://api.example.org/v2/things"],
    ["policy", "test"],
    ["policy", "suggest"],
    ["policy", "preset", "list"],
    ["policy", "replay"],
)
QUOTED = re.compile(r"[ >]*\d* \| |[+ -] |@@")  # a line of the policy, and of a difference to it
# Each command's output ends with a line of its own, that it can be told from the next.
RUNNER = (
    "import json, sys\nfrom impyard.runner.cli import main\n"
    "for command in json.loads(sys.argv[1]):\n    main(command)\n"
    "    sys.stdout.flush(); sys.stderr.flush(); print('=== ' + json.dumps(command), flush=True)\n"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and its decisions, long paths and a hostile one among them."""
    root = tmp_path_factory.mktemp("colours") / "project"
    (root / "policies").mkdir(parents=True)
    (root / "policies" / "gateway.yaml").write_text(POLICY)
    (root / "runs" / RUN).mkdir(parents=True)
    lines, last = [], ""
    for number, path in enumerate(("/v1/a", "/v2/" + "long-and-longer/" * 12, "/v2/\x1b[31mred", "/v1/upload?x=1"), 1):
        entry = {
            **{"v": 1, "ts": f"2026-02-03T04:05:0{number}.000Z", "id": f"d{number}", "run": RUN, "seq": number},
            **{"prev": last or "sha256:" + "0" * 64, "verdict": "allow" if number == 1 else "deny"},
            **{"reason": "rule" if number in (1, 4) else "no-rule", "method": "POST" if number == 4 else "GET"},
            **{"scheme": "https", "host": "api.example.org", "port": 443, "path": path},
            **{"rule": "ALLOW GET /v1/.*", "at": "policies/gateway.yaml:4", "nearest": None},
        }
        line = json.dumps(entry).encode()
        last = line_hash(line)
        lines.append(line + b"\n")
    (root / "runs" / "decisions.jsonl").write_bytes(b"".join(lines))
    receipt = {
        **{"run": RUN, "prompt": "fix the\x1b[31m test " * 20, "exit_reason": "finished", "exit_status": 0},
        **{"started": "2026-02-03T04:05:06Z", "duration_s": 12.5, "model": "demo/demo", "workspace": str(root)},
        "decisions": {"allowed": 1, "denied": 3, "denied_hosts": {"api.example.org": 3}},
    }
    (root / "runs" / RUN / "run.json").write_text(json.dumps(receipt))
    return root


def shown(project: Path, columns: int, **environ: str) -> dict[str, str]:
    """What each command prints on a terminal of this width."""
    inner, outer = pty.openpty()
    fcntl.ioctl(outer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    env |= {
        "TERM": "xterm-256color",
        "PYTHONPATH": str(ROOT),
        "IMPYARD_DATA_DIR": str(project.parent / "data"),
        **environ,
    }
    env["PI_CODING_AGENT_DIR"] = str(project.parent / "pi")
    command = [sys.executable, "-P", "-c", RUNNER, json.dumps(COMMANDS)]
    with subprocess.Popen(
        command, cwd=project, env=env, stdin=subprocess.DEVNULL, stdout=outer, stderr=outer
    ) as process:
        os.close(outer)
        data = b""
        while select.select([inner], [], [], 60)[0]:
            try:
                data += os.read(inner, 65536)
            except OSError:
                break
        process.kill()
    os.close(inner)
    text = data.decode().replace("\r\n", "\n")
    parts = re.split(r"^=== (\[.*\])\n", text, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[0::2], strict=False))
    assert len(found) == len(COMMANDS), text[-2000:]
    return found


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_nothing_but_text_for_who_wants_no_colour(project: Path, environ: dict[str, str]) -> None:
    coloured = {name: text for name, text in shown(project, 80, **environ).items() if "\x1b" in text}
    assert coloured == {}


def test_control_there_are_colours_and_none_of_them_is_the_boxs(project: Path) -> None:
    found = shown(project, 80)
    assert sum("\x1b[" in text for text in found.values()) >= 2
    assert not any("Traceback" in text or "\x1b[31mred" in text or "\x1b[31m test" in text for text in found.values())


@pytest.mark.parametrize("columns", [40, 160])
def test_it_fits_the_terminal(project: Path, columns: int) -> None:
    """A line may be longer where it holds a word that is, or quotes a line of a file, which can be copied whole."""
    found = shown(project, columns, NO_COLOR="1")
    assert not any("Traceback" in text or "internal error" in text for text in found.values())
    lines = [(name, line) for name, text in found.items() for line in text.splitlines() if not QUOTED.match(line)]
    longest = {line: max(map(len, line.split()), default=0) for _, line in lines}
    assert [each for each in lines if len(each[1]) > columns and longest[each[1]] <= columns - 30] == []
