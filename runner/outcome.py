"""What came of a run: read from pi's events and the box's end. Pure.

pi ends with status 0 in JSON mode even when the model refused (pi's docs/json.md), so the events decide.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

Event = dict[str, Any]


def parse_event(line: bytes) -> Event | None:
    """One of pi's events, None for a line that is none."""
    try:
        event = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("type"), str) else None


def probe_report(data: bytes) -> list[Event] | None:
    """The relay's report of its probes, None for a line that is another."""
    try:
        event = json.loads(data)
    except ValueError:
        return None
    if not isinstance(event, dict) or event.get("impyard") != "probes" or not isinstance(event.get("probes"), list):
        return None
    return [probe for probe in event["probes"] if isinstance(probe, dict)]


def text_of(value: Any) -> str:
    """The text in a message's or a tool result's `content`."""
    if isinstance(value, str):
        return value
    blocks = value if isinstance(value, list) else []
    return "".join(str(block.get("text", "")) for block in blocks if isinstance(block, dict))


@dataclass(slots=True)
class Outcome:
    """What pi has said of its own success so far."""

    stop_reason: str | None = None
    error: str | None = None
    settled: bool = False
    events: int = 0

    def see(self, event: Event) -> None:
        """Take note of one event."""
        self.events += 1
        if event["type"] == "agent_settled":
            self.settled = True
        if event["type"] != "message_end" or not isinstance(message := event.get("message"), dict):
            return
        if message.get("role") == "assistant":
            self.stop_reason = str(message.get("stopReason"))
            self.error = str(message["errorMessage"]) if message.get("errorMessage") else None

    @property
    def succeeded(self) -> bool:
        return self.stop_reason in ("stop", "length")


@dataclass(frozen=True, slots=True)
class Ending:
    """How the box came to its end.

    `ended_by` is the reason when the runner ended it; `status` the exit status of its first process, None when the
    engine could not say; `probes` what it reported of itself, None when it reported nothing; `last_words` the end of
    what it printed to standard error. `ceiling_passed`: whether the box lasted until its ceiling by the runner's clock.
    `interactive`: a person was at it, and ended it; nothing is known of answers.
    """

    ended_by: str | None
    status: int | None
    probes: Sequence[Event] | None
    out_of_memory: bool
    last_words: str = ""
    ceiling_passed: bool = False
    interactive: bool = False


def judge_ending(ending: Ending, outcome: Outcome) -> tuple[str, str | None]:
    """The exit reason (a key of receipt.EXITS) and, where there is one, the error in words."""
    words = f": {ending.last_words}" if ending.last_words else ""
    if ending.ended_by is not None:
        return ending.ended_by, None
    failed = [probe for probe in ending.probes or () if not probe.get("ok")]
    if failed:
        first = failed[0]
        return "refused", (
            f"the box is not as locked as it must be: {first.get('name')}: expected {first.get('expected')}, "
            f"found {first.get('found')}"
        )
    if ending.status is None:
        return "agent-error" if ending.probes else "refused", "the Docker engine went away"
    if ending.probes is None:
        return "refused", f"the box ended before its checks (status {ending.status}){words}"
    # A status is the box's own word: it counts only where the runner's clock, or the engine, says the same. That the
    # gateway is lost the runner knows by itself.
    if ending.status == 124 and ending.ceiling_passed:
        return "ceiling", None
    if ending.out_of_memory and ending.status == 137:
        return "out-of-memory", None
    if ending.status == 0 and (outcome.succeeded or ending.interactive):
        return "finished", None
    if outcome.error:
        return "agent-error", outcome.error
    if ending.interactive:
        return "agent-error", f"pi ended with status {ending.status}{words}"
    if ending.status == 137 and outcome.stop_reason is None:
        return "agent-error", f"pi was killed (status 137), as happens when this machine is short of memory{words}"
    if outcome.stop_reason is None:
        return "agent-error", f"pi ended without an answer (status {ending.status}){words}"
    return "agent-error", f"pi ended with status {ending.status}, its last answer with `{outcome.stop_reason}`{words}"
