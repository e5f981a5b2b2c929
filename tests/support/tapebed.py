"""A gateway whose origins keep every byte, clients that send any bytes at all, and the comparison of both ends."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hpack
from hyperframe.frame import ContinuationFrame, DataFrame, Frame, HeadersFrame, SettingsFrame

from tests.support.gateway import LiveGateway
from tests.support.httpgrammar import H2Stream
from tests.support.origin import Pki
from tests.support.strict import Got, Unclean, lenient_counts, strict_requests
from tests.support.tape import Tape, TapeOrigin

POLICY = """\
networkPolicies:
  - host: "*.test"
    upstream: https://127.0.0.1:{a}
    upstream_ca: {ca}
    policies:
      - {{action: ALLOW, method: "*", path: "/.*"}}
      - {{action: ALLOW, method: OPTIONS, path: '\\*'}}
      - {{action: DENY, method: "*", path: "/smuggled.*"}}
      - {{action: DENY, method: DELETE, path: "/.*"}}
  - host: evil.test
    upstream: https://127.0.0.1:{a}
    upstream_ca: {ca}
    policies:
      - {{action: DENY, method: "*", path: "/.*"}}
      - {{action: DENY, method: "*", path: '\\*'}}
  - host: two.test
    upstream: https://127.0.0.1:{two}
    upstream_ca: {ca}
    policies:
      - {{action: ALLOW, method: "*", path: "/.*"}}
      - {{action: DENY, method: "*", path: "/smuggled.*"}}
  - host: plain.test
    scheme: http
    upstream: http://127.0.0.1:{plain}
    policies:
      - {{action: ALLOW, method: "*", path: "/.*"}}
      - {{action: DENY, method: "*", path: "/smuggled.*"}}
