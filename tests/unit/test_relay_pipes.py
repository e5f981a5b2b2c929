"""The relay's pipes over socket pairs: whole in order, half-closed, never more than a chunk in memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from impyard.box.loop import Loop
from impyard.box.pipes import Opening, Pipe
from impyard.box.services import Doorway, name_limit


class Running:
    """A loop in a thread of its own; `client` and `door` are the far ends of a pipe that it serves."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.closed = threading.Event()
        self._stop = False
        self.client, near = socket.socketpair()
        self.door, far = socket.socketpair()
        for end in (near, far):
            end.setblocking(False)
        for end in (self.client, self.door):
            end.settimeout(5)
        self.near = near
        Pipe(self.loop, near, far, self.closed.set).start(b"first ")
        self._tick()
        self._thread = threading.Thread(target=self.loop.run, args=[lambda: self._stop], daemon=True)
        self._thread.start()

    def _tick(self) -> None:
        self.loop.later(0.01, self._tick)

    def end(self) -> None:
        self._stop = True
        self._thread.join(5)
        self.client.close()
        self.door.close()


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.end()


def read_all(end: socket.socket) -> bytes:
    data = b""
    while more := end.recv(1 << 20):
        data += more
    return data


def test_what_is_given_at_the_start_comes_first(running: Running) -> None:
    running.door.sendall(b"then this")
    running.door.shutdown(socket.SHUT_WR)
    assert read_all(running.client) == b"first then this"


def test_an_end_passes_one_way_while_the_other_goes_on(running: Running) -> None:
    running.client.sendall(b"request")
    running.client.shutdown(socket.SHUT_WR)
    assert read_all(running.door) == b"request"
    assert not running.closed.is_set()
    running.door.sendall(b"answer")
    running.door.close()
    assert read_all(running.client) == b"first answer"
    assert running.closed.wait(5)


def test_a_side_that_goes_away_closes_the_other(running: Running) -> None:
    running.client.sendall(b"x")
    assert running.door.recv(1) == b"x"
    running.client.close()
    assert read_all(running.door) == b""
    with pytest.raises(OSError):
        for _ in range(1000):
            running.door.sendall(bytes(65536))
    assert running.closed.wait(5)


def test_both_directions_pass_whole_at_once(running: Running) -> None:
    up, down = b"u" * 7_000_001, b"d" * 9_000_001
    got: dict[str, bytes] = {}

    def send(end: socket.socket, data: bytes) -> None:
        end.sendall(data)
        end.shutdown(socket.SHUT_WR)

    threads = [
        threading.Thread(target=send, args=[running.client, up]),
        threading.Thread(target=send, args=[running.door, down]),
        threading.Thread(target=lambda: got.update(down=read_all(running.client))),
        threading.Thread(target=lambda: got.update(up=read_all(running.door))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert got["up"] == up and got["down"] == b"first " + down
    assert running.closed.wait(5)


def test_a_reader_that_stops_stops_the_writer(running: Running) -> None:
    running.door.settimeout(0.5)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 1 << 28:
            sent += running.door.send(bytes(65536))
    assert sent < 4 << 20  # what the kernel's buffers and one chunk hold
    running.door.settimeout(5)
    running.door.shutdown(socket.SHUT_WR)
    assert len(read_all(running.client)) == sent + len(b"first ")


def serve_until(loop: Loop, done: Callable[[], bool]) -> None:
    def tick() -> None:
        loop.later(0.01, tick)

    tick()
    loop.later(10, lambda: pytest.fail("took too long"))
    loop.run(until=done)


@pytest.mark.parametrize(
    ("target", "answer", "client_gets"),
    [
        ("a.test:443", b"HTTP/1.1 200 Connection established\r\n\r\nserver first", b"server first"),
        ("a.test:443", b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", b""),  # TLS could not read it
        ("a.test:80", b"HTTP/1.1 403 Forbidden\r\n\r\nno", b"HTTP/1.1 403 Forbidden\r\n\r\nno"),
        ("a.test:443", b"garbage", b""),
        ("a.test:443", b"HTTP/1.1 2000 OK\r\n\r\nx", b""),
        ("a.test:443", b"x" * 70000, b""),
    ],
)
def test_a_tunnel_is_asked_for_and_its_answer_kept_from_the_client(
    tmp_path: Path, target: str, answer: bytes, client_gets: bytes
) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "door"))
    listener.listen()
    asked: list[bytes] = []

    def gateway() -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(65536))
            connection.sendall(answer)

    threading.Thread(target=gateway, daemon=True).start()
    client, near = socket.socketpair()
    client.settimeout(5)
    client.shutdown(socket.SHUT_WR)
    near.setblocking(False)
    loop, closed = Loop(), threading.Event()
    Opening(loop, near, str(tmp_path / "door"), target, closed.set)
    serve_until(loop, closed.is_set)
    assert asked == [f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()]
    assert read_all(client) == client_gets
    client.close()
    listener.close()


def test_without_a_door_the_client_is_closed(tmp_path: Path) -> None:
    client, near = socket.socketpair()
    closed = threading.Event()
    Opening(Loop(), near, str(tmp_path / "none"), None, closed.set)
    assert closed.is_set() and client.recv(1) == b""
    client.close()


def test_connections_over_the_limit_wait_until_others_end(tmp_path: Path) -> None:
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(tmp_path / "door"))
    door.listen()
    loop = Loop()
    listener = Doorway(loop, str(tmp_path / "door"), limit=2).listen(("127.0.0.1", 0), None)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    door.settimeout(0.3)
    opened: list[socket.socket] = []

    def accept() -> None:
        for _ in range(2):
            opened.append(door.accept()[0])
        with pytest.raises(TimeoutError):
            door.accept()  # the third client has no connection of its own
        clients[0].close()
        opened.pop(0).close()
        door.settimeout(5)
        opened.append(door.accept()[0])
        done.set()

    done = threading.Event()
    threading.Thread(target=accept, daemon=True).start()
    serve_until(loop, done.is_set)
    assert len(opened) == 2
    for each in (*clients[1:], *opened, door, listener):
        each.close()


@pytest.mark.parametrize(("descriptors", "names"), [(65536, 1024), (1 << 20, 1024), (2048, 432), (1024, 16)])
def test_names_are_bounded_by_the_descriptors_that_they_need(descriptors: int, names: int) -> None:
    assert name_limit(descriptors) == names
