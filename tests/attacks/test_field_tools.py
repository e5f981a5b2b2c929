"""Real tools behind the door: what is refused must be legible to whoever typed the command.

Field notes F09, F11, F21 and F43. docs/tools.md has the table of what each tool shows.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway import LiveGateway
from tests.support.service import LIMIT_S, Given, Service, Tools
from tests.support.shop import FILES, Shop, cargo_project, needs

pytestmark = pytest.mark.gateway

# -- the reason is legible (F21) --------------------------------------------------------------------------------------

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


# -- npm's encoded slash (F09) ----------------------------------------------------------------------------------------


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


# -- GraphQL (F11) ----------------------------------------------------------------------------------------------------


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


# -- many small downloads (F43) ---------------------------------------------------------------------------------------


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


@pytest.mark.attack("F43")
def test_cargo_fetches_a_hundred_crates_over_http2(shop: Shop, tmp_path: Path, crates: dict[str, bytes]) -> None:
    cargo_project(tmp_path, list(crates), "sparse+https://crates.test/index/")
    # By itself cargo gives up a file of which nothing has come in 30 seconds, and asks again: with a warning that
    # nobody would see, and a line more. Whatever ends a file is to end this test, and say why.
    patient = {"CARGO_HTTP_TIMEOUT": f"{LIMIT_S:g}", "CARGO_NET_RETRY": "0"}
    done = shop.tools.run(needs("cargo"), "fetch", cwd=tmp_path, CARGO_HOME=str(tmp_path / "cargo"), **patient)
    assert done.returncode == 0, done
    assert len(list((tmp_path / "cargo" / "registry" / "cache").rglob("*.crate"))) == FILES
    assert {line[::3] for line in shop.lines()} == {("allow", "rule")}
    assert len(shop.lines()) == 2 * FILES + 1