"""
NAMES = ("a.test", "b.test", "plain.test", "evil.test", "two.test")
QUIET_S = 0.12  # nothing more is coming; too short only means that less gets through
SETTLES_S = 5.0  # what was begun has ended by then, also on a busy machine

_NEVER = re.compile(
    r"connection|keep-alive|te|trailer|upgrade|http2-settings|proxy-.*"
    r"|x-(http-method(-override)?|method-override|original-(url|host)|rewrite-url|override-url|host"
    r"|forwarded-(host|server|port|proto|prefix|path))|forwarded"
)
_KEPT = {"host", "content-length", "transfer-encoding", "content-type", "authorization", "cookie"}
_OURS = {"host", "content-length", "transfer-encoding", "cookie"}  # cookie: HTTP/2 may split it


class TapeBed:
    """The gateway, and three origins that keep bytes: over HTTP/1.1 in TLS, over HTTP/2, and plain."""

    def __init__(self, root: Path, *, fault: str = "") -> None:
        pki = Pki(root)
        self.a = TapeOrigin(pki.context("a.test", "b.test", "evil.test"))
        self.two = TapeOrigin(pki.context("two.test"), http2=True)
        self.plain = TapeOrigin()
        policy = POLICY.format(a=self.a.port, two=self.two.port, plain=self.plain.port, ca=pki.ca_path)
        self.gateway = LiveGateway(root, policy, fault=fault)
        assert self.gateway.first.get("event") == "ready", self.gateway.stderr_path.read_text()
        self._honest = self._read = 0
        self.through = self.denied = 0
        assert self.gateway.get("https://b.test/").status == 200  # and its logs are open
        self._idle = self._open_files(below=0, seconds=0.5)
        self._settled()
        self.a.clear()

    def close(self) -> None:
        self.gateway.stop()
        for origin in (self.a, self.two, self.plain):
            origin.close()

    # -- sending ----------------------------------------------------------------------------------------------------

    def send(self, connections: Sequence[tuple[Callable[[], socket.socket], bytes]]) -> None:
        """Open each connection and send its bytes; read until they end or nothing comes any more; close them all."""
        opened: list[socket.socket] = []
        for opener, data in connections:
            try:
                connection = opener()
            except (OSError, AssertionError):
                continue
            opened.append(connection)
            with contextlib.suppress(OSError):
                connection.sendall(data)
            connection.setblocking(False)
        waiting = list(opened)
        while waiting:
            ready, _, _ = select.select(waiting, [], [], QUIET_S)
            if not ready:
                break
            for connection in ready:
                if _drained(connection):
                    waiting.remove(connection)
        for connection in opened:
            connection.close()

    def tunnel(self, host: str = "a.test") -> socket.socket:
        return self.gateway.tls(host, alpn=("http/1.1",))

    def tunnel_h2(self, host: str = "a.test") -> socket.socket:
        connection = self.gateway.tls(host, alpn=("h2",))
        assert connection.selected_alpn_protocol() == "h2"
        return connection

    # -- comparing --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare what was judged with what arrived, since the last time; raises AssertionError with the difference.

        An honest request must work afterwards, in the same process. Counts in `through` and `denied`.
        """
        try:
            self._check()
        finally:
            for origin in (self.a, self.two, self.plain):
                origin.clear()

    def _check(self) -> None:
        assert self.gateway.process.poll() is None, self.gateway.stderr_path.read_text()[-2000:]
        self._honest += 1
        path = f"/honest/{self._honest}"
        assert self.gateway.get(f"https://b.test{path}").status == 200
        assert self._open_files(below=self._idle) <= self._idle, "a connection stays open"
        said = self.gateway.stderr_path.read_text()
        new, self._read = said[self._read :], len(said)
        assert "Traceback" not in new, new  # a crash ends the connection, and still is a fault
        lines, outcomes = self._settled()
        origins = (self.a, self.two, self.plain)
        assert all(origin.settled() for origin in origins), "a connection to an origin stays open"
        assert not [fault for origin in origins for fault in origin.faults]
        seen = [("https", tape.sni, got) for tape in list(self.a.tapes) for got in _of_tape(tape)]
        seen += [("http", None, got) for tape in list(self.plain.tapes) for got in _of_tape(tape)]
        seen += [("https", None, _as_h1(each.headers, each.body)) for each in self.two.h2]
        assert not any(each.trailers for each in self.two.h2), "trailers"
        assert (path, "b.test") in {(got.target, got.all("host")[0]) for _, _, got in seen}
        _match(lines, outcomes, seen)
        self.through += len(seen) - 1
        self.denied += sum(line["verdict"] == "deny" for line in lines)

    def _open_files(self, *, below: int, seconds: float = SETTLES_S) -> int:
        """How many files the gateway has open, once it is not more than `below`, or at the end of the time."""
        deadline = time.monotonic() + seconds
        folder = f"/proc/{self.gateway.process.pid}/fd"
        while (count := len(os.listdir(folder))) > below and time.monotonic() < deadline:
            time.sleep(0.005)
        return count

    def _settled(self) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
        """The decision lines since the last time, and the outcomes by decision; each allowed request comes to one."""
        deadline = time.monotonic() + SETTLES_S
        while True:
            lines, outcomes = self.gateway.decisions(), self.gateway.outcomes()
            allowed = [line["id"] for line in lines if line["verdict"] == "allow"]
            if len(outcomes) >= len(allowed) or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self.gateway.forget()
        ended = sorted(outcome["id"] for outcome in outcomes)
        assert ended == sorted(allowed), [line for line in lines if line["id"] in {*allowed} - {*ended}]
        return lines, {outcome["id"]: outcome for outcome in outcomes}


def _drained(connection: socket.socket) -> bool:
    """Take what there is to read; whether the connection has ended."""
    try:
        while data := connection.recv(1 << 16):
            pass
        return not data
    except (ssl.SSLWantReadError, BlockingIOError):
        return False
    except OSError:
        return True


def _of_tape(tape: Tape) -> list[Got]:
    data = bytes(tape.data)
    try:
        gots = strict_requests(data)
    except Unclean as exc:
        raise AssertionError(f"{exc}\nin {data!r}") from exc
    counts = lenient_counts(data)
    assert counts == {len(gots)}, f"{len(gots)} requests, or {counts} for careless servers: {data!r}"
    return gots


def _as_h1(headers: list[tuple[str, str]], body: bytes) -> Got:
    pseudo = {name: value for name, value in headers if name.startswith(":")}
    fields = [("host", pseudo[":authority"]), *((name, value) for name, value in headers if not name.startswith(":"))]
    return Got(pseudo[":method"], pseudo[":path"], tuple(fields), body, True, 0)


