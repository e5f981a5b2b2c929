"""Denials of a run's requests, counted as the gateway tells of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from impyard.runner.gateway import Event
from impyard.runner.spotted import Spotted


@dataclass(slots=True)
class Denials:
    """Denials of the box's requests, by host. What impyard itself asked for is told apart."""

    own_hosts: set[str] = field(default_factory=set)
    hosts: Counter[str] = field(default_factory=Counter)
    spotted: Spotted = field(default_factory=Spotted)
    own: int = 0

    def count(self, event: Event) -> bool:
        """Take note of a denial; whether it is the agent's."""
        host = str(event.get("host") or "?")
        if host in self.own_hosts:
            self.own += 1
            return False
        self.hosts[host] += 1
        self.spotted.see(event)
        return True
