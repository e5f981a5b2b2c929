"""What all tests rely on, however they were started."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.attacks.scoreboard import Scoreboard
from tests.support.listening import still_accepting


def pytest_addoption(parser: pytest.Parser) -> None:
    """For tests/attacks/scoreboard.py."""
    parser.addoption("--attacks-readme", action="store_true", help="print the README's table of attempts")


def pytest_configure(config: pytest.Config) -> None:
    """Take signals as a person's terminal gives them.

    Whoever starts the tests in the background, or under nohup, hands down an ignored SIGINT or SIGHUP. The programs
    that a test starts, to signal them, would ignore it too.
    """
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Scoreboard(config))


@pytest.fixture(scope="session", autouse=True)
def _nobody_accepts_for_ever() -> Iterator[None]:
    """Every listener of the tests is closed so that its thread ends: see tests/support/listening.py."""
    yield
    assert not (left := still_accepting()), f"close these with tests/support/listening.py: {left}"
