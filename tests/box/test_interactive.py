"""`run -i`: pi's own terminal UI in the box, on a real terminal; what of the box's output reaches it."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from impyard.runner.terminal.screenfilter import ScreenFilter
from tests.support.person import Person
from tests.support.project import Project

pytestmark = pytest.mark.box

CLIPBOARD = b"\x1b]52;c;aGFja2Vk\x07"
# The agent's programs have no terminal of their own, but the same user may write to pi's.
ATTACK = r"run: printf '\033]52;c;aGFja2Vk\007\033[6n\033P$q\042p\033\134' > /dev/pts/0; echo w''ritten"
# The filter off: the control of what does not come through.
UNFILTERED = (
    "import sys\nfrom impyard.runner import cli\nfrom impyard.runner.terminal import screenfilter\n"
    "screenfilter.ScreenFilter.feed = lambda self, data: data\nsys.exit(cli.main(sys.argv[1:]))"
)
# What pi 1.6.0 sends that is dropped on purpose: titles, prompt marks, progress, links; the terminal's colours and
# their changes; the scrollback.
DROPPED = re.compile(
    rb"\x1b\](?:0|10|11|4|8|9|133|7501);[^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[\?2031[hl]|\x1b\[3J|\x1b_pi:/?f?c\x07|\x07"
)
READY = "fd not found"  # pi's warning at the end of its start

At = Callable[..., Person]


@pytest.fixture
def at(project: Project) -> Iterator[At]:
    """Starts impyard in the project, with a person at its terminal."""
    people = []

    def start(*args: str, code: str | None = None) -> Person:
        command = [sys.executable, "-P", "-c", code] if code else project.command()
        person = Person([*command, *args], env=project.env, cwd=project.root)
        people.append(person)
        return person

    yield start
    for person in people:
        person.close()


def test_a_person_works_with_the_agent_in_the_locked_box(project: Project, at: At) -> None:
    person = at("run", "-i", "--model", "demo", "write 4 to answer.txt")
    person.wait_for("Done: 1 of 1")
    person.type("run: curl -sS https://closed.test/x; stty size < /dev/pts/0\r")
    person.wait_for("24 80")
    person.resize(50, 160)
    person.type("run: stty size < /dev/pts/0\r")
    person.wait_for("50 160")
    person.type(ATTACK + "\r")
    person.wait_for("written")
    person.type("\x03")  # pi's, not ours: it clears its line
    person.type("/quit\r")
    assert person.finish() == 0
    assert b"pi --session" not in person.seen  # pi's own words, which would go on without a box

    (folder,) = project.run_folders()
    receipt = json.loads((folder / "run.json").read_bytes())
    assert (receipt["exit_reason"], receipt["interactive"], receipt["ceiling_s"]) == ("finished", True, 8 * 3600)
    assert receipt["decisions"]["denied_hosts"] == {"closed.test": 1}
    assert len(receipt["probes"]) >= 12 and all(probe["ok"] for probe in receipt["probes"])
    assert (folder / "workspace" / "answer.txt").read_text() == "4"
    said = person.seen[person.seen.rindex(b"\x1b[?1049l") :]
    assert b"denied GET closed.test/x (unlisted-host)" in said and f"runs resume {folder.name} -i".encode() in said
    assert re.search(rb"\x1b\]2;impyard [0-9a-f-]+: 1 denied, GET closed.test\x07", person.seen), "the title says so"
    assert person.settings() == person.before
    own = re.compile(rb"\x1b\]2;[ -~]*\x07|\x1b\[2[23];2t")  # impyard's title
    shown = own.sub(b"", person.seen)
    assert b"\x1b]" not in shown and b"\x1bP" not in shown and shown.count(b"\x1b[6n") == 1, "ours, at the end"
    assert CLIPBOARD not in person.seen
    transcript = (folder / "terminal.log").read_bytes()
    assert ScreenFilter().feed(transcript) == transcript and b"Done: 1 of 1" in transcript


def test_without_the_filter_the_box_reaches_the_terminal(project: Project, at: At) -> None:
    """The control. And of what pi itself sends, the filter drops nothing but what is named."""
    person = at("run", "-i", "--model", "demo", code=UNFILTERED)
    person.wait_for(READY)
    person.type(ATTACK + "\r")
    person.wait_for("written")
    person.type("/quit\r")
    assert person.finish() == 0
    (folder,) = project.run_folders()
    raw = (folder / "terminal.log").read_bytes()
    assert CLIPBOARD in person.seen and b"\x1b[6n" in person.seen and b"\x1bP$q" in person.seen
    assert CLIPBOARD in raw and b"\x1b[6n" in raw and b"\x1bP$q" in raw
    of_pi = DROPPED.sub(b"", raw.replace(CLIPBOARD + b'\x1b[6n\x1bP$q"p\x1b\\', b""))
    of_pi = of_pi[: of_pi.rindex(b"\x1b[?1049l") + 8]  # behind that are its last words
    assert ScreenFilter().feed(of_pi) == of_pi


def test_a_run_that_is_ended_leaves_the_terminal_as_it_was(project: Project, at: At) -> None:
    person = at("run", "-i", "--model", "demo")
    person.wait_for("(auto)")
    assert person.settings() != person.before
    person.type("\x1c\x1c\x1c")
    for _ in range(40):  # a person who holds it down: no signal may end the runner before it has tidied up
        time.sleep(0.05)
        with suppress(OSError):
            person.type("\x1c")
    assert person.finish() == 130
    assert person.settings() == person.before
    for mode in (b"\x1b[?1049", b"\x1b[?2004", b"\x1b[?1000", b"\x1b[?1006"):
        assert person.seen.rindex(mode + b"l") > person.seen.rindex(mode + b"h")
    assert person.seen.rindex(b"\x1b[?25h") > person.seen.rindex(b"\x1b[?25l")


def test_without_a_terminal_it_says_so(project: Project) -> None:
    result = project.impyard("run", "-i", "--model", "demo", "x")
    assert result.code == 2 and "-i needs a terminal" in result.err and "impyard run" in result.err
    assert project.run_folders() == []
