"""What the relay listens on: the proxy port, names, and the addresses handed out for names.

All of it is on loopback and is for the programs of the box only. Bounded everywhere: connections by CONNECTIONS (more
of them wait in the kernel's queue), names by the descriptors that their sockets need.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from impyard.box.loop import READ, Loop
from impyard.box.names import AddressBook, answer
from impyard.box.pipes import Opening

PROXY = ("127.0.0.1", 3128)
NAMES = ("127.0.0.1", 53)
PORTS = (80, 443)
CONNECTIONS = 512
QUEUE = 128
MAX_NAMES = 1024
SPARE_DESCRIPTORS = 128
DNS_BATCH = 64
DNS_CLIENTS = 32
ACCEPT_PAUSE_S = 0.1


class Doorway:
    """Accepts programs of the box on listening sockets and pipes each to the door."""

    def __init__(self, loop: Loop, door: str, limit: int = CONNECTIONS) -> None:
        self._loop = loop
        self._door = door
        self._limit = limit
        self._open = 0
        self._paused = False
        self._listeners: dict[int, Callable[[], None]] = {}

    def listen(self, address: tuple[str, int], target: str | None) -> socket.socket:
        """Listen on an address; `target` ("name:port") is what the gateway is asked for, None for a plain proxy.

        Raises OSError when the address cannot be had.
        """
        listener = listen_tcp(address, QUEUE)
        number = listener.fileno()
        self._listeners[number] = lambda: self._accept(listener, target)
        if not self._paused:
            self._loop.watch(number, READ, self._listeners[number])
        return listener

    def close(self, listener: socket.socket) -> None:
        """Stop listening; connections that were accepted go on."""
        number = listener.fileno()
        handler = self._listeners.pop(number)
        if not self._paused:
            self._loop.watch(number, 0, handler)
        listener.close()

    def _accept(self, listener: socket.socket, target: str | None) -> None:
        try:
            client, _peer = listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor left: the others need time to close
            self._pause()
            self._loop.later(ACCEPT_PAUSE_S, self._resume)
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open += 1
        if self._open >= self._limit:
            self._pause()
        try:
            Opening(self._loop, client, self._door, target, self._closed)
        except OSError:  # no descriptor for the door
            client.close()
            self._closed()

    def _closed(self) -> None:
        self._open -= 1
        if self._paused and self._open < self._limit:
            self._resume()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            for number, handler in self._listeners.items():
                self._loop.watch(number, 0, handler)

    def _resume(self) -> None:
        if self._paused and self._open < self._limit:
            self._paused = False
            for number, handler in self._listeners.items():
                self._loop.watch(number, READ, handler)


class Names:
    """The box's name server. Handing out an address opens the ports on it."""

    def __init__(self, loop: Loop, doorway: Doorway, limit: int) -> None:
        self._loop = loop
        self._doorway = doorway
        self._book = AddressBook(limit)
        self._listeners: dict[str, list[socket.socket]] = {}
        self._clients: dict[_TcpQuestions, None] = {}  # oldest first

    def listen(self, address: tuple[str, int] = NAMES) -> None:
        """Answer questions on UDP and TCP. Raises OSError when the port cannot be had."""
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._udp.bind(address)
        self._tcp = listen_tcp(address, DNS_CLIENTS)
        self._loop.watch(self._udp.fileno(), READ, self._read_udp)
        self._loop.watch(self._tcp.fileno(), READ, self._accept)

    def address_of(self, name: str) -> str | None:
        """The address for a name, its ports open; None when it cannot be listened on."""
        if address := self._book.find(name):
            return address
        address, dropped = self._book.add(name)
        if dropped:
            for listener in self._listeners.pop(dropped):
                self._doorway.close(listener)
        opened: list[socket.socket] = []
        try:
            for port in PORTS:
                opened.append(self._doorway.listen((address, port), f"{name}:{port}"))
        except OSError:  # a program of the box sits on it, or no descriptor is left
            for listener in opened:
                self._doorway.close(listener)
            self._book.remove(name)
            return None
        self._listeners[address] = opened
        return address

    def _read_udp(self) -> None:
        for _ in range(DNS_BATCH):
            try:
                query, client = self._udp.recvfrom(4096)
                reply = answer(query, self.address_of)
                if reply:
                    self._udp.sendto(reply, client)
            except OSError:  # nothing more to read, or the asker is gone
                return

    def _accept(self) -> None:
        try:
            client, _peer = self._tcp.accept()
        except OSError:
            return
        if len(self._clients) >= DNS_CLIENTS:
            next(iter(self._clients)).close()
        self._clients[_TcpQuestions(self._loop, client, self.address_of, self._clients.pop)] = None


class _TcpQuestions:
    """One TCP client of the name server: messages with a length in front (RFC 1035, 4.2.2)."""

    def __init__(
        self,
        loop: Loop,
        client: socket.socket,
        address_of: Callable[[str], str | None],
        on_close: Callable[[_TcpQuestions], None],
    ) -> None:
        self._loop = loop
        self._client: socket.socket | None = client
        self._address_of = address_of
        self._on_close = on_close
        self._buffer = b""
        client.setblocking(False)
        loop.watch(client.fileno(), READ, self._read)

    def _read(self) -> None:
        if self._client is None:
            return
        try:
            data = self._client.recv(4096)
            self._buffer += data
            while len(self._buffer) >= 2:
                end = 2 + int.from_bytes(self._buffer[:2], "big")
                if len(self._buffer) < end:
                    break
                reply = answer(self._buffer[2:end], self._address_of)
                self._buffer = self._buffer[end:]
                if reply is None:
                    data = b""
                    break
                self._client.sendall(len(reply).to_bytes(2, "big") + reply)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()

    def close(self) -> None:
        """Drop the client; one that is gone already is left alone."""
        if self._client is not None:
            self._loop.watch(self._client.fileno(), 0, self._read)
            self._client.close()
            self._client = None
            self._on_close(self)


def listen_tcp(address: tuple[str, int], queue: int) -> socket.socket:
    """A non-blocking listening socket. Raises OSError when the address cannot be had."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(queue)
    except OSError:
        listener.close()
        raise
    return listener


def name_limit(descriptors: int) -> int:
    """How many names fit beside the connections, with `descriptors` files open at most; each takes one per port."""
    free = descriptors - 2 * CONNECTIONS - DNS_CLIENTS - SPARE_DESCRIPTORS
    return max(16, min(MAX_NAMES, free // len(PORTS)))
