"""git behind the door: it clones and pushes where it may, and is refused at its first question where not.

Field notes F10 and F24, attack 76.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.shop import PUSHED_BYTES, Shop

pytestmark = pytest.mark.gateway


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


@pytest.mark.attack("F24")
def test_a_question_that_git_compresses_arrives_as_it_was_sent(shop: Shop, tmp_path: Path) -> None:
    """git packs a request of more than a kilobyte: a clone of many branches asks for each."""
    history = "".join(
        f"commit refs/heads/b{number}\ncommitter t <t@a.test> {number} +0000\ndata 1\nx\n" for number in range(40)
    )
    fast_import = ["git", "-C", str(shop.repositories / "open" / "repo.git"), "fast-import", "--quiet", "--force"]
    subprocess.run(fast_import, input=history.encode(), check=True)
    cloned = git(shop, "clone", "-q", "--mirror", "https://git.test/open/repo.git", tmp_path / "all")
    assert cloned.returncode == 0, cloned
    packed = [asked for asked in shop.git.asked if asked.headers.get("content-encoding") == "gzip"]
    assert packed and packed[0].body.startswith(b"\x1f\x8b")
    assert len(git(shop, "branch", "-a", cwd=tmp_path / "all").stdout.splitlines()) >= 40
    assert {line[::3] for line in shop.lines()} == {("allow", "rule")}
