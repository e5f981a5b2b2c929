"""Why a file or folder cannot be written, and whose it is where that is the reason."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def fault(path: Path, exc: OSError) -> tuple[str, str]:
    """The reason, and what helps: where it belongs to somebody else, the command that takes it over."""
    reason = (exc.strerror or str(exc)).lower()
    us = os.geteuid()
    if isinstance(exc, PermissionError):
        with contextlib.suppress(OSError):
            if (owner := os.stat(path, follow_symlinks=False).st_uid) != us:
                option = "-R " if path.is_dir() else ""
                return (
                    f"{reason}, as it belongs to another user (uid {owner})",
                    f"sudo chown {option}{us} {str(path)!r}",
                )
    return reason, "free some space or mend the permissions"
