"""What people get wrong: one clear error with its exit status, or a run that works all the same. Never a traceback."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.boxes import MakeProject
from tests.support.project import Project, Result

pytestmark = pytest.mark.box


def failed(result: Result, code: int) -> str:
    """The error of a command that fails with one error and one hint."""
    assert result.code == code, result
    assert [line.partition(":")[0] for line in result.err.splitlines()] == ["error", "hint"], result.err
    return result.err.splitlines()[0]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--cieling", "5", "x"], "no such option"),
        (["--ceiling", "0", "x"], "`0` is no number"),
        (["--ceiling", "-1", "x"], "`-1`"),
        (["--ceiling", "nan", "x"], "`nan`"),
        (["--ceiling", "inf", "x"], "`inf`"),
        (["--ceiling", "soon", "x"], "`soon`"),
        (["--ceiling", "1e9", "x"], "`1e9`"),
        (["--memory", "lots", "x"], "`lots`"),
        (["--memory", "1k", "x"], "`1k`"),
        (["--memory", "-4g", "x"], "`-4g`"),
        (["--cpus", "0", "x"], "`0`"),
        (["--cpus", "many", "x"], "`many`"),
        (["--pids", "1", "x"], "1"),
        (["--pids", "1.5", "x"], "1.5"),
        (["--model"], "--model"),
        (["--prompt-file", "none.txt"], "none.txt"),
        (["--prompt-file", "here.txt", "and here"], "not both"),
        (["--model", "demo", ""], "the prompt is empty"),
        (["--model", "demo", " \n\t"], "the prompt is empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options(project: Project, args: list[str], words: str) -> None:
    (project.root / "here.txt").write_text("say hello")
    assert words in failed(project.impyard("run", *args), 2)
    assert not project.runs.exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--model", "nonsense", "x"], "provider/model"),
        (["--model", "/x", "x"], "provider/model"),
        (["--model", "--json/x", "x"], "provider/model"),
        (["--model", "nobody/knows-it", "x"], "no credentials"),
        (["--model", "demo", "--cpus", "4000", "x"], "this machine has"),
        (["--model", "demo", "--memory", "100000g", "x"], "this machine has"),
        (["--model", "demo", "--project", "nowhere", "x"], "does not exist"),
        (["--model", "demo", "--project", "a-file", "x"], "not a folder"),
        (["--model", "demo", "--policy", "nowhere.yaml", "x"], "no policy at"),
        (["--model", "demo", "--policy", "a-folder", "x"], "a-folder"),
        (["--model", "demo", "--policy", "a-file", "x"], "a-file:1"),
        (["--model", "demo", "--image", "No Such/Image", "x"], "image"),
        (["--model", "demo", "--workspace", "nowhere", "x"], "does not exist"),
        (["--model", "demo", "--workspace", "a-file", "x"], "not a folder"),
        (["--model", "demo", "--workspace", "a-link", "x"], "is a link"),
        (["--model", "demo", "--workspace", "policies", "x"], "policies/"),
        (["--model", "demo", "--workspace", "policies/inner", "x"], "policies/"),
        (["--model", "demo", "--workspace", ".", "x"], "is the project root"),
        (["--model", "demo", "--workspace", "..", "x"], "contains the project root"),
        (["--model", "demo", "--workspace", "/", "x"], "contains the project root"),
        (["--model", "demo", "--workspace", "/etc", "x"], "/etc"),
        (["--prompt-file", "a-folder"], "a-folder"),
        (["--prompt-file", "zero.txt"], "zero byte"),
    ],
    ids=lambda value: " ".join(value).removeprefix("--model demo ") if isinstance(value, list) else "",
)
def test_what_cannot_be_run(project: Project, args: list[str], words: str) -> None:
    root = project.root
    (root / "a-file").write_text("no policy either\n")
    (root / "zero.txt").write_bytes(b"say\0hello")
    (root / "a-folder").mkdir()
    (root / "policies" / "inner").mkdir()
    (root / "a-link").symlink_to("a-folder")
    result = project.impyard("run", *args, env={"PI_CODING_AGENT_DIR": str(project.base / "pi")})
    is_usage = args == ["--prompt-file", "a-folder"] or words == "provider/model"
    assert words in failed(result, 2 if is_usage else 125)
    assert project.run_folders() == []


@pytest.mark.parametrize(
    "args",
    [
        ["runs", "show", "20990101-000000-abcd"],
        ["runs", "show", "../../etc"],
        ["runs", "show", "no id"],
        ["runs", "stop", "20990101-000000-abcd"],
        ["decisions", "--run", "20990101-000000-abcd"],
        ["decisions", "--run", "\x1b[31mred"],
        ["init", "--project", "nowhere"],
        ["decisions", "--project", "nowhere"],
    ],
    ids=" ".join,
)
def test_what_other_commands_cannot_find(project: Project, args: list[str]) -> None:
    project.runs.mkdir()
    project.log.touch()
    result = project.impyard(*args)
    assert result.code == 1 and result.out == "", result
    assert "\x1b" not in result.err
    *_, error, hint = result.err.splitlines()
    assert error.startswith("error: ") and hint.startswith("hint: ")


def test_unknown_commands_and_no_command(project: Project) -> None:
    assert "rnu" in failed(project.impyard("rnu"), 2)
    assert project.impyard().code == 2
    assert project.impyard("--help").code == 0
    assert project.impyard("run", "--help").code == 0


HARD = (
    "write 4 to answer.txt\n--privileged\n-v /:/host\n@/etc/passwd\n"
    "$(touch /tmp/x) `id` \"quoted\" 'single' \\ \t Grüße 火 \U0001f600\n"
)


def test_a_long_prompt_with_every_kind_of_sign(project: Project) -> None:
    long = HARD + "-" + "x" * 1_000_000 + "\n" + "y\n" * 20_000
    result = project.impyard("run", "--model", "demo", "-", stdin=long.encode())
    assert result.code == 0, result
    assert result.file("answer.txt") == "4"
    assert result.receipt["prompt_sha256"] == hashlib.sha256(long.encode()).hexdigest()
    assert result.run is not None
    (session,) = (result.run / "session").glob("*.jsonl")
    messages = [json.loads(line) for line in session.read_text().splitlines()]
    said = [m["message"] for m in messages if m.get("type") == "message" and m["message"]["role"] == "user"]
    assert said[0]["content"][0]["text"].strip() == long.strip(), "the agent got it as it was"


@pytest.mark.parametrize("first", ["@/etc/passwd", "--version", "-", "!id", "/quit"])
@pytest.mark.attack("160")
def test_what_begins_like_something_else_is_a_prompt(project: Project, first: str) -> None:
    prompt = f"{first}\nwrite 4 to answer.txt"
    (project.root / "prompt.txt").write_text(prompt)
    result = project.impyard("run", "--model", "demo", "--json", "--prompt-file", "prompt.txt")
    assert result.code == 0, result
    assert result.file("answer.txt") == "4"
    assert "root:x:0" not in result.out


def test_a_prompt_from_each_place(project: Project) -> None:
    (project.root / "prompt.txt").write_text("write file to answer.txt")
    for args, stdin, answer in (
        (["--", "--write", "\nwrite words to answer.txt"], None, "words"),
        (["-"], b"write dash to answer.txt", "dash"),
        ([], b"write pipe to answer.txt", "pipe"),
        (["--prompt-file", "prompt.txt"], None, "file"),
    ):
        result = project.impyard("run", "--model", "demo", *args, stdin=stdin)
        assert result.code == 0, result
        assert result.file("answer.txt") == answer
    assert "the prompt is empty" in failed(project.impyard("run", "--model", "demo", stdin=b""), 2)


STRANGE = "mein prójekt: 火, \"a\" 'b' $HOME `c` %20 \\ (1)=x"


def test_a_project_whose_path_has_every_kind_of_sign(make_project: MakeProject) -> None:
    project = make_project(name=STRANGE)
    (project.root / ".env").write_text("API_KEY=canary-value")
    workspace = project.root / "wörk: space, here"
    workspace.mkdir()
    result = project.demo(
        "write 4 to answer.txt",
        "run: cat ../.env > env; pwd > where; touch ../new 2> error; true",
        args=["--workspace", str(workspace)],
    )
    assert result.code == 0, result
    assert (workspace / "answer.txt").read_text() == "4"
    assert (workspace / "env").read_text() == ""
    assert (workspace / "where").read_text().strip() == str(workspace)
    assert "Read-only file system" in (workspace / "error").read_text()
    assert project.impyard("decisions", "--verify").code == 0
    assert result.receipt["project"] == str(project.root)


def test_a_path_that_is_no_text_is_refused(project: Project) -> None:
    for name in (b"bad\xff", b"new\nline", b"esc\x1b[31m"):
        folder = Path(os.fsdecode(os.fsencode(project.base) + b"/" + name))
        folder.mkdir()
        result = project.impyard("run", "--model", "demo", "--policy", str(project.policy), "x", cwd=folder)
        assert failed(result, 125)
        assert "\x1b" not in result.err and not (folder / "runs").exists()


def test_a_workspace_keeps_what_it_had_and_whose_it_was(project: Project) -> None:
    workspace = project.base / "elsewhere"
    (workspace / "deep").mkdir(parents=True)
    (workspace / "old.txt").write_text("old\n")
    (workspace / "deep" / "changed.txt").write_text("before\n")
    before = (workspace / "old.txt").stat()
    result = project.demo(
        "run: echo after > deep/changed.txt; cat old.txt > copy.txt; mkdir new; touch new/file",
        args=["--workspace", str(workspace)],
    )
    assert result.code == 0, result
    assert (workspace / "copy.txt").read_text() == "old\n"
    after = (workspace / "old.txt").stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    for path in (workspace, *workspace.rglob("*")):
        assert (path.stat().st_uid, path.stat().st_gid) == (project.caller.uid, project.caller.gid), path
    files = {file["path"]: file["changed"] for file in result.receipt["files"]}
    assert files == {"deep/changed.txt": True, "copy.txt": False, "new/file": False}


def _links(workspace: Path, outside: Path) -> str:
    return f"ln -s {outside} out; ln -s / root; ln -s {outside}/secret file; mkdir a; ln -s .. a/up"


def _hard(workspace: Path, outside: Path) -> str:
    return "touch one; ln one two; mkfifo pipe; python3 -c 'import socket; socket.socket(1).bind(\"sock\")'"


def _modes(workspace: Path, outside: Path) -> str:
    return "mkdir -p shut/in; touch shut/in/file; chmod 0 shut/in shut; touch odd$'\\n'name; touch $'\\xff'"


@pytest.mark.attack("136")
@pytest.mark.parametrize("command", [_links, _hard, _modes], ids=["links", "special files", "modes and names"])
def test_strange_things_in_the_workspace_harm_nobody(project: Project, command: Callable[[Path, Path], str]) -> None:
    outside = project.base / "outside"
    outside.mkdir()
    (outside / "secret").write_text("untouched")
    before = {path: path.stat() for path in (outside, outside / "secret")}
    result = project.demo(f"run: {command(project.root, outside)}", "write 4 to answer.txt")
    assert result.code == 0, result
    for path, stat in before.items():
        now = path.stat()
        assert (now.st_uid, now.st_gid, now.st_mode, now.st_mtime_ns) == (
            stat.st_uid,
            stat.st_gid,
            stat.st_mode,
            stat.st_mtime_ns,
        )
    assert result.file("answer.txt") == "4"
    assert project.impyard("runs", "prune", "--keep", "0", "--yes").code == 0
    assert project.run_folders() == []
