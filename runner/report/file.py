"""Writes a report: as a whole or not at all, for its owner only, never through a link, into what a box can reach or in
place of anything but a report.

A report names paths and what an agent was told; whoever it is for, its owner hands it on.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.runner.project import RUN_ID

NAME = "report.html"
BEGINNING = b"<!doctype html>"
ELSEWHERE = "name another with -o, or `-o -` for standard output"


def place(target: Path | None, root: Path, run_folder: Path, workspaces: Iterable[Path]) -> Path:
    """Where a report goes: `target`, by default a file in the run's folder. Raises ImpyardError for a place that a box
    can write to, where it could put a link just before us, for one among impyard's own files, and for a link, as
    /dev/stdout is."""
    if target is None:
        return run_folder / NAME
    path = Path(os.path.realpath(target.parent)) / target.name
    runs = Path(os.path.realpath(root / "runs"))
    inside = path.relative_to(runs).parts if path.is_relative_to(runs) else ()
    in_run = len(inside) > 2 and RUN_ID.fullmatch(inside[0])
    if in_run or any(path.is_relative_to(os.path.realpath(folder)) for folder in workspaces):
        raise ImpyardError(f"{target} lies where the agent can write", hint="name another folder with -o")
    if inside and not (len(inside) == 2 and RUN_ID.fullmatch(inside[0]) and path.suffix == ".html"):
        raise ImpyardError(f"{target} lies among impyard's own files", hint="name another folder with -o")
    if os.path.islink(path):
        raise ImpyardError(f"{target} is a link", hint="name a file with -o, or `-o -` for standard output")
    return path


def write(path: Path, pieces: Iterable[str]) -> int:
    """Write the pieces to `path`, in place of what is there; how many bytes. Raises ImpyardError."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise _fault(path, exc) from exc
    draft = f".{path.name}.{secrets.token_hex(4)}"
    try:
        with suppress(FileNotFoundError):
            there = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            if not (stat.S_ISREG(there.st_mode) or stat.S_ISLNK(there.st_mode)):
                raise ImpyardError(f"{path} is no ordinary file", hint=ELSEWHERE)
            if stat.S_ISREG(there.st_mode) and there.st_size and not _is_report(path.name, folder):
                raise ImpyardError(
                    f"{path} is there and is no report that you may read", hint=f"move it away, or {ELSEWHERE}"
                )
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(draft, flags, 0o600, dir_fd=folder), "wb") as file:
            owner = os.fstat(folder)
            if os.geteuid() == 0 and owner.st_uid != 0 and RUN_ID.fullmatch(path.parent.name):
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            size = sum(file.write(piece.encode("utf-8", "backslashreplace")) for piece in pieces)
        os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        return size
    except OSError as exc:
        raise _fault(path, exc) from exc
    finally:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        os.close(folder)


def _is_report(name: str, folder: int) -> bool:
    """Whether a file begins as a report does. One that may not be read is none that we know of."""
    try:
        with open(
            os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder), "rb"
        ) as file:
            return file.read(len(BEGINNING)).lower() == BEGINNING
    except PermissionError:
        return False


def _fault(path: Path, exc: OSError) -> ImpyardError:
    reason = (exc.strerror or str(exc)).lower()
    return ImpyardError(
        f"cannot write {path}: {reason}", hint="name another file with -o, or `-o -` for standard output"
    )
