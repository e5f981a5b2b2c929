"""Origins of the kinds that tools speak to (registries, git, files), and those tools, behind one gateway."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.gateway import LiveGateway
from tests.support.service import Asked, Given, Service, Tools, git_backend, tools_behind

POLICY = """\
networkPolicies:
  - host: app.test
    upstream: http://127.0.0.1:{app}
    policies:
      - {{action: ALLOW, method: [GET, HEAD], path: /pub/.*}}
  - host: registry.npm.test
    upstream: http://127.0.0.1:{app}
    policies:
      - {{action: ALLOW, method: GET, path: "/@scope(%2f|/).*"}}
  - host: crates.test
    upstream: http://127.0.0.1:{app}
    policies:
      - {{action: ALLOW, method: GET, path: "/(index|dl)/.*"}}
  - host: git.test
    upstream: http://127.0.0.1:{git}
    policies:
      - {{action: ALLOW, method: GET, path: /open/repo.git/info/refs}}
      - {{action: ALLOW, method: POST, path: "/open/repo.git/git-(upload|receive)-pack"}}
      - {{action: ALLOW, method: GET, path: /read/repo.git/info/refs, query: {{service: git-upload-pack}}}}
      - {{action: ALLOW, method: POST, path: /read/repo.git/git-upload-pack}}
"""
FILES = 100
PUSHED_BYTES = 3_000_000


def crate(number: int) -> bytes:
    """A crate as its registry serves it."""
    files = {"Cargo.toml": f'[package]\nname="c{number}"\nversion="1.0.0"\nedition="2021"\n', "src/lib.rs": ""}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"c{number}-1.0.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


def registries(crates: dict[str, bytes]) -> Service:
    """One origin for npm, cargo and curl."""

    def answer(asked: Asked) -> Given:
        path = asked.target.partition("?")[0]
        name = path.rpartition("/")[2]
        if path.startswith("/@scope"):
            versions = {"1.2.3": {"name": "@scope/pkg", "version": "1.2.3", "dist": {"tarball": "x", "shasum": "x"}}}
            about = {"name": "@scope/pkg", "dist-tags": {"latest": "1.2.3"}, "versions": versions}
            return Given(json.dumps(about).encode(), headers={"Content-Type": "application/json"})
        if path == "/index/config.json":
            return Given(json.dumps({"dl": "https://crates.test/dl/{crate}"}).encode())
        if path.startswith("/index/"):
            line = {"name": name, "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
            return Given(json.dumps(line | {"cksum": hashlib.sha256(crates[name]).hexdigest()}).encode())
        return Given(crates.get(name, f"this is {path}\n".encode()))

    return Service(answer)


@dataclass
class Shop:
    """A gateway, its origins, and tools behind it."""

    gateway: LiveGateway
    app: Service
    git: Service
    repositories: Path
    tools: Tools

    def lines(self) -> list[tuple[str, str, str, str]]:
        return [(str(d["verdict"]), d["method"], d["path"], d["reason"]) for d in self.gateway.decisions()]


@pytest.fixture(scope="module")
def crates() -> dict[str, bytes]:
    return {f"c{number}": crate(number) for number in range(FILES)}


@pytest.fixture(scope="module")
def module_shop(tmp_path_factory: pytest.TempPathFactory, crates: dict[str, bytes]) -> Iterator[Shop]:
    base = tmp_path_factory.mktemp("shop")
    repositories = base / "repositories"
    for name in ("open", "read"):
        made = repositories / name / "repo.git"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", made], check=True)
        subprocess.run(["git", "-C", made, "config", "http.receivepack", "true"], check=True)
    app, git = registries(crates), Service(git_backend(repositories))
    gateway = LiveGateway(base, POLICY.format(app=app.port, git=git.port))
    assert gateway.first.get("event") == "ready", gateway.stderr_path.read_text()
    with tools_behind(gateway, base / "home") as tools:
        yield Shop(gateway, app, git, repositories, tools)
    gateway.stop()
    app.close()
    git.close()


@pytest.fixture
def shop(module_shop: Shop) -> Shop:
    module_shop.app.clear()
    module_shop.git.clear()
    (module_shop.gateway.runs / "decisions.jsonl").write_text("")
    return module_shop


def needs(tool: str) -> str:
    """The path of a tool, or a skip: not every machine has all of them."""
    found = shutil.which(tool) or shutil.which(tool, path=os.path.expanduser("~/.cargo/bin"))
    if found is None:
        pytest.skip(f"{tool} is not installed")
    return found


def cargo_project(folder: Path, names: list[str], index: str) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "lib.rs").write_text("")
    needed = "".join(f'{name} = "1"\n' for name in names)
    about = f'[package]\nname = "mine"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n{needed}'
    (folder / "Cargo.toml").write_text(about)
    (folder / "cargo").mkdir()
    sources = f'[source.crates-io]\nreplace-with = "m"\n[source.m]\nregistry = "{index}"\n'
    (folder / "cargo" / "config.toml").write_text(sources)
