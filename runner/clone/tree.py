"""Reads what a box left in its clone: as plain files, with nothing followed, nothing run, and an end to everything.

The folder is hostile. It is walked by descriptors that follow no link; only ordinary files are read, to a limit; what
has a name that git would obey is not looked at. git gets bytes and names that were checked here, in a repository of
our own. What .gitignore says counts as it stands in the clone, as for `git status` there: what it hides is not taken.
"""

from __future__ import annotations

import os
import resource
import select
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.runner.clone.git import Entry, Scratch, Tree
from impyard.runner.clone.paths import LINK, SUBMODULE, names_git, why_never
from impyard.runner.text import size_text, visible

MAX_FILE_BYTES = 100 * 1000**2  # of a new or changed file
MAX_CHANGED_BYTES = 1000**3  # of all of them
MAX_NEW = 100_000  # files that are new and not ignored
MAX_SEEN = 2_000_000  # entries that are looked at
MAX_DEPTH = 200
MAX_IGNORE_BYTES = 1024**2
MAX_ALL_IGNORE_BYTES = 4 * 1024**2  # git keeps those of all folders on the way in memory
MAX_IGNORE_LINES = 50_000  # in all: each name is held against each
IGNORE_MEMORY = 1024**3
IGNORE_WAIT_S = 20.0  # for an answer: patterns can be made that take forever
IGNORE_ALL_S = 300.0  # for all answers
IGNORE_PART = 16 * 1024  # bytes of names at a time: less than a pipe holds, so that nobody waits for the other
CHUNK = 1024**2
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(slots=True)
class Left:
    """What a run left: `changes` to the tree that it began with (None: gone), stored in the scratch repository; `out`
    is what is not taken, with why, and `ignored` how many files and folders git ignores there."""

    changes: dict[bytes, Entry | None] = field(default_factory=dict)
    out: dict[bytes, str] = field(default_factory=dict)
    ignored: int = 0


def read_left(workspace: Path, base: Tree, exclude: bytes, scratch: Scratch) -> Left:
    """What differs in the workspace from `base`. `exclude` are lines as of .git/info/exclude.

    Raises ImpyardError for what cannot be read, or is more than is read."""
    (scratch.folder / "info" / "exclude").write_bytes(exclude)
    with closing(_Ignored(scratch)) as ignored:
        walk = _Walk(base, scratch, ignored)
        try:
            top = os.open(workspace, _FOLDER)
        except OSError as exc:
            raise ImpyardError(
                f"cannot read the clone {workspace}: {(exc.strerror or str(exc)).lower()}",
                hint="what the agent wrote is gone, or it has put something else in its place",
            ) from exc
        try:
            walk.folder(top, b"", 0)
        except OSError as exc:
            where = visible(os.fsdecode(walk.at)) or "the clone"
            raise ImpyardError(
                f"cannot read {where} in {workspace}: {(exc.strerror or str(exc)).lower()}",
                hint="the agent may have taken your right to read it: `chmod -R u+rwX` gives it back",
            ) from exc
        finally:
            os.close(top)
    for path, entry in base.items():
        if path not in walk.seen and entry.mode != SUBMODULE and not _is_below(path, walk.left.out):
            walk.left.changes[path] = None
    return walk.left


