"""What the judge sees of a request: frozen values, and the one spelling of a host.

Nothing here knows mitmproxy; the adapter fills a `Request` from a flow.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache

# A token (RFC 9110, 5.6.2), no longer than any method there is: the log shows all of it.
METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}")
# Names under it are never allowed, whatever the policy says: the runner proves the gateway with one before a run.
CANARY_SUFFIX = ".canary.impyard.invalid"

MAX_HOST = 253  # RFC 1035 2.3.4: 255 octets on the wire, which leaves 253 in text form

# Letters, digits, inner hyphens (RFC 952, RFC 1123 2.1) and underscores, which real hosts use; labels up to 63 octets.
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# A name whose last label is a number is an address in some spelling (WHATWG URL, "ends in a number checker").
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as the client sent it and as the gateway would send it on.

    method: the token as sent.
    scheme: "http" or "https", of the connection to the upstream.
    host: canonical (`canonical_host`); where the gateway would connect to.
    port: where the gateway would connect to.
    path: the target as sent without its query, bytes decoded as latin-1; "*" for `OPTIONS *`.
    query: what follows the first "?", as sent; "" if there is none.
    http: the version, "1.0", "1.1" or "2.0".
    headers: as sent, in order, bytes decoded as latin-1.
    body_bytes: the declared length; None when it is unknown (chunked, HTTP/2 without a length).
    host_header: `Host` or `:authority` as sent; None when absent.
    sni: the name in the TLS hello as sent; None when there was none.
    upgrade: the value of `Upgrade` as sent; "" when absent.
    """

    method: str
    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    http: str = "1.1"
    headers: tuple[tuple[str, str], ...] = ()
    body_bytes: int | None = 0
    host_header: str | None = None
    sni: str | None = None
    upgrade: str = ""


@lru_cache(maxsize=2048)
def canonical_host(raw: str) -> str:
    """`raw` in the only spelling that rules and requests are compared in.

    Lower case, without one trailing dot, IDNA A-labels; an address in its normal form, IPv6 without brackets.
    Raises ValueError, with a reason for people, on all that is not one legal host: other spellings of an address
    ("2852039166", "0x7f.1", "127.1"), empty or over-long labels, control bytes, user information, zone ids.
    """
    if len(raw) > MAX_HOST + 2:  # room for a trailing dot and brackets; also bounds the work of the IDNA codec
        raise ValueError("the host is too long")
    if ":" in raw:
        return _ipv6(raw)
    host = raw.lower() if raw.isascii() else _to_ascii(raw)
    host = host.removesuffix(".")
    if len(host) > MAX_HOST:
        raise ValueError("the host is too long")
    if not _NAME.fullmatch(host):
        raise ValueError(f"{raw!r} is not a legal host name")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ValueError(f"{raw!r} is an unusual spelling of an address") from None
    return host


def split_authority(raw: str) -> tuple[str, int | None]:
    """The canonical host and the port of `host[:port]`, None when no port is named; raises ValueError."""
    if raw.startswith("["):
        host, bracket, rest = raw.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{raw!r} is not host:port")
        return canonical_host(host + "]"), _port(rest[1:]) if rest else None
    host, colon, port = raw.partition(":")
    if not colon:
        return canonical_host(raw), None
    return canonical_host(host), _port(port)


def is_address(host: str) -> bool:
    """Whether a canonical host is an IP address rather than a name."""
    return ":" in host or host.rpartition(".")[2].isdigit()


def _port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise ValueError(f"{text!r} is not a port")
    return int(text)


def _ipv6(raw: str) -> str:
    inner = raw[1:-1] if raw.startswith("[") and raw.endswith("]") else raw
    if "%" in inner:
        raise ValueError(f"{raw!r} names a zone")
    try:
        return str(ipaddress.IPv6Address(inner))
    except ValueError:
        raise ValueError(f"{raw!r} is not a legal host name") from None


def _to_ascii(raw: str) -> str:
    """`raw` as A-labels. Refuses what IDNA would silently turn into another name ("ß" into "ss")."""
    try:
        host = raw.encode("idna").decode("ascii")
        back = host.encode("ascii").decode("idna")
    except UnicodeError:
        raise ValueError(f"{raw!r} is not a legal host name") from None
    if back != raw.lower():
        raise ValueError(f"{raw!r} has several spellings as a host name; write its xn-- form")
    return host.lower()
