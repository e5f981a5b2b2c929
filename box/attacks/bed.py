"""The policy that attempts are made against, and all of them in the order in which they are made."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from impyard.box.attacks.framing import FRAMING
from impyard.box.attacks.host import HOST
from impyard.box.attacks.http2 import HTTP2
from impyard.box.attacks.model import LIMIT, OK, WS, Attempt
from impyard.box.attacks.proxy import PROXY
from impyard.box.attacks.target import TARGET
from impyard.box.attacks.websocket import WEBSOCKET

WILD = "wild.test"

ATTEMPTS: tuple[Attempt, ...] = (*PROXY, *HOST, *TARGET, *FRAMING, *HTTP2, *WEBSOCKET)


def chosen(groups: Collection[str]) -> tuple[Attempt, ...]:
    """The attempts of these groups (keys of GROUPS), in order; without any, all."""
    return tuple(attempt for attempt in ATTEMPTS if not groups or attempt.group in groups)


def policy(port: int, ca: str) -> str:
    """The policy for impyard: names at their usual port, the counting origin on `port`, its authority in file `ca`."""
    return "networkPolicies:\n" + _hosts(443, port, ca)


def policy_here(ports: Iterable[int], ca: str) -> str:
    """The same for names that are asked for under the ports of the origins themselves."""
    return "networkPolicies:\n" + "".join(_hosts(port, port, ca) for port in ports)


def _hosts(at: int, port: int, ca: str) -> str:
    origin = f"    port: {at}\n    upstream: https://127.0.0.1:{port}\n    upstream_ca: {ca}\n    policies:\n"
    return (
        f"  - host: {OK}\n{origin}"
        "      - {action: ALLOW, method: GET, path: /public/.*}\n"
        "      - {action: ALLOW, method: POST, path: /v1/messages}\n"
        f"      - {{action: ALLOW, method: POST, path: /limited, max_body: {LIMIT}}}\n"
        "      - {action: ALLOW, method: GET, path: /search, query: {repo: ok}}\n"
        "      - {action: ALLOW, method: GET, path: /repo.git/info/refs, query: {service: git-upload-pack}}\n"
        "      - {action: ALLOW, method: POST, path: /repo.git/git-upload-pack}\n"
        f"  - host: {WS}\n{origin}"
        f"      - {{action: ALLOW, method: GET, path: /ws, websocket: true, max_body: {LIMIT}}}\n"
        f'  - host: "*.{WILD}"\n{origin}'
        "      - {action: ALLOW, method: GET, path: /public/.*}\n"
    )