class _Walk:
    def __init__(self, base: Tree, scratch: Scratch, ignored: _Ignored) -> None:
        self.base, self.scratch, self.ignored = base, scratch, ignored
        self.left = Left()
        self.seen: set[bytes] = set()
        self.at = b""
        self.entries = self.new = self.bytes = 0
        self.folders: Counter[bytes] = Counter()  # of the base, with how many files are in each
        for path in base:
            for folder in _above(path):
                self.folders[folder] += 1

    def folder(self, handle: int, path: bytes, depth: int) -> None:
        """Look at all in a folder. Raises OSError."""
        self.at = path
        with os.scandir(handle) as found:
            entries = {os.fsencode(entry.name): entry for entry in found}
        self.entries += len(entries)
        if self.entries > MAX_SEEN:
            raise ImpyardError(f"the clone holds more than {MAX_SEEN} entries", hint="have git ignore what is built")
        if b".gitignore" in entries:
            self.ignored.add(path, handle)
        names = sorted(name for name in entries if not self._is_refused(path, name, entries[name]))
        ours = [name for name in names if (full := _join(path, name)) in self.base or full in self.folders]
        others = [name for name in names if name not in set(ours)]
        away = self.ignored.of([(_join(path, name), _is_folder(entries[name])) for name in others])
        self.left.ignored += len(away)
        for name in names:
            full = _join(path, name)
            if full in away:
                continue
            self.at = full
            if _is_folder(entries[name]):
                self._inner(handle, name, full, depth)
            else:
                self._file(handle, name, full)

    def _is_refused(self, path: bytes, name: bytes, entry: os.DirEntry[str]) -> bool:
        """Whether it is left out for its name. git's own folder at the top is nothing to speak of."""
        if path == b"" and name == b".git":
            return True
        full = _join(path, name)
        if reason := why_never(full, None):
            if not (names_git(name) and full.rpartition(b"/")[0] in self.left.out):
                self.left.out[full] = reason
            return True
        return False

    def _inner(self, handle: int, name: bytes, full: bytes, depth: int) -> None:
        if self.base.get(full, _NONE).mode == SUBMODULE:
            return
        if depth >= MAX_DEPTH:
            self.left.out[full] = "it is nested too deep"
            return
        try:
            inner = os.open(name, _FOLDER, dir_fd=handle)
        except PermissionError:
            if full in self.folders or full in self.base:
                raise
            self.left.out[full] = "it cannot be read"
            return
        try:
            if full not in self.folders and _has_git(inner):
                self.left.out[full] = "it is a repository of its own"
                return
            self.folder(inner, full, depth + 1)
        finally:
            os.close(inner)

    def _file(self, handle: int, name: bytes, full: bytes) -> None:
        old = self.base.get(full)
        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(name, dir_fd=handle)
            self._take(full, old, LINK, target if isinstance(target, bytes) else os.fsencode(target))
            return
        if not stat.S_ISREG(status.st_mode):
            self.left.out[full] = "it is no file"
            return
        limit = max(MAX_FILE_BYTES, old.size if old else 0)
        try:
            data = _content(handle, name, limit) if status.st_size <= limit else None
        except PermissionError:
            if old is not None:
                raise
            self.left.out[full] = "it cannot be read"
            return
        if data is None:
            self.left.out[full] = f"it is larger than {size_text(limit)}"
            return
        self._take(full, old, "100755" if status.st_mode & 0o100 else "100644", data)

    def _take(self, full: bytes, old: Entry | None, mode: str, data: bytes) -> None:
        entry = Entry(mode, self.scratch.id_of(data), len(data))
        if reason := why_never(full, entry):
            self.left.out[full] = reason
            return
        self.seen.add(full)
        if entry.same(old):
            return
        self.new += old is None
        self.bytes += len(data)
        if self.new > MAX_NEW:
            raise ImpyardError(
                f"the clone holds more than {MAX_NEW} new files", hint="have git ignore what is built: .gitignore"
            )
        if self.bytes > MAX_CHANGED_BYTES:
            raise ImpyardError(
                f"more than {size_text(MAX_CHANGED_BYTES)} are new or changed in the clone",
                hint="have git ignore what is built: .gitignore",
            )
        self.scratch.put(data)
        self.left.changes[full] = entry


