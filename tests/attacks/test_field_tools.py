"""Real tools behind the door: what works must work, and what is refused must be legible to whoever typed the command.

Field notes F09, F10, F11, F21, F24, F43; attack 76. docs/tools.md has the table of what each tool shows.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.gateway import LiveGateway
from tests.support.service import Asked, Given, Service, Tools, git_backend, tools_behind

pytestmark = pytest.mark.gateway

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


# -- the reason is legible (F21) ------------------------------------------------------------------------------------

URL = "https://app.test/denied"
SENTENCE = "Access denied by egress policy: the policy has no rule for it"
PHRASE = "Denied by egress policy (no-rule)"
REQUESTS = f"import requests; requests.get({URL!r}).raise_for_status()"
URLLIB = f"import urllib.request as u; u.urlopen({URL!r})"
NODE = f"fetch({URL!r}).then(async r => console.log(r.status, await r.text()))"


@pytest.mark.attack("F21")
@pytest.mark.parametrize(
    ("command", "status", "shown"),
    [
        (("curl", "-sS", URL), 0, SENTENCE),
        (("curl", "-sS", "--http1.1", URL), 0, SENTENCE),
        (("curl", "-sSf", URL), 22, "error: 403"),
        (("curl", "-sS", "--fail-with-body", URL), 22, SENTENCE),
        (("git", "ls-remote", URL), 128, SENTENCE),
        (("npm", "view", "denied", "--registry", "https://app.test/"), 1, SENTENCE),
        (("python", "-c", REQUESTS), 1, PHRASE),
        (("python", "-c", URLLIB), 1, PHRASE),
        (("python", "-m", "pip", "download", "-vv", "--index-url", "https://app.test/simple/", "denied"), 1, PHRASE),
        (("wget", "-nv", "--ca-certificate", "CA", URL), 8, PHRASE),
        (("node", "-e", NODE), 0, SENTENCE),
        (("cargo", "fetch"), 101, SENTENCE),
    ],
    ids=["curl", "curl-http1", "curl-f", "curl-fail-with-body", "git", "npm", "requests", "urllib", "pip", "wget",
         "node", "cargo"],
)  # fmt: skip
def test_a_refusal_is_legible_and_asked_for_once(
    shop: Shop, tmp_path: Path, command: tuple[str, ...], status: int, shown: str
) -> None:
    tool, *words = command
    program = sys.executable if tool == "python" else needs(tool)
    if tool == "node" and not node_reads_the_proxy_variables(program):
        pytest.skip("this Node does not read the proxy variables")
    if tool == "cargo":
        cargo_project(tmp_path, ["denied"], "sparse+https://app.test/index/")
    words = [str(shop.gateway.authority.cert_path) if word == "CA" else word for word in words]
    done = shop.tools.run(program, *words, cwd=tmp_path, CARGO_HOME=str(tmp_path / "cargo"))
    assert (done.returncode, shown in done.stdout + done.stderr) == (status, True), done
    assert [line[::3] for line in shop.lines()] == [("deny", "no-rule")], shop.lines()
    assert shop.app.connections == 0
    assert shop.gateway.get("https://app.test/pub/x").status == 200


def node_reads_the_proxy_variables(node: str) -> bool:
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = (int(part) for part in version.removeprefix("v").split(".")[:2])
    return (major, minor) >= (22, 21)


@pytest.mark.attack("F21", control=True)
def test_control_a_refused_connect_hides_its_reason(tmp_path: Path) -> None:
    """What an answer to CONNECT itself would look like to git's user."""
    refusing = Service(lambda asked: Given(SENTENCE.encode(), 403))
    gateway = LiveGateway(tmp_path, "networkPolicies: []\n")
    try:
        done = Tools(gateway, refusing.port, tmp_path / "home").run("git", "ls-remote", URL)
        assert SENTENCE not in done.stderr
    finally:
        gateway.stop()
        refusing.close()


# -- npm's encoded slash (F09) --------------------------------------------------------------------------------------


@pytest.mark.attack("F09")
def test_npm_finds_a_scoped_package(shop: Shop) -> None:
    npm = needs("npm")
    done = shop.tools.run(npm, "view", "@scope/pkg", "version", "--registry", "https://registry.npm.test/")
    assert done.stdout.strip() == "1.2.3", done
    assert shop.lines() == [("allow", "GET", "/@scope%2fpkg", "rule")]
    assert [asked.target for asked in shop.app.asked] == ["/@scope%2fpkg"], "sent as it was judged"


