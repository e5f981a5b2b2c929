"""Denials of a run's requests, counted as the gateway tells of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from impyard.runner.gateway import Event
from impyard.runner.spotted import Spotted

MAX_KINDS = 1000  # told apart; what a box makes up could be endless


@dataclass(slots=True)
class Denials:
    """Denials of the box's requests, by host. What impyard itself asked for is told apart.

    kinds: their reasons, each with method, scheme, host and port. unavailable: the credentials that were missing.
    """

    own_hosts: set[str] = field(default_factory=set)
    hosts: Counter[str] = field(default_factory=Counter)
    spotted: Spotted = field(default_factory=Spotted)
    own: int = 0
    kinds: set[tuple[str, str, str, str, int]] = field(default_factory=set)
    unavailable: dict[str, None] = field(default_factory=dict)

    def count(self, event: Event) -> bool:
        """Take note of a denial; whether it is the agent's."""
        host = str(event.get("host") or "?")
        if host in self.own_hosts:
            self.own += 1
            return False
        self.hosts[host] += 1
        if len(self.kinds) < MAX_KINDS:
            reason, method, scheme, name = (str(event.get(key) or "") for key in ("reason", "method", "scheme", "host"))
            self.kinds.add((reason, method, scheme, name, int(event.get("port") or 0)))
        if (credential := event.get("credential")) and len(self.unavailable) < MAX_KINDS:
            self.unavailable[str(credential)] = None
        self.spotted.see(event)
        return True
