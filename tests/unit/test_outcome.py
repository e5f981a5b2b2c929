"""Why a run ended: read from pi's events and the box's end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from impyard.runner.outcome import Ending, Outcome, judge_ending, parse_event

GOOD_PROBES = [{"name": "user", "expected": "uid 1000", "found": "uid 1000", "ok": True}]


def ending(**changes: Any) -> Ending:
    values: dict[str, Any] = {"ended_by": None, "status": 0, "probes": GOOD_PROBES, "out_of_memory": False}
    return Ending(**{**values, **changes})


def outcome(*messages: dict[str, Any]) -> Outcome:
    result = Outcome()
    for message in messages:
        event = parse_event(json.dumps({"type": "message_end", "message": message}).encode())
        assert event is not None
        result.see(event)
    return result


STOPPED = {"role": "assistant", "stopReason": "stop"}
FAILED = {"role": "assistant", "stopReason": "error", "errorMessage": "403 no"}


def test_a_last_answer_that_stopped_is_a_finished_run() -> None:
    assert judge_ending(ending(), outcome(FAILED, STOPPED)) == ("finished", None)
    assert judge_ending(ending(), outcome({"role": "assistant", "stopReason": "length"})) == ("finished", None)


def test_a_failed_model_call_is_an_error_although_pi_exits_0() -> None:
    assert judge_ending(ending(), outcome(STOPPED, FAILED)) == ("agent-error", "403 no")


def test_messages_of_others_do_not_count_as_answers() -> None:
    reason, error = judge_ending(ending(), outcome({"role": "user", "stopReason": "stop"}))
    assert reason == "agent-error"
    assert "without an answer" in str(error)


@pytest.mark.parametrize("reason", ["ceiling", "gateway-lost", "interrupted"])
def test_what_the_runner_did_wins_over_what_the_box_says(reason: str) -> None:
    assert judge_ending(ending(ended_by=reason, status=137, out_of_memory=True), outcome(STOPPED))[0] == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": 124, "ceiling_passed": True}, "ceiling"),
        ({"status": 124}, "agent-error"),
        ({"status": 126}, "agent-error"),
        ({"status": 126, "ceiling_passed": True}, "agent-error"),
        ({"status": 0, "ceiling_passed": True}, "finished"),
        ({"status": 137, "ceiling_passed": True}, "agent-error"),
        ({"status": 137, "out_of_memory": True}, "out-of-memory"),
        ({"status": 137}, "agent-error"),
        ({"status": 1}, "agent-error"),
        ({"status": 125}, "agent-error"),
        ({"status": None}, "agent-error"),
        ({"status": None, "probes": None}, "refused"),
        ({"status": 125, "probes": None}, "refused"),
        ({"status": 0, "probes": None}, "refused"),
        ({"status": 0, "probes": [{"name": "x", "expected": "a", "found": "b", "ok": False}]}, "refused"),
        ({"status": 0, "probes": [{"name": "x", "expected": "a", "found": "b"}]}, "refused"),
    ],
)
def test_the_status_of_the_box_gives_the_reason(changes: dict[str, Any], reason: str) -> None:
    assert judge_ending(ending(**changes), outcome(STOPPED))[0] == reason


def test_a_failed_probe_is_named() -> None:
    probes = [*GOOD_PROBES, {"name": "routes", "expected": "none", "found": "default", "ok": False}]
    _, error = judge_ending(ending(probes=probes), Outcome())
    assert "routes: expected none, found default" in str(error)


def test_the_last_words_of_a_box_that_did_not_come_up_are_told() -> None:
    _, error = judge_ending(ending(probes=None, status=1, last_words="no such file"), Outcome())
    assert "no such file" in str(error)


def test_an_agent_that_was_killed_without_an_answer_is_told_from_one_that_ended() -> None:
    _, error = judge_ending(ending(status=137), Outcome())
    assert "was killed (status 137), as happens when this machine is short of memory" in str(error)
    _, error = judge_ending(ending(status=1), Outcome())
    assert error == "pi ended without an answer (status 1)"


@pytest.mark.parametrize("line", [b"", b"x", b"[]", b"{}", b'{"type": 1}', b"\xff", b"[" * 100_000])
def test_a_line_that_is_no_event_is_none(line: bytes) -> None:
    assert parse_event(line) is None


def test_a_message_of_another_shape_is_passed_over() -> None:
    result = Outcome()
    result.see({"type": "message_end", "message": "text"})
    result.see({"type": "message_end"})
    assert result.stop_reason is None
