"""Where the entries of a policy file lead: `upstream`, `upstream_proxy`, and the `upstream_ca` of either."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from impyard.addon.request import split_authority
from impyard.addon.rules import DEFAULT_PORTS, Proxy, Route, Upstream
from impyard.addon.yamlnodes import Node, Nodes, short

ROUTE_KEYS = ("upstream", "upstream_proxy", "upstream_ca")
ENVIRONMENT = "environment"


def read_route(nodes: Nodes, folder: Path, upstream: Node | None, proxy: Node | None, ca: Node | None) -> Route | None:
    """Where an entry with these values leads, None for the host itself; what is wrong becomes a fault of `nodes`.

    folder: what a relative `upstream_ca` starts from.
    """
    if upstream is None and proxy is None:
        if ca is not None:
            nodes.fault(ca, "upstream_ca needs upstream or upstream_proxy beside it")
        return None
    pem = _ca_file(nodes, folder, ca) if ca is not None else None
    if upstream is not None and proxy is not None:
        nodes.fault(proxy, "upstream_proxy and upstream exclude each other: an entry leads to one place")
    found: Route | None = None
    if upstream is not None:
        found = _upstream(nodes, upstream, pem)
        if ca is not None and found is not None and found.scheme == "http":
            nodes.fault(ca, "upstream_ca is of no use with an http upstream")
    if proxy is not None:
        found = _proxy(nodes, proxy, pem)
    return found


def _upstream(nodes: Nodes, node: Node, pem: Path | None) -> Upstream | None:
    raw = nodes.text(node, "upstream")
    if raw is None:
        return None
    try:
        scheme, host, port = _address(raw)
    except ValueError:
        nodes.fault(node, f'upstream "{short(raw)}": write it as "https://host:port" or "http://host:port"')
        return None
    return Upstream(scheme, host, port or DEFAULT_PORTS[scheme], pem)


def _proxy(nodes: Nodes, node: Node, pem: Path | None) -> Proxy | None:
    raw = nodes.text(node, "upstream_proxy")
    if raw is None:
        return None
    if raw == ENVIRONMENT:
        return Proxy(ca=pem)
    if "@" in raw:
        # Not shown: it may hold a password. Policies are committed and read by the box; environments are not.
        nodes.fault(
            node,
            "upstream_proxy must not hold a user: name host and port here, the whole with its user in HTTPS_PROXY",
        )
        return None
    try:
        scheme, host, port = _address(raw)
    except ValueError:
        port = None
    if not port:
        nodes.fault(
            node,
            f'upstream_proxy "{short(raw)}": write it as "http://host:port", or {ENVIRONMENT} for HTTPS_PROXY',
        )
        return None
    return Proxy(scheme, host, port, pem)


def _address(raw: str) -> tuple[str, str, int | None]:
    """The scheme, canonical host and port of an address that is nothing else; raises ValueError."""
    url = urlsplit(raw)
    if url.scheme not in DEFAULT_PORTS or url.path not in ("", "/") or "?" in raw or "#" in raw:
        raise ValueError("not an address")
    return url.scheme, *split_authority(url.netloc)


def _ca_file(nodes: Nodes, folder: Path, node: Node) -> Path | None:
    raw = nodes.text(node, "upstream_ca")
    if not raw:
        return None
    try:
        path = folder / Path(raw).expanduser()
        if path.is_file():
            return path
    except (ValueError, RuntimeError, OSError):
        pass
    nodes.fault(node, f'upstream_ca "{short(raw)}": no such file')
    return None
