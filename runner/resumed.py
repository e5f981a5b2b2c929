"""What an earlier run left to go on with: its workspace and pi's session. Read here, with care.

Workspace and session are the box's: names, kinds, sizes and contents are whatever something hostile made of them. No
link is followed, nothing but a file is read, and not more than MAX_SESSION_BYTES of it, piece by piece. The text itself
goes where it came from, into a box, under a header that is written anew: whose session it is, and where, is not the
box's to say.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner.project import RUN_ID, RunPaths
from impyard.runner.text import size_text, visible
from impyard.runner.times import now

MAX_SESSION_BYTES = 256 * 1024**2
MAX_HEADER_BYTES = 64 * 1024
MAX_ENTRIES = 10_000
_BLOCK_BYTES = 1024**2
DEFAULT_MODEL = " (its default model)"
_NAME = re.compile(r"[0-9TZ-]{10,40}_([A-Za-z0-9._-]{1,128})\.jsonl")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z")


@dataclass(frozen=True, slots=True)
class Session:
    """pi's session: the open file, of which its entries, whole lines of JSON, are the bytes from `start` to `end`.
    `began` is ISO 8601."""

    handle: int
    start: int
    end: int
    version: int
    began: str

    def entries(self) -> Iterator[bytes]:
        """The entries as they were, in pieces. Raises OSError when the file is not what it was."""
        position = self.start
        while position < self.end:
            piece = os.pread(self.handle, min(_BLOCK_BYTES, self.end - position), position)
            if not piece:
                raise OSError("the session that the run goes on with was cut meanwhile")
            position += len(piece)
            yield piece


@dataclass(frozen=True, slots=True)
class Resumed:
    """What the `run` of before left. `is_own`: its workspace is one that impyard made, in runs/, and not one that the
    user named. `clone` is what the receipt says of the clone in it."""

    run: str
    workspace: Path
    is_own: bool
    session: Session
    policies: tuple[str, ...] = ()
    clone: Mapping[str, Any] = field(default_factory=dict)


def find_workspace(root: Path, receipt: Mapping[str, Any]) -> tuple[Path, bool]:
    """The workspace of a run, and whether impyard made it; that of a project that was moved is where it is now. Whether
    a box may have one that impyard did not make is still to be checked. Raises ImpyardError when it is gone."""
    recorded = Path(str(receipt.get("workspace") or ""))
    runs = Path(str(receipt.get("project") or "")) / "runs"
    inner = recorded.relative_to(runs).parts if recorded.is_relative_to(runs) else ()
    if len(inner) != 2 or not RUN_ID.fullmatch(inner[0]) or inner[1] != "workspace":
        return recorded, False
    folder = RunPaths(root, inner[0]).workspace
    for path in (folder.parent, folder):
        if not path.is_dir() or path.is_symlink():
            raise ImpyardError(
                f"the workspace of this run, {visible(str(folder))}, is not there any more",
                hint="`impyard runs list` shows the runs that are; `impyard run` begins anew",
            )
    return folder, True


def read_session(folder: Path, run: str, *, newest: bool) -> Session:
    """pi's session in the folder of a run: the run's own, or the `newest` where a person may have begun others.

    Raises ImpyardError when there is none, or none that could be pi's.
    """
    hint = f"`impyard runs show {run}` shows what there is of it; `impyard run` begins anew"
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise ImpyardError(f"run {run} has no session: {(exc.strerror or str(exc)).lower()}", hint=hint) from exc
    with closing(_Folder(handle)) as opened:
        name = opened.choose(run, newest)
        if name is None:
            raise ImpyardError(f"run {run} has no session: it ended before the model's first answer", hint=hint)
        try:
            return opened.read(name)
        except (OSError, ValueError, RecursionError) as exc:
            why = (exc.strerror or str(exc)).lower() if isinstance(exc, OSError) else str(exc)
            raise ImpyardError(f"the session of run {run} cannot be used: {why}", hint=hint) from exc


def write_session(session: Session, run: str, workspace: Path, folder: Path) -> Path:
    """Write into `folder` the session file with which pi goes on, as that of the new `run`; close the old one."""
    header = {
        "type": "session",
        "version": session.version,
        "id": run,
        "timestamp": session.began,
        "cwd": str(workspace),
    }
    path = folder / f"{re.sub('[:.]', '-', session.began)}_{run}.jsonl"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
            new.write(json.dumps(header).encode() + b"\n")
            new.writelines(session.entries())
    finally:
        os.close(session.handle)
    return path


def model_of(receipt: Mapping[str, Any]) -> str | None:
    """What to ask for with --model to get the model of a run again; None where it was the provider's default."""
    label = receipt.get("model")
    return label if isinstance(label, str) and not label.endswith(DEFAULT_MODEL) else None


class _Folder:
    """An open folder that a box could write to."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def close(self) -> None:
        os.close(self._handle)

    def choose(self, run: str, newest: bool) -> str | None:
        """The name of the session to take; None when there is none. Only files count."""
        found: list[tuple[bool, int, str]] = []
        with os.scandir(self._handle) as entries:
            for entry in itertools.islice(entries, MAX_ENTRIES):
                match = _NAME.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    changed = entry.stat(follow_symlinks=False).st_mtime_ns
                    found.append((match[1] == run and not newest, changed, entry.name))
        return max(found)[2] if found else None

    def read(self, name: str) -> Session:
        """The session in a file. Raises OSError, and ValueError for what is none or is too long."""
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._handle)
        try:
            return _parse(handle)
        except BaseException:
            os.close(handle)
            raise


def _parse(handle: int) -> Session:
    """Raises OSError, and ValueError for what is no file, is too long or does not begin as pi's sessions do."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no file")
    if status.st_size > MAX_SESSION_BYTES:
        raise ValueError(f"it is longer than {size_text(MAX_SESSION_BYTES)}")
    first = os.pread(handle, MAX_HEADER_BYTES + 1, 0).partition(b"\n")[0]
    if len(first) > MAX_HEADER_BYTES:
        raise ValueError("it does not begin as pi's sessions do")
    try:
        header = json.loads(first)
    except ValueError:
        header = None
    version = header.get("version", 1) if isinstance(header, dict) else None
    if not isinstance(header, dict) or header.get("type") != "session" or type(version) is not int or version < 1:
        raise ValueError("it does not begin as pi's sessions do")
    began = header.get("timestamp")
    began = began if isinstance(began, str) and _TIME.fullmatch(began) else now()
    start = len(first) + 1
    session = Session(handle, start, _end_of_lines(handle, start, status.st_size), version, began)
    if not any(piece.strip() for piece in session.entries()):
        raise ValueError("nothing was said in it")
    return session


def _end_of_lines(handle: int, start: int, size: int) -> int:
    """Where the last whole line ends: a killed pi may have left half a one behind it."""
    while size > start:
        begin = max(start, size - _BLOCK_BYTES)
        newline = os.pread(handle, size - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        size = begin
    return start
