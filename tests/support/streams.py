"""A gateway before one origin whose answers each test writes itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.gateway import LiveGateway
from tests.support.origin import Origin, Pki

POLICY = """\
networkPolicies:
  - host: a.test
    upstream: https://127.0.0.1:{a}
    upstream_ca: {ca}
    policies:
      - {{action: ALLOW, method: [GET, HEAD, POST], path: /pub/.*}}
      - {{action: ALLOW, method: GET, path: /ws/.*, websocket: true}}
      - {{action: ALLOW, method: GET, path: /far, websocket: true}}
"""


@dataclass
class Streams:
    """A gateway and one origin, whose answers each test writes itself."""

    gateway: LiveGateway
    a: Origin


@pytest.fixture(scope="module")
def module_streams(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Streams]:
    a = Origin(pki.context("a.test"))
    gateway = LiveGateway(tmp_path_factory.mktemp("streams"), POLICY.format(a=a.port, ca=pki.ca_path))
    assert gateway.first.get("event") == "ready", gateway.stderr_path.read_text()
    yield Streams(gateway, a)
    gateway.stop()
    a.close()


@pytest.fixture
def streams(module_streams: Streams) -> Streams:
    module_streams.a.clear()
    for name in ("decisions.jsonl", "outcomes.jsonl"):
        (module_streams.gateway.runs / name).write_text("")
    return module_streams
