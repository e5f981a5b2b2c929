"""A git server over TLS, in a process of its own: `python -m tests.bench.githttp CERTIFICATE FOLDER` prints its port.

It hands bodies on to `git http-backend` and back as they come, so that what takes time is git and the way there.
Anybody may clone from and push to the repositories in the folder.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from tests.support.listening import HttpServer

BLOCK_BYTES = 1 << 17


class Handler(BaseHTTPRequestHandler):
    """One client's requests, each a `git http-backend` (its manual page says what the variables mean)."""

    protocol_version = "HTTP/1.1"
    root = Path()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
            "REMOTE_USER": "somebody",
        }
        if "content-length" in self.headers:
            environment["CONTENT_LENGTH"] = self.headers["content-length"]
        with subprocess.Popen(
            ["git", "http-backend"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as backend:
            feeder = threading.Thread(target=self._feed, args=(backend.stdin,))
            feeder.start()
            self._answer(cast(BufferedReader, backend.stdout))
            feeder.join()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: standard error is the person's who measures."""

    def _feed(self, sink: BinaryIO) -> None:
        gone = False
        for data in self._body():
            if not gone:
                try:
                    sink.write(data)
                except BrokenPipeError:  # it has its answer; the rest must still be read
                    gone = True
        with contextlib.suppress(BrokenPipeError):
            sink.close()

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("transfer-encoding") != "chunked":
            yield from self._piece(int(self.headers.get("content-length", 0)))
            return
        while size := int(self.rfile.readline(), 16):
            yield from self._piece(size)
            self.rfile.readline()
        self.rfile.readline()

    def _piece(self, left: int) -> Iterator[bytes]:
        while left:
            data = self.rfile.read(min(left, BLOCK_BYTES))
            if not data:
                raise OSError("the upload was cut")
            left -= len(data)
            yield data

    def _answer(self, source: BufferedReader) -> None:
        status, headers = 200, []
        while line := source.readline().strip():
            name, _, value = line.decode("latin-1").partition(": ")
            if name.lower() == "status":
                status = int(value.split()[0])
            else:
                headers.append((name, value))
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        while data := source.read1(BLOCK_BYTES):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")


def main(certificate: str, root: str) -> None:
    """Serve until the process is ended."""
    Handler.root = Path(root)
    server = HttpServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
