"""A changed policy in a gateway at work: small ones hold at once, big ones soon, and none lets through what neither
the one before nor the new one allows."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from impyard.addon.policysource import AT_ONCE_BYTES
from tests.support.gateway import LiveGateway
from tests.support.origin import Origin, Pki

pytestmark = pytest.mark.gateway

WAIT_S = 60.0


@pytest.fixture
def origin(pki: Pki) -> Iterator[Origin]:
    origin = Origin(pki.context("a.test"))
    yield origin
    origin.close()


def policy(origin: Origin, pki: Pki, path: str, rules: int) -> str:
    entry = f"  - host: a.test\n    upstream: https://127.0.0.1:{origin.port}\n    upstream_ca: {pki.ca_path}\n"
    allowed = [path, *(f"/v1/item{n}/(users|repos)/[^/]+(/.*)?" for n in range(rules))]
    lines = (f"      - {{action: ALLOW, method: GET, path: '{each}'}}\n" for each in allowed)
    return f"networkPolicies:\n{entry}    policies:\n{''.join(lines)}"


def replace(gateway: LiveGateway, text: str) -> str:
    """Put a policy in place of the one there; its hash."""
    new = gateway.policy_path.with_name("new.yaml")
    new.write_text(text)
    new.rename(gateway.policy_path)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@pytest.mark.parametrize("rules", [10, 3000])
def test_a_permission_that_is_taken_away_ends(tmp_path: Path, pki: Pki, origin: Origin, rules: int) -> None:
    before, after = policy(origin, pki, "/old", rules), policy(origin, pki, "/new", rules)
    assert (len(after) > AT_ONCE_BYTES) == (rules > 10)
    gateway = LiveGateway(tmp_path, before)
    try:
        assert gateway.get("https://a.test/old").status == 200
        assert gateway.get("https://a.test/new").status == 403
        in_force = replace(gateway, after)
        statuses: list[int] = []
        end = time.monotonic() + WAIT_S
        while not statuses or statuses[-1] != 403:
            statuses.append(gateway.get("https://a.test/old").status)
            assert time.monotonic() < end
        assert gateway.get("https://a.test/new").status == 200
        assert set(statuses[:-1]) <= {200}
        if rules == 10:
            assert statuses == [403]
        # Each decision names the policy that it was made by, and every one that the new policy made is by the new one.
        lines = [line for line in gateway.decisions() if line["path"] == "/old"]
        assert [line["verdict"] for line in lines] == ["allow"] * len(statuses) + ["deny"]
        assert [line["policy"] == in_force for line in lines] == [False] * len(statuses) + [True]
        assert [seen.target for seen in origin.seen].count("/old") == len(statuses)
    finally:
        gateway.stop()


def test_a_change_is_seen_and_loaded_when_nobody_asks(tmp_path: Path, pki: Pki, origin: Origin) -> None:
    gateway = LiveGateway(tmp_path, policy(origin, pki, "/old", 1000), limits={"sweep_s": 0.1})
    try:
        assert gateway.get("https://a.test/old").status == 200
        replace(gateway, policy(origin, pki, "/new", 1000))
        time.sleep(4)  # to be seen, and to be loaded: a tenth of that
        assert gateway.get("https://a.test/old").status == 403
        assert gateway.get("https://a.test/new").status == 200
    finally:
        gateway.stop()


@pytest.mark.parametrize("what", ["missing", "broken"])
def test_without_a_whole_policy_everything_is_denied(tmp_path: Path, pki: Pki, origin: Origin, what: str) -> None:
    whole = policy(origin, pki, "/old", 3000)
    gateway = LiveGateway(tmp_path, whole)
    try:
        assert gateway.get("https://a.test/old").status == 200
        if what == "missing":
            gateway.policy_path.unlink()
            assert gateway.get("https://a.test/old").status == 403  # at once
        else:
            replace(gateway, whole + "  - {host: b.test}\n")
            end = time.monotonic() + WAIT_S
            while gateway.get("https://a.test/old").status != 403:
                assert time.monotonic() < end
        assert gateway.decisions()[-1]["reason"] == "policy-broken"
        replace(gateway, whole)
        end = time.monotonic() + WAIT_S
        while gateway.get("https://a.test/old").status != 200:
            assert time.monotonic() < end
    finally:
        gateway.stop()
