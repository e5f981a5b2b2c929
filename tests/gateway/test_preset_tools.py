"""Real tools behind a gateway with presets: git clones and cannot push, npm and pip install and cannot publish."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from impyard.addon.policy import load_policy, read_policy
from impyard.runner.decisions.lines import Selection
from impyard.runner.policy import presets
from impyard.runner.policy.registries import place_of
from impyard.runner.policy.replay_cmd import replayed
from tests.support.gateway import LiveGateway
from tests.support.service import Asked, Given, Service, Tools, bare_repository, git_backend, tools_behind
from tests.support.shop import needs

pytestmark = pytest.mark.gateway

NPM = "https://registry.example.org/npm/"
PIP = "https://index.example.org/api/simple/"


def tarball() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        about = json.dumps({"name": "@scope/small", "version": "1.0.0"}).encode()
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(about)
        archive.addfile(entry, io.BytesIO(about))
    return packed.getvalue()


def wheel() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("small.py", "SMALL = 1\n")
        archive.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        archive.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("small-1.0.dist-info/RECORD", "small.py,,\n")
    return packed.getvalue()


def registries() -> Service:
    """One origin that has a package for npm and one for pip, and takes what is published."""
    packed, made = tarball(), wheel()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
    dist = {"tarball": f"{NPM}@scope/small/-/small-1.0.0.tgz", "integrity": integrity}
    versions = {"1.0.0": {"name": "@scope/small", "version": "1.0.0", "dist": dist}}
    about = {"name": "@scope/small", "dist-tags": {"latest": "1.0.0"}, "versions": versions}
    page = b'<!DOCTYPE html><a href="../../files/small-1.0-py3-none-any.whl">small-1.0-py3-none-any.whl</a>'

    def answer(asked: Asked) -> Given:
        if asked.method not in ("GET", "HEAD"):
            return Given(b"{}", 201, {"Content-Type": "application/json"})
        if asked.target.endswith(".tgz"):
            return Given(packed)
        if asked.target.endswith(".whl"):
            return Given(made)
        if asked.target == "/api/simple/small/":
            return Given(page, headers={"Content-Type": "text/html"})
        if asked.target.lower() == "/npm/@scope%2fsmall":
            return Given(json.dumps(about).encode(), headers={"Content-Type": "application/json"})
        return Given(b"", 404)

    return Service(answer)


@dataclass
class Bed:
    gateway: LiveGateway
    git: Service
    packages: Service
    tools: Tools
    commit: str

    def decided(self) -> set[tuple[str, str, str]]:
        return {(line["verdict"], line["method"], line["path"]) for line in self.gateway.decisions()}


def entries(name: str, port: int, **places: list[str]) -> str:
    """A preset's own entries, with the origin of this test behind their hosts."""
    wanted = presets.preset(name)
    found = {key.replace("_", "-"): [place_of(url) for url in urls] for key, urls in places.items()}
    return "".join(
        text.replace("    policies:\n", f"    upstream: http://127.0.0.1:{port}\n    policies:\n")
        for text in presets.entries_text(wanted, found)
    )


@pytest.fixture(scope="module")
def module_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    needs("git")
    base = tmp_path_factory.mktemp("presets")
    commit = bare_repository(base / "repositories" / "octo" / "hello.git")
    server, packages = Service(git_backend(base / "repositories")), registries()
    policy = (
        "networkPolicies:\n"
        + entries("github-clone", server.port)
        + entries("npm", packages.port, npm=[NPM])
        + entries("pip", packages.port, pip=[PIP], pip_files=["https://index.example.org/api/"])
    )
    gateway = LiveGateway(base, policy)
    assert gateway.first.get("event") == "ready", gateway.stderr_path.read_text()
    with tools_behind(gateway, base / "home") as tools:
        yield Bed(gateway, server, packages, tools, commit)
    gateway.stop()
    server.close()
    packages.close()


def again(bed: Bed) -> None:
    """What a real gateway recorded is judged alike again; without the preset's entries all of it is denied."""
    log, policy = bed.gateway.runs / "decisions.jsonl", load_policy([bed.gateway.policy_path])
    tally = replayed(log, Selection(own_checks=False), policy)
    assert tally.unchanged["allow"] > 1 and tally.unchanged["deny"] and not tally.changes
    assert not tally.unknown and not tally.otherwise.count
    none = read_policy([(bed.gateway.policy_path, b"networkPolicies: []\n")])
    assert replayed(log, Selection(own_checks=False), none).unchanged == {"deny": tally.unchanged["deny"]}


@pytest.fixture
def bed(module_bed: Bed) -> Bed:
    module_bed.gateway.forget()
    module_bed.git.clear()
    module_bed.packages.clear()
    return module_bed


def test_git_clones_and_fetches_and_a_push_ends_at_its_first_request(bed: Bed, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    done = bed.tools.run("git", "clone", "-q", "https://github.com/octo/hello.git", clone)
    assert done.returncode == 0, done
    assert bed.tools.run("git", "-C", clone, "rev-parse", "HEAD").stdout.strip() == bed.commit
    assert bed.tools.run("git", "-C", clone, "fetch", "-q").returncode == 0
    before = len(bed.git.asked)
    who = ("-c", "user.name=t", "-c", "user.email=t@a.test")
    assert bed.tools.run("git", *who, "-C", clone, "commit", "-q", "--allow-empty", "-m", "two").returncode == 0
    pushed = bed.tools.run("git", "-C", clone, "push", "-q", "origin", "HEAD:refs/heads/new")
    assert pushed.returncode != 0
    assert "remote: Access denied by egress policy: the policy has no rule for it" in pushed.stderr, pushed
    assert len(bed.git.asked) == before  # nothing of it reached the server
    assert ("deny", "GET", "/octo/hello.git/info/refs") in bed.decided()
    assert not any(path.endswith("git-receive-pack") for _, _, path in bed.decided())


def test_npm_installs_and_cannot_publish(bed: Bed, tmp_path: Path) -> None:
    npm = needs("npm")
    (tmp_path / "package.json").write_text('{"name": "@scope/mine", "version": "1.0.0"}')
    (tmp_path / ".npmrc").write_text(f"registry={NPM}\n{NPM.removeprefix('https:')}:_authToken=x\nfetch-retries=0\n")
    done = bed.tools.run(npm, "install", "--no-fund", "@scope/small", cwd=tmp_path)
    assert done.returncode == 0, done
    assert (tmp_path / "node_modules" / "@scope" / "small" / "package.json").exists()
    done = bed.tools.run(npm, "publish", "--access", "public", cwd=tmp_path)
    assert done.returncode != 0 and "403" in done.stderr, done
    assert ("deny", "PUT", "/npm/@scope%2fmine") in bed.decided()
    again(bed)
    assert {asked.method for asked in bed.packages.asked} == {"GET"}


def test_pip_installs_and_nothing_can_be_uploaded(bed: Bed, tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--no-cache-dir", "install", "-q", "--no-deps", "--target")
    done = bed.tools.run(*pip, tmp_path / "site", "--index-url", PIP, "small")
    assert done.returncode == 0, done
    assert (tmp_path / "site" / "small.py").exists()
    done = bed.tools.run(needs("curl"), "-s", "-F", "content=@/dev/null", "-w", "%{http_code}", PIP)
    assert done.stdout.endswith("403"), done
    assert {asked.method for asked in bed.packages.asked} == {"GET"}
