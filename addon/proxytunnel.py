"""The way through an HTTP proxy that the policy names: a tunnel to the judged host, asked for with CONNECT.

Always a tunnel, for http too: a proxy that reads requests would send on what it made of them, not what was judged.
"""

from __future__ import annotations

import re
import secrets

from mitmproxy.proxy import commands
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http import _upstream_proxy
from mitmproxy.proxy.layers.http._upstream_proxy import HttpUpstreamProxy

from impyard.addon.destination import dialled_for

# Names this process in what it asks of proxies (RFC 9110, 7.6.3), so that it knows a request that comes back to it.
SELF = f"impyard-{secrets.token_hex(8)}"
MAX_ANSWER_BYTES = 16 * 1024
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: [^\r\n]*)?\r?\n")


class JudgedProxyTunnel(HttpUpstreamProxy):
    """mitmproxy's, with credentials that only the proxy sees, a bounded answer, and errors that name no host."""

    def start_handshake(self) -> CommandGenerator[None]:
        dialled = dialled_for(self.tunnel_connection)
        if dialled is None or dialled[0].proxy is None:
            raise RuntimeError("a tunnel that nobody judged")
        destination = dialled[0]
        host = f"[{destination.host}]" if ":" in destination.host else destination.host
        authority = f"{host}:{destination.port}"
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", f"Via: 1.1 {SELF}"]
        if destination.authorization:
            lines.append(f"Proxy-Authorization: {destination.authorization}")
        self._answer = b""
        yield commands.SendData(self.tunnel_connection, "\r\n".join([*lines, "", ""]).encode("ascii"))

    def receive_handshake_data(self, data: bytes) -> CommandGenerator[tuple[bool, str | None]]:
        yield from ()
        self._answer += data
        head, end, rest = self._answer.partition(b"\r\n\r\n")
        if not end:
            garbage = self._answer[:7] != b"HTTP/1."[: len(self._answer)] or len(self._answer) > MAX_ANSWER_BYTES
            return False, "its answer is not HTTP" if garbage else None
        status = _STATUS.match(head + end)
        if status is None:
            return False, "its answer is not HTTP"
        if b"\r\nx-impyard-reason: loop" in head.lower():
            return False, "it is this gateway itself"
        if not status[1].startswith(b"2"):
            hint = ": it wants other credentials" if status[1] == b"407" else ""
            return False, f"it refuses the tunnel with status {status[1].decode()}{hint}"
        if rest:
            return False, "it speaks before the host does"
        return True, None


def install() -> None:
    """Have the core build our tunnels."""
    vars(_upstream_proxy)["HttpUpstreamProxy"] = JudgedProxyTunnel
