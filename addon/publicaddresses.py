"""Which addresses are on the public internet, and which names are known not to lead there. Pure."""

from __future__ import annotations

import ipaddress

from impyard.addon.request import is_address

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# What IANA gives to hosts of the internet; all else of IPv6 is private, local, mapped from IPv4 or not yet anybody's.
_UNICAST6 = ipaddress.IPv6Network("2000::/3")
# Not the internet either, whatever the running Python's tables say of it (IANA's special-purpose registries).
_SPECIAL = tuple(
    ipaddress.ip_network(text)
    for text in (
        # this network, private, carriers' NAT, loopback, link-local with the metadata services of the clouds
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
        # protocol assignments (one cloud's metadata among them), documentation, 6to4 relays, benchmarking
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "168.63.129.16/32",  # the host service of one cloud
        "224.0.0.0/4", "240.0.0.0/4",  # multicast; reserved, and broadcast
        # protocol assignments (Teredo, benchmarking and ORCHID among them), documentation, 6to4, the former 6bone
        "2001::/23", "2001:db8::/32", "2002::/16", "3ffe::/16", "3fff::/20",
    )
)  # fmt: skip
# The interface part of ISATAP (RFC 5214, 6.1), without its bit for "globally unique": an IPv4 address follows it.
_ISATAP, _UNIQUE = 0x0000_5EFE, 0x0200_0000
# Names of this machine (RFC 6761, 6.3), and of the metadata services of clouds.
_CLOUDS = ("metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal")
_INSIDE = frozenset(("localhost", *_CLOUDS))


def is_public(text: str) -> bool:
    """Whether an address literal is a unicast address of the public internet, however it is wrapped."""
    try:
        address: Address = ipaddress.ip_address(text)
    except ValueError:
        return False  # no address at all
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None or address not in _UNICAST6:
            return False
        if (int(address) >> 32) & 0xFFFF_FFFF & ~_UNIQUE == _ISATAP:
            return False
    if any(address.version == network.version and address in network for network in _SPECIAL):
        return False
    return address.is_global and not address.is_multicast


def leads_inside(host: str) -> bool:
    """Whether a canonical host is known, without a question, to lead to something that is not public."""
    if is_address(host):
        return not is_public(host)
    return host in _INSIDE or host.endswith(".localhost")
