"""impyard's commands at a terminal of their own, where somebody answers what they ask."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time


def answered(words: list[str], question: bytes, typed: bytes) -> tuple[int, list[str]]:
    """The exit status, and the lines that were shown, when `typed` is the answer to what ends in `question`."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "impyard", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    shown = b""
    while question not in shown:
        shown += os.read(master, 4096)
    with contextlib.suppress(OSError):  # Linux: the last process has closed the other side
        os.write(master, typed)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if select.select([master], [], [], 2)[0]:
                shown += os.read(master, 4096)
            else:  # a signal just before Python waits for a line is only seen with the next one
                os.write(master, typed)
    os.close(master)
    return process.wait(10), shown.decode().splitlines()