@pytest.mark.attack("F09")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/@scope%2f..%2fadmin", "ambiguous-path"),
        ("/@scope%2f%2e%2e%2Fadmin", "ambiguous-path"),
        ("/@scope%2fpkg%2f..%2f..%2fx", "ambiguous-path"),
        ("/@scope%252fpkg", "no-rule"),
        ("/@other%2fpkg", "no-rule"),
    ],
)
def test_an_encoded_slash_leads_nowhere_else(shop: Shop, path: str, reason: str) -> None:
    assert shop.gateway.get(f"https://registry.npm.test{path}").status == 403
    assert shop.lines() == [("deny", "GET", path, reason)]
    assert shop.app.connections == 0
    assert shop.gateway.get("https://registry.npm.test/@scope%2fpkg").status == 200


# -- git (F10, F24, 76) ---------------------------------------------------------------------------------------------


def git(shop: Shop, *words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    who = ["-c", "user.name=t", "-c", "user.email=t@a.test"]
    return shop.tools.run("git", *who, *words, cwd=cwd)


def committed(shop: Shop, folder: Path, size: int) -> str:
    """A repository with one commit that holds `size` bytes which do not compress; the commit."""
    git(shop, "init", "-q", "-b", "main", folder)
    (folder / "blob").write_bytes(os.urandom(size))
    git(shop, "add", "blob", cwd=folder)
    git(shop, "commit", "-qm", "one", cwd=folder)
    return git(shop, "rev-parse", "HEAD", cwd=folder).stdout


@pytest.mark.attack("F24")
@pytest.mark.parametrize(("version", "spoken"), [("HTTP/1.1", "1.1"), ("HTTP/2", "2.0")])
def test_git_pushes_and_clones(shop: Shop, tmp_path: Path, version: str, spoken: str) -> None:
    commit = committed(shop, tmp_path / "mine", PUSHED_BYTES)
    url, http = "https://git.test/open/repo.git", ("-c", f"http.version={version}")
    pushed = git(shop, *http, "push", "-f", url, "main", cwd=tmp_path / "mine")
    assert pushed.returncode == 0, pushed
    assert max(len(asked.body) for asked in shop.git.asked) > PUSHED_BYTES
    assert git(shop, *http, "ls-remote", url, "main").stdout.split()[0] == commit.strip()
    for name, more in (("whole", ()), ("shallow", ("--depth", "1"))):
        cloned = git(shop, *http, "clone", "-q", *more, url, tmp_path / name)
        assert cloned.returncode == 0, cloned
        assert (tmp_path / name / "blob").read_bytes() == (tmp_path / "mine" / "blob").read_bytes()
    assert {line[::3] for line in shop.lines()} == {("allow", "rule")}
    assert {line["http"] for line in shop.gateway.decisions()} == {spoken}
    assert len(shop.lines()) == len(shop.git.asked)


@pytest.mark.attack("76", "F10")
def test_a_push_is_refused_at_its_first_question_and_says_why(shop: Shop, tmp_path: Path) -> None:
    """Control: the same rules let the same repository be listed."""
    committed(shop, tmp_path / "mine", 100)
    url = "https://git.test/read/repo.git"
    assert git(shop, "ls-remote", url).returncode == 0
    shop.git.clear()
    pushed = git(shop, "push", url, "main", cwd=tmp_path / "mine")
    assert pushed.returncode != 0
    assert "remote: Access denied by egress policy" in pushed.stderr
    assert [line for line in shop.lines() if line[0] == "deny"] == [
        ("deny", "GET", "/read/repo.git/info/refs", "no-rule")
    ]
    assert shop.git.asked == []
    assert shop.gateway.get("https://git.test/read/repo.git/git-receive-pack", "POST", body=b"0000").status == 403
    assert shop.git.asked == []


@pytest.mark.attack("76", "F10")
@pytest.mark.parametrize(
    "query",
    [
        "service=git-receive-pack",
        "service=git%2dreceive%2Dpack",
        "service=git%252dreceive-pack",
        "%73ervice=git-receive-pack",
        "service=git-upload-pack&service=git-receive-pack",
        "service=git-receive-pack&service=git-upload-pack",
        "service=git-upload-pack;service=git-receive-pack",
        "service=git-upload-pack&%73ervice=git-receive-pack",
        "service=git-upload-pack%26service=git-receive-pack",
        "service=git-upload-pack%00",
        "service=",
        "service",
        "",
    ],
)
def test_no_spelling_of_the_query_makes_a_fetch_of_a_push(shop: Shop, query: str) -> None:
    reply = shop.gateway.get(f"https://git.test/read/repo.git/info/refs?{query}")
    assert (reply.status, reply.json()["reason"]) == (403, "no-rule")
    assert [line[::3] for line in shop.lines()] == [("deny", "no-rule")]
    assert shop.git.connections == 0
    assert shop.gateway.get("https://git.test/read/repo.git/info/refs?service=git-upload-pack").status == 200


@pytest.mark.attack("F10", "F24", control=True)
def test_control_with_a_rule_the_push_goes_through(shop: Shop, tmp_path: Path) -> None:
    committed(shop, tmp_path / "mine", 100)
    assert git(shop, "push", "-f", "https://git.test/open/repo.git", "main", cwd=tmp_path / "mine").returncode == 0
    assert any(asked.target.endswith("/git-receive-pack") for asked in shop.git.asked)


# -- GraphQL (F11) --------------------------------------------------------------------------------------------------


@pytest.mark.attack("F11")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/graphql", b'{"query": "query { viewer { login } }"}'),
        ("POST", "/graphql", b'{"query": "mutation { deleteIssue }"}'),
        ("POST", "/pub/graphql", b'{"query": "query { viewer { login } }"}'),
        ("GET", "/graphql?query=query{viewer{login}}", b""),
    ],
)
def test_graphql_needs_a_rule_of_its_own(shop: Shop, method: str, path: str, body: bytes) -> None:
    """Rules do not look into bodies: a POST that reads is a POST."""
    reply = shop.gateway.get(f"https://app.test{path}", method, body=body)
    assert (reply.status, reply.json()["reason"]) == (403, "no-rule")
    assert [line[0] for line in shop.lines()] == ["deny"]
    assert shop.app.connections == 0
    assert shop.gateway.get("https://app.test/pub/graphql").status == 200


