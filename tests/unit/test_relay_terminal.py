"""The relay's side of `run -i`: messages on standard input become keys and sizes; what the agent shows comes out."""

from __future__ import annotations

import contextlib
import os
import struct
import termios
import threading
import time
import tty
from collections.abc import Iterator

import pytest

from impyard.box.loop import Loop
from impyard.box.terminal import MAX_MESSAGE, MAX_TYPED, Terminal
from impyard.runner.terminal.userterminal import message
from tests.support.waiting import wait_until


class Bed:
    """A terminal that a loop in a thread serves. `type` is the runner's end, `shown` what came out, `agent` the slave
    as an agent has it."""

    def __init__(self) -> None:
        source, self.typing = os.pipe()
        self.reading, target = os.pipe()
        self.loop = Loop()
        self.terminal = Terminal(self.loop, 24, 80, source=source, target=target)
        self.agent = os.dup(self.terminal.slave)
        tty.setraw(self.agent)
        self.terminal.serve()
        self.target = target
        self._handles = [source, self.typing, self.reading, target]
        self._stop = False
        self._tick()
        self._thread = threading.Thread(target=self.loop.run, args=[lambda: self._stop], daemon=True)
        self._thread.start()

    def _tick(self) -> None:
        self.loop.later(0.01, self._tick)

    def type(self, *messages: bytes) -> None:
        os.write(self.typing, b"".join(messages))

    def end_loop(self) -> None:
        self._stop = True
        self._thread.join(5)

    def close(self) -> None:
        self.end_loop()
        with contextlib.suppress(OSError):  # a test may have
            os.close(self.agent)
        for handle in (*self._handles, self.terminal._master):
            os.close(handle)


@pytest.fixture
def bed() -> Iterator[Bed]:
    made = Bed()
    yield made
    made.close()


def read(handle: int, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += os.read(handle, count - len(data))
    return data


def test_keys_arrive_whole_however_the_messages_are_cut(bed: Bed) -> None:
    sent = message(b"k", b"hello \x03\x1b[A") + message(b"w", struct.pack(">HH", 50, 160)) + message(b"k", b"!")
    for number in range(len(sent)):
        bed.type(sent[number : number + 1])
    assert read(bed.agent, 11) == b"hello \x03\x1b[A!"[:11]
    wait_until(lambda: termios.tcgetwinsize(bed.agent) == (50, 160))


def test_the_agent_has_the_size_from_the_start(bed: Bed) -> None:
    assert termios.tcgetwinsize(bed.agent) == (24, 80)


def test_much_output_comes_whole_and_in_order_to_a_slow_reader(bed: Bed) -> None:
    data = bytes(range(256)) * 4000
    writer = threading.Thread(
        target=lambda: [os.write(bed.agent, data[at : at + 4096]) for at in range(0, len(data), 4096)]
    )
    writer.start()
    time.sleep(0.2)
    assert read(bed.reading, len(data)) == data
    writer.join(5)


def test_what_the_agent_left_is_passed_on_after_its_end(bed: Bed) -> None:
    bed.end_loop()
    os.write(bed.agent, b"bye")
    os.close(bed.agent)
    bed.terminal.drain()
    assert os.read(bed.reading, 100) == b"bye"


def test_nobody_who_reads_keeps_the_end_of_the_box_back(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that stays full: `drain` waits so long, and no longer."""
    monkeypatch.setattr("impyard.box.terminal.DRAIN_S", 0.3)
    bed.end_loop()
    with pytest.raises(BlockingIOError):
        while True:
            os.write(bed.target, bytes(65536))
    os.write(bed.agent, b"x")
    began = time.monotonic()
    bed.terminal.drain()
    assert 0.2 < time.monotonic() - began < 3


@pytest.mark.parametrize("sent", [struct.pack(">cI", b"k", MAX_MESSAGE + 1) + b"x" * 100, b"\xff" * 5])
def test_what_is_no_message_ends_the_typing_and_nothing_else(bed: Bed, sent: bytes) -> None:
    bed.type(message(b"k", b"a"), sent)
    assert read(bed.agent, 1) == b"a"
    os.write(bed.agent, b"shown")
    assert read(bed.reading, 5) == b"shown"


def test_an_agent_that_reads_nothing_is_typed_no_more_than_so_much(bed: Bed) -> None:
    os.set_blocking(bed.typing, False)
    sent, until = 0, time.monotonic() + 1.0
    while time.monotonic() < until:
        try:
            sent += os.write(bed.typing, message(b"k", b"x" * 60_000))
        except BlockingIOError:
            time.sleep(0.05)
    assert len(bed.terminal._typed) <= MAX_TYPED + 200_000 and sent < 2_000_000