def _match(
    lines: list[dict[str, Any]], outcomes: dict[str, dict[str, Any]], seen: list[tuple[str, str | None, Got]]
) -> None:
    """Each request that arrived is one that was judged and allowed, in all of its parts; no line is used twice."""
    left = [line for line in lines if line["verdict"] == "allow"]
    # What came to nothing has the last claim to a request; a length that was judged wants its own.
    left.sort(key=lambda line: (outcomes[line["id"]]["error"] is not None, line["body_bytes"] is None))
    ordered = sorted(seen, key=lambda each: not each[2].complete)
    taken: dict[int, int] = {}  # by the place of a line: that of its request
    failed = {place for place, line in enumerate(left) if outcomes[line["id"]]["error"]}
    for number, (_scheme, _sni, got) in enumerate(ordered):
        if not _claims(number, ordered, left, taken, set(), failed):
            reasons = {_differs(line, *ordered[number]) or "another's" for line in left}
            raise AssertionError(f"arrived without having been judged: {got}\n{sorted(reasons)}")
    left = [line for place, line in enumerate(left) if place not in taken]
    for line in left:  # allowed, and yet nothing arrived: the client left in the middle, and the record says so
        assert outcomes[line["id"]]["error"], (line, outcomes[line["id"]])
    for line in lines:
        size, outcome = line["body_bytes"], outcomes.get(line["id"])
        assert outcome is None or size is None or outcome["bytes_up"] <= size, (line, outcome)


def _claims(
    number: int,
    seen: list[tuple[str, str | None, Got]],
    lines: list[dict[str, Any]],
    taken: dict[int, int],
    tried: set[int],
    failed: set[int],
) -> bool:
    """Find a line for a request; whoever has it looks for another (matching by augmenting paths).

    A line says more than arrives, so one may fit several requests. One that did not arrive whole fits only a line that
    came to nothing (`failed`, by their places).
    """
    for place, line in enumerate(lines):
        whole = seen[number][2].complete or place in failed
        if whole and place not in tried and _differs(line, *seen[number]) is None:
            tried.add(place)
            if place not in taken or _claims(taken[place], seen, lines, taken, tried, failed):
                taken[place] = number
                return True
    return False


def _differs(line: dict[str, Any], scheme: str, sni: str | None, got: Got) -> str | None:
    """What keeps a request from being the one of a decision; None when it is."""
    target = line["path"] + ("?" + line["query"] if line["query"] else "")
    usual = {"https": 443, "http": 80}[line["scheme"]]
    host = line["host"] if line["port"] == usual else f"{line['host']}:{line['port']}"
    if (line["method"], line["scheme"]) != (got.method, scheme):
        return "method or scheme"
    if target != got.target.removesuffix("?") and target != got.target:
        return "target"
    if got.all("host") != [host] or sni not in (None, line["host"]):
        return "host"
    size = line["body_bytes"]
    if size is not None and (len(got.body) != size if got.complete else len(got.body) > size):
        return "body"
    judged = line["headers"]
    nominated = {token.strip().lower() for token in judged.get("connection", "").split(",")} - _KEPT
    for name in {name.lower() for name, _ in got.headers}:
        spelling = name.replace("_", "-")
        harmless = (name, got.all(name)) in _HARMLESS and (name == "connection" or got.end == 0)
        if _NEVER.fullmatch(spelling) and not harmless:
            return f"header {name}"
        if name in nominated:
            return f"header {name}, which Connection names"
        if name not in (*_OURS, "connection") and judged.get(name) not in (", ".join(got.all(name)), "<redacted>"):
            return f"header {name} {judged.get(name)!r} {got.all(name)}"
    return None


# The gateway's own word to the origin; and what gRPC wants, over HTTP/2 only.
_HARMLESS = [("connection", ["close"]), ("te", ["trailers"])]


def h2_bytes(streams: Sequence[H2Stream], host: str = "a.test") -> bytes:
    """The streams as one client's frames, whatever HTTP/2 thinks of them; `host` where they say a.test."""
    encoder = hpack.Encoder()

    def encoded(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        return encoder.encode([(name, value.replace(b"a.test", host.encode())) for name, value in headers])

    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()
    for number, stream in enumerate(streams):
        id = 2 * number + 1
        frames: list[Frame] = []
        ends = stream.end and not stream.parts and not stream.trailers
        frames += _head(id, encoded(stream.headers), ends, stream.split)
        for place, part in enumerate(stream.parts):
            last = stream.end and not stream.trailers and place == len(stream.parts) - 1
            frames.append(DataFrame(id, part, flags=["END_STREAM"] if last else []))
        if stream.trailers:
            frames += _head(id, encoded(stream.trailers), stream.end, False)
        data += b"".join(frame.serialize() for frame in frames)
    return data


def _head(id: int, block: bytes, end: bool, split: bool) -> list[Frame]:
    flags = ["END_STREAM"] if end else []
    if not split:
        return [HeadersFrame(id, block, flags=["END_HEADERS", *flags])]
    return [HeadersFrame(id, block[:1], flags=flags), ContinuationFrame(id, block[1:], flags=["END_HEADERS"])]
