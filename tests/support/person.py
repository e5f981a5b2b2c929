"""A person at a terminal: a program on a pseudo-terminal, what it writes there, and keys that are typed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Person:
    """Starts a command on a terminal of its own. `seen` is all that reached the terminal, as it came."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, rows: int = 24, columns: int = 80
    ) -> None:
        self._end, theirs = pty.openpty()
        self._theirs = theirs  # kept open: what its settings are is asked after the program's end
        self.seen = b""
        self.resize(rows, columns)
        self.before = self.settings()

        def lead() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command,
            env={**env, "TERM": "xterm-256color"},
            cwd=cwd,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=lead,
        )

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def settings(self) -> list[Any]:
        """What the terminal is set to."""
        return termios.tcgetattr(self._theirs)

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def wait_for(self, text: str | bytes, limit_s: float = 60.0) -> bytes:
        """Read on until `text` comes; what came with it. What was read before does not count."""
        wanted = text.encode() if isinstance(text, str) else text
        new = b""
        deadline = time.monotonic() + limit_s
        while wanted not in new:
            assert time.monotonic() < deadline, (text, self.seen[-4000:])
            new += self._read(0.1)
        return new

    def finish(self, limit_s: float = 60.0) -> int:
        """Read to the program's end; its exit status."""
        deadline = time.monotonic() + limit_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen[-4000:]
            self._read(0.1)
        while self._read(0.1):
            pass
        return self.process.returncode

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._end)
        os.close(self._theirs)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _read(self, limit_s: float) -> bytes:
        if not select.select([self._end], [], [], limit_s)[0]:
            return b""
        try:
            data = os.read(self._end, 65536)
        except OSError:
            data = b""
        self.seen += data
        return data
