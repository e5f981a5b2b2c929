"""Which folder is the project, and which folders a box must not get."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.project import (
    RUN_ID,
    check_root,
    check_workspace,
    find_root,
    mounts_under,
    new_run,
    policy_files,
)


def make_project(folder: Path) -> Path:
    (folder / "policies").mkdir(parents=True)
    (folder / "policies" / "gateway.yaml").write_text("networkPolicies: []\n")
    return folder


def test_the_nearest_folder_with_a_policy_is_the_root(tmp_path: Path) -> None:
    outer = make_project(tmp_path / "outer")
    inner = make_project(outer / "inner")
    deep = inner / "a" / "b"
    deep.mkdir(parents=True)
    assert find_root(start=deep) == inner
    assert find_root(start=outer) == outer


def test_without_a_policy_the_top_level_of_git_is_the_root(tmp_path: Path) -> None:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "src").mkdir()
    assert find_root(start=tmp_path / "repo" / "src") == tmp_path / "repo"


def test_a_policy_further_up_wins_over_a_nearer_git_folder(tmp_path: Path) -> None:
    root = make_project(tmp_path / "all")
    (root / "module" / ".git").mkdir(parents=True)
    assert find_root(start=root / "module") == root


@pytest.mark.parametrize("planted", ["workspace", "workspace/runs/20260101-000000-beef/workspace"])
def test_a_policy_that_an_agent_wrote_is_not_found(tmp_path: Path, planted: str) -> None:
    """Control: the same policy outside of a run's folder is."""
    root = make_project(tmp_path / "project")
    trap = make_project(root / "runs" / "20261129-201744-4ec0" / planted)
    (trap / ".git").mkdir()
    assert find_root(start=trap) == root
    elsewhere = make_project(root / "other" / "20261129-201744-4ec0" / "workspace")
    assert find_root(start=elsewhere) == elsewhere


def test_with_neither_the_folder_itself_is_the_root(tmp_path: Path) -> None:
    assert find_root(start=tmp_path) == tmp_path


@pytest.mark.parametrize("mark", ["policies/gateway.yaml", ".git/config"])
def test_a_home_folder_is_not_found_from_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    """Control: the same file a level deeper makes a project."""
    home = tmp_path / "somebody"
    here = home / "notes" / "deep"
    here.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for folder in (tmp_path, home, home / "notes"):
        (folder / mark).parent.mkdir()
        (folder / mark).touch()
    assert find_root(start=here) == home / "notes"
    (home / "notes" / mark).unlink()
    (home / "notes" / mark).parent.rmdir()
    assert find_root(start=here) == here
    assert find_root(start=home) == home  # for check_root to refuse


def test_a_named_project_is_taken_with_its_links_resolved(tmp_path: Path) -> None:
    real = tmp_path / "with space ä"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert find_root(tmp_path / "link") == real


@pytest.mark.parametrize("kind", ["missing", "file", "loop", "zero byte"])
def test_a_project_that_is_no_folder_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "p"
    if kind == "file":
        path.write_text("")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "zero byte":
        path = Path("a\0b")
    with pytest.raises(ImpyardError) as refused:
        find_root(path)
    assert refused.value.hint


@pytest.mark.parametrize(
    "root", ["/", "/home", "/root", "/tmp", "/etc", "/usr", "/opt", "/proc", "/usr/lib", "/var/lib"]
)
def test_a_folder_of_the_system_is_no_project(root: str) -> None:
    with pytest.raises(ImpyardError) as refused:
        check_root(Path(root))
    assert refused.value.hint


def test_a_home_folder_is_no_project_but_a_folder_in_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "somebody"
    (home / "work").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    check_root(home / "work")
    with pytest.raises(ImpyardError, match="home folder"):
        check_root(home)
    with pytest.raises(ImpyardError, match="contains the home folder"):
        check_root(tmp_path)


def test_keys_inside_the_project_or_around_it_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "p"
    (root / "data" / "impyard").mkdir(parents=True)
    with pytest.raises(ImpyardError, match="private keys"):
        check_root(root, [root / "data" / "impyard"])
    with pytest.raises(ImpyardError, match="private keys"):
        check_root(root, [tmp_path])
    check_root(root, [tmp_path / "elsewhere"])


def test_keys_behind_a_link_into_the_project_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "p"
    (root / "keys").mkdir(parents=True)
    (tmp_path / "data").symlink_to(root / "keys")
    with pytest.raises(ImpyardError, match="private keys"):
        check_root(root, [tmp_path / "data"])


def test_a_link_in_the_place_of_the_runs_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    (root / "runs").symlink_to(tmp_path)
    with pytest.raises(ImpyardError, match="link or no folder"):
        check_root(root)


@pytest.mark.parametrize("name", ["new\nline", "b\udcffad"], ids=["control character", "not UTF-8"])
def test_a_path_that_no_mount_can_carry_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImpyardError, match="path of the project root"):
        check_root(tmp_path / name)


def test_a_folder_beside_or_inside_the_project_is_a_workspace(tmp_path: Path) -> None:
    root = make_project(tmp_path / "p")
    for place in (tmp_path / "beside", root / "sub"):
        place.mkdir()
        assert check_workspace(place, root) == place


