"""Real tools that use a token which they never see: git clones a private repository, curl asks an API."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from impyard.addon.vault.credential import Credential
from tests.support.gateway import LiveGateway
from tests.support.origin import Pki
from tests.support.service import Asked, Given, Service, Tools, bare_repository, git_backend, tools_behind
from tests.support.shop import needs

pytestmark = pytest.mark.gateway

TOKEN = "ghp_" + "Z8realTOKENvalue" * 2 + "Zq7x"
POLICY = """\
networkPolicies:
  - host: git.test
    upstream: https://127.0.0.1:{port}
    upstream_ca: {ca}
    inject: {{credential: forge, template: github-git, env: [GH_TOKEN]}}
    policies:
      - {{action: ALLOW, method: GET, path: /private/repo.git/info/refs}}
      - {{action: ALLOW, method: POST, path: /private/repo.git/git-upload-pack}}
  - host: open.git.test
    upstream: https://127.0.0.1:{port}
    upstream_ca: {ca}
    policies:
      - {{action: ALLOW, method: GET, path: /private/repo.git/info/refs}}
"""


@dataclass
class Forge:
    """A git server that wants a token, and tools that hold its sentinel."""

    gateway: LiveGateway
    server: Service
    tools: Tools
    commit: str


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[Forge]:
    needs("git")
    base = tmp_path_factory.mktemp("forge")
    commit = bare_repository(base / "repositories" / "private" / "repo.git")
    backend = git_backend(base / "repositories")
    right = "Basic " + base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()

    def answer(asked: Asked) -> Given:
        if asked.headers.get("authorization") != right:
            return Given(b"who are you?\n", 401, {"WWW-Authenticate": 'Basic realm="forge"'})
        return backend(asked)

    server = Service(answer, tls=pki.context("git.test", "open.git.test"))
    credential = Credential(name="forge", kind="api_key", key=TOKEN, source="set")
    policy = POLICY.format(port=server.port, ca=pki.ca_path)
    gateway = LiveGateway(base, policy, credentials=[credential])
    assert gateway.first.get("event") == "ready", gateway.stderr_path.read_text()
    with tools_behind(gateway, base / "home") as tools:
        yield Forge(gateway, server, tools, commit)
    gateway.stop()
    server.close()


def test_git_clones_a_private_repository_with_a_token_that_it_never_sees(forge: Forge, tmp_path: Path) -> None:
    done = forge.tools.run("git", "clone", "-q", "https://git.test/private/repo.git", tmp_path / "clone")
    assert done.returncode == 0, done
    head = forge.tools.run("git", "-C", tmp_path / "clone", "rev-parse", "HEAD")
    assert head.stdout.strip() == forge.commit
    texts = [path.read_bytes() for path in (tmp_path / "clone").rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in text for text in texts)
    assert {tuple(line["injected"]) for line in forge.gateway.decisions()} == {("authorization",)}


def test_git_that_brings_the_sentinel_clones_too(forge: Forge, tmp_path: Path) -> None:
    """Tools that find GH_TOKEN in the box put it into the address, or into a header of their own."""
    stand_in = forge.gateway.sentinel("forge").key
    url = f"https://x-access-token:{stand_in}@git.test/private/repo.git"
    done = forge.tools.run("git", "clone", "-q", url, tmp_path / "clone")
    assert done.returncode == 0, done
    assert not any(stand_in in str(asked) for asked in forge.server.asked)


def test_control_without_the_binding_git_is_asked_who_it_is(forge: Forge, tmp_path: Path) -> None:
    done = forge.tools.run("git", "clone", "-q", "https://open.git.test/private/repo.git", tmp_path / "clone")
    assert done.returncode != 0
    assert not any(TOKEN in str(asked) for asked in forge.server.asked if "open." in asked.headers["host"])


def test_curl_gets_what_only_the_token_opens(forge: Forge) -> None:
    needs("curl")
    path = "/private/repo.git/info/refs?service=git-upload-pack"
    user = f"x:{forge.gateway.sentinel('forge').key}"
    for words in ((), ("-u", user), ("-H", "Authorization: Bearer mine")):
        done = forge.tools.run("curl", "-sSf", *words, f"https://git.test{path}")
        assert done.returncode == 0 and forge.commit in done.stdout, done
    assert forge.tools.run("curl", "-sSf", f"https://open.git.test{path}").returncode != 0
