"""What an agent reads when it is refused: legible, final, and without a word that makes pi try again."""

from __future__ import annotations

import json
import re

import pytest

from impyard.addon import answers
from impyard.addon.judge import _HINTS, REASONS, Decision, Nearest, Verdict

# pi retries when the error text matches one of these (its list, version 1.6.0); "upstream" may be retried.
RETRIED = re.compile(
    r"429|500|502|503|504|520|524|rate.?limit|too many requests|overloaded|internal.?error|server.?error|"
    r"service.?unavailable|network.?error|connection.?(closed|refused|error)|terminated|timed? ?out|timeout|"
    r"ended without",
    re.I,
)


def deny(reason: str) -> Decision:
    return Decision(Verdict.DENY, reason, rule=None, at=None, hint=_HINTS.get(reason, ""))


@pytest.mark.parametrize("reason", sorted(set(REASONS) - {"upstream"}))
def test_a_refusal_is_final_for_pi(reason: str) -> None:
    answer = answers.denial(deny(reason), "run.1", host="a.test")
    text = answer.body.decode()
    assert not RETRIED.search(text), RETRIED.search(text)
    assert json.loads(text)["error"].startswith("Access denied by egress policy: ")
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.status == (400 if reason == "malformed" else 403)


def test_control_the_pattern_finds_what_pi_would_retry() -> None:
    assert RETRIED.search('500 {"error":"Internal error"}')


def test_the_answer_names_the_rule_that_came_closest() -> None:
    decision = Decision(
        Verdict.DENY, "no-rule", rule=None, at=None, nearest=Nearest("policies/gateway.yaml:6", "method"), hint="x"
    )
    body = json.loads(answers.denial(decision, "run.7", host="a.test").body)
    assert body["nearest"] == {"at": "policies/gateway.yaml:6", "failed": "method"}
    assert body["decision"] == "run.7"


def test_git_reads_text() -> None:
    answer = answers.denial(deny("no-rule"), "run.1", host="a.test", user_agent="git/2.39.5")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.body.startswith(b"Access denied by egress policy: ")


def test_an_upstream_failure_is_no_refusal() -> None:
    answer = answers.upstream_failure("connect failed " * 100, host="a.test", decision_id="run.1")
    body = json.loads(answer.body)
    assert (answer.status, body["reason"], answer.headers["x-impyard-verdict"]) == (502, "upstream", "allow")
    assert len(answer.body) < 1500


def test_raw_bytes_end_the_connection() -> None:
    raw = answers.raw_http1(answers.denial(deny("malformed"), "run.1", host="a.test"))
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n")
    assert f"content-length: {len(body)}".encode() in head
