"""The demo model: what it understands, and that a real HTTP client can talk to it."""

from __future__ import annotations

import http.client
import json
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError
from impyard.addon.judge import Verdict, judge
from impyard.addon.policy import load_policy
from impyard.addon.request import Request
from impyard.runner.demo import DemoServer, account_key, parse_steps, policy_text, reply_to
from impyard.runner.ownhosts import DEMO_HOST

TOOLS = [{"name": "bash"}, {"name": "write"}]


@pytest.fixture
def server() -> Iterator[DemoServer]:
    demo = DemoServer()
    yield demo
    demo.close()


def ask(
    server: DemoServer, body: bytes, path: str = "/v1/messages?beta=true", **headers: str
) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", path, body, {"content-type": "application/json", **headers})
    answer = connection.getresponse()
    return answer.status, answer.headers["content-type"], answer.read()


def request(prompt: str, *results: bool, **more: Any) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
    for number, failed in enumerate(results):
        call = {"type": "tool_use", "id": f"t{number}", "name": "bash", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "…", "is_error": failed}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return {"model": "demo", "messages": messages, "tools": TOOLS, **more}


@pytest.mark.parametrize(
    ("line", "tool", "given"),
    [
        ("write 4 to answer.txt", "write", {"path": "answer.txt", "content": "4"}),
        ("Write 4 to answer.txt.", "write", {"path": "answer.txt", "content": "4"}),
        ("- write a to b to c.txt", "write", {"path": "c.txt", "content": "a to b"}),
        ("2. write 'two words' to \"my file.txt\"", "write", {"path": "my file.txt", "content": "two words"}),
        (r"write one\ntwo to f", "write", {"path": "f", "content": "one\ntwo"}),
        ("run: ls -la | head", "bash", {"command": "ls -la | head"}),
        ("  RUN:true", "bash", {"command": "true"}),
        ("run: echo write 4 to x", "bash", {"command": "echo write 4 to x"}),
    ],
)
def test_a_line_becomes_a_tool_call(line: str, tool: str, given: dict[str, str]) -> None:
    (step,) = parse_steps(line)
    assert (step.tool, step.input) == (tool, given)


@pytest.mark.parametrize("line", ["", "write a poem", "run ls", "please fix the test", "write to f", "run:"])
def test_anything_else_is_no_step(line: str) -> None:
    assert parse_steps(line) == []


def test_lines_are_carried_out_in_order_one_for_each_request() -> None:
    prompt = "write 1 to a\nhello\nrun: cat a"
    first, second, last = (reply_to(request(prompt, *[False] * done)) for done in range(3))
    assert first.step is not None and first.step.tool == "write"
    assert second.step is not None and second.step.input == {"command": "cat a"}
    assert last.step is None
    assert "2 of 2" in last.text


def test_it_says_that_it_is_no_language_model() -> None:
    assert "not a language model" in reply_to(request("write 1 to a")).text
    assert "not a language model" in reply_to(request("what is 2 + 2?")).text


def test_a_failed_step_is_told_and_the_next_one_still_runs() -> None:
    prompt = "run: false\nrun: true"
    assert reply_to(request(prompt, True)).step is not None
    assert "1 of 2" in reply_to(request(prompt, True, False)).text


def test_a_second_prompt_of_one_session_starts_anew() -> None:
    conversation = request("run: one", False)
    conversation["messages"] += [
        {"role": "assistant", "content": [{"type": "text", "text": "Done"}]},
        {"role": "user", "content": "run: two"},
    ]
    step = reply_to(conversation).step
    assert step is not None and step.input == {"command": "two"}


def test_it_calls_no_tool_that_it_was_not_given() -> None:
    reply = reply_to(request("run: true", tools=[{"name": "read"}]))
    assert reply.step is None
    assert "bash" in reply.text


