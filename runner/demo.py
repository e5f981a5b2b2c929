"""The demo model: a script that speaks the Anthropic Messages API. It is no language model, and says so.

It carries out small instructions in the prompt, one per line, with the agent's real tools, so that a newcomer and the
tests see a whole run without a key:

    write 4 to answer.txt
    run: curl -s https://example.com/

It holds no state: which step is next is counted from the tool results in the request. Like any provider it has an
account, with a key that it wants to see: so that a run with it shows how a credential gets where it belongs.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.privatefolder import PrivateFolder
from impyard.runner.keys.sources import DEMO, DEMO_ACCOUNT
from impyard.runner.ownhosts import DEMO_HOST, DEMO_RULE

INTRODUCTION = "I am impyard's demo model: a script, not a language model."
ABILITIES = (
    "I can do two things, one per line and in order:\n"
    "  write SOMETHING to FILE\n"
    "  run: SHELL COMMAND\n"
    "For anything else choose a real model with --model provider/model."
)
MAX_BODY_BYTES = 64 * 1024 * 1024
KEY = re.compile(r"sk-demo-[0-9a-f]{40}")
_LOCK_LIMIT_S = 10.0

_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])?\s*")
_WRITE = re.compile(
    r"write\s+(?P<text>.+)\s+to\s+(?P<file>\"[^\"]+\"|'[^']+'|`[^`]+`|[^\s\"'`]+?)\.?\s*", re.IGNORECASE
)
_RUN = re.compile(r"run:\s*(?P<command>.+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call: the tool's name in pi, its input, and the step in words."""

    tool: str
    input: dict[str, str]
    words: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answers to one request: text, then a tool call unless it is done."""

    text: str
    step: Step | None = None
    number: int = 0


def parse_steps(prompt: str) -> list[Step]:
    """The steps in a prompt, in order. Lines that are none are left out."""
    steps = []
    for line in prompt.splitlines():
        text = _BULLET.sub("", line, count=1).strip()
        if match := _RUN.fullmatch(text):
            command = match["command"].strip()
            steps.append(Step("bash", {"command": command}, f"run `{command}`"))
        elif match := _WRITE.fullmatch(text):
            content, file = _unquoted(match["text"]).replace("\\n", "\n"), _unquoted(match["file"])
            steps.append(Step("write", {"path": file, "content": content}, f"write {file}"))
    return steps


def reply_to(request: dict[str, Any]) -> Reply:
    """The answer to one Messages request. Raises ValueError when it is none."""
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise ValueError("the request has no messages")
    prompt, results = _last_prompt(messages)
    steps = parse_steps(prompt)
    if not steps:
        return Reply(f"{INTRODUCTION} {ABILITIES}")
    done = len(results)
    if done >= len(steps):
        failed = sum(results)
        outcome = f"Done: {len(steps) - failed} of {len(steps)} steps worked."
        return Reply(outcome if not failed else f"{outcome} {failed} failed; the output above says why.")
    step = steps[done]
    offered = [tool.get("name") for tool in request.get("tools") or [] if isinstance(tool, dict)]
    if step.tool not in offered:
        return Reply(f"{INTRODUCTION} I need the tool `{step.tool}`, which I was not given.")
    opening = f"{INTRODUCTION} " if done == 0 else ""
    return Reply(f"{opening}Step {done + 1} of {len(steps)}: {step.words}", step, done + 1)


def sse_events(reply: Reply, input_tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The reply as server-sent events (name, data), in the order of Anthropic's streaming reference."""
    message: dict[str, Any] = {
        "id": f"msg_demo_{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": DEMO,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": input_tokens, "output_tokens": 0},
    }
    yield "message_start", {"type": "message_start", "message": message}
    for index, (block, deltas) in enumerate(_blocks(reply)):
        yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": "tool_use" if reply.step else "end_turn", "stop_sequence": None}
    yield (
        "message_delta",
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": len(reply.text) // 4 + 1}},
    )
    yield "message_stop", {"type": "message_stop"}


def whole_message(reply: Reply, input_tokens: int) -> dict[str, Any]:
    """The reply as one JSON message, for a client that does not stream."""
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}]
    if reply.step:
        content.append(
            {"type": "tool_use", "id": f"toolu_demo_{reply.number}", "name": reply.step.tool, "input": reply.step.input}
        )
    return {
        "id": f"msg_demo_{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": DEMO,
        "content": content,
        "stop_reason": "tool_use" if reply.step else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": input_tokens, "output_tokens": len(reply.text) // 4 + 1},
    }


