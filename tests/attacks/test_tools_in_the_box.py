"""Every network tool of the image, in the box and its own environment: what is allowed works, what is not says so.

The table in docs/tools.md is that of TOOLS. pip, uv, cargo and the like are not in the image.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import shlex
import tarfile
from collections.abc import Iterator

import pytest

from tests.support.project import Project
from tests.support.service import Asked, Given, Service

pytestmark = pytest.mark.box

# Name: the command, with HOST for the origin, and what it prints when it got there.
TOOLS: dict[str, tuple[str, str]] = {
    "curl": ("curl -sS --fail-with-body https://HOST/curl", "this is /curl"),
    "curl, without an environment": (
        'env -i PATH="$PATH" curl -sS --fail-with-body https://HOST/bare',
        "this is /bare",
    ),
    "curl, by clear HTTP": ("curl -sS --fail-with-body http://HOST/clear", "this is /clear"),
    "git ls-remote": ("git ls-remote https://HOST/repo", "refs/heads/main"),
    "python urllib": (
        "python3 -c 'import urllib.request as u; print(u.urlopen(\"https://HOST/urllib\").read())'",
        "this is /urllib",
    ),
    # As aiohttp, which does not look at the environment: it connects to the name.
    "python http.client": (
        'python3 -c \'import http.client as c; h = c.HTTPSConnection("HOST"); h.request("GET", "/client");'
        " r = h.getresponse(); print(r.status, r.reason, r.read())'",
        "this is /client",
    ),
    "node fetch": (
        "node -e 'fetch(\"https://HOST/fetch\").then(async r => console.log(r.status, await r.text()))'",
        "this is /fetch",
    ),
    "node https": (
        'node -e \'require("https").get("https://HOST/https", r => { console.log(r.statusCode);'
        ' r.on("data", d => console.log(String(d))) })\'',
        "this is /https",
    ),
    "npm view": ("npm view --registry https://HOST/npm/ small version", "1.2.3"),
    "npm install": ("npm install --registry https://HOST/npm/ small && cat node_modules/small/index.js", "// small"),
    "npx": ("npx --yes --registry https://HOST/npm/ small", "small runs"),
}
POLICY = """\
networkPolicies:
  - host: allowed.test
    scheme: [http, https]
    upstream: http://127.0.0.1:{}
    policies: [{{action: ALLOW, method: GET, path: /.*}}]
"""

# What the runner's own shell may say to other tools.
MISLEADING = {
    **dict.fromkeys(("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"), "/nowhere"),
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:1"),
}


def package() -> bytes:
    """A package of npm's with a program in it."""
    about = json.dumps({"name": "small", "version": "1.2.3", "bin": {"small": "run.js"}})
    program = "#!/usr/bin/env node\nconsole.log('small runs')\n"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in (("package.json", about), ("index.js", "// small\n"), ("run.js", program)):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(text), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


PACKAGE = package()


def answer(asked: Asked) -> Given:
    path = asked.target.partition("?")[0]
    if path == "/repo/info/refs":
        return Given(f"{'1' * 40}\trefs/heads/main\n".encode(), headers={"Content-Type": "text/plain"})
    if path == "/repo/HEAD":
        return Given(b"ref: refs/heads/main\n")
    if path == "/npm/small":
        whole = "sha512-" + base64.b64encode(hashlib.sha512(PACKAGE).digest()).decode()
        dist = {"tarball": "https://allowed.test/npm/small.tgz", "integrity": whole}
        versions = {"1.2.3": {"name": "small", "version": "1.2.3", "bin": {"small": "run.js"}, "dist": dist}}
        about = {"name": "small", "dist-tags": {"latest": "1.2.3"}, "versions": versions}
        return Given(json.dumps(about).encode(), headers={"Content-Type": "application/json"})
    if path == "/npm/small.tgz":
        return Given(PACKAGE)
    return Given(f"this is {path}\n".encode())


@pytest.fixture(scope="module")
def origin() -> Iterator[Service]:
    service = Service(answer)
    yield service
    service.close()


