"""What an agent reads when it is refused: legible, final, and without a word that makes pi try again."""

from __future__ import annotations

import json
import re

import pytest

from impyard.addon import answers
from impyard.addon.judge import Decision, Nearest, Verdict
from impyard.addon.reasons import HINTS, REASONS

# What pi 1.6.0 retries, from its dist/utils/retry.js: numbers as words of their own, and phrases.
RETRIED = re.compile(
    r"(?<![a-z0-9])(?:429|500|502|503|504|520|524)(?![a-z0-9])|rate.?limit|too many requests|overloaded|"
    r"internal.?error|server.?error|service.?(?:is.?)?(?:temporarily.?)?unavailable|network.?error|connection.?(closed|refused|error|lost)|terminated|"
    r"timed? ?out|timeout|ended without|upstream.?connect|upstream.?request|retry|try your request again",
    re.I,
)


def deny(reason: str) -> Decision:
    return Decision(Verdict.DENY, reason, rule=None, at=None, hint=HINTS.get(reason, ""))


@pytest.mark.parametrize("reason", sorted(set(REASONS) - {"upstream"}))
def test_a_refusal_is_final_for_pi(reason: str) -> None:
    answer = answers.denial(deny(reason), "run.500")
    text = answer.body.decode()
    assert not RETRIED.search(text), RETRIED.search(text)
    assert json.loads(text)["error"].startswith("Access denied by egress policy: ")
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.status == (400 if reason == "malformed" else 403)
    assert not RETRIED.search(answer.phrase)
    assert answer.status == 400 or reason in answer.phrase


def test_control_the_pattern_finds_what_pi_would_retry() -> None:
    assert RETRIED.search('500 {"error":"Internal error"}')


def test_the_answer_names_the_rule_that_came_closest() -> None:
    nearest = Nearest("policies/gateway.yaml:500", "method")
    decision = Decision(Verdict.DENY, "no-rule", rule=None, at=None, nearest=nearest, hint="x")
    answer = answers.denial(decision, "run.7")
    assert json.loads(answer.body)["nearest"] == {"at": "policies/gateway.yaml:L500", "failed": "method"}
    assert answer.headers["x-impyard-decision"] == "run.7"
    assert not RETRIED.search(answer.body.decode())


@pytest.mark.parametrize("name", ["DENY GET /errors/500", "timeouts", "rate limit", "keep out 503"])
def test_a_rule_whose_name_would_make_pi_try_again_is_named_by_its_place_alone(name: str) -> None:
    decision = Decision(Verdict.DENY, "rule", rule=name, at="policies/gateway.yaml:6", hint=f"denied by {name}")
    answer = answers.denial(decision, "run.7")
    assert json.loads(answer.body)["at"] == "policies/gateway.yaml:L6"
    assert not RETRIED.search(answer.body.decode())


def test_git_reads_text() -> None:
    answer = answers.denial(deny("no-rule"), "run.1", user_agent="git/2.39.5")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.body.startswith(b"Access denied by egress policy: ")


def test_an_upstream_failure_is_no_refusal() -> None:
    answer = answers.upstream_failure("connect failed " * 100, host="a.test", decision_id="run.1")
    body = json.loads(answer.body)
    assert (answer.status, body["reason"], answer.headers["x-impyard-verdict"]) == (502, "upstream", "allow")
    assert len(answer.body) < 1500


def test_raw_bytes_end_the_connection() -> None:
    raw = answers.raw_http1(answers.denial(deny("malformed"), "run.1"))
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n")
    assert f"content-length: {len(body)}".encode() in head
