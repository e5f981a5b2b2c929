"""pi's own HTTP client behind the door: a model that thinks long, one that breaks off, one that is denied.

Field note F35.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.support.model import HOST, MODEL, Model
from tests.support.project import Project, Result

pytestmark = pytest.mark.box

PROMPT = "write 4 to answer.txt"
SILENCE_S = 5.0


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.close()


def ask(project: Project, model: Model) -> Result:
    """One run with pi's events on its standard output."""
    folder = model.register(project.base / "home")
    # What the shell of whoever starts it says of authorities is not for impyard's own Python (F39).
    env = {"PI_CODING_AGENT_DIR": str(folder), "REQUESTS_CA_BUNDLE": "/dev/null", "CURL_CA_BUNDLE": "/dev/null"}
    return project.impyard("run", "--json", "--model", MODEL, PROMPT, env=env)


def events(result: Result, kind: str) -> list[dict[str, object]]:
    return [event for line in result.out.splitlines() if (event := json.loads(line))["type"] == kind]


@pytest.mark.attack("F35", "F39")
def test_a_model_may_think_before_its_first_byte(project: Project, model: Model) -> None:
    project.policy.write_text(model.policy())
    model.silence_s = SILENCE_S
    began = time.monotonic()
    result = ask(project, model)
    assert (result.code, result.file("answer.txt")) == (0, "4"), result
    assert time.monotonic() - began > SILENCE_S
    assert len(model.calls) == 2 and events(result, "auto_retry_start") == []
    assert [line["verdict"] for line in project.asked()] == ["allow", "allow"]


@pytest.mark.attack("F35")
def test_an_answer_that_breaks_off_is_asked_for_again(project: Project, model: Model) -> None:
    """pi neither crashes nor takes the half for the whole, and the gateway says which side broke off."""
    project.policy.write_text(model.policy())
    model.tears = 1
    result = ask(project, model)
    assert (result.code, result.file("answer.txt")) == (0, "4"), result
    assert len(events(result, "auto_retry_start")) == 1
    assert len(model.calls) == 3
    assert [line["verdict"] for line in project.asked()] == ["allow"] * 3
    outcomes = [json.loads(line) for line in (project.runs / "outcomes.jsonl").read_text().splitlines()]
    assert [outcome["error"] is None for outcome in outcomes] == [False, True, True]


@pytest.mark.attack("F35", "F21")
def test_a_denied_model_call_is_asked_once_and_says_why(project: Project, model: Model) -> None:
    """Control: the two tests above, with the model's path in the policy."""
    project.policy.write_text(model.policy("/v1/other"))
    result = ask(project, model)
    assert result.code == 1
    (end,) = events(result, "agent_end")
    assert "403" in str(end) and "Access denied by egress policy: the policy has no rule for it" in str(end)
    assert events(result, "auto_retry_start") == []
    assert [(line["verdict"], line["host"]) for line in project.asked()] == [("deny", HOST)]
    assert model.calls == []
    assert result.receipt["decisions"]["denied_hosts"] == {HOST: 1}
