"""What pi says that it did, read from its events or its session: prompts, answers, tool calls, tokens and cost.

All of it comes out of the box, which could write what it likes: it is shown as the box's word, and nothing is decided
by it. Read in one pass; what is kept of it is bounded.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from impyard.addon import redact
from impyard.addon.errors import ImpyardError
from impyard.runner.decisions import logread
from impyard.runner.decisions.logfiles import Log, of_descriptor, open_file
from impyard.runner.outcome import text_of
from impyard.runner.project import RunPaths
from impyard.runner.text import counted
from impyard.runner.times import seconds_of
from impyard.runner.view import MAIN_ARGUMENT

FIRST_STEPS, LAST_STEPS = 80, 120  # of a long run; those between are counted
TEXT_CHARS = 800  # of what somebody says
CALL_CHARS = 300  # of what a tool is called with
RESULT_CHARS = 700
RESULT_LINES = 14
MAX_MODELS = 20
MAX_OPEN_CALLS = 1000
# The box writes the files, as much as the disk takes: a report must come all the same. A long run has some thousand
# records, and a line for each token.
MAX_LINES, MAX_RECORDS = 5_000_000, 100_000
MAX_SESSIONS = 50  # files that are looked at in the session's folder
# The bulk of the events, which say nothing that a message's end does not say again.
_SKIPPED = tuple(
    f'{{"type":"{name}'.encode()
    for name in (
        "message_update",
        "message_start",
        "tool_execution",
        "agent_end",
        "turn_",
        "entry_appended",
        "queue_update",
    )
)


@dataclass(slots=True)
class Step:
    """One thing that the agent did. `kind`: prompt, says, call, error, retry or summary; `at` seconds since 1970.

    For a call `name` is the tool's, `text` what it was called with, `result` what came back, None while nothing did.
    """

    kind: str
    at: float
    text: str
    name: str = ""
    result: str | None = None
    is_error: bool = False
    duration_s: float | None = None


@dataclass(slots=True)
class Usage:
    """Tokens and US dollars of one model, by pi's own counting."""

    calls: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: float = 0.0

    def add(self, usage: Mapping[str, Any], calls: int = 1) -> None:
        self.calls += calls
        self.input += _count(usage.get("input"))
        self.output += _count(usage.get("output"))
        self.cache_read += _count(usage.get("cacheRead"))
        self.cache_write += _count(usage.get("cacheWrite"))
        cost = usage.get("cost")
        self.cost += _number(cost.get("total")) if isinstance(cost, dict) else 0.0


@dataclass(slots=True)
class Agent:
    """A run as pi tells it. `source` is the file's name, empty where there is none; `fault` why one cannot be read."""

    source: str = ""
    fault: str = ""
    first: list[Step] = field(default_factory=list)
    last: deque[Step] = field(default_factory=lambda: deque(maxlen=LAST_STEPS))
    steps: int = 0
    calls: int = 0
    damaged: int = 0
    too_long: int = 0
    cut: bool = False  # there is more than was read
    usage: dict[str, Usage] = field(default_factory=dict)

    @property
    def left_out(self) -> int:
        return self.steps - len(self.first) - len(self.last)

    def add(self, step: Step) -> None:
        self.steps += 1
        self.calls += step.kind == "call"
        if len(self.first) < FIRST_STEPS:
            self.first.append(step)
        else:
            self.last.append(step)

    def usage_of(self, model: str) -> Usage:
        if model not in self.usage and len(self.usage) >= MAX_MODELS:
            model = "other models"
        return self.usage.setdefault(model, Usage())


def read(paths: RunPaths, since: float) -> Agent:
    """What pi's events say of a run, else what its session says from `since` (seconds since 1970) on."""
    agent = Agent()
    try:
        events = open_file(paths.stdout)
        if events is not None:
            agent.source = paths.stdout.name
            with events:
                _Reader(agent).read(events)
        if agent.steps:
            return agent
        for name, descriptor in _sessions(paths.session):
            agent.source = f"{paths.session.name}/{name}"
            with of_descriptor(Path(name), descriptor) as session:
                _Reader(agent, since).read(session)
    except ImpyardError as exc:
        agent.fault = exc.message
    except OSError as exc:
        agent.fault = f"cannot read {exc.filename or paths.folder}: {(exc.strerror or str(exc)).lower()}"
    return agent


