"""Recorded requests as the judge takes them: what a line of the decision log says was asked, and whether all of it is
there. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from impyard.addon.redact import REDACTED
from impyard.addon.request import Request
from impyard.runner.decision_lines import OWN_CHECKS
from impyard.runner.policyasked import Asked
from impyard.runner.project import RUN_ID

_CUT = re.compile(r"…\(\d+ bytes\)\Z")
_LOST_HEADERS = "…"  # the name under which headers are counted that were left out


class Recorded(msgspec.Struct, frozen=True):
    """The fields of a decision line that judging it again needs; unknown ones are left alone, missing are damage."""

    id: str
    run: str
    verdict: str
    reason: str
    method: str
    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    http: str = "1.1"
    headers: dict[str, Any] = {}
    body_bytes: int | None = 0
    seq: int = 0
    ts: str = ""
    at: str | None = None
    redirected_by: str | None = None
    times: int = 1

    @property
    def is_own_check(self) -> bool:
        """Whether impyard itself asked this, before the agent started."""
        asked = self.reason == "canary" or self.host == f"{self.run}.probe.impyard.invalid"
        return asked and 0 < self.seq <= OWN_CHECKS and RUN_ID.fullmatch(self.run) is not None

    @property
    def is_whole(self) -> bool:
        """Whether what rules look at was written down in full: neither cut nor redacted. Values of a query may be."""
        named = (self.method, self.host, self.path)
        return (
            not any(_CUT.search(text) or REDACTED in text for text in (*named, self.scheme))
            and not _CUT.search(self.query)
            and _LOST_HEADERS not in self.headers
        )

    @property
    def upgrade(self) -> str:
        return str(self.headers.get("upgrade", ""))

    @property
    def authority(self) -> str:
        """Host and port, the port only where it is not the scheme's own; an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"https": 443, "http": 80}.get(self.scheme) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL without its query."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def key(self) -> tuple[str, str]:
        """What an exact rule tells apart: the method, and the URL without its query."""
        return self.method, self.url

    def request(self) -> Request:
        """The request as the judge saw it, as far as it was written down. Its names for the host are taken to agree:
        where they did not, the line says `host-mismatch`."""
        headers = tuple((name, str(value)) for name, value in self.headers.items() if name != "host")
        return Request(
            method=self.method,
            scheme=self.scheme,
            host=self.host,
            port=self.port,
            path=self.path,
            query=self.query,
            http=self.http,
            headers=headers,
            body_bytes=self.body_bytes,
            host_header=self.authority,
            upgrade=self.upgrade,
        )


def recorded(line: bytes) -> Recorded | None:
    """What a log line says, or None when the line is damaged."""
    try:
        return _DECODER.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def of_asked(asked: Asked) -> Recorded:
    """A request that a person named, as one that was denied for want of a rule."""
    headers = {"upgrade": "websocket"} if asked.websocket else {}
    return Recorded(
        "",
        "",
        "deny",
        "no-rule",
        asked.method,
        asked.scheme,
        asked.host,
        asked.port,
        asked.path,
        asked.query,
        "1.1",
        headers,
    )


_DECODER = msgspec.json.Decoder(Recorded)
