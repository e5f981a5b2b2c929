"""The person's terminal while a box has it: keys go on as they are, and it comes back as it was."""

from __future__ import annotations

import os
import pty
import signal
import struct
import termios
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.terminal import userterminal
from impyard.runner.terminal.interactive import InteractiveView, charset_of, title
from impyard.runner.terminal.userterminal import END_KEY, LAST_QUESTION, UserTerminal, check_terminal, message
from tests.support.waiting import wait_until


class Box:
    """Takes what is sent; `slow` takes nothing, `gone` raises."""

    def __init__(self) -> None:
        self.got = b""
        self.slow = self.gone = False
        self.ended = 0

    def end(self) -> None:
        self.ended += 1

    def send(self, data: bytes) -> int:
        if self.gone:
            raise BrokenPipeError
        if self.slow:
            raise BlockingIOError
        self.got += data[:100]
        return min(len(data), 100)


class Bed:
    def __init__(self) -> None:
        self.far, self.near = pty.openpty()
        termios.tcsetwinsize(self.near, (30, 90))
        self.before = termios.tcgetattr(self.near)
        self.terminal = UserTerminal(self.near, self.near)
        self.box = Box()

    def close(self) -> None:
        self.terminal.leave()
        os.close(self.far)
        os.close(self.near)


@pytest.fixture
def bed() -> Iterator[Bed]:
    made = Bed()
    yield made
    made.close()


def test_keys_go_on_as_they_are_and_the_size_before_them(bed: Bed) -> None:
    bed.terminal.enter(bed.box.send, bed.box.end)
    assert termios.tcgetattr(bed.near) != bed.before
    keys = b"x\x03\x1a\r" + bytes(range(128, 256))
    os.write(bed.far, keys)
    wait_until(lambda: bed.box.got.endswith(keys))
    assert bed.box.got == message(b"w", struct.pack(">HH", 30, 90)) + message(b"k", keys)


def test_a_new_size_is_told_and_after_a_stop_all_is_drawn_anew(bed: Bed) -> None:
    bed.terminal.enter(bed.box.send, bed.box.end)
    wait_until(lambda: bed.box.got)
    bed.box.got = b""
    termios.tcsetwinsize(bed.near, (50, 160))
    os.kill(os.getpid(), signal.SIGWINCH)
    size = message(b"w", struct.pack(">HH", 50, 160))
    wait_until(lambda: bed.box.got == size)
    termios.tcsetattr(bed.near, termios.TCSANOW, bed.before)  # as a shell does
    os.kill(os.getpid(), signal.SIGCONT)
    wait_until(lambda: bed.box.got == size + message(b"w", struct.pack(">HH", 50, 159)) + size)
    assert termios.tcgetattr(bed.near) != bed.before


def test_it_comes_back_as_it_was_and_answers_that_nobody_read_are_thrown_away(bed: Bed) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGWINCH, signal.SIGCONT)]
    bed.terminal.enter(bed.box.send, bed.box.end)
    bed.box.gone = True
    os.write(bed.far, b"x")
    wait_until(lambda: bed.terminal._thread and not bed.terminal._thread.is_alive())
    os.write(bed.far, b"\x1b[?62;22c\r")
    bed.terminal.leave(b"last")
    bed.terminal.leave(b"never")
    assert os.read(bed.far, 100) == b"last"
    assert termios.tcgetattr(bed.near) == bed.before
    os.set_blocking(bed.near, False)
    with pytest.raises(BlockingIOError):
        os.read(bed.near, 100)
    assert handlers == [signal.getsignal(number) for number in (signal.SIGWINCH, signal.SIGCONT)]


@pytest.mark.parametrize("answers_s", [0.0, 0.4])
def test_answers_that_are_slow_are_waited_for(bed: Bed, answers_s: float) -> None:
    """As over a slow line: they come when the box is gone, and would be typed into the shell."""
    bed.terminal.enter(bed.box.send, bed.box.end)
    os.write(bed.far, b"\x1b[?62;22c")
    wait_until(lambda: bed.terminal._answered)

    def answer() -> None:
        wait_until(lambda: LAST_QUESTION in os.read(bed.far, 100))
        time.sleep(answers_s)
        os.write(bed.far, b"\x1b[?62;22c\x1b[?0u\x1b[5;1R")

    terminal = threading.Thread(target=answer)
    terminal.start()
    bed.terminal.leave(b"last", asked=True)
    terminal.join()
    os.set_blocking(bed.near, False)
    with pytest.raises(BlockingIOError):
        os.read(bed.near, 100)


