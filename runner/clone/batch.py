"""Contents of many files from one git process: with one for each, a few thousand would take minutes.

With filters git does not say how much comes, so that each answer ends with a name that nobody could know before.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from impyard.addon.errors import ImpyardError
from impyard.runner.text import shortened, visible

SHOWN_WORDS = 300  # of what git says
_DOING = "read a file"


class GitFailed(ImpyardError):
    """git did not do it; the message has its words."""

    def __init__(self, words: str, doing: str) -> None:
        said = shortened(visible(words.strip().replace("\n", "; ")), SHOWN_WORDS).rstrip(".")
        super().__init__(f"git cannot {doing}: {said or 'it says nothing'}", hint="try it there with git itself")


class Batch(AbstractContextManager["Batch"]):
    """`start` starts git with these words more, with pipes; it is called when something is asked for. With `filters`
    files come as git would check them out. Valid for the time of a `with`."""

    def __init__(self, start: Callable[..., subprocess.Popen[bytes]], *, filters: bool = False) -> None:
        self._start = start
        self._filters = filters
        self._git: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        if self._git is not None:
            self._git.kill()
            with suppress(OSError):  # what was not sent any more
                self._git.communicate()

    def content(self, name: str, path: bytes = b"") -> bytes:
        """The content of the file stored as `name`; with filters, at this path from the top. Raises GitFailed."""
        if b"\n" in path:
            return self._alone(name, path)
        if self._git is None:
            words = ("--filters",) if self._filters else ()
            self._git = self._start("cat-file", "--batch", *words, stdin=subprocess.PIPE)
        pipe, answer = self._git.stdin, self._git.stdout
        assert pipe is not None and answer is not None
        mark = b"?" + secrets.token_hex(16).encode("ascii")  # nothing in git has such a name
        asked = name.encode("ascii")
        try:
            pipe.write(asked + (b" " + path if self._filters else b"") + b"\n" + mark + b"\n")
            pipe.flush()
        except OSError as exc:
            raise GitFailed("it has ended", _DOING) from exc
        head = answer.readline()
        if head.split()[:2] != [asked, b"blob"]:
            raise GitFailed(head.decode("utf-8", "replace") or "it has ended", _DOING)
        end = b"\n" + mark + b" missing\n"
        data = bytearray()
        while not data.endswith(end):
            line = answer.readline()
            if not line:
                raise GitFailed("it has ended", _DOING)
            data += line
        return bytes(data[: -len(end)])

    def _alone(self, name: str, path: bytes) -> bytes:
        """For a path that cannot be a line."""
        git = self._start("cat-file", "--filters", b"--path=" + path, name, stdin=subprocess.DEVNULL)
        data = git.communicate()[0]
        if git.returncode:
            raise GitFailed("", _DOING)
        return data
