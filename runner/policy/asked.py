"""A request as a person names it, `METHOD URL`, and as the judge would see it from a well-behaved client."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from impyard.addon.errors import ImpyardError
from impyard.addon.request import METHOD, Request, is_address, split_authority
from impyard.addon.rules import DEFAULT_PORTS
from impyard.addon.yamlnodes import short

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# What clients leave as it is; they encode the rest.
_KEPT = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"<>`')


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in its parts. host: canonical. body_bytes: the declared length."""

    method: str
    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    body_bytes: int = 0
    websocket: bool = False

    @property
    def url(self) -> str:
        """The URL, without a port that is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}" + (f"?{self.query}" if self.query else "")


def asked(method: str, url: str, *, body_bytes: int = 0, websocket: bool = False) -> Asked:
    """The request for a URL, https where it names no scheme, encoded as clients do. Raises ImpyardError."""
    if not METHOD.fullmatch(method):
        raise ImpyardError(f'"{short(method)}" is no HTTP method', hint="write the method first, as in GET https://…")
    found = _SCHEME.match(url)
    scheme = found[1].lower() if found else "https"
    websocket = websocket or scheme in ("ws", "wss")
    scheme = {"ws": "http", "wss": "https"}.get(scheme, scheme)
    if scheme not in DEFAULT_PORTS:
        raise ImpyardError(f'"{short(url)}": only http and https are judged', hint="write https://host/path")
    rest = url[found.end() :] if found else url
    end = min((place for place in map(rest.find, "/?#") if place >= 0), default=len(rest))
    authority, target = rest[:end], rest[end:].partition("#")[0]
    if "@" in authority:
        raise ImpyardError(
            f'"{short(authority.rpartition("@")[2])}" has a user before it',
            hint="leave the user out: it is no part of the request's target",
        )
    try:
        host, port = split_authority(authority)
    except ValueError as exc:
        raise ImpyardError(
            f"the host of the URL: {short(str(exc))}", hint="write METHOD URL, as in GET https://api.example.org/path"
        ) from exc
    path, _, query = target.partition("?")
    return Asked(
        method,
        scheme,
        host,
        port or DEFAULT_PORTS[scheme],
        quote(path, safe=_KEPT) or "/",
        quote(query, safe=_KEPT),
        body_bytes,
        websocket,
    )


def sent(asked: Asked) -> Request:
    """The request as the judge gets it: everything in it agrees."""
    host = f"[{asked.host}]" if ":" in asked.host else asked.host
    own_port = asked.port == DEFAULT_PORTS[asked.scheme]
    return Request(
        asked.method,
        asked.scheme,
        asked.host,
        asked.port,
        asked.path,
        asked.query,
        body_bytes=asked.body_bytes,
        host_header=host if own_port else f"{host}:{asked.port}",
        sni=asked.host if asked.scheme == "https" and not is_address(asked.host) else None,
        upgrade="websocket" if asked.websocket else "",
    )
