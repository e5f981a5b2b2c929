"""The tests' own listeners end their threads, and have room for all who come at once."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.support.listening import HttpServer, Listening, on_loopback, still_accepting


def test_a_listener_that_is_closed_leaves_no_thread_and_one_that_is_not_is_told(tmp_path: Path) -> None:
    def on_a_path() -> Listening:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        return Listening(listener, socket.socket.close)

    for make in (on_a_path, lambda: on_loopback(socket.socket.close)):
        listening = make()
        assert any("accepting (" in name for name in still_accepting(0.3))
        listening.close()
        listening.close()
        assert "accepting" not in [thread.name for thread in threading.enumerate()]


def test_one_that_cannot_be_served_is_let_go_and_the_next_one_served() -> None:
    def serve(client: socket.socket) -> None:
        served.append(client)
        if len(served) == 1:
            raise ConnectionRefusedError
        client.sendall(b"hello")
        client.close()

    served: list[socket.socket] = []
    listening = on_loopback(serve)
    answers = []
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", listening.port), 5) as client:
            answers.append(client.recv(10))
    listening.close()
    assert answers == [b"", b"hello"]


def test_a_hundred_who_come_at_once_wait_for_a_server_that_is_slow_to_accept() -> None:
    """The first who found no room would come up after the kernel's next attempt, in a second; others in 31."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(HttpServer(("127.0.0.1", 0), BaseHTTPRequestHandler))  # accepts nobody yet
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), 0.9))
