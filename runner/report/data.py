"""All that a report of one run shows, gathered from its files. What is missing or damaged is said, never fatal."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from impyard.addon import redact
from impyard.addon.errors import ImpyardError
from impyard.runner import runs
from impyard.runner.report import agent as report_agent
from impyard.runner.report import requests as report_requests
from impyard.runner.report.agent import Agent, Step
from impyard.runner.report.requests import Requests
from impyard.runner.text import counted
from impyard.runner.times import seconds_of

PROMPT_CHARS = 6000


@dataclass(frozen=True, slots=True)
class Report:
    """One run. Times are seconds since 1970; `end` is when it ended, else when something was last known of it.

    `missing` says in words what could not be had, `project` is the folder that the caller named, if any, for the
    commands that are shown.
    """

    run: runs.Run
    start: float
    end: float
    made: float
    prompt: str
    agent: Agent
    steps: list[Step]
    requests: Requests
    missing: list[str] = field(default_factory=list)
    project: Path | None = None

    @property
    def receipt(self) -> Mapping[str, Any]:
        return self.run.receipt


def gather(root: Path, run: runs.Run, project: Path | None) -> Report:
    """Read everything that there is of `run`."""
    made = time.time()
    missing: list[str] = []
    receipt, state = run.receipt, run.state
    start = seconds_of(receipt.get("started")) or runs.started(run).timestamp()
    end = seconds_of(receipt.get("ended"))
    if run.fault:
        missing.append(f"There is no receipt that can be read: {run.fault}. What it would say is missing here.")
    elif state == "running":
        missing.append("The run is not over: this is what there was when the report was made. Make it again later.")
    elif state in ("lost", "runner-lost"):
        missing.append("impyard was killed during this run, so its receipt sums nothing up.")
    if run.doubt:
        missing.append(f"Whether the run still goes on is not known: {run.doubt}.")
    agent = report_agent.read(run.paths, start)
    if agent.fault:
        missing.append(f"What the agent did is not shown: {agent.fault}.")
    elif not agent.source:
        missing.append("There is no record of what the agent did: neither its events nor its session.")
    if agent.damaged:
        missing.append(
            f"{counted(agent.damaged, 'line')} of {agent.source} cannot be read, and {_is(agent.damaged)} left out."
        )
    if agent.too_long:
        missing.append(
            f"{counted(agent.too_long, 'line')} of {agent.source} {_is(agent.too_long)} too long to be read, and left "
            "out."
        )
    if agent.cut:
        missing.append(f"{agent.source} is so long that only its beginning was read.")
    prompt, fault = _prompt(run.paths.prompt)
    if fault:
        prompt = str(receipt.get("prompt") or "")
        missing.append(fault + (" Its first line is from the receipt." if prompt else ""))
    steps = report_agent.merged(agent, start, end or made)
    requests = Requests()
    try:
        requests = report_requests.read(
            run.paths.runs / "decisions.jsonl",
            run.id,
            [step.at for step in steps],
            _chain_end(receipt),
            start=start,
            ended=not run.lives,
            until=end,
        )
    except ImpyardError as exc:
        missing.append(f"Requests and bytes are not shown, or not all of them: {exc.message}.")
    if requests.removed:
        missing.append(
            f"{counted(requests.removed, 'line')} of the decision log {_is(requests.removed)} in none of its files any "
            f"more: `impyard decisions rotate --older-than` removed them."
        )
    if requests.damaged:
        missing.append(f"{counted(requests.damaged, 'line')} of the decision log cannot be read: left out.")
    if requests.outcomes_damaged:
        missing.append(
            f"{counted(requests.outcomes_damaged, 'line')} of the outcomes cannot be read: some bytes are missing."
        )
    last = max([start, requests.last_at or start, *(step.at for step in steps)])
    return Report(run, start, end or last, made, prompt, agent, steps, requests, missing, project)


def _chain_end(receipt: Mapping[str, Any]) -> tuple[int, str] | None:
    decisions = receipt.get("decisions")
    if receipt.get("ended") and isinstance(decisions, dict):
        seq, last = decisions.get("seq"), decisions.get("last")
        if isinstance(seq, int) and isinstance(last, str):
            return seq, last
    return None


def _prompt(path: Path) -> tuple[str, str]:
    """The prompt's beginning, and why it cannot be had."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "", "prompt.txt is no file."
            data = file.read(4 * PROMPT_CHARS + 1)
            size = os.fstat(file.fileno()).st_size
    except OSError as exc:
        return "", f"The prompt cannot be read: {(exc.strerror or str(exc)).lower()}."
    text = data.decode("utf-8", "replace").strip()
    text = "\n".join(redact.text(line) for line in text.split("\n"))
    if len(text) > PROMPT_CHARS or size > len(data):
        text = f"{text[:PROMPT_CHARS]}\n… (the whole prompt has {size} bytes)"
    return text, ""


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