@pytest.mark.attack("133")
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("p", "is the project root"),
        (".", "contains the project root"),
        ("p/policies", "lies in policies/"),
        ("p/policies/presets", "lies in policies/"),
        ("p/runs/old", "lies in runs/"),
        ("p/.git/hooks", "lies in .git/"),
        ("file", "is not a folder"),
        ("missing", "does not exist"),
        ("link", "is a link"),
    ],
)
def test_a_workspace_that_would_open_the_box_is_refused(tmp_path: Path, place: str, message: str) -> None:
    root = make_project(tmp_path / "p")
    for folder in ("p/policies/presets", "p/runs/old", "p/.git/hooks", "real"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ImpyardError, match=message) as refused:
        check_workspace(tmp_path / place, root)
    assert refused.value.hint
    if place == "missing":
        assert refused.value.hint == "check the path given to --workspace, or make the folder first"


def test_a_project_that_is_not_there_is_a_path_to_check(tmp_path: Path) -> None:
    with pytest.raises(ImpyardError, match="does not exist") as refused:
        find_root(tmp_path / "typo")
    assert refused.value.hint == "check the path given to --project"


def test_who_names_a_repository_as_the_workspace_is_told_to_clone_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_project(tmp_path / "p")
    (root / "sub").mkdir()
    for folder, has_git, hint in (
        (root, False, "choose a folder of its own for the agent's work"),
        (root, True, "--clone gives the agent a clone of it instead"),
        (root / "sub", True, "--clone gives the agent a clone of it instead"),
    ):
        if has_git:
            (root / ".git").mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        with pytest.raises(ImpyardError, match="is the project root") as refused:
            check_workspace(root, root)
        assert refused.value.hint == hint


def test_a_workspace_reached_through_a_linked_folder_is_judged_by_where_it_is(tmp_path: Path) -> None:
    root = make_project(tmp_path / "p")
    (tmp_path / "way").symlink_to(root)
    with pytest.raises(ImpyardError, match="lies in policies/"):
        check_workspace(tmp_path / "way" / "policies", root)


def test_the_policy_is_the_projects_own_unless_named(tmp_path: Path) -> None:
    root = make_project(tmp_path / "p")
    other = tmp_path / "other.yaml"
    other.write_text("")
    assert policy_files(root, [], None) == (root / "policies" / "gateway.yaml",)
    assert policy_files(root, [other], None) == (other,)


def test_a_missing_policy_is_refused_with_the_way_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ImpyardError, match="no policy at") as refused:
        policy_files(tmp_path, [], None)
    assert "impyard init" in str(refused.value.hint)


@pytest.mark.attack("116")
def test_a_policy_that_the_box_could_edit_is_refused(tmp_path: Path) -> None:
    root, workspace = make_project(tmp_path / "p"), tmp_path / "w"
    workspace.mkdir()
    (workspace / "mine.yaml").write_text("")
    with pytest.raises(ImpyardError, match="which the box writes to"):
        policy_files(root, [workspace / "mine.yaml"], workspace)
    (root / "runs").mkdir()
    (root / "runs" / "own.yaml").write_text("")
    (root / "policies" / "gateway.yaml").unlink()
    (root / "policies" / "gateway.yaml").symlink_to(root / "runs" / "own.yaml")
    with pytest.raises(ImpyardError, match="which the box writes to"):
        policy_files(root, [], None)


@pytest.mark.parametrize("name", [".env", ".env.d/ws"])
def test_a_workspace_that_would_be_covered_is_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path.resolve() / "p"
    (root / name).mkdir(parents=True)
    with pytest.raises(ImpyardError, match="must not see"):
        check_workspace(root / name, root)


def test_the_mounts_inside_a_folder_are_found_whatever_their_names(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(
        b"21 1 0:19 / / rw - ext4 /dev/a rw\n"
        b"22 21 0:20 / /srv/p rw - ext4 /dev/b rw\n"
        b"23 22 0:21 / /srv/p/with\\040blank\\134x rw,nosuid shared:1 - tmpfs t rw\n"
        b"24 22 0:22 / /srv/p/runs/x rw - tmpfs t rw\n"
        b"25 22 0:23 / /srv/p/a/b rw - tmpfs t rw\n"
        b"26 21 0:24 / /srv/pp rw - tmpfs t rw\n"
    )
    assert mounts_under(Path("/srv/p"), table) == [Path("/srv/p/a/b"), Path("/srv/p/with blank\\x")]


def test_this_machines_own_table_can_be_read() -> None:
    assert Path("/proc") in mounts_under(Path("/"))


def test_a_new_run_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    first, second = new_run(tmp_path), new_run(tmp_path)
    assert first.id != second.id
    assert RUN_ID.fullmatch(first.id)
    assert first.folder.stat().st_mode & 0o777 == 0o700
    assert first.workspace.parent == first.folder == tmp_path / "runs" / first.id


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_project_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ImpyardError, match="cannot make a folder"):
        new_run(tmp_path)


def test_a_file_in_the_place_of_the_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(ImpyardError, match="cannot make a folder"):
        new_run(tmp_path)
