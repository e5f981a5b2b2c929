"""For a plain mitmdump: every name under .test leads to the counting origin, whatever the port.

With an ORIGIN_PORT of 0 it leads to the port that was asked for.
"""

from __future__ import annotations

import os
from pathlib import Path

from mitmproxy import ctx
from mitmproxy.proxy.server_hooks import ServerConnectionHookData


def running() -> None:
    """Say which port was taken."""
    server = ctx.master.addons.get("proxyserver")
    ready = Path(os.environ["PORT_FILE"])
    part = ready.with_suffix(".part")
    part.write_text(str(server.listen_addrs()[0][1]))
    part.rename(ready)


def server_connect(data: ServerConnectionHookData) -> None:
    """Lead names to the origin; an address or another name goes nowhere."""
    host, port = data.server.address[:2] if data.server.address else ("", 0)
    if host.rstrip(".").lower().endswith(".test") or host.endswith("198.51.100.1"):
        data.server.address = ("127.0.0.1", int(os.environ["ORIGIN_PORT"]) or port)
    else:
        data.server.error = "this proxy leads only to the origin"