def test_it_comes_back_also_when_standard_output_was_given_up(bed: Bed) -> None:
    near = os.dup(bed.near)
    terminal = UserTerminal(bed.near, near)
    terminal.enter(bed.box.send, bed.box.end)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, near)  # as streams.give_up does
    terminal.leave(b"last")
    assert os.read(bed.far, 100) == b"last"
    os.close(null)
    os.close(near)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({b"LC_ALL": b"C", b"LANG": b"de_DE.UTF-8"}, "other"),
        ({b"LC_ALL": b"", b"LC_CTYPE": b"en_US.utf8"}, "utf-8"),
        ({b"LANG": b"en_US.ISO-8859-1"}, "other"),
        ({b"LANG": b"C.UTF-8"}, "utf-8"),
        ({}, "unknown"),
    ],
)
def test_what_the_terminal_takes_bytes_for_is_what_the_locale_names(environ: dict[bytes, bytes], found: str) -> None:
    """Python's own streams say UTF-8 in each of these."""
    assert charset_of(environ) == found


def test_a_box_that_takes_no_keys_can_still_be_ended_and_fills_no_memory(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(userterminal, "MAX_WAITING", 5000)
    bed.box.slow = True
    bed.terminal.enter(bed.box.send, bed.box.end)
    for _ in range(10):
        os.write(bed.far, b"x" * 1000)
    for _ in range(2):
        os.write(bed.far, b"\x1c")
    time.sleep(0.2)
    assert bed.box.ended == 0
    os.write(bed.far, b"\x1c")
    wait_until(lambda: bed.box.ended == 1)


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        (b"\x1c", 1),
        (b"\x1b[92;5u", 1),
        (b"\x1b[92:124;5:1u", 1),
        (b"\x1b[92;5:2u", 1),
        (b"\x1b[92;5:3u", 0),
        (b"\x1b[92;69u", 1),
        (b"\x1b[27;5;92~", 1),
        (b"\x1b[92u", 0),
        (b"\\", 0),
        (b"\x1b[93;5u", 0),
    ],
)
def test_the_key_that_ends_a_run_is_known_in_each_of_its_forms(keys: bytes, count: int) -> None:
    assert len(END_KEY.findall(keys)) == count


def test_presses_that_are_apart_end_nothing(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.terminal._end = bed.box.end
    now = iter([0.0, 1.0, 2.5, 2.6])
    monkeypatch.setattr("impyard.runner.terminal.userterminal.time.monotonic", lambda: next(now))
    for expected in (0, 0, 0, 1):
        bed.terminal._look_for_end(b"\x1c")
        assert bed.box.ended == expected


def test_no_terminal_or_a_dumb_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImpyardError, match="needs a terminal"):
        check_terminal({"TERM": "xterm"})
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda: True)
    for environ in ({"TERM": "dumb"}, {}):
        with pytest.raises(ImpyardError, match="TERM"):
            check_terminal(environ)
    check_terminal({"TERM": "xterm"})


def test_a_title_is_printable_whatever_a_host_is_called() -> None:
    assert title("a\x1b]52;\x07\u202e\nb").isascii()
    assert title("x\x07" * 50).count(b"\x07") == 1 and len(title("x" * 500)) < 80


class Words:
    """A view that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def __getattr__(self, name: str) -> object:
        return lambda *what: self.said.append((name, *what))


def test_what_there_is_to_say_waits_until_the_screen_is_the_persons_again(bed: Bed, tmp_path: object) -> None:
    words = Words()
    view = InteractiveView(words, bed.terminal)  # type: ignore[arg-type]
    view.note("before")
    view.begin(bed.box.send, tmp_path / "log", bed.box.end)  # type: ignore[operator]
    reader = threading.Thread(target=lambda: os.read(bed.far, 100_000), daemon=True)
    reader.start()
    view.note("meanwhile")
    for _ in range(300):
        view.denied({"method": "GET", "host": "x.test"})
    assert words.said == [("note", "before")]
    receipt = SimpleNamespace(exit_reason="finished")
    view.closing(receipt, "look", "log")  # type: ignore[arg-type]
    assert words.said[1:3] == [("note", "meanwhile"), ("denied", {"method": "GET", "host": "x.test"})]
    assert words.said[-2:] == [("note", "and 201 more"), ("closing", receipt, "look", "log", ())]
    assert termios.tcgetattr(bed.near) == bed.before
