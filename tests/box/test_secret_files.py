"""Keys and logins in the project and in a checkout to work on: the agent cannot read them, and git works without."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.box.test_checkout import git
from tests.support.project import Project, no_new_container

pytestmark = pytest.mark.box


def plant(root: Path, canary: str) -> dict[str, str]:
    """A repository with secrets, each of them with the canary: the files with what they hold."""
    root.mkdir(exist_ok=True)
    git(root, "init", "--quiet", "--initial-branch=main", "--template=")
    (root / "README.md").write_text("as it was\n")
    git(root, "add", "README.md")
    git(root, "commit", "--quiet", "--message=first")
    git(root, "remote", "add", "origin", f"https://x-access-token:{canary}@github.com/a/b.git")
    git(root, "config", "http.https://github.com/.extraheader", f"AUTHORIZATION: basic {canary}")
    files = {
        "keys/id_ed25519": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{canary}\n",
        "keys/shown.pem": f"-----BEGIN PRIVATE KEY-----\n{canary}-shown\n",
        "account.json": json.dumps({"type": "service_account", "private_key": f"-----BEGIN PRIVATE KEY-----{canary}"}),
        ".npmrc": f"registry=https://registry.test/\n//registry.test/:_authToken={canary}\n",
        ".git/modules/lib/config": f'[remote "o"]\n\turl = https://{canary}:x@github.com/a/lib\n',
    }
    files["keys/old.key"] = files["keys/id_ed25519"]
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return {name: (root / name).read_text() for name in (*files, ".git/config")}


@pytest.mark.attack("140")
@pytest.mark.attack("140", control=True)
def test_secrets_are_kept_from_the_agent_and_git_works(
    project: Project, ordinary_container: Callable[..., str]
) -> None:
    canary = f"canary{secrets.token_hex(12)}"
    root, work = project.root, project.base / "work"
    planted = {folder: plant(folder, canary) for folder in (root, work)}
    git(work, "add", "keys/old.key")
    project.own(project.base)
    for path in (root, work, *root.rglob("*"), *work.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    look = f"grep -rhsE 'c[a]nary[0-9a-f]{{24}}' {root} {work}; cat {root}/.npmrc {work}/.git/config {root}/.git/config"
    commit = "git -c user.name=agent -c user.email=agent@b.test commit --quiet --message=second"
    result = project.demo(
        f"run: ({look}) > /tmp/read 2>&1; for here in {root} {work}; do cd $here && git log --oneline &&"
        " git remote -v && git status --short && git config --list; done >> /tmp/read 2>&1; echo $? >> /tmp/read;"
        f" cp /tmp/read {work}/read",
        f"run: echo new > new.txt; git add new.txt && {commit}; git config user.name x; mv .git/config aside; true",
        args=["--workspace", str(work), "--allow-file", "keys/shown.pem"],
    )
    assert result.code == 0, result
    read = (work / "read").read_text()
    assert [line for line in read.splitlines() if canary in line] == [f"{canary}-shown"], "the one shown on purpose"
    assert read.endswith("\n0\n"), "git works"
    assert read.count("origin\thttps://github.com/a/b.git (fetch)") == 2
    assert read.count("registry=https://registry.test/") == 1
    assert git(work, "log", "--format=%s").split() == ["second", "first"], "the agent could commit"
    for folder, files in planted.items():
        assert {name: (folder / name).read_text() for name in files} == files, "the host's files are as they were"
    assert canary not in result.out + result.err + json.dumps(result.receipt) + project.log.read_text()
    kept = {(item["path"], item["how"]) for item in result.receipt["kept"]}
    assert kept == {
        (str(folder / name), "covered" if "key" in name or name == "account.json" else "cleaned")
        for folder, files in planted.items()
        for name in files
        if folder / name != root / "keys/shown.pem"
    }
    assert result.receipt["shown"] == [str(root / "keys/shown.pem")]
    said = result.out + result.err
    assert "git tracks keys/old.key: its history" in said
    assert "cleaned in the box: .git/config" in said and "--allow-file" in said

    with no_new_container(root):
        refused = project.demo("run: true", args=["--allow-file", "README.md"])
    assert (refused.code, refused.run) == (125, None)
    assert "--allow-file README.md: it is not covered" in refused.err

    # The control: an ordinary container with the same folders in it.
    volumes = {str(folder): {"bind": str(folder), "mode": "ro"} for folder in (root, work)}
    assert ordinary_container(f"({look}) 2>/dev/null; true", volumes=volumes).count(canary) >= 12