def account_key(folder: Path, on_new: Callable[[], None] = lambda: None) -> str:
    """The key of the demo model's account, which is in a file in `folder`; made at the first time, and `on_new` called.

    Raises ImpyardError when the file cannot be read or written, is open to others, or is not as it was made.
    """
    files = PrivateFolder(folder, "the demo model's account")
    found = files.read(DEMO_ACCOUNT, 1024)
    if found is None:
        with files.lock(f"{DEMO_ACCOUNT}.lock", _LOCK_LIMIT_S):
            found = files.read(DEMO_ACCOUNT, 1024)
            if found is None:
                files.replace(DEMO_ACCOUNT, f"sk-demo-{secrets.token_hex(20)}\n".encode())
                found = files.read(DEMO_ACCOUNT, 1024)
                on_new()
    key = found[0].decode("ascii", "replace").strip() if found is not None else ""
    if not KEY.fullmatch(key):
        raise ImpyardError(
            f"{folder / DEMO_ACCOUNT} is not as impyard made it", hint="remove it: the next run makes a new account"
        )
    return key


def policy_text(port: int) -> str:
    """The policy entry that leads the judge to a demo server on this port."""
    return (
        "# Written by impyard for --model demo, for this run only: the way to the demo model in the runner.\n"
        "networkPolicies:\n"
        f"  - host: {DEMO_HOST}\n"
        f"    upstream: http://127.0.0.1:{port}\n"
        f'    inject: {{credential: {DEMO}, headers: {{x-api-key: "{{key}}"}}, over_http: true}}\n'
        "    sentinels: pass\n"  # what the agent printed comes with the next call, stand-ins for other hosts too
        "    policies:\n"
        "      - action: ALLOW\n"
        f"        name: {DEMO_RULE}\n"
        "        method: POST\n"
        "        path: /v1/messages\n"
    )


class DemoServer:
    """The demo model on a free port of 127.0.0.1, in a thread of this process. Close it when the run is over.

    `key` is what a request has to bring as x-api-key; None: it may bring what it likes.
    """

    def __init__(self, key: str | None = None) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.key = key
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._over = False
        self._thread = threading.Thread(target=self._serve, daemon=True, name="demo-model")
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._over = True
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection
        self._thread.join(timeout=2)
        self._server.server_close()

    def _serve(self) -> None:
        """Without looking at a clock, as `serve_forever` does: a run mostly waits, and many may wait at once."""
        while not self._over:
            self._server.handle_request()


class _Server(ThreadingHTTPServer):
    key: str | None = None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 300
    disable_nagle_algorithm = True  # each event goes out as it is made

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if self.path.split("?")[0] != "/v1/messages" or not length.isdigit() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            self._answer_json(404, {"type": "error", "error": {"type": "not_found_error", "message": "no such call"}})
            return
        body = self.rfile.read(int(length))
        if not self._is_known():
            error = {"type": "authentication_error", "message": "invalid x-api-key"}
            self._answer_json(401, {"type": "error", "error": error})
            return
        try:
            request = json.loads(body)
            reply = reply_to(request)
        except (ValueError, AttributeError, TypeError) as exc:
            error = {"type": "invalid_request_error", "message": f"the demo model cannot read this: {exc}"}
            self._answer_json(400, {"type": "error", "error": error})
            return
        if request.get("stream"):
            self._answer_stream(reply, len(body) // 4)
        else:
            self._answer_json(200, whole_message(reply, len(body) // 4))

    def _is_known(self) -> bool:
        """Whether the request brings the account's key, and once."""
        key = self.server.key if isinstance(self.server, _Server) else None
        brought = self.headers.get_all("x-api-key") or []
        return key is None or (len(brought) == 1 and hmac.compare_digest(brought[0].encode(), key.encode()))

    def _answer_json(self, status: int, data: dict[str, Any]) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer_stream(self, reply: Reply, input_tokens: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("cache-control", "no-cache")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for name, data in sse_events(reply, input_tokens):
            event = f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.close_connection = True  # the gateway dropped the connection; nobody is left to answer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal belongs to the run, and each call has its line in the decision log."""


def _blocks(reply: Reply) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    words = re.findall(r"\s*\S+|\s+$", reply.text)
    yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": word} for word in words]
    if reply.step:
        block = {"type": "tool_use", "id": f"toolu_demo_{reply.number}", "name": reply.step.tool, "input": {}}
        yield block, [{"type": "input_json_delta", "partial_json": json.dumps(reply.step.input)}]


def _last_prompt(messages: Sequence[Any]) -> tuple[str, list[bool]]:
    """The last message that a person wrote, and for each tool result since whether it failed."""
    prompt, results = "", list[bool]()
    for message in messages:
        if not isinstance(message, dict) or message.get("role") != "user":
            continue
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        answers = [bool(block.get("is_error")) for block in blocks if block.get("type") == "tool_result"]
        if answers:
            results += answers
        else:
            prompt = "\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
            results = []
    return prompt, results


def _unquoted(text: str) -> str:
    stripped = text.strip()
    for quote in "\"'`":
        if len(stripped) >= 2 and stripped[0] == stripped[-1] == quote:
            return stripped[1:-1]
    return stripped