def test_it_streams_text_and_the_call_as_the_messages_api_does(server: DemoServer) -> None:
    status, kind, body = ask(server, json.dumps(request("write 4 to answer.txt", stream=True)).encode())
    assert (status, kind) == (200, "text/event-stream")
    events = [event.split("\n") for event in body.decode().strip().split("\n\n")]
    names = [lines[0].removeprefix("event: ") for lines in events]
    data = [json.loads(lines[1].removeprefix("data: ")) for lines in events]
    assert names == [item["type"] for item in data]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    deltas = [item["delta"] for item in data if item["type"] == "content_block_delta"]
    text = "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")
    assert text.endswith("write answer.txt")
    assert sum(delta["type"] == "text_delta" for delta in deltas) > 3
    call = "".join(delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta")
    assert json.loads(call) == {"path": "answer.txt", "content": "4"}
    assert data[-2]["delta"]["stop_reason"] == "tool_use"


def test_it_answers_whole_when_no_stream_is_asked_for(server: DemoServer) -> None:
    status, kind, body = ask(server, json.dumps(request("run: true")).encode())
    message = json.loads(body)
    assert (status, kind, message["stop_reason"]) == (200, "application/json", "tool_use")
    assert message["content"][1]["input"] == {"command": "true"}


def test_a_prompt_of_a_megabyte_is_understood(server: DemoServer) -> None:
    body = json.dumps(request("x" * 1_000_000 + "\nrun: true")).encode()
    status, _, answer = ask(server, body)
    assert status == 200
    assert json.loads(answer)["content"][1]["input"] == {"command": "true"}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"messages": 1}', b'{"messages": [{"role":"user","content":[1]}]}']
)
def test_what_is_no_request_gets_an_error_of_the_api(server: DemoServer, body: bytes) -> None:
    status, _, answer = ask(server, body)
    assert status == 400
    assert json.loads(answer)["error"]["type"] == "invalid_request_error"


def test_another_path_is_not_found(server: DemoServer) -> None:
    assert ask(server, b"{}", "/v1/complete")[0] == 404


def test_the_port_is_free_again_after_closing() -> None:
    demo = DemoServer()
    demo.close()
    with pytest.raises(ConnectionRefusedError):
        ask(demo, b"{}")


def test_the_policy_of_a_demo_run_allows_the_model_call_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "demo-policy.yaml"
    file.write_text(policy_text(4321))
    policy = load_policy([file])

    def verdict(method: str, path: str, host: str = DEMO_HOST) -> Verdict:
        return judge(
            Request(method=method, scheme="https", host=host, port=443, path=path, query="", host_header=host), policy
        ).verdict

    assert verdict("POST", "/v1/messages") is Verdict.ALLOW
    assert verdict("GET", "/v1/messages") is Verdict.DENY
    assert verdict("POST", "/v1/models") is Verdict.DENY
    assert verdict("POST", "/v1/messages", "other.impyard.internal") is Verdict.DENY


def test_it_wants_the_key_of_its_account_and_says_no_as_its_provider_would() -> None:
    server = DemoServer("sk-demo-the-right-one")
    body = json.dumps(request("write 4 to answer.txt")).encode()
    try:
        assert ask(server, body, **{"x-api-key": "sk-demo-the-right-one"})[0] == 200
        for wrong in ({}, {"x-api-key": ""}, {"x-api-key": "sk-demo-another"}, {"authorization": "Bearer x"}):
            status, kind, answer = ask(server, body, **wrong)
            assert (status, kind) == (401, "application/json")
            assert json.loads(answer) == {
                "type": "error",
                "error": {"type": "authentication_error", "message": "invalid x-api-key"},
            }
    finally:
        server.close()


def test_the_account_is_made_once_by_however_many_runs_begin_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(account_key, [tmp_path / "vault"] * 8))
    assert len(keys) == 1
    assert stat.S_IMODE((tmp_path / "vault" / "demo-account").stat().st_mode) == 0o600


def test_an_account_that_somebody_wrote_into_is_an_error_without_its_content(tmp_path: Path) -> None:
    account_key(tmp_path / "vault")
    (tmp_path / "vault" / "demo-account").write_text("something else\n")
    with pytest.raises(ImpyardError, match="not as impyard made it") as refused:
        account_key(tmp_path / "vault")
    assert "something" not in str(refused.value)
