"""Listeners on this machine that a box must not reach: they count who comes, and answer nothing."""

from __future__ import annotations

import fcntl
import selectors
import socket
import struct
import threading
import time

SIOCGIFADDR = 0x8915  # netdevice(7)
MAX_ADDRESSES = 16
CONTROL_LIMIT_S = 2.0


class Canaries:
    """A TCP and a UDP listener on 127.0.0.1, and one of each on 0.0.0.0. Use as a context manager.

    `addresses` are those to try: loopback, and every address of this machine with the port of the open listener.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hits = 0
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="canaries")
        self.addresses: tuple[tuple[str, int], ...] = ()

    def __enter__(self) -> Canaries:
        local, everywhere = self._listen("127.0.0.1"), self._listen("0.0.0.0")  # the point: what is open to all
        self.addresses = (
            ("127.0.0.1", local),
            *((address, everywhere) for address in own_addresses()[:MAX_ADDRESSES]),
        )
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._wake.close()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    @property
    def hits(self) -> int:
        """TCP connections and UDP packets so far."""
        with self._lock:
            return self._hits

    def control(self) -> int:
        """Reach every listener from this machine itself, and return how many of the attempts they counted: two for each
        of the `addresses`, if they work."""
        before = self.hits
        for address, port in self.addresses:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.sendto(b"control", (address, port))
            socket.create_connection((address, port), CONTROL_LIMIT_S).close()
        deadline = time.monotonic() + CONTROL_LIMIT_S
        while self.hits < before + 2 * len(self.addresses) and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.hits - before

    def _listen(self, address: str) -> int:
        """A TCP and a UDP socket on one port of an address; the port."""
        for _ in range(20):
            stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                stream.bind((address, 0))
                packets.bind((address, stream.getsockname()[1]))
            except OSError:  # the UDP port is somebody's
                stream.close()
                packets.close()
                continue
            stream.listen(128)
            for one in (stream, packets):
                one.setblocking(False)
                self._selector.register(one, selectors.EVENT_READ)
            return int(stream.getsockname()[1])
        raise OSError("no free port for a listener")

    def _serve(self) -> None:
        while True:
            for key, _events in self._selector.select():
                if key.fileobj is self._woken:
                    return
                if isinstance(key.fileobj, socket.socket) and self._take(key.fileobj):
                    with self._lock:
                        self._hits += 1

    def _take(self, listener: socket.socket) -> bool:
        try:
            if listener.type == socket.SOCK_STREAM:
                listener.accept()[0].close()
            else:
                listener.recv(1)
        except OSError:
            return False
        return True


def own_addresses() -> list[str]:
    """The first IPv4 address of each of this machine's interfaces, loopback left out."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _index, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asker.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                found.append(address)
    return list(dict.fromkeys(found))
