"""What of a checkout is guarded, and that it is found whatever form a repository has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.checkout import (
    ALTERNATES,
    FOLDERS,
    MAX_REPOSITORIES,
    Guard,
    find_guard,
)
from impyard.runner.gitsettings import named_paths, own_settings
from impyard.runner.places import Holds, Missing, from_record, make, unmake

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
    """Relative: shut, pinned, missing; without those of the objects, which are the same everywhere."""
    shut, pinned, missing = guard.shut, guard.pinned, [one.path for one in guard.missing]
    relative = [
        [str(path.relative_to(workspace)) for path in paths if "objects" not in path.parts]
        for paths in (shut, pinned, missing)
    ]
    return set(relative[0]), set(relative[1]), relative[2]


def test_a_folder_without_git_has_nothing_to_guard(place: Path) -> None:
    (place / "src").mkdir()
    assert find_guard(place) == Guard()


def test_a_plain_checkout(place: Path) -> None:
    git = repository(place / ".git")
    guard = find_guard(place)
    made = {*(git / name for name in FOLDERS), git / "commondir", git / ALTERNATES}
    assert set(guard.shut) == {git / "config", *made}
    assert guard.pinned == [git, git / "objects", git / "objects" / "info"]
    assert {one.path for one in guard.missing} == {*made, git / "objects" / "info"}
    make(guard.missing)
    (git / "objects" / "info" / "packs").touch()
    assert unmake(guard.missing[::-1]) == [], "what the agent leaves on the way is no news"
    (git / "objects" / "info" / ALTERNATES.rpartition("/")[2]).write_text("/elsewhere\n")
    (git / "commondir").write_bytes(b".\n")
    again = find_guard(place)
    assert set(again.shut) == set(guard.shut), "what a killed runner of another project left is taken over"
    assert unmake(make(again.missing)[::-1]) == [] and not (git / "commondir").exists()


@pytest.mark.parametrize("deeper", [".", "trees/one"])
def test_a_repository_in_a_folder_that_looks_like_one(place: Path, deeper: str) -> None:
    """git looks for a .git first; and worktrees often lie in a bare repository."""
    repository(place)
    repository(place / deeper / ".git")
    assert place / deeper / ".git" / "config" in find_guard(place).shut


@pytest.mark.parametrize("is_linked", [False, True])
def test_settings_of_the_repository_above(place: Path, is_linked: bool) -> None:
    """Its hooks may lie in the part of its tree that is worked on."""
    settings = "[core]\n\thooksPath = work/hooks\n"
    if is_linked:
        repository(place.parent / "other", settings)
        (place.parent / ".git").write_text("gitdir: other\n")
    else:
        repository(place.parent / ".git", settings)
    assert names(place, find_guard(place)) == ({"hooks"}, set(), ["hooks"])


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("[core]hooksPath=a;b", ["a"]),
        ("hooksPath = a \\\n b  \n", ["a  b"]),
        ('hooksPath = "a;b" # c', ["a;b"]),
        ('hooksPath = a\\"b\\\\c', ['a"b\\c']),
        ("hooksPath = a # no more \\\nhooksPath = b", ["a", "b"]),
        ('[includeIf "gitdir:/a]b"] path = c', ["c"]),
        ("; hooksPath = a\n[core]\nhooksPath\n", []),
    ],
)
def test_settings_are_read_as_git_reads_them(text: str, paths: list[str]) -> None:
    assert [value for _, value in named_paths(text) if value in paths] == paths
    assert bool(named_paths(text)) == bool(paths)


def test_two_runs_do_not_share_a_checkout(place: Path) -> None:
    """Each would take away what it made, and with it the other's cover."""
    repository(place / "inner" / ".git", "[core]\n\thooksPath = sub/hooks\n")
    (place / "inner" / "sub").mkdir()
    first, second, third = Holds(), Holds(), Holds()
    find_guard(place, hold=first.hold)
    for folder in (place, place / "inner", place / "inner" / "sub"):
        with pytest.raises(ImpyardError, match="another run works in"):
            find_guard(folder, hold=second.hold)
    first.close()
    second.close()
    find_guard(place / "inner" / "sub", hold=second.hold)
    find_guard(place / "inner" / "sub", hold=third.hold)  # two parts of a checkout are two workspaces
    third.hold(place, True)
    third.hold(place, False)  # a lock of one's own is in nobody's way
    third.hold(place, True)
    second.close()
    with pytest.raises(ImpyardError):
        second.hold(place, True)
    for one in (second, third):
        one.close()


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
    (tmp_path / "other").write_text("[core]\n\thooksPath = others\n")
    own = own_settings([str(tmp_path)], {"GIT_CONFIG_GLOBAL": str(tmp_path / "other")})
    shut, _, _ = names(place, find_guard(place, own))
    assert {".githooks", "others"} <= shut
    machine = own_settings([""], {"GIT_CONFIG_SYSTEM": ""})
    assert Path("/etc/gitconfig") in machine
    assert own_settings([], {"XDG_CONFIG_HOME": "/c"}) == [*machine, Path("/c/git/config")]


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
    guard = find_guard(place)
    assert names(place, guard) == ({".git"}, set(), [])
    assert guard.apart == [place], "nobody is told that the agent cannot commit"


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
    assert find_guard(place).apart == []


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


@pytest.mark.parametrize("what", ["hooks", "hooks from above", "husky's", "an odd bare repository"])
def test_a_workspace_that_git_obeys_as_a_whole_is_refused(place: Path, what: str) -> None:
    """It cannot be kept from the agent, who is to write there."""
    if what == "hooks":
        repository(place / ".git", "[core]\n\thooksPath = .\n")
    elif what == "hooks from above":
        repository(place.parent / ".git", "[core]\n\thooksPath = work\n")
    elif what == "husky's":
        repository(place.parent / ".git", "[core]\n\thooksPath = work/_\n")
    else:
        repository(place)
        (place / "hooks").symlink_to("/etc")
    with pytest.raises(ImpyardError, match="as a whole must be kept"):
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
    assert [from_record(one.record()) for one in made] == made
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


@pytest.mark.parametrize(
    "record", [{}, {"path": 1, "content": None}, {"path": "/x", "content": 1}, {"path": "/x", "content": "key"}]
)
def test_a_record_that_is_none(record: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        from_record(record)
