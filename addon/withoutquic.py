"""Leaves QUIC and HTTP/3 out of a gateway process: the door speaks neither, and to load them is a fifth of its start.

mitmproxy's layers import them by name. What they import gets a class here that cannot be made; a name that is not here
fails the import, and so the gateway does not start.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NoReturn

LEFT_OUT = {
    "mitmproxy.proxy.layers.quic": (
        "ClientQuicLayer",
        "QuicStreamEvent",
        "QuicStreamLayer",
        "RawQuicLayer",
        "ServerQuicLayer",
    ),
    "mitmproxy.proxy.layers.http._http3": ("Http3Client", "Http3Server"),
}


class LeftOut:
    """In place of a layer or an event of QUIC: nothing is one, and nothing becomes one."""

    def __init__(self, *_args: Any, **_named: Any) -> NoReturn:
        raise RuntimeError(f"{type(self).__name__} is left out of this gateway")


def leave_out_quic() -> None:
    """Keep the modules of LEFT_OUT from being loaded. To be called before mitmproxy is; it holds for the process.

    Does nothing where one of them is loaded already: there would be two of each class, and nothing to be saved.
    """
    if not sys.modules.keys().isdisjoint(LEFT_OUT):
        return
    for name, classes in LEFT_OUT.items():
        module = ModuleType(name, "Left out by impyard.")
        for each in classes:
            setattr(module, each, type(each, (LeftOut,), {}))
        sys.modules[name] = module
