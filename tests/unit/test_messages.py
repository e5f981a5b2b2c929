"""What a gateway says on standard error is bounded, whatever the box does."""

from __future__ import annotations

import io
import logging

import pytest

from impyard.addon.messages import MOST, Bounded


@pytest.mark.parametrize(("bounded", "lines"), [(True, MOST), (False, 3 * MOST)], ids=["bounded", "control"])
def test_no_more_than_so_many_messages_are_printed(bounded: bool, lines: int) -> None:
    sink = io.StringIO()
    handler = logging.StreamHandler(sink)
    if bounded:
        handler.addFilter(Bounded())
    logger = logging.Logger("of the test")
    logger.addHandler(handler)
    for number in range(3 * MOST):
        logger.warning("handshake %d failed", number)
    printed = sink.getvalue().splitlines()
    assert len(printed) == lines
    assert printed[MOST - 2] == f"handshake {MOST - 2} failed"
    assert (printed[-1] == "too many messages; this is the last one") is bounded


def test_the_last_message_holds_no_error_of_the_message_that_it_stands_for() -> None:
    sink = io.StringIO()
    handler = logging.StreamHandler(sink)
    handler.addFilter(Bounded(1))
    logger = logging.Logger("of the test")
    logger.addHandler(handler)
    try:
        raise ValueError("what broke")
    except ValueError as exc:
        logger.error("hook %s failed", "request", exc_info=exc)
    assert sink.getvalue() == "too many messages; this is the last one\n"
