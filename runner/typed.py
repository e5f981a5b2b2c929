"""impyard's own commands as a person can type them here: bin/impyard says in IMPYARD_COMMAND how it was called."""

from __future__ import annotations

import os
import shlex


def command_line(*words: str) -> str:
    """`impyard` with these words, quoted for a shell."""
    return shlex.join([os.environ.get("IMPYARD_COMMAND") or "impyard", *words])
