"""What may pass from a box's terminal to a person's: whatever is sent and wherever it is cut, nothing off the list."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.runner.terminal.screenfilter import MAX_PUSHES, QUESTIONS, ScreenFilter
from tests.support.fuzz import examples

# The grammar once more, in other words than the filter's: of whole output, as bytes are shown by a terminal in UTF-8.
ALLOWED = re.compile(
    r"(?:[\b\t\n\r]|[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
    r"|\x1b\[(?:\d{0,5}[ABCDEFGdLMPX@ST]|\d{0,5}(?:;\d{0,5})?[Hf]|[012]?[JK]|[\d;:]*m"
    r"|\?(?:(?:7|25|1000|1002|1003|1004|1006|1049|2004|2026);?)+[hl]|>4(?:;[012])?m|>\d{1,2}u|<\d{0,2}u|c|\?u))*"
)
# What a terminal would obey that the box must not say.
HOSTILE = {
    "the clipboard": b"\x1b]52;c;aGk=\x07",
    "the clipboard, ended by ST": b"\x1b]52;c;aGk=\x1b\\",
    "the clipboard in 8-bit controls": "\x9d52;c;aGk=\x9c".encode(),
    "a question for the clipboard": b"\x1b]52;c;?\x07",
    "a title": b"\x1b]2;x\x07",
    "a question for the title": b"\x1b[21t",
    "the window's size": b"\x1b[8;10;10t",
    "a link": b"\x1b]8;;file:///etc/passwd\x1b\\x\x1b]8;;\x1b\\",
    "a font": b"\x1b]50;#1\x07",
    "the palette": b"\x1b]4;1;?\x07",
    "colours of the terminal": b"\x1b]11;?\x07",
    "iTerm's files": b"\x1b]1337;File=name=eA==:AAAA\x07",
    "a notification": b"\x1b]9;hello\x07",
    "DECRQSS": b'\x1bP$q"p\x1b\\',
    "sixels": b"\x1bPq#0;2;0;0;0#0~~@@vv@@~~@@~~$\x1b\\",
    "user-defined keys": b"\x1bP0;1|17/6c730a\x1b\\",
    "kitty's pictures": b"\x1b_Gf=24,s=1,v=1,t=f;L2V0Yy9wYXNzd2Q=\x1b\\",
    "a tmux passthrough": b"\x1bPtmux;\x1b\x1b]52;c;aGk=\x07\x1b\\",
    "a privacy message": b"\x1b^x\x1b\\",
    "a string": b"\x1bXx\x1b\\",
    "screen's title": b"\x1bkls\x1b\\",
    "the answerback": b"\x05",
    "where the cursor is": b"\x1b[6n",
    "the status": b"\x1b[5n",
    "the version": b"\x1b[>q",
    "secondary attributes": b"\x1b[>c",
    "tertiary attributes": b"\x1b[=c",
    "DECID": b"\x1bZ",
    "a mode's state": b"\x1b[?2026$p",
    "a checksum": b"\x1b[1;1;1;1;1;1*y",
    "a reset": b"\x1bc",
    "a soft reset": b"\x1b[!p",
    "the scrollback": b"\x1b[3J",
    "other characters": b"\x0e\x1b(0",
    "keys of the application": b"\x1b[?1h\x1b=",
    "the colour scheme": b"\x1b[?2031h",
    "a screen that writes back": b"\x1b[?1049;5h",
    "printing": b"\x1b[5i\x1b[?5i",
    "the memory of a macro": b"\x1b[1*z",
    "a scroll region": b"\x1b[2;3r",
    "8-bit answers": b"\x1b G",
    "writing direction": "\u202e\u2066".encode(),
    "the stack of who was there before": b"\x1b[<u\x1b[<9u",
}
OF_PI = (
    b"\x1b[?1049h\x1b[?2004h\x1b[>7u\x1b[?u\x1b[c\x1b[?25l\x1b[?1000h\x1b[?1002h\x1b[?1004h\x1b[?1006h\x1b[?7l"
    b"\x1b[?2026h\x1b[2J\x1b[H\x1b[1;1H\x1b[2K\x1b[38;2;13;19;183m\xcf\x80\x1b[39m \x1b[1mx\x1b[22m\x1b[7m \x1b[0m\r\n"
    b"\x1b[3A\x1b[5G\x1b[1B\x1b[J\x1b[K\x1b[?2026l\x1b[>4;2m\x1b[>4;0m\x1b[<u\x1b[?2004l\x1b[?25h\x1b[?7h\x1b[?1049l"
)

pieces = st.one_of(
    st.sampled_from([*HOSTILE.values(), OF_PI]),
    st.binary(max_size=12),
    st.text(max_size=8).map(str.encode),
    st.sampled_from(
        [b"\x1b", b"\x1b[", b"\x1b]", b"\x1bP", b"\x9b", b"\xc2", b"\xc2\x9b", b"\x1b[?", b"\x18", b"\x07"]
    ),
    st.builds(lambda body, end: b"\x1b[" + body + end, st.from_regex(rb"\A[ -?]{0,9}\Z"), st.from_regex(rb"\A[@-~]\Z")),
)
outputs = st.lists(pieces, max_size=20).map(b"".join)


def passed(data: bytes, *, ascii_only: bool = False) -> bytes:
    return ScreenFilter(ascii_only=ascii_only).feed(data)


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_a_terminal_would_obey_does_not_pass(data: bytes) -> None:
    shown = passed(b"before" + data + b"after")
    assert b"\x1b" not in shown and ALLOWED.fullmatch(shown.decode())
    assert shown.startswith(b"before") and shown.endswith(b"after")


def test_what_pi_sends_passes_as_it_is() -> None:
    """The control of what does not; tests/box/test_interactive.py has what it really sends."""
    assert passed(OF_PI) == OF_PI


@given(outputs)
@examples(120)
def test_nothing_passes_but_what_is_on_the_list(data: bytes) -> None:
    shown = passed(data)
    assert ALLOWED.fullmatch(shown.decode())
    assert passed(shown) == shown
    assert shown.count(b"\x1b[c") <= QUESTIONS and shown.count(b"\x1b[?u") <= QUESTIONS


@given(outputs, st.lists(st.integers(0, 400)))
@examples(200)
def test_where_a_read_cuts_the_output_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    whole, cut = ScreenFilter(), ScreenFilter()
    places = sorted({0, len(data), *(place for place in cuts if place < len(data))})
    parts = [data[begin:end] for begin, end in itertools.pairwise(places)]
    assert b"".join(map(cut.feed, parts)) == whole.feed(data)
    assert cut.undo() == whole.undo()


@given(outputs)
@examples(100)
def test_a_terminal_that_is_not_in_utf_8_gets_bytes_that_no_one_can_take_for_controls(data: bytes) -> None:
    assert passed(data, ascii_only=True).isascii()


@given(outputs)
@examples(100)
def test_afterwards_the_terminal_is_as_it_was(data: bytes) -> None:
    """`undo`, read as a terminal would: no mode is left on that was off, and nothing taken off kitty's stacks that was
    not put there."""
    used = ScreenFilter()
    shown = used.feed(data) + used.undo()
    on, screen, stacks, keys = {7, 25}, False, {False: 0, True: 0}, False
    for private, numbers, final in re.findall(rb"\x1b\[([?><]?)([\d;:]*)([hlum])", shown):
        if private == b"?" and final in b"hl":
            for mode in map(int, numbers.split(b";")):
                on = on | {mode} if final == b"h" else on - {mode}
            screen = 1049 in on
        elif private == b">" and final == b"u":
            stacks[screen] += 1
        elif private == b"<" and final == b"u":
            stacks[screen] -= int(numbers or 1)
            assert stacks[screen] >= 0
        elif private == b">" and final == b"m":
            keys = numbers != b"4"
    assert (on, stacks, keys) == ({7, 25}, {False: 0, True: 0}, False)
    assert used.undo() == b"\x1b[0m"


@pytest.mark.parametrize(
    ("data", "last"),
    [
        (b"\x1b[?1049h\x1b[>31u\x1b[?1049l", b"\x1b[?1049h\x1b[<1u\x1b[?1049l\x1b[0m"),
        (b"\x1b[>1u\x1b[?1049h\x1b[>31u", b"\x1b[<1u\x1b[?1049l\x1b[<1u\x1b[0m"),
        (b"\x1b[>4;0m", b"\x1b[>4m\x1b[0m"),
    ],
)
def test_what_was_pushed_is_taken_back_where_it_is(data: bytes, last: bytes) -> None:
    used = ScreenFilter()
    assert used.feed(data) == data
    assert used.undo() == last


def test_what_was_only_partly_written_is_taken_back_whole() -> None:
    used = ScreenFilter()
    used.feed(b"\x1b[?1003h\x1b[?25l")
    used.feed(b"\x1b[?1003l\x1b[?25h")
    assert used.undo(torn=True) == b"\x1b[?1003l\x1b[?25h\x1b[0m"
    assert used.undo(torn=True) == b"\x1b[0m"


def test_words_behind_the_alternate_screen_are_kept_apart() -> None:
    used = ScreenFilter()
    shown = used.feed(b"\x1b[?1049hUI\x1b[?1049l\x1b[?25hresume: pi --session x\r\n")
    assert shown == b"\x1b[?1049hUI\x1b[?1049l\x1b[?25h"
    assert used.last_words == "resume: pi --session x\r\n"
    assert used.feed(b"\x1b[?1049hUI again") == b"\x1b[?1049hUI again"
    assert ScreenFilter().feed(b"no such screen\x1b[?1049l, so it is shown").endswith(b"shown")


def test_pushes_have_a_bound() -> None:
    assert passed(b"\x1b[>1u" * 100).count(b"u") == MAX_PUSHES


def test_a_string_without_an_end_is_not_kept() -> None:
    """It is dropped as it comes: a box cannot fill this process's memory with it."""
    used = ScreenFilter()
    assert used.feed(b"\x1b]0;") == b""
    for _ in range(200):
        assert used.feed(b"x" * 100_000) == b""
    assert len(used._rest) < 10
    assert used.feed(b"\x07there") == b"there"


def test_a_sequence_without_an_end_is_given_up() -> None:
    used = ScreenFilter()
    shown = b"".join(used.feed(b"\x1b[" if number == 0 else b"1;") for number in range(1000))
    assert b"\x1b" not in shown and len(used._rest) < 600