def _sessions(folder: Path) -> Iterator[tuple[str, int]]:
    """The session files, each as a name and a descriptor. The box writes here: no link is followed, no pipe opened."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        parent = os.open(folder, flags | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MAX_SESSIONS), strict=False)]
        for name in sorted(names):
            if not name.endswith(".jsonl"):
                continue
            try:
                descriptor = os.open(name, flags | os.O_NONBLOCK, dir_fd=parent)
            except OSError:  # a link
                continue
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                yield name, descriptor
            else:
                os.close(descriptor)
    finally:
        os.close(parent)


class _Reader:
    """Reads records, of either kind, into an `Agent`."""

    def __init__(self, agent: Agent, since: float = 0.0) -> None:
        self._agent = agent
        self._since = since
        self._now = since  # of the newest record that has a time; some have none
        self._open: dict[str, Step] = {}

    def read(self, records_of: Log) -> None:
        records = 0
        for number, line in enumerate(logread.raw_lines(records_of)):
            if number >= MAX_LINES or records >= MAX_RECORDS:
                self._agent.cut = True
                return
            if line.startswith(_SKIPPED) or not line.strip():
                continue
            records += 1
            record = _record(line)
            if record is None:
                if len(line) > logread.LINE_CAP:
                    self._agent.too_long += 1
                else:
                    self._agent.damaged += 1
                continue
            self._see(record)

    def _see(self, record: Mapping[str, Any]) -> None:
        kind, message = record["type"], record.get("message")
        if (at := seconds_of(record.get("timestamp"))) is not None:
            if at < self._since - 1:  # of a session that this run went on with
                return
            self._now = at
        if kind in ("message_end", "message") and isinstance(message, dict):
            self._message(message)
        elif kind == "auto_retry_start":
            self._agent.add(Step("retry", self._now, _clean(str(record.get("errorMessage") or ""), CALL_CHARS)))
        elif kind in ("compaction_end", "compaction"):
            result = record.get("result") if kind == "compaction_end" else record
            if isinstance(result, dict):
                self._agent.add(Step("summary", self._now, _clean(str(result.get("summary") or ""), TEXT_CHARS)))
                self._use("", result.get("usage"))
        elif kind == "usage":
            self._use(f"{record.get('provider')}/{record.get('model')}", record.get("usage"))

    def _message(self, message: Mapping[str, Any]) -> None:
        at = _number(message.get("timestamp")) / 1000 or self._now
        if at < self._since - 1:
            return
        duration_s = _number(message.get("durationMs")) / 1000
        role, text = message.get("role"), text_of(message.get("content"))
        if role == "user":
            self._agent.add(Step("prompt", at, _clean(text, TEXT_CHARS)))
        elif role == "assistant":
            at += duration_s  # its time is that of the call; the words are there when it ends
            model = f"{message.get('provider')}/{message.get('model')}"
            self._use(model, message.get("usage"))
            if text.strip():
                self._agent.add(Step("says", at, _clean(text, TEXT_CHARS), name=model))
            if message.get("stopReason") == "error":
                self._agent.add(Step("error", at, _clean(str(message.get("errorMessage")), TEXT_CHARS)))
            blocks = message.get("content")
            for block in blocks if isinstance(blocks, list) else ():
                if isinstance(block, dict) and block.get("type") == "toolCall":
                    self._call(block, at)
        elif role == "toolResult":
            step = self._open.pop(str(message.get("toolCallId")), None)
            if step is None:
                return
            step.at, step.duration_s = max(step.at, at - duration_s), duration_s
            step.result, step.is_error = _result(text), message.get("isError") is True
            self._use("", message.get("usage"))
        self._now = at

    def _call(self, block: Mapping[str, Any], at: float) -> None:
        name, arguments = str(block.get("name")), block.get("arguments")
        arguments = arguments if isinstance(arguments, dict) else {}
        main = arguments.get(MAIN_ARGUMENT.get(name, ""))
        what = main if isinstance(main, str) else json.dumps(arguments, ensure_ascii=False)
        step = Step("call", at, _clean(what, CALL_CHARS), name=_clean(name, 40))
        self._agent.add(step)
        if len(self._open) < MAX_OPEN_CALLS:
            self._open[str(block.get("id"))] = step

    def _use(self, model: str, usage: Any) -> None:
        if isinstance(usage, dict) and usage:
            self._agent.usage_of(_clean(model, 80) or "other").add(usage)


def merged(agent: Agent, start: float, end: float) -> list[Step]:
    """The steps in order of time, each within the run: a box may name any time. Between the first ones and the last
    ones stands a step of kind `left-out`, where some are."""
    for step in (*agent.first, *agent.last):
        step.at = min(max(step.at, start), end)
    steps = sorted(agent.first, key=lambda step: step.at)
    if agent.left_out:
        steps.append(Step("left-out", steps[-1].at, str(agent.left_out)))
    return steps + sorted(agent.last, key=lambda step: step.at)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        try:
            record = json.loads(line)  # takes half of a character, as JavaScript writes where it cuts a text
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) and isinstance(record.get("type"), str) else None


def _result(text: str) -> str:
    lines = text.rstrip().splitlines()
    kept = (
        lines
        if len(lines) <= RESULT_LINES
        else [*lines[: RESULT_LINES - 1], f"… {len(lines) - RESULT_LINES + 1} more lines"]
    )
    return _clean("\n".join(kept), RESULT_CHARS)


def _clean(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, without what looks like a key: a report is made to be shown around."""
    text = text.strip()
    begin = text[: limit + 256]  # so that a key at the cut is still seen to be one
    begin = "\n".join(redact.text(line) for line in begin.split("\n"))
    if len(text) <= limit:
        return begin
    return f"{begin[:limit]}… ({counted(len(text) - limit, 'more character')})"


def _number(value: Any) -> float:
    """An amount as the box says it; 0 for what is none. An int may be larger than any float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value == math.inf:
        return 0.0
    return float(min(max(value, 0), 10**15))


def _count(value: Any) -> int:
    return int(_number(value))
