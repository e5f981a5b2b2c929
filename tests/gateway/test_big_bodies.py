"""Big bodies that end before their time: answered, left or denied in the middle, at once and with flat memory.

By HTTP/1.1 and by HTTP/2; to a host that a credential is put on for, whose answers are masked, and to one without. What
goes to either of them is looked through for secrets.
"""

from __future__ import annotations

import contextlib
import select
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h2.connection
import h2.events
import h2.exceptions
import pytest

from tests.support.keybed import ACCESS, KeyBed, entry, key_bed
from tests.support.origin import Pki
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway

MB = 1 << 20
WHOLE = 48 * MB
MIDDLE = 8 * MB  # beyond what all buffers on the way hold
BLOCK = bytes(range(256)) * 256
FLAT_KIB = 24 * 1024  # what a body may add to the peak
LEFT_KIB = 12 * 1024  # what may be left of it
PROMPT_S = 5.0  # for a loaded machine: a few hundredths are usual
HOSTS = ("bound.test", "other.test")
BOTH = pytest.mark.parametrize("alpn", ["http/1.1", "h2"])
EITHER = pytest.mark.parametrize("host", HOSTS)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[KeyBed]:
    entries = [entry("bound.test", "{credential: key, template: anthropic}"), entry("other.test")]
    with key_bed(tmp_path_factory.mktemp("big"), pki, *entries, hosts=HOSTS) as bed:
        for host in HOSTS:
            bed.get(host)
        yield bed


@pytest.fixture
def bed(shared: KeyBed) -> Iterator[KeyBed]:
    """Whatever happens to a body, memory stays flat, is given back, and the next request passes."""
    shared.clear()
    before = shared.gateway.peak_from_now()
    yield shared
    assert shared.gateway.memory_kib() - before < FLAT_KIB
    wait_until(lambda: resident_kib(shared) - before < LEFT_KIB, 10)
    assert shared.get("bound.test").status == 200
    assert "Traceback" not in shared.words()


def resident_kib(bed: KeyBed) -> int:
    status = Path(f"/proc/{bed.gateway.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


class Client:
    """One request, whose body goes out while the answer may come. status: 0 until it is there. over: nothing comes."""

    def __init__(self, bed: KeyBed, host: str, alpn: str) -> None:
        self._host = host
        self._tls = bed.gateway.tls(host, alpn=(alpn,))
        self._h2 = h2.connection.H2Connection() if alpn == "h2" else None
        self._out = b""
        self._left = 0
        self._head = b""
        self.status = self.sent = self.received = 0
        self.over = False

    def ask(self, method: str, path: str, length: int = 0) -> None:
        self._left = length
        if self._h2 is None:
            framing = f"content-length: {length}\r\n" if length else ""
            self._out = f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\n{framing}\r\n".encode()
        else:
            self._h2.initiate_connection()
            names = {":method": method, ":scheme": "https", ":authority": self._host, ":path": path}
            self._h2.send_headers(1, [*names.items()], end_stream=not length)
        self._tls.setblocking(False)

    def go_on(self, until: Callable[[], object], seconds: float = 30.0) -> None:
        """Send and receive until then, or until nothing can come any more."""
        deadline = time.monotonic() + seconds
        while not until() and not self.over and time.monotonic() < deadline:
            self._refill()
            select.select([self._tls], [self._tls] if self._out else [], [], 0.05)
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self._receive()
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self._send()

    def put(self, data: bytes) -> None:
        """Send that as the next part of the body."""
        self._refill(data)
        self.go_on(lambda: not self._out)

    def reset(self) -> None:
        """Leave the request, and stay."""
        assert self._h2 is not None
        self._left = 0
        self._h2.reset_stream(1)
        self.go_on(lambda: not self._out and not self._refill())

    def leave(self) -> None:
        self._tls.close()

    def _refill(self, data: bytes = BLOCK) -> bytes:
        if not self._out and self._left:
            if self._h2 is None:
                self._out = data[: self._left]
                self._left -= len(self._out)
                self.sent += len(self._out)
            elif not self.status and (room := min(self._h2.local_flow_control_window(1), 16384, self._left)):
                self._h2.send_data(1, data[:room], end_stream=room == self._left)
                self._left -= room
                self.sent += room
        if self._h2 is not None:
            self._out += self._h2.data_to_send()
        return self._out

    def _send(self) -> None:
        try:
            while self._out:
                self._out = self._out[self._tls.send(self._out) :]
        except (BrokenPipeError, ConnectionResetError):
            self._out, self._left = b"", 0  # what came before may still be read

    def _receive(self) -> None:
        while True:
            try:
                data = self._tls.recv(1 << 16)
            except (ssl.SSLEOFError, ConnectionResetError):
                data = b""
            if not data:
                self.over = True
                return
            if self._h2 is None:
                self.received += len(data)
                self._head += data[:1024] if len(self._head) < 1024 else b""
                if self._head.startswith(b"HTTP/1.1 ") and b"\r\n" in self._head:
                    self.status = int(self._head[9:12])
                continue
            for event in self._h2.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived):
                    self.status = int(dict(event.headers or [])[b":status"])
                elif isinstance(event, h2.events.DataReceived):
                    self.received += len(event.data)
                    with contextlib.suppress(h2.exceptions.StreamClosedError):
                        self._h2.acknowledge_received_data(event.flow_controlled_length, 1)