class _Ignored:
    """Asks git which names its ignore files mean, in a folder that has these files and empty folders alone."""

    def __init__(self, scratch: Scratch) -> None:
        self._work = scratch.work
        words = ("check-ignore", "-z", "--stdin", "--verbose", "--non-matching", "--no-index")
        self._git = scratch.start(*words, stdin=subprocess.PIPE, more={"GIT_LITERAL_PATHSPECS": "0"})
        resource.prlimit(self._git.pid, resource.RLIMIT_AS, (IGNORE_MEMORY, IGNORE_MEMORY))
        self._rest = b""
        self._bytes = self._lines = 0
        self._waited = 0.0

    def add(self, folder: bytes, handle: int) -> None:
        """Take note of the .gitignore of a folder; one that is a link, or long, does not count."""
        with suppress(OSError):
            data = _content(handle, b".gitignore", MAX_IGNORE_BYTES)
            if data is not None:
                self._bytes += len(data)
                self._lines += data.count(b"\n") + 1
                if self._bytes > MAX_ALL_IGNORE_BYTES or self._lines > MAX_IGNORE_LINES:
                    raise ImpyardError(
                        f"the clone's .gitignore files are longer than {size_text(MAX_ALL_IGNORE_BYTES)} or"
                        f" {MAX_IGNORE_LINES} lines together",
                        hint="look at them: the agent may have written one that takes forever",
                    )
                place = self._work / os.fsdecode(folder)
                place.mkdir(parents=True, exist_ok=True)
                (place / ".gitignore").write_bytes(data)

    def of(self, names: Sequence[tuple[bytes, bool]]) -> set[bytes]:
        """Which of these paths git ignores; each with whether it is a folder."""
        found = set()
        for part in _parts(names):
            for path, is_folder in part:
                if is_folder:  # git looks whether it is one
                    with suppress(OSError):
                        (self._work / os.fsdecode(path)).mkdir(parents=True, exist_ok=True)
            assert self._git.stdin is not None
            try:
                self._git.stdin.write(b"".join(b"./" + path + b"\0" for path, _ in part))  # no magic
                self._git.stdin.flush()
            except OSError as exc:
                raise _unanswered() from exc
            for path, _ in part:
                source, _line, pattern, _path = (self._field() for _ in range(4))
                if source and not pattern.startswith(b"!"):
                    found.add(path)
        return found

    def _field(self) -> bytes:
        assert self._git.stdout is not None
        while b"\0" not in self._rest:
            began = time.monotonic()
            ready, _, _ = select.select([self._git.stdout], [], [], IGNORE_WAIT_S)
            self._waited += time.monotonic() - began
            if self._waited > IGNORE_ALL_S:
                raise _unanswered()
            more = os.read(self._git.stdout.fileno(), CHUNK) if ready else b""
            if not more:
                raise _unanswered()
            self._rest += more
        value, _, self._rest = self._rest.partition(b"\0")
        return value

    def close(self) -> None:
        self._git.kill()
        self._git.communicate()


_NONE = Entry("", "")


def _unanswered() -> ImpyardError:
    return ImpyardError(
        "git cannot tell what the clone's .gitignore files mean",
        hint="look at them: the agent may have written a pattern that takes forever",
    )


def _parts(names: Iterable[tuple[bytes, bool]]) -> Iterator[list[tuple[bytes, bool]]]:
    part: list[tuple[bytes, bool]] = []
    size = 0
    for name in names:
        if part and size + len(name[0]) + 3 > IGNORE_PART:
            yield part
            part, size = [], 0
        part.append(name)
        size += len(name[0]) + 3
    if part:
        yield part


def _content(handle: int, name: bytes, limit: int) -> bytes | None:
    """A file's content; None for one that is longer. Raises OSError, also for what is no file."""
    with open(os.open(name, _FILE, dir_fd=handle), "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is no file")
        data = bytearray()
        while len(data) <= limit and (more := file.read(min(CHUNK, limit + 1 - len(data)))):
            data += more
    return None if len(data) > limit else bytes(data)


def _has_git(handle: int) -> bool:
    with os.scandir(handle) as found:
        return any(names_git(os.fsencode(entry.name)) for entry in found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def _above(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def _is_below(path: bytes, places: dict[bytes, str]) -> bool:
    return path in places or any(folder in places for folder in _above(path))
