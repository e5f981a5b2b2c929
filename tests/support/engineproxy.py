"""A Docker socket that passes everything on to the engine, and can hold a call back, so that a run stands still just
there, or break it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.listening import Listening

ENGINE_SOCKET = "/var/run/docker.sock"
_REQUEST = re.compile(rb"([A-Z]+) (?:/v[0-9.]+)?(/\S*) HTTP/1\.1\r\n")


_BROKEN = b'{"message":"the engine is broken on purpose"}'
ERROR = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_BROKEN),
    _BROKEN,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with the first call that contains `call`, which is a regular expression.

    how: "error" (the engine answers 500), "reset" (the connection ends without an answer), "lost" (the engine does it,
    but its answer is lost), "hang" (nothing ever comes), "dead" (from there on there is no engine).
    """

    call: str
    how: str


class EngineProxy:
    """Listens at `host`, for DOCKER_HOST. `calls` are the requests so far, as `POST /containers/create`.

    A request that contains `hold` waits until `release`; `held` tells that it has come. A `fault` breaks one call;
    `broken` tells that it has.
    """

    def __init__(
        self, folder: Path, hold: str | None = None, *, fault: Fault | None = None, engine: str | None = None
    ) -> None:
        self.path = folder / "docker.sock"
        self.host = f"unix://{self.path}"
        self.calls: list[str] = []
        self.held = threading.Event()
        self.broken = False
        self._hold = hold
        self._fault = fault
        self._released = threading.Event()
        self._engine = (engine or os.environ.get("DOCKER_HOST", "")).removeprefix("unix://") or ENGINE_SOCKET
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        self.path.chmod(0o666)
        listener.listen(32)
        self._listening = Listening(listener, self._take)

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self.release()
        self._listening.close()

    def die(self) -> None:
        """Be gone, as an engine that was killed: every connection ends, and nobody listens."""
        self.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _take(self, client: socket.socket) -> None:
        engine = socket.socket(socket.AF_UNIX)
        engine.connect(self._engine)
        self._open += [client, engine]
        lost = threading.Event()
        for source, sink, is_request in ((client, engine, True), (engine, client, False)):
            threading.Thread(target=self._pump, args=(source, sink, is_request, lost), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_request: bool, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_request and (match := _REQUEST.match(data)):
                    with self._lock:
                        self.calls.append(call := b" ".join(match.groups()).decode("latin-1"))
                        breaks = self._fault is not None and not self.broken and re.search(self._fault.call, call)
                        self.broken = self.broken or bool(breaks)
                    if self._hold is not None and self._hold in call:
                        self.held.set()
                        self._released.wait(120)
                    if breaks and self._break(source, lost):
                        continue
                if not is_request and lost.is_set():
                    break
                sink.sendall(data)
        for end in (sink, source) if lost.is_set() else (sink,):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_WR)

    def _break(self, client: socket.socket, lost: threading.Event) -> bool:
        """Do what the fault says; whether the engine must not see the call."""
        assert self._fault is not None
        how = self._fault.how
        if how == "error":
            client.sendall(ERROR)
        elif how == "lost":
            lost.set()
        elif how == "hang":
            self.held.set()
            self._released.wait(300)
            raise OSError("released")
        elif how == "reset":
            client.shutdown(socket.SHUT_RDWR)
            raise OSError("reset")
        else:
            self.die()
            raise OSError("dead")
        return how != "lost"


@contextlib.contextmanager
def engine_proxy(
    hold: str | None = None, *, fault: Fault | None = None, engine: str | None = None
) -> Iterator[EngineProxy]:
    """An EngineProxy in a folder whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="impyard-engine-"))
    folder.chmod(0o755)
    proxy = EngineProxy(folder, hold, fault=fault, engine=engine)
    try:
        yield proxy
    finally:
        proxy.close()
        shutil.rmtree(folder)
