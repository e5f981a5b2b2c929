"""A Docker socket that passes everything on to the engine, and can hold a call back: a run stands still just there."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

ENGINE_SOCKET = "/var/run/docker.sock"
_REQUEST = re.compile(rb"([A-Z]+) (?:/v[0-9.]+)?(/\S*) HTTP/1\.1\r\n")


class EngineProxy:
    """Listens at `host`, for DOCKER_HOST. `calls` are the requests so far, as `POST /containers/create`.

    A request that contains `hold` waits until `release`; `held` tells that it has come.
    """

    def __init__(self, folder: Path, hold: str | None = None) -> None:
        self.path = folder / "docker.sock"
        self.host = f"unix://{self.path}"
        self.calls: list[str] = []
        self.held = threading.Event()
        self._hold = hold
        self._released = threading.Event()
        self._engine = os.environ.get("DOCKER_HOST", "").removeprefix("unix://") or ENGINE_SOCKET
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self.path.chmod(0o666)
        self._listener.listen(32)
        threading.Thread(target=self._accept, daemon=True).start()

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self.release()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._engine)
                threading.Thread(target=self._pump, args=(client, engine, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(engine, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_request and (match := _REQUEST.match(data)):
                    call = b" ".join(match.groups()).decode("latin-1")
                    self.calls.append(call)
                    if self._hold is not None and self._hold in call:
                        self.held.set()
                        self._released.wait(120)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def engine_proxy(hold: str | None = None) -> Iterator[EngineProxy]:
    """An EngineProxy in a folder whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="impyard-engine-"))
    folder.chmod(0o755)
    proxy = EngineProxy(folder, hold)
    try:
        yield proxy
    finally:
        proxy.close()
        shutil.rmtree(folder)
