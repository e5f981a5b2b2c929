"""Signals at each stage, sent for real to a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PRELUDE = """
import os, signal, time
from impyard.runner.signals import Interrupted, Signals
def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)
    time.sleep(0.01)
"""


def outcome(code: str, **more: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], capture_output=True, timeout=30, text=True, check=False, **more
    )  # type: ignore[call-overload]
    return str(done.stdout) + str(done.stderr)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_while_preparing_a_signal_ends_the_work(number: str) -> None:
    code = f"with Signals():\n try:\n  send(signal.{number}); print('went on')\n except Interrupted:\n  print('ended')"
    assert outcome(code) == "ended\n"


def test_a_shielded_step_is_done_before_the_signal_counts() -> None:
    code = """
with Signals() as signals:
    try:
        with signals.shielded():
            send(); print("step done")
        print("went on")
    except Interrupted:
        print("ended")
"""
    assert outcome(code) == "step done\nended\n"


def test_while_running_signals_are_handed_over_those_before_included() -> None:
    code = """
with Signals() as signals:
    with signals.shielded():
        send()
        signals.deliver_to(lambda number: print("got", int(number)))
    send(signal.SIGTERM)
"""
    assert outcome(code) == "got 2\ngot 15\n"


def test_while_taking_down_signals_change_nothing() -> None:
    code = "with Signals() as signals:\n signals.note_only(); send(); send()\n print('went on', signals.received)"
    assert outcome(code) == "went on [2, 2]\n"


def test_a_second_signal_does_not_break_the_taking_down_that_the_first_began() -> None:
    code = """
with Signals() as signals:
    try:
        send()
    except Interrupted:
        send(); print("taken down")
"""
    assert outcome(code) == "taken down\n"


def test_a_signal_that_was_ignored_from_the_start_stays_ignored() -> None:
    code = "with Signals() as signals:\n send(signal.SIGHUP); print('went on', signals.received)"
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    assert outcome(code, preexec_fn=ignore) == "went on []\n"


def test_the_handlers_are_put_back() -> None:
    code = "before = signal.getsignal(2)\nwith Signals(): pass\nprint(signal.getsignal(2) is before)"
    assert outcome(code) == "True\n"
