"""A difference on a terminal: coloured and paged as git does it, with everything escaped that a terminal would obey.

Colours are ours: those that stand in the text are text. Off a terminal the bytes are git's, so that they can be
applied.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from impyard.runner.text import visible

_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_HEADS = (b"diff --git ", b"index ", b"--- ", b"+++ ", b"new file", b"deleted file", b"old mode", b"new mode")
MAX_LINE = 4000  # bytes of one that are shown


def coloured(lines: Iterable[bytes]) -> Iterator[str]:
    """Each line of a patch for a terminal."""
    old = new = 0  # lines that the hunk still has on each side
    for line in lines:
        text = line.rstrip(b"\n")
        kind = text[:1]
        if old > 0 or new > 0:
            old -= kind in (b" ", b"-", b"")
            new -= kind in (b" ", b"+", b"")
            yield _styled(text, {b"-": "red", b"+": "green"}.get(kind))
        elif match := _HUNK.match(text):
            old, new = (int(match[side] or 1) for side in (1, 2))
            yield _styled(text, "cyan")
        else:
            yield _styled(text, None, bold=text.startswith(_HEADS))


def shown_line(line: bytes) -> str:
    """A line as it may be printed; tabs stay."""
    more = f" … ({len(line) - MAX_LINE} bytes more)" if len(line) > MAX_LINE else ""
    return "\t".join(visible(part) for part in line[:MAX_LINE].decode("utf-8", "replace").split("\t")) + more


def _styled(line: bytes, colour: str | None, *, bold: bool = False) -> str:
    shown = shown_line(line)
    return click.style(shown, fg=colour, bold=bold or None) if colour or bold else shown


def page(lines: Iterable[str], pager: str, *, color: bool) -> None:
    """Print lines through the pager, a command for the shell; straight where there is none."""
    if not pager or pager == "cat":
        for line in lines:
            click.echo(line)
        return
    env = {"LESS": "FRX", "LV": "-c", **os.environ}
    sys.stdout.flush()
    process = subprocess.Popen(pager, shell=True, env=env, stdin=subprocess.PIPE, errors="backslashreplace")
    assert process.stdin is not None
    try:
        for line in lines:
            process.stdin.write((line if color else click.unstyle(line)) + "\n")
    except (BrokenPipeError, KeyboardInterrupt):
        pass  # the reader has seen enough
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        while True:
            try:
                process.wait()
                break
            except KeyboardInterrupt:
                continue  # less takes Ctrl-C for itself


def pager_of(root: Path) -> str:
    """The pager that git would use for you in this folder (git-var(1)); "" for none."""
    try:
        found = subprocess.run(["git", "var", "GIT_PAGER"], cwd=root, capture_output=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    text = os.fsdecode(found.stdout).strip() if found.returncode == 0 else ""
    return text
