"""Puts a credential's headers on a request, in place of all that the box said in their names.

What is put on is a secret: it shows in no repr, and HTTP/2 does not keep it in a connection's table of headers.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Collection

from hpack import NeverIndexedHeaderTuple
from mitmproxy import http

from impyard.addon.vault.credential import Credential

# Behind CGI-like interfaces names that differ in letter case and punctuation are one, and lighttpd takes all of it.
_ALIKE = bytes.maketrans(
    bytes(range(256)),
    bytes(byte if chr(byte) in string.ascii_letters + string.digits else ord("-") for byte in range(256)).lower(),
)
# So that the answer can be read, and the real value in it masked.
_UNCOMPRESSED = (("accept-encoding", "identity"),)


class Injection:
    """What is put on one request.

    headers: (lower-case name, value). owned: lower-case names of which nothing that the box said may remain.
    credential: what they were made of. taken: what of their values comes from it, and not from the policy.
    """

    __slots__ = ("credential", "headers", "owned", "taken")

    def __init__(
        self,
        headers: Collection[tuple[str, str]],
        owned: Collection[str],
        credential: Credential,
        taken: Collection[str] = (),
    ) -> None:
        self.credential = credential
        self.taken = tuple(taken)
        self.headers = tuple(headers)
        self.owned = frozenset(owned)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the headers, which are no secret."""
        return tuple(name for name, _ in self.headers)

    def __repr__(self) -> str:
        return f"<injection of {', '.join(self.names)}>"


def put_on(request: http.Request, injection: Injection) -> None:
    """Replace what the box said in the injection's headers by what the gateway says."""
    headers = (*injection.headers, *_UNCOMPRESSED)
    owned = {_alike(name.encode()) for name in (*injection.owned, *(name for name, _ in headers))}
    kept = [pair for pair in request.data.headers.fields if _alike(pair[0]) not in owned]
    ours = [NeverIndexedHeaderTuple(name.encode(), value.encode("ascii")) for name, value in headers]
    request.data.headers.fields = (*kept, *ours)


def take_off(request: http.Request, holds: Callable[[bytes], bool]) -> None:
    """Remove each header of which `holds` says that something is in it that must not leave."""
    fields = request.data.headers.fields
    if holds(b"\n".join([b"%b\n%b" % pair for pair in fields])):
        request.data.headers.fields = tuple(pair for pair in fields if not (holds(pair[0]) or holds(pair[1])))


def _alike(name: bytes) -> bytes:
    return name.translate(_ALIKE)
