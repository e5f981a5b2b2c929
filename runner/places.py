"""What is made in a checkout for the time of one run, so that it can be kept from the agent; and who works there."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner.text import visible

HERE = b".\n"  # the content of a repository's `commondir` that says "here"


@dataclass(frozen=True, slots=True)
class Missing:
    """A place that is made for the run: a file with this content, or a folder for None. `is_way`: a folder on the way
    to another, in which the agent may leave things."""

    path: Path
    content: bytes | None = None
    is_way: bool = False

    def record(self) -> dict[str, Any]:
        """For a receipt: what is left should the runner be killed. `from_record` reads it."""
        content = None if self.content is None else self.content.decode()
        return {"path": str(self.path), "content": content, "is_way": self.is_way}


def from_record(record: Mapping[str, Any]) -> Missing:
    """A place as it was recorded. Raises ValueError for what is no such record: also for a file with any content but
    what impyard makes, as a receipt may have come with a project, and what it names is removed."""
    path, content = record.get("path"), record.get("content")
    if not isinstance(path, str) or content not in (None, "", HERE.decode()):
        raise ValueError("no place that was made for a run")
    return Missing(Path(path), None if content is None else content.encode(), record.get("is_way") is True)


def make(missing: Sequence[Missing]) -> list[Missing]:
    """Make what is missing; returns it in the order in which to `unmake` it. Raises OSError."""
    made: list[Missing] = []
    try:
        for place in missing:
            if place.content is None:
                place.path.mkdir(mode=0o755)
            elif place.content == HERE and is_as_made(place):
                pass  # of a run of another project, whose runner was killed
            else:
                with open(
                    os.open(place.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb"
                ) as new:
                    new.write(place.content)
            made.insert(0, place)
    except OSError:
        unmake(made)
        raise
    return made


class Holds:
    """Keeps other runs out of a workspace, and of the checkouts in it: when one ends, what it made goes, and another's
    covers with it; and files that it was handed go back to their owners.

    `close` it in any case; the kernel does, should this process be killed.
    """

    def __init__(self) -> None:
        self._handles: dict[Path, int] = {}

    def hold(self, folder: Path, is_shared: bool) -> None:
        """Hold a folder, alone or with others who share it. Raises ImpyardError when another run is in the way. A file
        system without locks holds nothing."""
        held = self._handles.get(folder)
        if held is not None and is_shared:
            return
        mode = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if held is None else held
        except OSError:
            return
        try:
            fcntl.flock(handle, mode | fcntl.LOCK_NB)
            self._handles[folder] = handle
        except BlockingIOError as exc:
            self._handles.pop(folder, None)
            os.close(handle)
            raise ImpyardError(
                f"another run works in {visible(str(folder))}",
                hint="wait for its end, or give this run a folder of its own (of a checkout: a clone of it)",
            ) from exc
        except OSError:
            self._handles[folder] = handle  # nothing is held, and it is closed with the rest

    def close(self) -> None:
        """Let go of all."""
        while self._handles:
            os.close(self._handles.popitem()[1])


def unmake(made: Sequence[Missing]) -> list[Path]:
    """Remove what `make` made, as far as it is as it was made; returns what is not."""
    changed = []
    for place in made:
        try:
            if place.content is None:
                place.path.rmdir()
            elif is_as_made(place):
                place.path.unlink()
            elif os.path.lexists(place.path):
                changed.append(place.path)
        except FileNotFoundError:
            continue
        except OSError as exc:
            if not (place.is_way and exc.errno == errno.ENOTEMPTY):
                changed.append(place.path)
    return changed


def is_as_made(place: Missing) -> bool:
    """Whether the file is there with the content that it is made with."""
    try:
        return stat.S_ISREG(os.lstat(place.path).st_mode) and place.path.read_bytes() == place.content
    except FileNotFoundError:
        return False
