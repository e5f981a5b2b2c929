"""What answers a denial, by what is known of it without asking any policy: a new rule, or a credential.

Cheap: the end of a run and the report ask it too. What the policy of now makes of a denial is `remedy`'s business.
"""

from __future__ import annotations

import re

from impyard.addon.publicaddresses import is_public
from impyard.addon.request import is_address
from impyard.addon.rules import DEFAULT_PORTS

MENDABLE = ("no-rule", "unlisted-host", "websocket")  # the judge's reasons that a new rule answers
METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_PRIVATE = re.compile(r"(?:^|\.)(?:localhost|local|internal|intranet|lan|home\.arpa|test|invalid)\Z")


def is_mendable(reason: str, method: str, scheme: str, host: str, port: int) -> bool:
    """Whether a rule may be made for what was denied for this reason."""
    return reason in MENDABLE and not unsuited(method, scheme, host, port)


def unsuited(method: str, scheme: str, host: str, port: int) -> str:
    """Why no rule should be written for a request that one would allow; "" when there is no reason."""
    if scheme not in DEFAULT_PORTS or not 0 < port < 65536:
        return "malformed"
    if not METHOD.fullmatch(method):  # above all `*`, which a rule takes for any
        return "method"
    if is_address(host):
        return "" if is_public(host) else "private-address"
    return "private-name" if _PRIVATE.search(host) or "." not in host else ""


def store_words(credential: str) -> tuple[str, ...]:
    """The words of the command that puts a credential into the vault."""
    from impyard.runner.keys.sources import DEMO  # which takes as long as all else here

    return ("vault", "import", DEMO) if credential == DEMO else ("vault", "set", credential or "NAME")
