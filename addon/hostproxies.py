"""The proxies that the gateway's own environment names: used only where the policy says so. No mitmproxy."""

from __future__ import annotations

import base64
import dataclasses
import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from impyard.addon.request import canonical_host, split_authority
from impyard.addon.rules import DEFAULT_PORTS, Proxy

Address = tuple[str, str, int]
VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")  # and each in lower case


class NoProxy(Exception):
    """The environment's proxy is needed and cannot be used; says why, without its value."""


class HostProxies:
    """HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY as they were when this was made; lower case comes first."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        def value(name: str) -> str:
            return (environment.get(name.lower()) or environment.get(name) or "").strip()

        everywhere = value("ALL_PROXY")
        self._urls = {scheme: value(f"{scheme.upper()}_PROXY") or everywhere for scheme in DEFAULT_PORTS}
        self._direct = [entry for entry in re.split(r"[,\s]+", value("NO_PROXY").lower()) if entry]

    def chosen(self, proxy: Proxy, scheme: str, host: str, port: int) -> Proxy | None:
        """The proxy to use where the policy says `proxy`; None where it is the environment's, and that says none.

        Raises NoProxy when the environment's is none that can be used.
        """
        if proxy.host:
            return proxy
        url = self._urls[scheme]
        if not url or any(_is_about(entry, host, port) for entry in self._direct):
            return None
        address = _address(url)
        if address is None:
            raise NoProxy(f"the {scheme.upper()}_PROXY of the gateway's environment is no http or https proxy")
        return dataclasses.replace(proxy, scheme=address[0], host=address[1], port=address[2])

    def authorization(self, proxy: Proxy) -> str:
        """The header value for `proxy` if the environment holds a user for just that one, "" if not."""
        for url in self._urls.values():
            if "@" in url and _address(url) == (proxy.scheme, proxy.host, proxy.port):
                user, _, password = _split(url)[1].rpartition("@")[0].partition(":")
                pair = f"{unquote(user)}:{unquote(password)}".encode()
                return f"Basic {base64.b64encode(pair).decode()}"
        return ""


def _split(url: str) -> tuple[str, str]:
    """Scheme and authority; without a scheme it is http, as curl reads it. Raises ValueError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    return parts.scheme, parts.netloc


def _address(url: str) -> Address | None:
    """The scheme, canonical host and port of a proxy's URL; None when it is none."""
    try:
        scheme, authority = _split(url)
        host, port = split_authority(authority.rpartition("@")[2])
    except ValueError:
        return None
    return (scheme, host, port or DEFAULT_PORTS[scheme]) if scheme in DEFAULT_PORTS else None


def _is_about(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY covers a canonical host: "*", a name with all below it, an address; or one port."""
    if entry == "*":
        return True
    try:
        name, only = split_authority(entry.removeprefix("*").removeprefix("."))
    except ValueError:
        try:
            name, only = canonical_host(entry), None  # an IPv6 address without brackets
        except ValueError:
            return False
    return only in (None, port) and (host == name or host.endswith(f".{name}"))
