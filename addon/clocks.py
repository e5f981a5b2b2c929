"""What the box owes a connection, and since when: the rest of a head, of a handshake, of a line.

Knows nothing of mitmproxy.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from impyard.addon.limits import Limits


@dataclass(slots=True)
class Owed:
    """what: "first" (a first byte), "head", "handshake", "rest" (of a body's line), "drain" (the rest of a body that
    nobody wants), "next" (another request), "answer" (by us, to one who has closed its own side), or "" for nothing.
    since: the time of the loop's clock.
    """

    what: str = "first"
    since: float = field(default_factory=time.monotonic)
    mark: int = 0

    def set(self, what: str, mark: int = 0) -> None:
        """That is owed now. The clock goes on if it was owed before, unless `mark` says that something came of it."""
        if what != self.what or mark != self.mark:
            self.what, self.mark, self.since = what, mark, time.monotonic()

    def is_late(self, now: float, limits: Limits) -> bool:
        """Whether it has been owed for too long."""
        if not self.what:
            return False
        return (
            now - self.since
            > {
                "first": limits.head_s,
                "head": limits.head_s,
                "rest": limits.head_s,
                "handshake": limits.handshake_s,
                "drain": limits.drain_s,
                "next": limits.idle_s,
                "answer": limits.half_closed_s,
            }[self.what]
        )


def owes(client: object, what: str, mark: int = 0) -> None:
    """Say what a client owes; a client of other people's mitmproxy has no clock."""
    owed = getattr(client, "owed", None)
    if isinstance(owed, Owed):
        owed.set(what, mark)
