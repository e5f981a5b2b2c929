"""Which runs were `impyard prove`: their requests are impyard's own attacks, and nothing that anybody would allow.

The list lies in impyard's data folder, which no box is shown: no agent can have its requests left out.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from impyard.addon.errors import ImpyardError
from impyard.runner.decisions.logfiles import open_file
from impyard.runner.project import RUN_ID

FILE = "proofs.txt"  # a run's id in each line
_MAX_BYTES = 1 << 20


def note(run: str) -> None:
    """Remember a run as a proof. What cannot be remembered is shown as any other."""
    from impyard.certs.authority import data_dir

    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(data_dir() / FILE, flags, 0o600)
    except (OSError, ImpyardError):
        return
    with open(descriptor, "w") as file:
        file.write(f"{run}\n")


def known() -> Collection[str]:
    """The runs that were proofs."""
    from impyard.certs.authority import data_dir  # it loads more than the help of a command needs

    try:
        file = open_file(data_dir() / FILE)
    except ImpyardError:
        return ()
    if file is None:
        return ()
    with file:
        lines = file.pread(_MAX_BYTES, 0).decode("ascii", "replace").split("\n")
    return frozenset(line for line in lines if RUN_ID.fullmatch(line))
