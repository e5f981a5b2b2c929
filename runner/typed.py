"""impyard's own commands as a person can type them here: bin/impyard says in IMPYARD_COMMAND how it was called.

Texts that may be printed anywhere name commands like `impyard doctor`, in backticks; where they are shown, `as_typed`
puts in what was typed. A command that stands alone in its line is made by `command_line`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

CLOSE = 0.75  # a name that is less alike is no slip of the fingers


def command_line(*words: str, project: Path | None = None) -> str:
    """`impyard` with these words, quoted for a shell; for the `project` that the caller named, if any."""
    where = () if project is None else ("--project", str(project))
    return shlex.join([os.environ.get("IMPYARD_COMMAND") or "impyard", *words, *where])


def as_typed(text: str) -> str:
    """`text` with each command of impyard's in backticks as it can be typed here."""
    return text.replace("`impyard ", f"`{command_line()} ")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to put behind a complaint about a name: a known one that is nearly the same, else nothing."""
    import difflib

    close = difflib.get_close_matches(name, list(known), 1, CLOSE)
    return f"; did you mean `{close[0]}`?" if close else ""
