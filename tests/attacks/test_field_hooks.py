"""A hook that fails once lets nothing through, and the next request is judged. Field note F01, attack 109."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.conftest import POLICY
from tests.support.gateway import LiveGateway
from tests.support.origin import Origin, Pki

pytestmark = pytest.mark.gateway

# The hook named by the file `which` raises the next time it is called, and is itself again after that.
FAILING = """
import os, sys
from impyard.addon import failclosed, gateway, hooks
def failing(cls, name, real):
    def hook(self, *args):
        try:
            with open({which!r}) as file: wanted = file.read()
        except OSError: wanted = ""
        if wanted == name:
            os.unlink({which!r})
            raise KeyError("planted")
        return real(self, *args)
    setattr(cls, name, failclosed.fail_closed(hook) if cls is hooks.JudgeAddon else hook)
for cls, names in ((hooks.JudgeAddon, gateway.JUDGE_HOOKS), (gateway.GatewayTls, gateway.TLS_HOOKS)):
    for name in names:
        real = getattr(cls, name)
        failing(cls, name, getattr(real, "__wrapped__", real))
from impyard.addon.__main__ import main
sys.argv = ["x", *sys.argv[1:]]
sys.exit(main())
"""
# What the origin may have seen when each fails: "nothing" before the verdict is applied, "request" after it.
BEFORE, AFTER = "nothing", "request"
HOOKS = {
    "next_layer": BEFORE,
    "http_connect": BEFORE,
    "tls_start_client": BEFORE,
    "requestheaders": BEFORE,
    "server_connect": BEFORE,
    "tls_start_server": BEFORE,
    "responseheaders": AFTER,
    "response": AFTER,
}


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[tuple[LiveGateway, Origin, Path]]:
    folder = tmp_path_factory.mktemp("failing")
    which = folder / "which"
    origin = Origin(pki.context("a.test"))
    policy = POLICY.format(a=origin.port, plain=1, ca=pki.ca_path)
    gateway = LiveGateway(folder, policy, fault=FAILING.format(which=str(which)))
    assert gateway.first.get("event") == "ready", gateway.stderr_path.read_text()
    yield gateway, origin, which
    gateway.stop()
    origin.close()


def status_of(gateway: LiveGateway, url: str) -> int:
    """The status that a request gets; 0 for a connection that is closed."""
    try:
        return gateway.get(url).status
    except (OSError, AssertionError, ValueError):  # at CONNECT, in the handshake, in the middle of a head
        return 0


@pytest.mark.attack("F01", "109")
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("path", ["/pub/x", "/denied"])
def test_a_hook_that_fails_lets_nothing_through_and_the_next_request_is_judged(
    failing: tuple[LiveGateway, Origin, Path], hook: str, path: str
) -> None:
    gateway, origin, which = failing
    origin.clear()
    which.write_text(hook)
    status = status_of(gateway, f"https://a.test{path}")
    reached = not which.exists()
    which.unlink(missing_ok=True)
    if path == "/denied":
        assert origin.connections == 0 and status in (0, 403, 502)
    else:
        assert reached
        assert status in ((0, 403, 502) if HOOKS[hook] == BEFORE else (0, 200, 403, 502))
        assert len(origin.seen) == (0 if HOOKS[hook] == BEFORE else 1)
    before = len(gateway.decisions())
    origin.clear()
    assert gateway.get("https://a.test/pub/after").status == 200
    assert gateway.get("https://a.test/denied").status == 403
    assert [line["verdict"] for line in gateway.decisions()[before:]] == ["allow", "deny"]
    assert [seen.target for seen in origin.seen] == ["/pub/after"]
