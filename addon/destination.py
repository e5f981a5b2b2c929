"""Where an allowed request goes, and what is refused before there is a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from mitmproxy.connection import Client, Connection, Server
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers.http import GetHttpConnection

from impyard.addon.answers import Answer
from impyard.addon.policy import Upstream


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an allowed request goes. Two requests may share a connection only if theirs are equal.

    host, port, tls: what was judged, and so the name that a certificate is checked against. upstream: the policy's own
    address for it. address: what is dialled, checked beforehand.
    """

    host: str
    port: int
    tls: bool
    upstream: Upstream | None
    address: tuple[str, int] = field(compare=False)


@dataclass
class Refusal:
    """A refusal below the level of a flow. `answer`, with `status`, is filled in by whoever records it."""

    client: Client
    host: str
    port: int
    reason: str
    hint: str
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

    def connection_spec_matches(self, connection: Connection) -> bool:
        # One that failed is not asked again: the origin may be back.
        return (
            isinstance(connection, Server)
            and not connection.error
            and getattr(connection, "destination", None) == self.destination
        )
