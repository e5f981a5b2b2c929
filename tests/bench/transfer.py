"""One big body, in a process of its own: `python -m tests.bench.transfer JSON` prints what it saw as JSON.

An upload goes on although the answer is already there, as many clients do: that is what a proxy must stand.
"""

from __future__ import annotations

import json
import os
import select
import ssl
import sys
import time
from dataclasses import asdict, dataclass

from tests.bench.client import BLOCK_BYTES, Way, head, open_tls, parse_head, read_answer

PATIENCE_S = 60.0


@dataclass(slots=True)
class Transfer:
    """status: of the answer. bytes: of the body that moved. seconds: to the end. answer_s: until the answer was there.

    ended_by: "" when all was sent, else what ended the upload.
    """

    status: int = 0
    bytes: int = 0
    seconds: float = 0.0
    answer_s: float = 0.0
    ended_by: str = ""


def download(way: Way, path: str, headers: str = "") -> Transfer:
    """GET `path`. headers: further lines. Raises OSError when it is cut."""
    with open_tls(way) as connection:
        begin = time.perf_counter()
        connection.sendall(head(way, "GET", path, headers=headers))
        status, received = read_answer(connection)
        took = time.perf_counter() - begin
    return Transfer(status, received, took, took)


def upload(way: Way, path: str, size: int, headers: str = "") -> Transfer:
    """POST `size` bytes to `path`, and read the answer whenever it comes. headers: further lines."""
    result = Transfer()
    with open_tls(way) as connection:
        connection.sendall(head(way, "POST", path, size, headers))
        begin = time.perf_counter()
        connection.setblocking(False)
        block = memoryview(os.urandom(BLOCK_BYTES))
        answer = b""
        while result.bytes < size or not result.status:
            wants = select.POLLIN | (select.POLLOUT if result.bytes < size else 0)
            try:
                _wait(connection, wants)
                answer += _received(connection)
                if not result.status and b"\r\n\r\n" in answer:
                    result.status, result.answer_s = parse_head(answer)[0], time.perf_counter() - begin
                if result.bytes < size:
                    result.bytes += _sent(connection, block[: size - result.bytes])
            except OSError as exc:
                result.ended_by = str(exc)
                break
        result.seconds = time.perf_counter() - begin
    return result


def _wait(connection: ssl.SSLSocket, wants: int) -> None:
    poll = select.poll()
    poll.register(connection, wants)
    if not poll.poll(PATIENCE_S * 1000):
        raise TimeoutError("nothing moves")


def _received(connection: ssl.SSLSocket) -> bytes:
    try:
        data = connection.recv(65536)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return b""
    if not data:
        raise OSError("the connection was closed")
    return data


def _sent(connection: ssl.SSLSocket, data: memoryview) -> int:
    try:
        return connection.send(data)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return 0


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    way = Way(**order["way"])
    path, size, headers = order["path"], order["upload"], order["headers"]
    done = upload(way, path, size, headers) if size else download(way, path, headers)
    print(json.dumps(asdict(done)))
