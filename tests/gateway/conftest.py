"""One gateway and its origins for a whole module; each test starts with an empty record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.gateway import LiveGateway
from tests.support.origin import Origin, Pki

POLICY = """\
networkPolicies:
  - host: a.test
    upstream: https://127.0.0.1:{a}
    upstream_ca: {ca}
    policies:
      - action: ALLOW
        method: [GET, HEAD]
        path: /pub/.*
      - action: ALLOW
        method: POST
        path: /v1/messages
      - action: ALLOW
        method: POST
        path: /early.*
      - action: ALLOW
        method: POST
        path: /limited
        max_body: 100000
      - action: ALLOW
        method: GET
        path: /pub/ws
        websocket: true
        max_body: 100000
      - action: ALLOW
        method: GET
        path: /pub/duplex
        websocket: true
      - action: DENY
        method: GET
        path: /pub/secret.*
        name: keep-out
  - host: plain.test
    scheme: http
    upstream: http://127.0.0.1:{plain}
    policies:
      - action: ALLOW
        method: GET
        path: /pub/.*
  - host: local-model.test
    upstream: http://127.0.0.1:{plain}
    policies:
      - action: ALLOW
        method: POST
        path: /v1/messages
  - host: wrong-name.test
    upstream: https://127.0.0.1:{a}
    upstream_ca: {ca}
    policies:
      - action: ALLOW
        method: GET
        path: /pub/.*
  - host: unknown-ca.test
    upstream: https://127.0.0.1:{a}
    policies:
      - action: ALLOW
        method: GET
        path: /pub/.*
  - host: gone.test
    upstream: https://127.0.0.1:1
    policies:
      - action: ALLOW
        method: GET
        path: /pub/.*
  - host: localhost
    policies:
      - action: ALLOW
        method: GET
        path: /.*
  - host: 127.0.0.1
    scheme: http
    port: {plain}
    policies:
      - action: ALLOW
        method: GET
        path: /.*
  - host: no-such-name.invalid
    policies:
      - action: ALLOW
        method: GET
        path: /.*
"""


@dataclass
class Bed:
    """A gateway, and the origins that its policy names."""

    gateway: LiveGateway
    a: Origin
    plain: Origin
    policy: str

    def untouched(self) -> bool:
        """Whether no origin saw a connection."""
        return self.a.connections == 0 and self.plain.connections == 0


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def module_bed(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Bed]:
    yield from make_bed(tmp_path_factory.mktemp("project"), pki)


def make_bed(root: Path, pki: Pki) -> Iterator[Bed]:
    a = Origin(pki.context("a.test", "unknown-ca.test"))
    plain = Origin()
    policy = POLICY.format(a=a.port, plain=plain.port, ca=pki.ca_path)
    gateway = LiveGateway(root, policy)
    assert gateway.first.get("event") == "ready", (gateway.first, gateway.stderr_path.read_text())
    bed = Bed(gateway, a, plain, policy)
    try:
        yield bed
    finally:
        gateway.stop()
        a.close()
        plain.close()


@pytest.fixture
def bed(module_bed: Bed, request: pytest.FixtureRequest) -> Iterator[Bed]:
    """After an attempt the next honest request must work."""
    yield cleared(module_bed)
    if request.node.get_closest_marker("attack") is not None:
        assert cleared(module_bed).gateway.get("https://a.test/pub/after").status == 200


def cleared(module_bed: Bed) -> Bed:
    """The module's bed with its origins' memory cleared, and the policy as it began."""
    module_bed.a.clear()
    module_bed.plain.clear()
    if module_bed.gateway.policy_path.read_text() != module_bed.policy:
        module_bed.gateway.policy_path.write_text(module_bed.policy)
    module_bed.gateway.forget()
    return module_bed


@pytest.fixture
def own_bed(tmp_path: Path, pki: Pki) -> Iterator[Bed]:
    """A bed of the test's own, for tests that break it."""
    yield from make_bed(tmp_path, pki)
