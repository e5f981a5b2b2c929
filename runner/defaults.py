"""What a run gets where nothing else is asked for. Loads nothing: help says it too."""

from __future__ import annotations

CEILING_MIN = 30.0
INTERACTIVE_CEILING_MIN = 480.0  # a person at it ends it; the ceiling is for who forgets
CPUS = 2.0
MEMORY_GIB = 4
PIDS = 512