@pytest.fixture(scope="module")
def said(module_project: Project, origin: Service) -> dict[str, dict[str, str]]:
    """What each tool printed, exit status first, for an allowed host and a denied one."""
    project = module_project
    project.policy.write_text(POLICY.format(origin.port))
    script = ["mkdir -p a d"]
    for number, (command, _words) in enumerate(TOOLS.values()):
        for folder, host in (("a", "allowed.test"), ("d", "denied.test")):
            inner = command.replace("HOST", host)
            script.append(
                f"(mkdir -p {folder}/{number}.d; cd {folder}/{number}.d; timeout 60 bash -c {shlex.quote(inner)};"
                f" echo $?) > {folder}/{number} 2>&1 &"
            )
        script.append("wait")
    script += [
        "python3 -m http.server --bind 127.0.0.1 8099 > served 2>&1 & sleep 1",
        "curl -sS -o own -w '%{http_code}\\n' http://127.0.0.1:8099/a > loopback",
        "curl -sS -o own http://localhost:8099/a/",
        "env | grep -i '^no_proxy=' | sort >> loopback; kill %1",
        "grep -c 'BEGIN CERT' /etc/ssl/certs/ca-certificates.crt > bundle",
        'grep -qF "$(sed -n 2p $SSL_CERT_FILE)" /etc/ssl/certs/ca-certificates.crt && echo in >> bundle',
        "touch $HOME/.npmrc && ls -A $HOME > home; touch /new /opt/pi/new 2> root; true",
    ]
    result = project.demo(project.script("tools.sh", "\n".join(script)), limit_s=170, env=MISLEADING)
    assert result.code == 0 and result.run is not None, result
    found: dict[str, dict[str, str]] = {"a": {}, "d": {}, "files": {}}
    for number, name in enumerate(TOOLS):
        for folder in ("a", "d"):
            found[folder][name] = result.file(f"{folder}/{number}")
    for name in ("loopback", "bundle", "home", "root"):
        found["files"][name] = result.file(name)
    return found


@pytest.mark.attack("F34", "F35", "F37", "F42", "F52", control=True)
@pytest.mark.attack("F34", "F36", "F37", "F38", "F42", "F52")
@pytest.mark.parametrize("tool", TOOLS)
def test_an_allowed_host_is_reached(said: dict[str, dict[str, str]], tool: str) -> None:
    lines = said["a"][tool].splitlines()
    assert lines[-1] == "0", lines
    assert TOOLS[tool][1] in said["a"][tool]


@pytest.mark.attack("F21", "F34", "F37", "F42")
@pytest.mark.parametrize("tool", TOOLS)
def test_a_denied_host_is_refused_in_words(said: dict[str, dict[str, str]], tool: str, origin: Service) -> None:
    text = said["d"][tool]
    assert TOOLS[tool][1] not in text
    assert "403" in text or "egress policy" in text, text
    assert not any("denied" in asked.headers.get("host", "") for asked in origin.asked)


@pytest.mark.attack("F46")
def test_the_boxs_own_loopback_is_not_asked_of_the_judge(
    said: dict[str, dict[str, str]], module_project: Project
) -> None:
    status, *names = said["files"]["loopback"].split()
    assert status == "301" or status == "200", said["files"]["loopback"]
    assert [name.partition("=")[2] for name in names] == ["localhost,127.0.0.1,::1"] * 2
    assert not any(line["host"] in ("localhost", "127.0.0.1") for line in module_project.asked())


@pytest.mark.attack("F38")
def test_the_trust_bundle_is_extended_not_replaced(said: dict[str, dict[str, str]]) -> None:
    count, ours = said["files"]["bundle"].split()
    assert int(count) > 50 and ours == "in"


@pytest.mark.attack("F52")
def test_caches_go_home_and_the_root_stays_as_it_is(said: dict[str, dict[str, str]]) -> None:
    assert ".npm" in said["files"]["home"].split()
    assert said["files"]["root"].count("Read-only file system") == 2


@pytest.mark.attack("F39")
def test_an_environment_for_other_tools_does_not_reach_impyards_own_parts(said: dict[str, dict[str, str]]) -> None:
    """Python's HTTP libraries obey MISLEADING before any argument; the run that all here rests on had it."""
    assert "this is /curl" in said["a"]["curl"]
