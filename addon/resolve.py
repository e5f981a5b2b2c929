"""Where an allowed name leads: one look-up, every answer checked, one address to dial. Knows nothing of mitmproxy."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str], Awaitable[list[str]]]

# A name is looked up at most this often, in seconds: long enough to cost nothing per request, short enough to follow
# a moving origin.
TTL_S = 60.0
MAX_NAMES = 1024
LOOKUP_TIMEOUT_S = 15.0

# Ways to write an IPv4 address inside an IPv6 one, beyond those that the ipaddress module names.
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
# Not the internet either, whatever the running Python's tables say of them: protocol assignments, relays, site-local
# addresses, documentation, segment routing (IANA's special-purpose registries), and the host service of one cloud.
_SPECIAL = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "fec0::/10", "3fff::/20", "5f00::/16")
)


class PrivateAddress(Exception):
    """The name leads, with at least one of its answers, to an address that is not on the public internet."""


class Unresolvable(Exception):
    """The name has no address, or no answer came."""


def is_public(text: str) -> bool:
    """Whether an address literal is a unicast address of the public internet, however it is wrapped."""
    try:
        address: Address = ipaddress.ip_address(text)
    except ValueError:
        return False  # a scope id, or no address at all
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None or any(address in network for network in _NAT64):
            return False
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None:
            return False
        if int(address) >> 32 == 0:  # the deprecated IPv4-compatible form
            return False
    if any(address.version == network.version and address in network for network in _SPECIAL):
        return False
    return address.is_global and not address.is_multicast


async def system_lookup(host: str) -> list[str]:
    """All addresses that the host's own resolver knows for a name, in its order of preference."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


class Resolver:
    """Names to checked addresses, remembered for TTL_S seconds, at most MAX_NAMES of them."""

    def __init__(self, lookup: Lookup = system_lookup, clock: Callable[[], float] = time.monotonic) -> None:
        self._lookup = lookup
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def remembered(self, host: str) -> str | None:
        """The checked address of `host` if it is still fresh; for the path without an await."""
        entry = self._known.get(host)
        return entry[1] if entry and entry[0] > self._clock() else None

    async def resolve(self, host: str) -> str:
        """The address to dial for `host`, a canonical name or address literal.

        Raises PrivateAddress if any answer is not public, Unresolvable if there is none.
        """
        if known := self.remembered(host):
            return known
        try:
            answers = [str(ipaddress.ip_address(host.strip("[]")))]
        except ValueError:
            try:
                answers = await asyncio.wait_for(self._lookup(host), LOOKUP_TIMEOUT_S)
            except (OSError, UnicodeError, TimeoutError) as exc:
                raise Unresolvable(f"the name {host} could not be resolved") from exc
        if not answers:
            raise Unresolvable(f"the name {host} has no address")
        # One private answer among public ones is how a name is bent towards the inside: refuse them all.
        if not all(is_public(answer) for answer in answers):
            raise PrivateAddress(host)
        self._known[host] = (self._clock() + TTL_S, answers[0])
        self._known.move_to_end(host)
        while len(self._known) > MAX_NAMES:
            self._known.popitem(last=False)
        return answers[0]
