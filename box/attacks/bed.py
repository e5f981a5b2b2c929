"""The policy that attempts are made against, and all of them in the order in which they are made."""

from __future__ import annotations

from impyard.box.attacks.framing import FRAMING
from impyard.box.attacks.host import HOST
from impyard.box.attacks.http2 import HTTP2
from impyard.box.attacks.model import LIMIT, OK, WS, Attempt
from impyard.box.attacks.proxy import PROXY
from impyard.box.attacks.target import TARGET
from impyard.box.attacks.websocket import WEBSOCKET

WILD = "wild.test"

ATTEMPTS: tuple[Attempt, ...] = (*PROXY, *HOST, *TARGET, *FRAMING, *HTTP2, *WEBSOCKET)


def policy(port: int, ca: str, at: int = 443) -> str:
    """The policy for impyard, with the counting origin on `port` and its authority's certificate in the file `ca`.

    at: the port under which the names are asked for.
    """
    origin = f"    port: {at}\n    upstream: https://127.0.0.1:{port}\n    upstream_ca: {ca}\n    policies:\n"
    return (
        "networkPolicies:\n"
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
