"""A network of the test's own: a namespace whose only interface is `lo`, with the name server of one table.

Nothing that is sent there leaves it, so that it may play public addresses. Needs root.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C
_UP = 0x1 | 0x8 | 0x40  # IFF_UP, IFF_LOOPBACK, IFF_RUNNING
_A, _AAAA = 1, 28


class Apart:
    """`run` calls something inside: sockets and processes made there belong there, and it ends with the last of them.

    addresses: what `lo` answers to besides 127.0.0.0/8. resolv_conf: more lines for the namespace's resolv.conf.
    """

    def __init__(self, directory: Path, *addresses: str, resolv_conf: str = "") -> None:
        self._resolv_conf = directory / "resolv.conf"
        self._resolv_conf.write_text(f"nameserver 127.0.0.1\n{resolv_conf}")
        self._addresses = addresses
        self._thread = ThreadPoolExecutor(1)
        self.run(self._enter)
        self.names = self.run(NameServer)

    def run(self, call: Callable[..., T], *args: object) -> T:
        """Call something in the thread that lives inside."""
        return self._thread.submit(call, *args).result(60)

    def close(self) -> None:
        self.names.close()
        self._thread.shutdown()

    def _enter(self) -> None:
        os.unshare(os.CLONE_NEWNET | os.CLONE_NEWNS)  # of this thread alone
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "--bind", self._resolv_conf, "/etc/resolv.conf"], check=True)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            fcntl.ioctl(asker, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _UP))
            for number, address in enumerate(self._addresses, 1):
                name = b"lo:%d" % number
                for request, text in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
                    packed = struct.pack("16sH2x4s8x", name, socket.AF_INET, socket.inet_aton(text))
                    fcntl.ioctl(asker, request, packed)


class NameServer:
    """Answers A and AAAA questions from `table`, and remembers every question: (name, type).

    A name's value is a list of addresses, or a function that makes one for each question. No value: no such name.
    """

    def __init__(self) -> None:
        self.table: dict[str, list[str] | Callable[[], list[str]]] = {}
        self.asked: list[tuple[str, str]] = []
        self.delay_s = 0.0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def about(self, name: str) -> list[str]:
        """The types of the questions about a name so far."""
        return sorted(kind for asked, kind in self.asked if asked == name)

    def close(self) -> None:
        self._over.set()
        with contextlib.suppress(OSError):  # ENOTCONN; recvfrom(2) is woken all the same
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                question, peer = self._socket.recvfrom(4096)
            except OSError:
                return
            if self._over.is_set():
                return
            threading.Thread(target=self._serve_one, args=(question, peer), daemon=True).start()

    def _serve_one(self, question: bytes, peer: tuple[str, int]) -> None:
        with contextlib.suppress(IndexError, struct.error, OSError):  # no question, or nobody hears the answer any more
            self._answer(question, peer)

    def _answer(self, question: bytes, peer: tuple[str, int]) -> None:
        labels, at = [], 12
        while size := question[at]:
            labels.append(question[at + 1 : at + 1 + size].decode("latin-1"))
            at += 1 + size
        name, kind = ".".join(labels).lower(), struct.unpack("!H", question[at + 1 : at + 3])[0]
        self.asked.append((name, {_A: "A", _AAAA: "AAAA"}.get(kind, str(kind))))
        time.sleep(self.delay_s)
        found = self.table.get(name)
        addresses = found() if callable(found) else found
        family, size = (socket.AF_INET, 4) if kind == _A else (socket.AF_INET6, 16)
        fitting = [text for text in addresses or [] if kind in (_A, _AAAA) and (":" in text) == (size == 16)]
        records = b"".join(
            struct.pack("!HHHIH", 0xC00C, kind, 1, 0, size) + socket.inet_pton(family, text) for text in fitting
        )
        flags = 0x8180 if addresses is not None else 0x8183
        head = question[:2] + struct.pack("!HHHHH", flags, 1, len(fitting), 0, 0)
        self._socket.sendto(head + question[12 : at + 5] + records, peer)