@pytest.fixture
def asked(bed: KeyBed, host: str, alpn: str) -> Iterator[Client]:
    client = Client(bed, host, alpn)
    yield client
    client.leave()


def outcome(bed: KeyBed) -> dict[str, Any]:
    (line,) = bed.gateway.outcomes(1)
    return line


@BOTH
@EITHER
def test_an_origin_that_answers_early_is_heard_while_the_upload_runs(
    bed: KeyBed, asked: Client, alpn: str, host: str
) -> None:
    asked.ask("POST", "/pub/early?s=2", WHOLE)
    began = time.monotonic()
    asked.go_on(lambda: asked.status)
    assert (asked.status, time.monotonic() - began < PROMPT_S) == (413, True)
    assert asked.sent < WHOLE
    asked.go_on(lambda: False, seconds=0.2)  # a client that goes on all the same
    line = outcome(bed)
    assert (line["status"], line["bytes_down"], line["error"]) == (413, 5, None)
    assert line["bytes_up"] < WHOLE


@BOTH
@EITHER
def test_a_client_that_leaves_an_upload_ends_it_at_the_origin(bed: KeyBed, asked: Client, alpn: str, host: str) -> None:
    asked.ask("POST", "/pub/x", WHOLE)
    asked.go_on(lambda: asked.sent >= MIDDLE)
    asked.leave()
    line = outcome(bed)
    assert (line["status"], "peer closed connection" in line["error"]) == (None, True)
    assert MIDDLE - 4 * MB < line["bytes_up"] < WHOLE
    wait_until(lambda: bed.origin.ended, PROMPT_S)
    assert bed.seen().body_bytes <= line["bytes_up"]


@BOTH
@EITHER
def test_a_client_that_leaves_a_download_ends_it_at_the_origin(
    bed: KeyBed, asked: Client, alpn: str, host: str
) -> None:
    asked.ask("GET", f"/pub/big?n={WHOLE}")
    asked.go_on(lambda: asked.received >= MIDDLE)
    asked.leave()
    line = outcome(bed)
    assert (line["status"], bool(line["error"])) == (200, True)
    assert MIDDLE <= line["bytes_down"] + 1024 < WHOLE
    wait_until(lambda: bed.origin.ended, PROMPT_S)


@pytest.mark.parametrize("path", ["/pub/x", f"/pub/big?n={WHOLE}"], ids=["upload", "download"])
@EITHER
def test_a_stream_that_is_reset_ends_at_the_origin(bed: KeyBed, host: str, path: str) -> None:
    asked = Client(bed, host, "h2")
    if "big" in path:
        asked.ask("GET", path)
    else:
        asked.ask("POST", path, WHOLE)
    asked.go_on(lambda: asked.received + asked.sent >= MIDDLE)
    asked.reset()
    line = outcome(bed)
    assert "reset by client" in line["error"]
    assert 0 < line["bytes_up"] + line["bytes_down"] < WHOLE
    wait_until(lambda: bed.origin.ended, PROMPT_S)
    asked.leave()


@BOTH
@EITHER
def test_a_denied_upload_is_answered_at_once(bed: KeyBed, asked: Client, alpn: str, host: str) -> None:
    asked.ask("POST", "/denied", WHOLE)
    began = time.monotonic()
    asked.go_on(lambda: asked.status)
    assert (asked.status, time.monotonic() - began < PROMPT_S) == (403, True)
    asked.go_on(lambda: False, seconds=0.2)
    assert bed.untouched()
    assert [line["reason"] for line in bed.gateway.decisions()] == ["no-rule"]


@BOTH
@EITHER
def test_a_secret_in_the_middle_of_an_upload_ends_it(bed: KeyBed, asked: Client, alpn: str, host: str) -> None:
    secret = ACCESS if host == "bound.test" else bed.gateway.sentinel("key").key
    asked.ask("POST", "/pub/x", WHOLE)
    asked.go_on(lambda: asked.sent >= MIDDLE)
    asked.put(secret.encode()[:20])
    asked.put(secret.encode()[20:])
    began = time.monotonic()
    asked.go_on(lambda: asked.status)
    assert (asked.status, time.monotonic() - began < PROMPT_S) == (403, True)
    assert outcome(bed)["error"].startswith("secret-in-request: the body held a ")
    assert bed.gateway.decisions()[-1]["reason"] == "secret-in-request"
    wait_until(lambda: bed.origin.ended, PROMPT_S)
    assert bed.seen().body_bytes < WHOLE
