"""What of a checkout is guarded, and that it is found whatever form a repository has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.checkout import (
    MAX_REPOSITORIES,
    Guard,
    Missing,
    find_guard,
    from_record,
    make,
    own_settings,
    unmake,
)

pytestmark = pytest.mark.attack("137")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    workspace = tmp_path.resolve() / "work"
    workspace.mkdir()
    return workspace


def repository(folder: Path, settings: str = "[core]\n\tbare = false\n") -> Path:
    """As `git init --template=` makes one."""
    for name in ("objects", "refs"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "config").write_text(settings)
    return folder


def names(workspace: Path, guard: Guard) -> tuple[set[str], set[str], list[str]]:
    """Relative: shut, pinned, missing."""
    shut, pinned, missing = guard.shut, guard.pinned, [one.path for one in guard.missing]
    relative = [[str(path.relative_to(workspace)) for path in paths] for paths in (shut, pinned, missing)]
    return set(relative[0]), set(relative[1]), relative[2]


def test_a_folder_without_git_has_nothing_to_guard(place: Path) -> None:
    (place / "src").mkdir()
    assert find_guard(place) == Guard()


def test_a_plain_checkout(place: Path) -> None:
    repository(place / ".git")
    shut, pinned, missing = names(place, find_guard(place))
    assert shut == {".git/config", ".git/hooks", ".git/modules", ".git/commondir"}
    assert pinned == {".git"}
    assert set(missing) == {".git/hooks", ".git/modules", ".git/commondir"}


def test_settings_of_a_worktree_of_its_own(place: Path) -> None:
    repository(place / ".git", "[extensions]\n\tworktreeConfig = true\n")
    guard = find_guard(place)
    assert Missing(place / ".git" / "config.worktree", b"") in guard.missing


@pytest.mark.parametrize(
    ("settings", "shut"),
    [
        ("[core]\n\thooksPath = .githooks\n", ".githooks"),
        ('[core]\n\tHOOKSPATH = ".githooks" # ours\n', ".githooks"),
        ("[core] hooksPath=deep/er/hooks\n", "deep/er/hooks"),
        ("[core]\n\thooksPath = .husky/_\n", ".husky"),
        ("[include]\n\tpath = ../.gitconfig\n", ".gitconfig"),
        ('[includeIf "gitdir:/x"]\r\n\tpath = ../.gitconfig\r\n', ".gitconfig"),
        ("[core]\n\thooksPath = /etc/hooks\n", ""),
        ("[core]\n\thooksPath =\n", ""),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_what_settings_name_in_the_tree(place: Path, settings: str, shut: str, exists: bool) -> None:
    repository(place / ".git", settings)
    if exists and shut:
        (place / shut).parent.mkdir(parents=True, exist_ok=True)
        (place / shut).write_text("") if shut == ".gitconfig" else (place / shut).mkdir()
    found, pinned, missing = names(place, find_guard(place))
    assert {name for name in found if not name.startswith(".git/")} == ({shut} if shut else set())
    above = {str(folder) for folder in Path(shut or "x").parents} - {"."}
    assert pinned == {".git"} | above
    assert [name for name in missing if not name.startswith(".git/")] == (
        [*sorted(above), shut] if shut and not exists else []
    )


def test_included_settings_name_more(place: Path) -> None:
    repository(place / ".git", "[include]\n\tpath = ../one\n")
    (place / "one").write_text("[include]\n\tpath = two\n[core]\n\thooksPath = three\n")
    (place / "two").write_text("[include]\n\tpath = one\n")
    shut, _, _ = names(place, find_guard(place))
    assert {"one", "two", "three"} <= shut


def test_the_callers_own_settings_count(place: Path, tmp_path: Path) -> None:
    repository(place / ".git")
    (tmp_path / ".gitconfig").write_text("[core]\n\thooksPath = .githooks\n")
    shut, _, _ = names(place, find_guard(place, own_settings([str(tmp_path)], "")))
    assert ".githooks" in shut
    assert own_settings([""], "") == [Path("/etc/gitconfig")]
    assert own_settings([], "/c") == [Path("/etc/gitconfig"), Path("/c/git/config")]


def test_inner_and_bare_repositories_and_the_folders_on_the_way(place: Path) -> None:
    repository(place / "vendor" / "lib" / ".git")
    repository(place / "mirror.git")
    shut, pinned, _ = names(place, find_guard(place))
    assert {"vendor/lib/.git/config", "mirror.git/config", "mirror.git/hooks"} <= shut
    assert pinned == {"vendor", "vendor/lib", "vendor/lib/.git", "mirror.git"}


def test_a_submodule_is_shut_with_all_modules(place: Path) -> None:
    repository(place / ".git")
    repository(place / ".git" / "modules" / "lib")
    (place / "lib").mkdir()
    (place / "lib" / ".git").write_text("gitdir: ../.git/modules/lib\n")
    shut, pinned, _ = names(place, find_guard(place))
    assert {".git/modules", "lib/.git"} <= shut
    assert pinned == {".git", "lib"}, "a writable mount in what is shut would open it"


def test_a_worktree_whose_repository_is_elsewhere(place: Path, tmp_path: Path) -> None:
    other = repository(tmp_path / "other" / ".git" / "worktrees" / "work")
    (place / ".git").write_text(f"gitdir: {other}\n")
    assert names(place, find_guard(place)) == ({".git"}, set(), [])


def test_a_worktree_whose_repository_is_inside(place: Path) -> None:
    main = repository(place / "main" / ".git", "[core]\n\thooksPath = hooks\n")
    inner = main / "worktrees" / "linked"
    inner.mkdir(parents=True)
    (inner / "HEAD").write_text("ref: refs/heads/x\n")
    (inner / "commondir").write_text("../..\n")
    (place / "linked").mkdir()
    (place / "linked" / ".git").write_text(f"gitdir: {inner}\n")
    shut, pinned, _ = names(place, find_guard(place))
    assert {"main/.git/worktrees", "main/.git/config", "linked/.git", "main/hooks", "linked/hooks"} <= shut
    assert pinned == {"main", "main/.git", "linked"}


@pytest.mark.parametrize("what", ["empty", "hooks", "commondir", "pipe", "socket-less"])
def test_an_odd_repository_is_shut_as_a_whole(place: Path, what: str) -> None:
    git = repository(place / ".git")
    expected = {".git"}
    if what == "empty":
        for name in ("HEAD", "config"):
            (git / name).unlink()
    elif what == "hooks":
        (place / "githooks").mkdir()
        (git / "hooks").symlink_to("../githooks")
        expected.add("githooks")
    elif what == "commondir":
        (git / "commondir").write_text("../common\n")
        (place / "common").mkdir()
        expected.add("common")
    elif what == "pipe":
        (git / "config").unlink()
        os.mkfifo(git / "config")
    else:
        (git / "objects").rmdir()
    guard = find_guard(place)
    assert names(place, guard) == (expected, set(), [])
    assert git in guard.whole


@pytest.mark.parametrize("what", [".git", "hooks in the tree", "a folder on the way", "gitdir"])
def test_links_that_an_agent_could_turn_are_refused(place: Path, tmp_path: Path, what: str) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    if what == ".git":
        repository(tmp_path / "elsewhere")
        (place / ".git").symlink_to(tmp_path / "elsewhere")
    elif what == "gitdir":
        repository(place / "real" / "meta")
        (place / ".git").write_text("gitdir: link/meta\n")
    else:
        path = "link" if what == "hooks in the tree" else "link/hooks"
        repository(place / ".git", f"[core]\n\thooksPath = {path}\n")
    with pytest.raises(ImpyardError, match="could turn elsewhere"):
        find_guard(place)


def test_more_repositories_than_can_be_guarded_are_refused(place: Path) -> None:
    for number in range(MAX_REPOSITORIES):
        (place / str(number) / ".git").mkdir(parents=True)
    find_guard(place)
    (place / "one more" / ".git").mkdir(parents=True)
    with pytest.raises(ImpyardError, match="git repositories"):
        find_guard(place)


def test_a_repository_whose_name_the_engine_cannot_be_told_is_refused(place: Path) -> None:
    repository(place / os.fsdecode(b"\xff") / ".git")
    with pytest.raises(ImpyardError, match="not valid UTF-8"):
        find_guard(place)


def test_what_is_made_is_taken_away_again(place: Path) -> None:
    repository(place / ".git", "[core]\n\thooksPath = a/b\n")
    before = sorted(place.rglob("*"))
    guard = find_guard(place)
    made = make(guard.missing)
    assert (place / "a" / "b").is_dir() and (place / ".git" / "commondir").read_bytes() == b".\n"
    assert [from_record(place.record()) for place in made] == made
    assert unmake(made) == []
    assert sorted(place.rglob("*")) == before
    assert unmake(made) == [], "again is no error"


def test_what_is_not_as_it_was_made_stays_and_is_named(place: Path) -> None:
    made = make([Missing(place / "folder"), Missing(place / "file", b".\n"), Missing(place / "other", b"")])
    (place / "folder" / "x").touch()
    (place / "file").write_text("changed")
    (place / "other").unlink()
    os.mkfifo(place / "other")
    assert set(unmake(made)) == {place / "folder", place / "file", place / "other"}


def test_what_cannot_be_made_leaves_nothing(place: Path) -> None:
    (place / "link").symlink_to(place / "nowhere")
    with pytest.raises(OSError):
        make([Missing(place / "folder"), Missing(place / "link", b"")])
    assert [path.name for path in place.iterdir()] == ["link"]


@pytest.mark.parametrize("record", [{}, {"path": 1, "content": None}, {"path": "/x", "content": 1}])
def test_a_record_that_is_none(record: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        from_record(record)
