"""What an attempt is, what comes back from one, and what the origin saw of it. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from impyard.box.attacks.client import Client

OK, WS, EVIL = "ok.test", "ws.test", "evil.test"
LIMIT = 100_000

# In place of a status: the connection (or the HTTP/2 stream) was ended without an answer; nothing came in time.
CLOSED, SILENT = 0, -1

GROUPS = {
    "C": "proxy protocol",
    "D": "who is the host",
    "E": "path, method, query",
    "F": "framing and protocol",
}

DENIED = frozenset({403})
BAD = frozenset({400})
REFUSED = frozenset({400, 403})
GONE = frozenset({CLOSED})
NO = frozenset({CLOSED, 400, 403})
TOO_LARGE = frozenset({CLOSED, 400, 403, 413, 414, 431})
PASSED = frozenset({200})


@dataclass(frozen=True, slots=True)
class Result:
    """What the client got: a status for each answer, in order (for HTTP/2 by stream), CLOSED where none came.

    note: what the client itself has to say, where statuses do not tell.
    """

    statuses: tuple[int, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the origin read it. bodies of more than 64 KiB are kept in part; `size` counts all."""

    method: str
    target: str
    head: bytes
    body: bytes = b""
    size: int = 0

    def values(self, name: str) -> list[str]:
        """The values of a header."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return [value.strip() for key, _, value in (line.partition(":") for line in lines) if key.lower() == name]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at the origin on one connection: a request, raw bytes, or with neither that it opened."""

    connection: int
    asked: Asked | None = None
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the origin saw during one attempt. raw: bytes that were no request."""

    connections: int = 0
    asked: tuple[Asked, ...] = ()
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class Tried:
    """An attempt that was made: its number in the order of making, its result, and the status of the honest request
    after it."""

    number: int
    key: str
    result: Result
    after: int


@dataclass(frozen=True, slots=True)
class Line:
    """What a line of the decision log says, as far as it matters here."""

    verdict: str
    reason: str
    method: str
    host: str
    target: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, and what is right.

    entry: the number of the attack in the list that all of this follows. name: unique. group: a key of GROUPS.
    answers: for each answer the statuses that are right. reasons: of the lines that deny, in the decision log.
    lines: how many lines there may be. sees: the requests that the origin may get ("GET /public/a"), no others.
    must: whether it has to get them; else an attempt that is refused is right as well.
    carries: bytes of bodies that the origin has to get with `sees`. most: the most bytes of bodies it may get.
    never: bytes that the origin must not get.
    bare: whether a proxy that judges nothing lets it out.
    """

    entry: str
    name: str
    group: str
    send: Callable[[Client], Result] = field(repr=False)
    answers: tuple[frozenset[int], ...] = (DENIED,)
    reasons: frozenset[str] = frozenset()
    lines: frozenset[int] = frozenset({1})
    sees: tuple[str, ...] = ()
    must: bool = False
    carries: bytes | None = None
    most: int | None = None
    never: tuple[bytes, ...] = ()
    bare: bool = True

    @property
    def key(self) -> str:
        """A name for people and reports: "D40 another Host header"."""
        return f"{self.group}{self.entry} {self.name}"
