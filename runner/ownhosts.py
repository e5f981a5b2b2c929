"""The hosts that impyard itself asks for. Loads nothing: completion asks it behind every key."""

from __future__ import annotations

DEMO_HOST, DEMO_RULE = "demo-model.impyard.internal", "demo model"
NOBODYS = ".impyard.invalid"  # RFC 2606: no name under it leads anywhere, so that a check disturbs nobody


def probe_host(run: str) -> str:
    """The name that no policy allows, which the relay of a run asks for to see that the door denies."""
    return f"{run}.probe{NOBODYS}"


def is_own(host: str) -> bool:
    """Whether impyard asks for this host: in its checks, the canary's too, or as the demo model."""
    return host == DEMO_HOST or host.endswith(NOBODYS)
