"""What an agent leaves in its clone for git on the host: each trick works on plain git there, and not on impyard."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from impyard.runner.cli import main
from impyard.runner.clone import tree as clonetree
from impyard.runner.clone.commits import read_commits
from impyard.runner.clone.git import Entry
from impyard.runner.clone.paths import names_git, repositories, why_held
from impyard.runner.project import RunPaths
from tests.support.repository import clone_of, git, new_repository

FILES = {"README.md": "as it was\n", "src/a.py": "a = 1\n", ".githooks/pre-commit": "#!/bin/sh\n"}
Trick = Callable[[Path, str], None]


def settings(work: Path, text: str) -> None:
    with open(work / ".git" / "config", "a") as file:
        file.write(text)


def fsmonitor(work: Path, run: str) -> None:
    settings(work, f'[core]\n\tfsmonitor = "{run}; false"\n')


def included(work: Path, run: str) -> None:
    (work / "more").write_text(f'[core]\n\tfsmonitor = "{run}; false"\n')
    settings(work, "[include]\n\tpath = ../more\n")


def included_if(work: Path, run: str) -> None:
    (work / "more").write_text(f'[core]\n\tfsmonitor = "{run}; false"\n')
    settings(work, '[includeIf "gitdir:/"]\n\tpath = ../more\n')


def external(work: Path, run: str) -> None:
    settings(work, f'[diff]\n\texternal = "{run}; true"\n')


def textconv(work: Path, run: str) -> None:
    settings(work, f'[diff "x"]\n\ttextconv = "{run}; cat"\n')
    (work / ".git" / "info" / "attributes").write_text("* diff=x\n")


def driver_in_the_tree(work: Path, run: str) -> None:
    settings(work, f'[diff "x"]\n\tcommand = "{run}; true"\n')
    (work / ".git" / "info" / "attributes").unlink()
    (work / ".gitattributes").write_text("* diff=x\n")


def clean_filter(work: Path, run: str) -> None:
    settings(work, f'[filter "x"]\n\tclean = "{run}; cat"\n')
    (work / ".git" / "info" / "attributes").write_text("* filter=x\n")


def gitdir_elsewhere(work: Path, run: str) -> None:
    (work / ".git").rename(work / "evil")
    (work / ".git").write_text("gitdir: evil\n")
    with open(work / "evil" / "config", "a") as file:
        file.write(f'[core]\n\tfsmonitor = "{run}; false"\n')


def commondir(work: Path, run: str) -> None:
    evil = work / "evil"
    for name in ("objects", "refs"):
        shutil.copytree(work / ".git" / name, evil / name)
    (work / ".git" / "commondir").write_text("../evil\n")
    (evil / "config").write_text(f'[core]\n\tfsmonitor = "{run}; false"\n')


def inner_repository(work: Path, run: str) -> None:
    new_repository(work / "inner", {"x": "x\n"})
    fsmonitor(work / "inner", run)
    git(work, "add", "inner")


def worktree_settings(work: Path, run: str) -> None:
    settings(work, "[extensions]\n\tworktreeConfig = true\n")
    (work / ".git" / "config").write_text((work / ".git" / "config").read_text().replace("version = 0", "version = 1"))
    (work / ".git" / "config.worktree").write_text(f'[core]\n\tfsmonitor = "{run}; false"\n')


STATUS, DIFF = ("status",), ("diff",)
RUN: dict[str, tuple[Trick, tuple[str, ...]]] = {
    "fsmonitor": (fsmonitor, STATUS),
    "included settings": (included, STATUS),
    "conditional settings": (included_if, STATUS),
    "external diff": (external, DIFF),
    "textconv": (textconv, DIFF),
    "driver named in the tree": (driver_in_the_tree, DIFF),
    "clean filter": (clean_filter, DIFF),
    "repository elsewhere": (gitdir_elsewhere, STATUS),
    "common folder elsewhere": (commondir, STATUS),
    "inner repository": (inner_repository, STATUS),
    "settings of a worktree": (worktree_settings, STATUS),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a run whose agent changed a file, to be copied."""
    root = new_repository(tmp_path_factory.mktemp("made") / "p", FILES)
    paths, _ = clone_of(root)
    (paths.workspace / "src" / "a.py").write_text("a = 2\n")
    return root


