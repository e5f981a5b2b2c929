"""A run as it lies in a project when it is over, written by the judge's own writers and the receipt's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from impyard.addon.judge import Decision, Nearest, Verdict
from impyard.addon.log import DecisionLog, OutcomeLog
from impyard.addon.request import Request
from impyard.runner.project import RunPaths
from impyard.runner.receipt import Receipt
from impyard.runner.times import now

RUN = "20260101-000000-aaaa"
POLICY = "sha256:" + "a" * 64
ALLOW = Decision(Verdict.ALLOW, "rule", rule="ALLOW POST /v1/messages", at="policies/gateway.yaml:12")
DENY = Decision(Verdict.DENY, "no-rule", nearest=Nearest("policies/gateway.yaml:31", "method"))
UNLISTED = Decision(Verdict.DENY, "unlisted-host")


def request(method: str = "GET", host: str = "a.test", path: str = "/", **more: object) -> Request:
    return Request(method=method, scheme="https", host=host, port=443, path=path, query="", **more)  # type: ignore[arg-type]


@dataclass
class Recorded:
    """A run of the project at `root`. Requests are judged now, and so the run is one that began just now."""

    root: Path
    run: str = RUN
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    allowed: int = 0
    denied: int = 0

    def __post_init__(self) -> None:
        (self.root / "policies").mkdir(parents=True, exist_ok=True)
        (self.root / "policies" / "gateway.yaml").touch()
        self.paths = RunPaths(self.root, self.run)
        self.paths.workspace.mkdir(parents=True)
        self.paths.session.mkdir()
        self.log = DecisionLog(self.paths.runs / "decisions.jsonl", self.run)
        self.outcomes = OutcomeLog(self.paths.runs / "outcomes.jsonl", self.run)

    def decide(self, decision: Decision, asked: Request, *, status: int | None = 200, error: str | None = None) -> None:
        recorded = self.log.write(decision, asked, POLICY)
        if decision.verdict is Verdict.ALLOW:
            self.allowed += 1
            self.outcomes.write(recorded.id, status, 100, 2000, 12.5, error)
        else:
            self.denied += 1

    def prompt(self, text: str) -> None:
        self.paths.prompt.write_bytes(text.encode("utf-8", "replace"))

    def events(self, *events: Mapping[str, Any] | bytes) -> None:
        """What pi said, one a line."""
        with self.paths.stdout.open("ab") as file:
            for event in events:
                file.write((event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n")

    def end(self, reason: str | None = "finished", **more: Any) -> Receipt:
        """Writes the receipt; without a reason that of a run that goes on, whose runner is gone."""
        receipt = Receipt(
            run=self.run,
            project=str(self.root),
            workspace=str(self.paths.workspace),
            model="demo/demo",
            started=self.began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            impyard="0.1.0",
            runner_pid=0,
            runner_start="1",
            runner_space="none",
            ceiling_s=1800,
        )
        if reason is not None:
            receipt.ended = now()
            receipt.duration_s, receipt.exit_reason, receipt.exit_status = 2.0, reason, 0
            counts = {"allowed": self.allowed, "denied": self.denied}
            receipt.decisions = {**counts, "seq": self.log.seq, "last": self.log.last_hash}
        for name, value in more.items():
            setattr(receipt, name, value)
        receipt.write(self.paths.receipt)
        self.log.close()
        self.outcomes.close()
        return receipt


def said(role: str, text: str, *, after_s: float = 0.0, began: datetime | None = None, **more: Any) -> dict[str, Any]:
    """The event that a message has ended; `more` are fields of the message."""
    at = (began or datetime.now(UTC)) + timedelta(seconds=after_s)
    content: list[dict[str, Any]] = [{"type": "text", "text": text}, *more.pop("blocks", ())]
    message = {"role": role, "content": content, "timestamp": round(at.timestamp() * 1000), **more}
    return {"type": "message_end", "message": message}


def call(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    """A tool call as a block of a message."""
    return {"type": "toolCall", "id": id, "name": name, "arguments": arguments}


def usage(tokens: Sequence[int], dollars: float) -> dict[str, Any]:
    """Tokens in, out, read from the cache and written to it."""
    names = ("input", "output", "cacheRead", "cacheWrite")
    return {**dict(zip(names, tokens, strict=True)), "cost": {"total": dollars}}
