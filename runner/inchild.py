"""A computation in a second process, beside the first one's own. It knows nothing of what is computed."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_a_child[T](compute: Callable[[], T]) -> Iterator[Callable[[], T | None]]:
    """Compute in a copy of this process; what is yielded waits for it and returns the value, None where the child
    could not be started or failed. A child that is not waited for is ended.

    The child prints nothing, runs no handlers of this process at its end, and sends its value through a pipe. To be
    called where no other thread runs: a copy has none of them, but their locks.
    """
    reader, writer = os.pipe()
    try:
        child = os.fork()
    except OSError:
        child = -1
    if child == 0:
        status = 1
        try:
            os.close(reader)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            with open(writer, "wb") as pipe:
                pickle.dump(compute(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    ended = child < 0

    def answer() -> T | None:
        nonlocal ended
        with open(reader, "rb", closefd=False) as pipe:
            data = pipe.read()
        if ended:
            return None
        _, status = os.waitpid(child, 0)
        ended = True
        value: T | None = pickle.loads(data) if status == 0 else None
        return value

    try:
        yield answer
    finally:
        os.close(reader)
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
