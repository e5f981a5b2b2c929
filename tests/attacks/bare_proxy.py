"""For a plain mitmdump: every name under .test leads to the counting origin, whatever the port."""

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
    host = data.server.address[0] if data.server.address else ""
    if host.rstrip(".").lower().endswith(".test") or host.endswith("198.51.100.1"):
        data.server.address = ("127.0.0.1", int(os.environ["ORIGIN_PORT"]))
    else:
        data.server.error = "this proxy leads only to the origin"
