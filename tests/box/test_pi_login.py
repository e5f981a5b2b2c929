"""A login that impyard shares with the real pi: whoever comes second takes what the first one got."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from impyard.addon.vault.credential import Credential, TokenEndpoint
from impyard.addon.vault.refresh import Refresher
from impyard.addon.vault.store import Vault
from impyard.certs.throwaway import Pki
from tests.support.connectproxy import ConnectProxy
from tests.support.tokenendpoint import TokenEndpoint as Server

pytestmark = pytest.mark.box


class Shared:
    """An expired login of anthropic in pi's file and in a vault; pi's constant endpoint leads to `server`."""

    def __init__(self, folder: Path, contain: Callable[..., str]) -> None:
        self._contain = contain
        self.printed: list[str] = []
        self.pki = Pki(folder)
        self.server = Server(self.pki.context("localhost", "platform.claude.com"))
        self.proxy = ConnectProxy({"platform.claude.com:443": self.server.port})
        self.agent = folder / "agent"
        self.agent.mkdir()
        self.auth = self.agent / "auth.json"
        ended = int(time.time() * 1000) - 5000
        entry = {"type": "oauth", "access": "access-0", "refresh": "refresh-0", "expires": ended}
        self.auth.write_text(json.dumps({"anthropic": entry, "other": {"type": "api_key", "key": "k"}}))
        self.vault = Vault(folder / "vault")
        endpoint = TokenEndpoint(f"https://localhost:{self.server.port}/", ca=str(self.pki.ca_path))
        self.vault.put(
            Credential(
                "anthropic",
                "oauth",
                access="access-0",
                refresh="refresh-0",
                expires=ended,
                source="pi",
                pi_file=str(self.auth),
                token_endpoint=endpoint,
            )
        )

    def close(self) -> None:
        self.proxy.close()
        self.server.close()

    def ours(self) -> str:
        return asyncio.run(Refresher(self.vault).usable("anthropic")).access

    def pi(self) -> threading.Thread:
        """pi that needs the login; `printed` gets the token that it prints."""
        options = {
            "network_mode": "host",
            "user": f"{os.geteuid()}:{os.getegid()}",
            "working_dir": "/tmp",
            "volumes": [f"{self.pki.ca_path}:/ca.pem:ro", f"{self.agent}:/agent"],
            "environment": {
                "HTTPS_PROXY": f"http://127.0.0.1:{self.proxy.port}",
                "NODE_EXTRA_CA_CERTS": "/ca.pem",
                "PI_CODING_AGENT_DIR": "/agent",
                "PI_OFFLINE": "1",
                "HOME": "/tmp",
            },
        }
        command = "PATH=/opt/pi/node_modules/.bin:$PATH exec pi auth print-bearer-token --provider anthropic"
        thread = threading.Thread(target=lambda: self.printed.append(self._contain(command, **options)))
        thread.start()
        return thread

    def wait_until_asked(self) -> None:
        deadline = time.monotonic() + 60
        while not self.server.asked:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def check(self) -> None:
        """One refresh was made, both have its tokens, and nobody holds the file."""
        assert [asking.fields["refresh_token"] for asking in self.server.asked] == ["refresh-0"]
        stored, content = self.vault.read().credentials["anthropic"], json.loads(self.auth.read_bytes())
        tokens = {"type": "oauth", "access": "access-1", "refresh": "refresh-1", "expires": stored.expires}
        assert content == {"anthropic": tokens, "other": {"type": "api_key", "key": "k"}}
        assert (stored.access, stored.refresh, stored.failure) == ("access-1", "refresh-1", None)
        assert [name for name in os.listdir(self.agent) if name.startswith("auth")] == ["auth.json"]


@pytest.fixture
def shared(tmp_path: Path, ordinary_container: Callable[..., str]) -> Iterator[Shared]:
    shared = Shared(tmp_path, ordinary_container)
    yield shared
    shared.close()


def test_we_wait_for_pi_and_take_what_it_got(shared: Shared) -> None:
    shared.server.wait_s = 0.7
    pi = shared.pi()
    shared.wait_until_asked()
    assert shared.ours() == "access-1"
    pi.join()
    assert shared.printed == ["access-1\n"]
    shared.check()


def test_pi_waits_for_us_and_takes_what_we_got(shared: Shared) -> None:
    """It comes while the endpoint still thinks, which is for longer than pi takes to start."""
    shared.server.wait_s = 2.5
    got: list[str] = []
    we = threading.Thread(target=lambda: got.append(shared.ours()))
    we.start()
    shared.wait_until_asked()
    shared.pi().join()
    we.join()
    assert (got, shared.printed) == (["access-1"], ["access-1\n"])
    shared.check()
