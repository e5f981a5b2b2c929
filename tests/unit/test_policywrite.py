"""A policy file is replaced all at once, while it holds what it should, and as what it was."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.policy import write as policywrite
from impyard.runner.policy.write import ask_and_replace, check_changeable, diff, locked, replace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_bytes(b"old\n")
    path.chmod(0o640)
    return path


def test_the_content_changes_and_nothing_else(file: Path) -> None:
    replace(file, None, b"old\n", b"new\r\n")
    assert file.read_bytes() == b"new\r\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert os.listdir(file.parent) == ["gateway.yaml"]


@pytest.mark.skipif(os.getuid() != 0, reason="gives files to others")
def test_the_owner_stays(file: Path) -> None:
    os.chown(file, 12345, 12346)
    replace(file, None, b"old\n", b"new\n")
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 12346)


def test_a_link_stays_one_and_its_target_changes(file: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    link = inner / "link.yaml"
    link.symlink_to("../gateway.yaml")
    replace(link, None, b"old\n", b"new\n")
    assert link.is_symlink() and file.read_bytes() == b"new\n" and os.listdir(inner) == ["link.yaml"]


def test_what_somebody_else_wrote_meanwhile_stays(file: Path) -> None:
    file.write_bytes(b"theirs\n")
    with pytest.raises(ImpyardError, match="was changed meanwhile"):
        replace(file, None, b"old\n", b"new\n")
    assert file.read_bytes() == b"theirs\n" and os.listdir(file.parent) == ["gateway.yaml"]


def test_a_write_while_the_new_file_is_made_is_seen_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = policywrite._write

    def slow(temporary: Path, data: bytes, like: Path) -> None:
        write(temporary, data, like)
        file.write_bytes(b"theirs\n")

    monkeypatch.setattr(policywrite, "_write", slow)
    with pytest.raises(ImpyardError, match="was changed meanwhile"):
        replace(file, None, b"old\n", b"new\n")
    assert file.read_bytes() == b"theirs\n" and os.listdir(file.parent) == ["gateway.yaml"]


def test_two_at_once_wait_for_each_other(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def second() -> None:
        with locked(file):
            done.append("second")
            replace(file, None, b"first\n", b"second\n", is_locked=True)

    with locked(file):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.1)
        assert done == []
        replace(file, None, b"old\n", b"first\n", is_locked=True)
    thread.join(5)
    assert file.read_bytes() == b"second\n"
    monkeypatch.setattr(policywrite, "LOCK_WAIT_S", 0.0)
    with locked(file), pytest.raises(ImpyardError, match="another command"), locked(file):
        pass


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "read-only", "hard link", "loop"])
def test_what_cannot_be_replaced_is_said_before_anybody_is_asked(file: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "other.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "read-only":
        path.write_bytes(b"")
        path.chmod(0o444)
    elif kind == "hard link":
        path.hardlink_to(file)
    elif kind == "loop":
        path.symlink_to(path)
    with pytest.raises(ImpyardError) as failed:
        check_changeable(path, tmp_path)
    assert failed.value.message.startswith(("other.yaml ", "the folder")) and failed.value.hint
    check_changeable(tmp_path / "gateway.yaml") if kind != "hard link" else None


def test_nobody_is_asked_without_a_terminal(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImpyardError, match="no terminal") as failed:
        ask_and_replace(file, file.parent, b"old\n", b"new\n", yes=False)
    assert "--yes" in str(failed.value.hint) and file.read_bytes() == b"old\n"
    assert ask_and_replace(file, file.parent, b"old\n", b"new\n", yes=True)
    assert capsys.readouterr().out.splitlines()[-2:] == ["-old", "+new"]


@pytest.mark.parametrize(("answer", "done"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_a_person_is_asked_and_may_say_no(file: Path, monkeypatch: pytest.MonkeyPatch, answer: str, done: bool) -> None:
    keys = io.StringIO(answer)
    monkeypatch.setattr(keys, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", keys)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert ask_and_replace(file, file.parent, b"old\n", b"new\n", yes=False) is done
    assert file.read_bytes() == (b"new\n" if done else b"old\n")


def test_a_difference_is_one_for_other_tools_too() -> None:
    assert diff(b"a\n", b"a\n", "x") == []
    assert diff(b"a\r\nb", b"a\r\nb\r\nc\r\n", "p/x.yaml") == [
        "--- a/p/x.yaml",
        "+++ b/p/x.yaml",
        "@@ -1,2 +1,3 @@",
        " a\r",
        "-b",
        "\\ No newline at end of file",
        "+b\r",
        "+c\r",
    ]


def test_control_characters_do_not_reach_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    policywrite.show_diff(["+# \x1b[2J\u202e"])
    assert "\\x1b[2J\\u202e" in capsys.readouterr().out
