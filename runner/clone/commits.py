"""The commits that an agent made in its clone, for reading: who says to have written them, when, and their first line.

git would follow whatever the agent made of that repository, so this reads it: the branch that HEAD names, and commits
from there, each in a file of its own, of a limited size, with the id that its content gives it. Commits that git has
packed are not read; the clone's settings keep git from packing by itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

MOST = 100
MAX_COMMIT_BYTES = 64 * 1024
MAX_STORED_BYTES = 64 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_REF = re.compile(rb"ref: (refs/heads/[^\0-\x20\x7f~^:?*\[\\]{1,200})\n?")
_ID = re.compile(rb"(?:[0-9a-f]{40}|[0-9a-f]{64})\n?")
_WHEN = re.compile(rb"(-?[0-9]{1,12}) [+-][0-9]{4}")
MAX_AUTHOR_BYTES = 300


@dataclass(frozen=True, slots=True)
class Commit:
    """As its author gives it: nothing of this is checked, and `author` and `subject` may hold any character. `tree` is
    the id of all files in it, "" for none."""

    id: str
    author: str
    when: str
    subject: str
    tree: str = ""


@dataclass(frozen=True, slots=True)
class Commits:
    """The newest first; not `complete`: there may be more before."""

    found: list[Commit]
    complete: bool


def read_commits(workspace: Path, base: str, form: str) -> Commits:
    """The commits of the branch that is checked out in the clone, along the first parents, down to `base`."""
    found: list[Commit] = []
    try:
        with closing(_Beneath(workspace)) as opened:
            name = _head(opened)
            while name != base:
                if name is None or len(found) >= MOST:
                    return Commits(found, False)
                data = _commit(opened, name, form)
                if data is None:
                    return Commits(found, False)
                parent, commit = _parsed(name, data)
                found.append(commit)
                name = parent
    except OSError:
        return Commits(found, False)
    return Commits(found, True)


class _Beneath:
    """Files beneath a folder, opened without following a link anywhere on the way."""

    def __init__(self, folder: Path) -> None:
        self._top = os.open(folder, _FOLDER)

    def close(self) -> None:
        os.close(self._top)

    def read(self, path: bytes, limit: int) -> bytes:
        """The beginning of a file. Raises OSError."""
        *folders, name = path.split(b"/")
        handle = os.dup(self._top)
        try:
            for folder in folders:
                if folder in (b"", b".", b".."):
                    raise OSError("no name")
                inner = os.open(folder, _FOLDER, dir_fd=handle)
                os.close(handle)
                handle = inner
            with open(os.open(name, _FILE, dir_fd=handle), "rb") as file:
                return file.read(limit) or b""
        finally:
            os.close(handle)


def _head(opened: _Beneath) -> str | None:
    text = opened.read(b".git/HEAD", 1024)
    if match := _REF.fullmatch(text):
        text = opened.read(b".git/" + match[1], 1024)
    return text.decode("ascii").strip() if _ID.fullmatch(text) else None


def _commit(opened: _Beneath, name: str, form: str) -> bytes | None:
    """A commit's text, if it is stored by itself and is what its name says."""
    stored = opened.read(f".git/objects/{name[:2]}/{name[2:]}".encode("ascii"), MAX_STORED_BYTES)
    unpacked = zlib.decompressobj()
    try:
        data = unpacked.decompress(stored, MAX_COMMIT_BYTES)
    except zlib.error:
        return None
    kind = hashlib.sha256 if form == "sha256" else hashlib.sha1
    head, _, text = data.partition(b"\0")
    if head != b"commit %d" % len(text) or kind(data, usedforsecurity=False).hexdigest() != name:
        return None
    return text


def _parsed(name: str, text: bytes) -> tuple[str | None, Commit]:
    """The first parent, and the commit."""
    head, _, message = text.partition(b"\n\n")
    parent, author, when, tree = None, "?", "", ""
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        if key == b"parent" and parent is None and _ID.fullmatch(value):
            parent = value.decode("ascii")
        elif key == b"tree" and not tree and _ID.fullmatch(value):
            tree = value.decode("ascii")
        elif key == b"author":
            who, _, moment = value.rpartition(b"> ")
            if match := _WHEN.fullmatch(moment):
                author = who.partition(b" <")[0][:MAX_AUTHOR_BYTES].decode("utf-8", "replace")
                when = _time(int(match[1]))
    subject = message.strip().partition(b"\n")[0].decode("utf-8", "replace")
    return parent, Commit(name, author, when, subject, tree)


def _time(seconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return ""
