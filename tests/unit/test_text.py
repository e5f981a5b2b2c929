"""What is printed for people fits their terminal, and no word of it is cut. (Escapes: tests of each view.)"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import impyard as package
from impyard.runner.cli import COMMANDS
from impyard.runner.text import all_beside, beside, counted, duration_text, visible, wrapped

CHECKOUT = Path(str(package.__file__)).parent.parent


def test_a_line_is_broken_between_words_only() -> None:
    text = "mend: a/very/long/path/that/is/to/be/copied and some-words behind it"
    assert wrapped(text, None) == wrapped(text, 200) == text
    lines = wrapped(text, 20, "  ").splitlines()
    assert lines == ["mend:", "  a/very/long/path/that/is/to/be/copied", "  and some-words", "  behind it"]


def test_a_command_in_backquotes_is_never_broken() -> None:
    text = "hint: this is denied, and `impyard policy allow ID` lets it through: `impyard decisions`"
    assert [line for line in wrapped(text, 40, "  ").splitlines() if line.count("`") % 2] == []
    assert wrapped(text, 40, "  ").replace("\n ", "") == text
    assert "  `impyard policy allow ID` lets it" in wrapped(text, 40, "  ").splitlines()


@pytest.mark.parametrize("code", [0x3164, 0x115F, 0xFFA0, 0x2800, 0x34F, 0x17B4, 0x180B, 0xFE0F, 0xE0101, 0x202E, 0x1B])
def test_what_nobody_sees_is_made_visible(code: int) -> None:
    shown = visible(f"a{chr(code)}.txt")
    assert shown.isascii() and re.fullmatch(r"a\\[xuU][0-9a-f]+\.txt", shown)


def test_emoji_and_letters_of_all_kinds_stay_as_they_are() -> None:
    text = "\u26a0\ufe0f \u2714\ufe0f e\u0301 \u0939\u093f \ud55c\uae00"
    assert visible(text) == text
    assert visible("\ufe0f \u2800\ufe0f") == r"\ufe0f \u2800\ufe0f"


def test_a_wrapped_line_keeps_its_indent() -> None:
    assert wrapped("    one two three", 11) == "    one two\n    three"


def test_a_note_goes_below_when_it_does_not_fit_beside() -> None:
    assert beside("  wrote  a", "why", 14, 40) == "  wrote  a    why"
    assert beside("  wrote  a", "why", 14, 12) == "  wrote  a\n    why"
    assert beside("  wrote  a", "", 14, 40) == "  wrote  a"


def in_terminal(columns: int, folder: Path, *words: str) -> list[str]:
    """The lines that `impyard` shows in a terminal of this width, standard error too, without colours."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"PYTHONPATH": str(CHECKOUT)}
    env |= {"HOME": str(folder), "IMPYARD_DATA_DIR": str(folder / "data"), "DOCKER_HOST": f"unix://{folder}/none.sock"}
    command = [sys.executable, "-m", "impyard", *words]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # Linux: the last process has closed the other side
        while data := os.read(master, 4096):
            shown += data
    os.close(master)
    process.wait(30)
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r", "").splitlines()


PATHS = re.compile(r"\S*/\S{20,}")


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        *(f"{name} --help" for name in COMMANDS),
        *("runs list --help", "runs prune --help", "image build --help"),
        *("doctor", "init", "init --project project", "run --nonsense", "runs show 20260101-000000-aaaa"),
    ],
)
def test_what_people_read_fits_sixty_columns_and_loses_no_word(words: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    narrow = in_terminal(60, tmp_path, *words.split())
    assert [line for line in narrow if len(line) > 60 and not PATHS.search(line)] == []
    wide = in_terminal(500, tmp_path, *words.split())
    if words.startswith("init --project"):  # the first time, it wrote
        wide = [line.replace("unchanged", "wrote") for line in wide]
    # What is free on a disk changes in between.
    assert re.sub(r"\d+", "0", " ".join(narrow)).split() == re.sub(r"\d+", "0", " ".join(wide)).split()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0 s"),
        (3.21, "3.2 s"),
        (59.0, "59 s"),
        (60, "1 min"),
        (725.2, "12 min 5 s"),
        (3599.9, "1 h"),
        (28800, "8 h"),
        (7505, "2 h 5 min"),
    ],
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_how_many_of_something_reads_as_people_say_it() -> None:
    assert [counted(number, "rule") for number in (0, 1, 2)] == ["0 rules", "1 rule", "2 rules"]
    assert [counted(number, "entry", "entries") for number in (1, 3)] == ["1 entry", "3 entries"]


def test_rows_are_all_beside_or_all_below() -> None:
    rows = [("  a", "short"), ("  longer", "some words"), ("  b", "")]
    assert all_beside(rows, 2, 20) == ["  a       short", "  longer  some words", "  b"]
    assert all_beside(rows, 2, None) == all_beside(rows, 2, 20)
    assert all_beside(rows, 2, 19) == ["  a\n    short", "  longer\n    some words", "  b"]
