"""A socket that listens and the thread that accepts on it, begun and ended in one place.

Linux reserves a descriptor's number before accept(2) waits, and no listing of /proc/self/fd has it. A thread that still
waits there when another one closes the socket keeps the number, and takes the next client. So it is woken first.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer

# How many connections wait to be accepted. A gateway dials an HTTP/1 origin for each of a client's hundred streams, and
# the kernel drops what finds the queue full; it comes again after 1, 3, 7, 15 s, by when somebody has given up.
QUEUE = 512


def free_port() -> int:
    """A port of 127.0.0.1 at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Listening:
    """Calls `taken` with each connection, in the thread that accepts, until `close`. It owns the listener."""

    def __init__(self, listener: socket.socket, taken: Callable[[socket.socket], object]) -> None:
        self._listener = listener
        self._taken = taken
        self._thread = threading.Thread(target=self._accept, daemon=True, name="accepting")
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Take no more. The thread has ended afterwards; connections that were taken go on. Safe to call twice."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # accept(2) ends with EINVAL
        self._listener.close()
        if self._thread is not threading.current_thread():
            self._thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            _or_close(self._taken, connection)


def in_threads(serve: Callable[[socket.socket], object]) -> Callable[[socket.socket], object]:
    """What `Listening` is given to have each connection served in a thread of its own."""
    return lambda connection: threading.Thread(target=_or_close, args=(serve, connection), daemon=True).start()


def _or_close(call: Callable[[socket.socket], object], connection: socket.socket) -> None:
    try:
        call(connection)
    except OSError:  # who is behind it is gone, and the next client may be luckier
        connection.close()


class HttpServer(ThreadingHTTPServer):
    """The standard library's, in whose own queue five connections wait."""

    request_queue_size = QUEUE


def on_loopback(serve: Callable[[socket.socket], object]) -> Listening:
    """Listen on a free port of 127.0.0.1; each connection has a thread of its own."""
    return Listening(socket.create_server(("127.0.0.1", 0), backlog=QUEUE), in_threads(serve))


def still_accepting(wait_s: float = 2.0) -> list[str]:
    """The names of this process's threads that wait in accept(), after some time to end."""
    deadline = time.monotonic() + wait_s
    while (found := _in_accept()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _in_accept() -> list[str]:
    frames = sys._current_frames()
    return [
        f"{thread.name} ({frame.f_back.f_code.co_filename}:{frame.f_back.f_lineno})"
        for thread in threading.enumerate()
        if (frame := frames.get(thread.ident or 0)) is not None
        and frame.f_code is socket.socket.accept.__code__
        and frame.f_back is not None
    ]
