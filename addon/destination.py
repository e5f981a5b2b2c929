"""Where an allowed request goes, and what is refused before there is a request."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from mitmproxy.connection import Client, Connection, Server
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers.http import GetHttpConnection

from impyard.addon.answers import Answer
from impyard.addon.policy import Proxy, Route


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an allowed request goes. Two requests may share a connection only if theirs are equal.

    host, port, tls: what was judged, and so the name that a certificate is checked against. upstream: the policy's own
    address for it, or the proxy that is asked for it. addresses: what is dialled, one after the other until one
    answers; checked beforehand, or named by the policy. authorization: what the proxy wants to see, a secret; "" for
    nothing.
    """

    host: str
    port: int
    tls: bool
    upstream: Route | None
    addresses: tuple[tuple[str, int], ...] = field(compare=False)
    authorization: str = field(default="", repr=False)

    @property
    def proxy(self) -> Proxy | None:
        """The proxy in front of it."""
        return self.upstream if isinstance(self.upstream, Proxy) else None


def destination_of(connection: Connection) -> Destination | None:
    """What a connection may carry requests for; None for one that nobody judged, and for the one to a proxy itself."""
    found = vars(connection).get("destination")
    return found if isinstance(found, Destination) else None


def dialled_for(connection: Connection) -> tuple[Destination, tuple[str, int]] | None:
    """For what a connection may be dialled, and where; None for one that nobody judged."""
    found: tuple[Destination, tuple[str, int]] | None = vars(connection).get("dialled_for")
    return found


def stamp(connection: Connection, dialled: Connection, destination: Destination, address: tuple[str, int]) -> None:
    """Say what a connection is for, before it is dialled. `dialled`: itself, or the one to the proxy in front of it."""
    vars(dialled)["dialled_for"] = destination, address
    vars(connection).update(destination=destination, dialled=dialled)


class Attempt(enum.Enum):
    """How far a connection has come that was dialled, with TLS and the tunnel of a proxy."""

    GOING_ON = enum.auto()
    DONE = enum.auto()
    GIVEN_UP = enum.auto()
    RETIRED = enum.auto()  # it is about to end: nothing more may be asked on it


def attempt_of(connection: Connection) -> Attempt:
    """How far the attempt to bring up a connection has come."""
    found = vars(carrier(connection)).get("attempt")
    return found if isinstance(found, Attempt) else Attempt.GOING_ON


def note_attempt(connection: Connection, attempt: Attempt) -> None:
    """Keep with a connection how far it has come."""
    vars(carrier(connection))["attempt"] = attempt


def note_over(connection: Connection) -> None:
    """Keep with a connection that nothing more will be heard of it."""
    vars(connection)["over"] = True


def is_over(connection: Connection) -> bool:
    """Whether nothing more will be heard of a connection, or of the one that carries it."""
    return bool(vars(carrier(connection)).get("over"))


def note_idle(connection: Connection, idle: bool) -> None:
    """Keep with an HTTP/1 connection to an origin whether it has carried a request to its end and may take another."""
    vars(connection)["idle"] = idle


def is_idle(connection: Connection) -> bool:
    """Whether an HTTP/1 connection to an origin may take another request; False for one that never had any."""
    return connection.connected and bool(vars(connection).get("idle"))


def note_served(connection: Connection) -> None:
    """Keep with a connection to an origin that a request was given to it."""
    vars(connection)["served"] = True


def has_served(connection: Connection) -> bool:
    """Whether a request was given to a connection to an origin."""
    return bool(vars(connection).get("served"))


def note_room(connection: Connection, is_full: Callable[[], bool]) -> None:
    """Keep with a connection of HTTP/2 who knows whether a request would have to wait for others on it."""
    vars(connection)["is_full"] = is_full


def is_full(connection: Connection) -> bool:
    """Whether a request would have to wait for others on a connection of HTTP/2."""
    asked: Callable[[], bool] | None = vars(connection).get("is_full")
    return asked is not None and asked()


def carrier(connection: Connection) -> Connection:
    """The connection whose socket carries this one: itself, or the one to the proxy."""
    found = vars(connection).get("dialled")
    return found if isinstance(found, Connection) else connection


@dataclass
class Refusal:
    """A refusal below the level of a flow. `answer`, with `status`, is filled in by whoever records it."""

    client: Client
    host: str
    port: int
    reason: str
    hint: str | None  # None for the usual words for the reason
    method: str = ""
    path: str = ""
    http: str = "1.1"
    status: int = 400
    answer: Answer | None = None


@dataclass
class RefusedHook(commands.StartHook):
    """Something was refused without a flow; the judge records it and writes the answer."""

    data: Refusal


@dataclass(eq=False)
class GetJudgedConnection(GetHttpConnection):
    """Asks for a connection to one destination: a new one, or one that was opened for an equal destination."""

    destination: Destination | None = None
    fresh: bool = False  # one that served nobody yet
    at_once: bool = False  # one on which a request has not to wait for others
    dial: tuple[str, int] | None = None  # which of the destination's addresses

    def connection_spec_matches(self, connection: Connection) -> bool:
        # One that failed is not asked again: the origin may be back.
        return (
            isinstance(connection, Server)
            and not connection.error
            and self.destination is not None
            and destination_of(connection) == self.destination
            and attempt_of(connection) is not Attempt.RETIRED
            and not (self.fresh and has_served(connection))
            and not (self.at_once and is_full(connection))
        )
