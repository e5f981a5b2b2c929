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
    establish_s: float = 30.0  # until one to an origin is up, with TLS and the tunnel of a proxy; or it is given up

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