@pytest.fixture
def run(made: Path, tmp_path: Path) -> RunPaths:
    root = tmp_path / "p"
    shutil.copytree(made, root, symlinks=True)
    return RunPaths(root, "20260101-000000-0001")


def impyard(run: RunPaths, *words: str) -> int:
    return main(["runs", *words[:1], run.id, "--project", str(run.root), *words[1:]])


def own_git(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (root / ".git").rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", RUN)
def test_nothing_that_an_agent_left_runs(run: RunPaths, name: str, tmp_path: Path, capsys: Any) -> None:
    trick, control = RUN[name]
    ran = tmp_path / "ran"
    trick(run.workspace, f"touch {ran}")
    before = own_git(run.root)
    ran.unlink(missing_ok=True)  # by a trick that used git itself
    assert impyard(run, "diff") == 0 and "+a = 2" in capsys.readouterr().out
    assert impyard(run, "apply", "--yes") == 0
    assert not ran.exists() and own_git(run.root) == before
    assert (run.root / "src" / "a.py").read_text() == "a = 2\n"
    git(run.root, "status")
    assert not ran.exists(), "nor afterwards, in the project"
    git(run.workspace, *control, fine=(0, 1, 128))
    assert ran.exists(), "the control: git in the clone does run it"


def assumed_unchanged(work: Path) -> None:
    git(work, "update-index", "--assume-unchanged", "src/a.py")


def skipped(work: Path) -> None:
    git(work, "update-index", "--skip-worktree", "src/a.py")


def replaced(work: Path) -> None:
    new = git(work, "hash-object", "-w", "src/a.py")
    git(work, "replace", git(work, "rev-parse", "HEAD:src/a.py"), new)
    git(work, "update-index", "--assume-unchanged", "src/a.py")


def no_text(work: Path) -> None:
    (work / ".gitattributes").write_text("*.py -diff\n")


@pytest.mark.parametrize("trick", [assumed_unchanged, skipped, replaced, no_text])
def test_nothing_is_hidden_from_the_difference(run: RunPaths, trick: Callable[[Path], None], capsys: Any) -> None:
    assert "+a = 2" in git(run.workspace, "diff")
    trick(run.workspace)
    assert impyard(run, "diff") == 0 and "+a = 2" in capsys.readouterr().out
    assert "+a = 2" not in git(run.workspace, "diff"), "the control"


def test_nothing_is_written_outside(run: RunPaths, tmp_path: Path, capsys: Any) -> None:
    """A folder of yours is a link; the agent has made it a folder, and put a file into it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for root in (run.root, run.workspace):
        (root / "way").mkdir()
        (root / "way" / "x").write_text("x\n")
    shutil.rmtree(run.root / "way")
    (run.root / "way").symlink_to(outside)
    assert impyard(run, "apply", "--yes") == 1 and "on the way to it is a link" in capsys.readouterr().err
    assert list(outside.iterdir()) == [] and (run.root / "src" / "a.py").read_text() == "a = 1\n"
    shutil.copyfile(run.workspace / "way" / "x", run.root / "way" / "x")
    assert (outside / "x").exists(), "the control"


LINKS = {"/etc/passwd": True, "../../x": True, "../.git/config": True, "../runs/x": True, "a.py": False}


@pytest.mark.parametrize("target", LINKS)
def test_links_that_lead_out_are_held_back(run: RunPaths, target: str, capsys: Any) -> None:
    (run.workspace / "src" / "link").symlink_to(target)
    assert impyard(run, "apply", "--yes") == 0
    assert ("held back: src/link: it is a link" in capsys.readouterr().err) == LINKS[target]
    assert os.path.lexists(run.root / "src" / "link") != LINKS[target], "the control among them"


def test_what_git_obeys_is_held_back_until_it_is_named(run: RunPaths, tmp_path: Path, capsys: Any) -> None:
    ran = tmp_path / "ran"
    git(run.root, "config", "filter.mine.clean", f"touch {ran}; cat")
    git(run.root, "config", "filter.mine.smudge", f"touch {ran}; cat")
    git(run.root, "config", "core.hooksPath", ".githooks")
    work = run.workspace
    (work / ".gitattributes").write_text("* filter=mine\n")
    (work / ".gitmodules").write_text('[submodule "x"]\n\turl = --upload-pack=x\n')
    (work / ".githooks" / "pre-commit").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (work / "policies").mkdir()
    (work / "policies" / "gateway.yaml").write_text("networkPolicies: [{host: '*'}]\n")
    (work / ".env").write_text("KEY=1\n")
    new_repository(work / "seed", {"x": "x\n"})
    shutil.move(work / "seed" / ".git", work / "tool")
    shutil.rmtree(work / "seed")
    with open(work / "tool" / "config", "a") as file:
        file.write(f'[core]\n\tfsmonitor = "touch {ran}; false"\n\tbare = true\n')
    (work / "\x1b[31m").write_text("red\n")
    assert impyard(run, "apply", "--yes") == 0
    said = capsys.readouterr()
    held = {line.split(": ")[1] for line in said.err.splitlines() if line.startswith("held back")}
    assert {".gitattributes", ".gitmodules", ".githooks/pre-commit", "policies/gateway.yaml", ".env"} <= held
    assert {"tool/config", "tool/HEAD", "\\x1b[31m"} <= held and "\x1b" not in said.err
    assert git(run.root, "status", "--short").splitlines() == ["M src/a.py", "?? runs/"] and not ran.exists()
    for name in (".gitattributes", ".githooks", "tool"):
        assert impyard(run, "apply", "--yes", "--take", name) == 0
    assert not ran.exists()
    git(run.root, "add", "src")
    assert ran.exists(), "the control: why they are held back"
    assert impyard(run, "apply", "--yes", "--take", "nowhere") == 1


def test_what_is_no_ordinary_file_is_left_out(run: RunPaths, capsys: Any) -> None:
    work = run.workspace
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(work)
        listener.bind("socket")
    new_repository(work / "vendor" / "lib", {"x": "x\n"})
    (work / "src" / ".GIT").mkdir()
    (work / "src" / ".GIT" / "config").touch()
    (work / "git~1").touch()
    (work / "runs").mkdir()
    (work / "runs" / "decisions.jsonl").write_text("{}\n")
    with open(work / "huge", "wb") as file:
        file.truncate(clonetree.MAX_FILE_BYTES + 1)
    (work / ".gitignore").symlink_to("/etc/passwd")
    assert impyard(run, "diff", "--name-only") == 0
    said = capsys.readouterr()
    assert said.out == "src/a.py\n"
    out = {line.split(": ")[1] for line in said.err.splitlines()}
    assert out == {"pipe", "socket", "vendor/lib", "src/.GIT", "git~1", "runs", "huge", ".gitignore"}


def test_a_tree_cannot_be_left_that_ends_never(run: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(clonetree, "IGNORE_WAIT_S", 0.0)  # as if it took longer
    (run.workspace / "new").touch()
    assert impyard(run, "diff") == 1 and ".gitignore files mean" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(clonetree, "MAX_NEW", 2)
    for number in range(3):
        (run.workspace / f"n{number}").touch()
    assert impyard(run, "diff") == 1 and "more than 2 new files" in capsys.readouterr().err
    monkeypatch.undo()
    (run.workspace / "src").chmod(0)
    if os.geteuid():
        assert impyard(run, "diff") == 1 and "chmod" in capsys.readouterr().err
    (run.workspace / "src").chmod(stat.S_IRWXU)


def test_a_deep_tree_is_cut(run: RunPaths, capsys: Any) -> None:
    handle = os.open(run.workspace, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)
    assert impyard(run, "diff", "--name-only") == 0
    said = capsys.readouterr()
    assert said.out == "src/a.py\n" and "nested too deep" in said.err


def test_commits_are_read_and_never_believed(run: RunPaths) -> None:
    work, base = run.workspace, git(run.workspace, "rev-parse", "HEAD")
    git(work, "commit", "--quiet", "--all", "--message=one\x1b[31m\n\nmore")
    found = read_commits(work, base, "sha1")
    assert [commit.subject for commit in found.found] == ["one\x1b[31m"] and found.complete
    assert found.found[0].tree == git(work, "rev-parse", "HEAD^{tree}")
    name = found.found[0].id
    place = work / ".git" / "objects" / name[:2] / name[2:]
    place.chmod(0o600)
    place.write_bytes(place.read_bytes()[:20])
    assert read_commits(work, base, "sha1").found == []
    place.unlink()
    place.symlink_to("/dev/zero")
    assert not read_commits(work, base, "sha1").complete
    (work / ".git" / "HEAD").write_text("ref: refs/heads/../../../x\n")
    assert not read_commits(work, base, "sha1").complete
    shutil.rmtree(work / ".git")
    os.symlink(run.root / ".git", work / ".git")
    assert not read_commits(work, base, "sha1").complete


@pytest.mark.parametrize(
    "name", [".git", ".GIT", ".gIt", "git~1", "GIT~2", ".git.", ".git ", ".git::$INDEX", "x\\.git"]
)
def test_git_by_another_name_is_git(name: str) -> None:
    assert names_git(name.encode())
    assert names_git(f"\u200c{name}".encode())
    assert not names_git(f"a{name}".replace("\\", "").encode())


def test_which_names_are_held_back() -> None:
    entry = Entry("100644", "0")
    for name in (
        ".gitattributes",
        "a/.GITATTRIBUTES",
        ".gitmodules",
        ".lfsconfig",
        "policies/x",
        ".env",
        "a/.env.prod",
    ):
        assert why_held(name.encode(), entry), name
    for name in ("id_rsa", ".ssh/id_ed25519", "a\nb", ".netrc", "x.pem"):
        assert why_held(name.encode(), entry, b"-----BEGIN PRIVATE KEY-----"), name
    assert not why_held(b"x.pem", entry, b"-----BEGIN CERTIFICATE-----")
    for name in ("a.py", ".gitignore", ".npmrc", "-x", "policy.yaml", ".env.example", "key.py"):
        assert not why_held(name.encode(), entry), name


REPOSITORIES = {
    "a/HEAD a/objects/x a/refs/y b/HEAD": {b"a"},
    "a/HEAD a/objects a/refs": {b"a"},  # links, or programs
    "a/HEAD a/commondir b/commondir": {b"a"},
    "a/HEAD a/objects/x refs/y": set(),
    "HEAD objects/x refs/y": {b""},
}


@pytest.mark.parametrize("names", REPOSITORIES)
def test_what_git_takes_for_a_repository(names: str) -> None:
    paths = names.encode().split()
    assert repositories(paths, []) == REPOSITORIES[names]
    for path in paths:  # as if all others lay there, whoever put them there
        others = {other[:end] for other in paths for end in range(1, len(other) + 1) if other != path}
        found = repositories([path], [], others.__contains__)
        assert found == {folder for folder in REPOSITORIES[names] if path.startswith(folder)}


def linked_parts(work: Path, run: str) -> None:
    (work / "lib").mkdir()
    (work / "lib" / "HEAD").write_text("ref: refs/heads/m\n")
    for name in ("objects", "refs"):
        (work / "lib" / name).symlink_to("../src")
    (work / "lib" / "config").write_text(f'[alias]\n\tstatus2 = "!{run}"\n')


def common_folder(work: Path, run: str) -> None:
    for name in ("objects", "refs"):
        (work / "lib" / "x" / name).mkdir(parents=True)
        (work / "lib" / "x" / name / "k").touch()
    (work / "lib" / "HEAD").write_text("ref: refs/heads/m\n")
    (work / "lib" / "commondir").write_text("x\n")
    (work / "lib" / "x" / "config").write_text(f'[alias]\n\tstatus2 = "!{run}"\n')


@pytest.mark.parametrize("trick", [linked_parts, common_folder])
def test_a_folder_that_git_takes_for_a_repository_is_held_back(
    run: RunPaths, trick: Callable[[Path, str], None], tmp_path: Path, capsys: Any
) -> None:
    ran = tmp_path / "ran"
    trick(run.workspace, f"touch {ran}")
    assert impyard(run, "apply", "--yes") == 0
    assert "git takes its folder for a repository" in capsys.readouterr().err and not (run.root / "lib").exists()
    assert impyard(run, "apply", "--yes", "--take", "lib") == 0
    git(run.root / "lib", "status2", fine=(0, 1, 128))
    assert ran.exists(), "the control: git does obey it"


def by_include(root: Path) -> None:
    git(root, "config", "include.path", "../shared")


def by_an_include_of_another_branch(root: Path) -> None:
    git(root, "config", "includeIf.onbranch:other.path", "../more")
    (root / "more").write_text("[include]\n\tpath = shared\n")


def by_attributes(root: Path) -> None:
    git(root, "config", "core.attributesFile", "shared")


def by_a_command(root: Path) -> None:
    git(root, "config", "diff.x.textconv", "sh -c './shared \"$1\"'")


def by_a_linked_hook(root: Path) -> None:
    (root / ".git" / "hooks").mkdir(exist_ok=True)
    (root / ".git" / "hooks" / "pre-commit").symlink_to("../../shared")


def by_linked_settings(root: Path) -> None:
    (root / ".git" / "config").rename(root / "shared")
    (root / ".git" / "config").symlink_to("../shared")


def by_hooks_at_the_top(root: Path) -> None:
    git(root, "config", "core.hooksPath", ".")


def by_a_hook(root: Path) -> None:
    (root / ".git" / "hooks").mkdir(exist_ok=True)
    (root / ".git" / "hooks" / "pre-push").write_text('#!/bin/sh\nexec "$(git rev-parse --show-toplevel)"/shared src\n')


def by_attributes_of_yours(root: Path) -> None:
    place = Path(os.environ["XDG_CONFIG_HOME"]) / "git" / "attributes"
    place.parent.mkdir(parents=True)
    place.symlink_to(root / "shared")


NAMED = [
    by_a_hook,
    by_attributes_of_yours,
    by_include,
    by_an_include_of_another_branch,
    by_attributes,
    by_a_command,
    by_a_linked_hook,
    by_linked_settings,
    by_hooks_at_the_top,
]


@pytest.mark.parametrize("way", NAMED)
def test_what_your_repository_names_is_held_back(
    run: RunPaths, way: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    (run.workspace / "shared").write_text("[core]\n")
    (run.workspace / "src" / "shared").write_text("another\n")
    (run.root / "shared").touch()
    way(run.root)
    assert impyard(run, "apply", "--yes") in (0, 1)
    said = " ".join(capsys.readouterr().err.split())
    assert "held back: shared: " in said and "--take shared takes it" in said
    assert "held back: src" not in said, "the control"


def test_hooks_over_a_link_are_held_back_wherever_it_leads(tmp_path: Path, capsys: Any) -> None:
    root = new_repository(tmp_path / "p", {"tools/hooks/pre-commit": "#!/bin/sh\n", "other/x": "x\n"})
    (root / "hk").symlink_to("tools/hooks")
    git(root, "add", "hk")
    git(root, "commit", "--quiet", "--message=hk")
    git(root, "config", "core.hooksPath", "hk")
    paths, _ = clone_of(root)
    work = paths.workspace
    (work / "tools" / "hooks" / "pre-commit").write_text("#!/bin/sh\n: agent\n")
    (work / "other" / "pre-commit").write_text("#!/bin/sh\n: agent\n")
    (work / "hk").unlink()
    (work / "hk").symlink_to("other")
    assert impyard(paths, "apply", "--yes") == 0
    said = capsys.readouterr()
    assert "held back: hk: your git runs" in said.err and "held back: tools/hooks/pre-commit: your git" in said.err
    assert "held back: other/pre-commit: your git" in said.err
    assert impyard(paths, "apply", "--yes", "--take", "hk") == 0 and os.readlink(root / "hk") == "other"
    assert "held back: other/pre-commit: your git runs" in capsys.readouterr().err


CHAINS: dict[str, tuple[dict[str, str], set[str]]] = {
    "over a link that leads up": (
        {"a/b/c/s": "../../..", "t": "a/b/c/s/../../../x", "pol": "a/b/c/s/policies", "rr": "a/b/c/s/runs"},
        {"t", "pol", "rr"},
    ),
    "over an absolute one": ({"etc": "/etc", "p": "etc/passwd"}, {"etc", "p"}),
    "in a circle": ({"one": "two", "two": "one"}, {"one", "two"}),
    "inside": ({"a/b/s": "..", "t": "a/b/s/b/../../src/a.py"}, set()),
    "yours is turned": ({"turn": "a/b/c"}, {"turn"}),
}


@pytest.mark.parametrize("name", CHAINS)
def test_links_are_followed_over_links(tmp_path: Path, name: str, capsys: Any) -> None:
    root = new_repository(tmp_path / "p", {"a/b/c/x": "x\n", "turn/d/e/f/x": "x\n", "src/a.py": "a\n"})
    (root / "mine").symlink_to("turn/../../../src")
    (root / "turn" / "in").symlink_to("d/e/f")
    shutil.rmtree(root / "turn")
    (root / "turn").symlink_to("a/b/c")
    if name == "yours is turned":  # a/b/c/../../../src is src; x/../../../src is outside
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message=links")
        (root / "y").mkdir()
    links, held = CHAINS[name]
    paths, _ = clone_of(root)
    for path, text in links.items():
        place = paths.workspace / path
        if place.is_symlink():
            place.unlink()
            text = "src"
        elif place.is_dir():
            shutil.rmtree(place)
        place.symlink_to(text)
    assert impyard(paths, "apply", "--yes") in (0, 1)
    said = capsys.readouterr().err
    assert {line.split(": ")[1] for line in said.splitlines() if line.startswith("held back")} >= held, said
    assert held or "held back" not in said


def test_an_agents_commit_and_ignore_files_do_not_take_long(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    work, base = run.workspace, git(run.workspace, "rev-parse", "HEAD")
    tree = git(work, "rev-parse", "HEAD^{tree}")
    for author in ("A <B> <a@b.test> 1 +0000", " <>" * 20_000):
        text = f"tree {tree}\nparent {base}\nauthor {author}\ncommitter A <a@b.test> 1 +0000\n\nx\n"
        made = git(work, "hash-object", "-w", "-t", "commit", "--literally", "--stdin", data=text.encode())
        git(work, "update-ref", "HEAD", made)
        began = time.process_time()
        [commit] = read_commits(work, base, "sha1").found
        assert time.process_time() - began < 1 and (commit.author == "A") == author.startswith("A")
    with open(work / "huge", "wb") as file:
        file.truncate(100 * clonetree.MAX_FILE_BYTES)
    for number in range(100):
        os.link(work / "huge", work / f"huge{number}")
    began = time.process_time()
    assert impyard(run, "diff", "--name-only") == 0 and "it is larger than" in capsys.readouterr().err
    assert time.process_time() - began < 3, "none of them is read"
    for limit in ("MAX_ALL_IGNORE_BYTES", "MAX_IGNORE_LINES"):
        monkeypatch.setattr(clonetree, limit, 5)
        (work / ".gitignore").write_text("a\n" * 5)
        assert impyard(run, "diff") == 1 and "are longer than" in capsys.readouterr().err
        monkeypatch.undo()
    assert impyard(run, "diff", "--name-only") == 0, "the control"
