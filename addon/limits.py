"""How much one run may ask of its gateway, all in one place. Numbers only: what happens at each is in docs/limits.md.

They protect the gateway from its box, so neither the policy nor the box can change them. Sizes are in bytes, times in
seconds. Other programs' limits are named where they guided the choice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from impyard.addon.errors import ImpyardError

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one gateway, and so of one run."""

    # -- connections
    connections: int = 1024  # from the box; it has pids_limit processes of many descriptors each
    backlog: int = 100  # that wait to be accepted
    turned_away: int = 64  # those over `connections` that are given a moment to read why
    origin_connections: int = 512
    requests: int = 256  # allowed ones, from the verdict to the end of the answer
    waiting: int = 1024  # for a decision or for room; one for each connection

    # -- decisions: at once, and per second from then on
    decisions: int = 1000  # what installing a large project asks for
    decisions_per_s: int = 200
    log_bytes: int = 8 * MIB
    log_bytes_per_s: int = MIB  # a line is 0.7 KB commonly, 32 KiB at most: without this, 23 GB in an hour

    # -- times
    turn_s: float = 10.0
    head_s: float = 30.0  # from its first byte to its last; also for the first byte of a connection
    tunnel_s: float = 10.0  # a granted tunnel in which nobody speaks: the server may be the one who speaks first
    handshake_s: float = 20.0
    idle_s: float = 300.0  # between two requests of a connection
    silent_s: float = 900.0  # a request or a WebSocket without a byte; pi waits 300 for a silent model
    half_closed_s: float = 60.0  # an answer without a byte, to a box that may be gone: it has closed its sending half
    connect_s: float = 15.0  # to an origin; also how long to wait for one of `origin_connections`
    establish_s: float = 15.0  # TLS with it, and the tunnel of a proxy
    origin_idle_s: float = 60.0  # an origin's connection without a request; nginx keeps one for 75
    drain_s: float = 30.0  # how long what is no longer wanted is still taken
    sweep_s: float = 1.0  # how often the longer ones of these are looked at

    # -- heads
    url_bytes: int = 16 * KIB  # Apache takes 8 KiB, nginx 8, node 16 for the whole head
    head_bytes: int = 64 * KIB  # servers commonly take 8 to 64 KiB
    headers: int = 256  # Apache and Tomcat take 100
    unparsed_bytes: int = 256 * KIB  # a chunk's line, trailers, requests behind one that is in progress
    hello_bytes: int = 16 * KIB  # real TLS hellos are below 4 KiB; the core parses all of it again for each piece

    # -- HTTP/2 frames that carry nothing: at once, and per second from then on
    control_frames: int = 2000
    control_frames_per_s: int = 100

    # -- how much waits in memory
    drain_bytes: int = 64 * MIB  # of a body whose request is answered already
    waiting_bytes: int = MIB  # on one side of a connection, before its other side is read no further
    message_bytes: int = 16 * MIB  # of a WebSocket: the core puts one together before it passes it on
    message_fragments: int = 4096

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        """The defaults with some numbers replaced. Raises ImpyardError for a name that is none, or no number."""
        known = {field.name for field in fields(cls)}
        for name, value in given.items():
            if name not in known or not isinstance(value, int | float) or isinstance(value, bool):
                raise ImpyardError(f"no limit: {name!r} = {value!r}")
        return cls(**given)


DEFAULTS = Limits()


def limits_of(client: object) -> Limits:
    """The limits of the door that a client came through; the defaults inside of a mitmproxy of other people."""
    limits = getattr(client, "limits", None)
    return limits if isinstance(limits, Limits) else DEFAULTS