# -- many small downloads (F43) -------------------------------------------------------------------------------------


@pytest.mark.attack("F43")
def test_a_hundred_files_at_once_over_http2(shop: Shop, tmp_path: Path) -> None:
    many = ["--http2", "--parallel", "--parallel-max", str(FILES), "--create-dirs"]
    words = ["-sS", *many, "-o", str(tmp_path / "f#1"), f"https://app.test/pub/f[1-{FILES}]"]
    done = shop.tools.run(needs("curl"), *words)
    assert done.returncode == 0, done
    for number in range(1, FILES + 1):
        assert (tmp_path / f"f{number}").read_text() == f"this is /pub/f{number}\n"
    assert [line[::3] for line in shop.lines()] == [("allow", "rule")] * FILES
    assert {line["http"] for line in shop.gateway.decisions()} == {"2.0"}


def cargo_project(folder: Path, names: list[str], index: str) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "lib.rs").write_text("")
    needed = "".join(f'{name} = "1"\n' for name in names)
    about = f'[package]\nname = "mine"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n{needed}'
    (folder / "Cargo.toml").write_text(about)
    (folder / "cargo").mkdir()
    sources = f'[source.crates-io]\nreplace-with = "m"\n[source.m]\nregistry = "{index}"\n'
    (folder / "cargo" / "config.toml").write_text(sources)


@pytest.mark.attack("F43")
def test_cargo_fetches_a_hundred_crates_over_http2(shop: Shop, tmp_path: Path, crates: dict[str, bytes]) -> None:
    cargo_project(tmp_path, list(crates), "sparse+https://crates.test/index/")
    done = shop.tools.run(needs("cargo"), "fetch", cwd=tmp_path, CARGO_HOME=str(tmp_path / "cargo"))
    assert done.returncode == 0, done
    assert len(list((tmp_path / "cargo" / "registry" / "cache").rglob("*.crate"))) == FILES
    assert {line[::3] for line in shop.lines()} == {("allow", "rule")}
    assert len(shop.lines()) == 2 * FILES + 1
