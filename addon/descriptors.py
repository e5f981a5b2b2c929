"""How many files a gateway may open, and what that leaves for connections: a gateway never runs out of them."""

from __future__ import annotations

import logging
import resource
from dataclasses import replace

from impyard.addon.errors import ImpyardError
from impyard.addon.limits import Limits

logger = logging.getLogger(__name__)

# The logs, the policy, the line to the runner, the loop.
_OWN = 32
_FEWEST = 96


def fit(limits: Limits) -> Limits:
    """Raise this process's soft limit to what `limits` need; where the hard one forbids that, fewer connections.

    Raises ImpyardError when too little is left for a gateway.
    """
    wanted = _OWN + limits.backlog + limits.turned_away + 2 * limits.connections + limits.origin_connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    hint = "raise the limit before the start: `ulimit -n 4096`"
    if soft < _FEWEST:
        raise ImpyardError(f"only {soft} files may be open at once, too few for a gateway", hint=hint)
    share = (soft - _OWN) // 8
    fitted = replace(
        limits,
        backlog=min(limits.backlog, share),
        turned_away=min(limits.turned_away, share // 2),
        connections=min(limits.connections, 2 * share),
        origin_connections=min(limits.origin_connections, 2 * share),
    )
    logger.warning(
        "only %d files may be open at once: the box may hold %d connections instead of %d; %s",
        soft,
        fitted.connections,
        limits.connections,
        hint,
    )
    return fitted
