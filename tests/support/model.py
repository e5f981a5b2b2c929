"""A model of the test's own: the demo model's answers, with every call remembered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from impyard.runner.demo import DemoServer, _Handler

HOST = "model.test"
MODEL = "house/demo"


@dataclass
class Call:
    """One request as it came: `line` is its request line, `at` Unix time, `seen` what `look` gave at that moment."""

    line: str
    at: float
    seen: object = None


@dataclass
class Model:
    """Serves on 127.0.0.1:`port` until `close`. `look` is called as a request arrives, before it is answered."""

    look: Callable[[], object] = lambda: None
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = self

        class Handler(_Handler):
            def parse_request(self) -> bool:
                fine = super().parse_request()
                model.calls.append(Call(self.requestline, time.time(), model.look()))
                return fine

        self._server = DemoServer()
        self._server._server.RequestHandlerClass = Handler
        self.port = self._server.port

    def close(self) -> None:
        self._server.close()

    def policy(self) -> str:
        """The entry that leads the judge here; without it the model cannot be reached."""
        return (
            f"networkPolicies:\n  - host: {HOST}\n    upstream: http://127.0.0.1:{self.port}\n    policies:\n"
            "      - {action: ALLOW, method: POST, path: /v1/messages, name: the model}\n"
        )

    def register(self, home: Path) -> Path:
        """Write pi's settings for `--model house/demo` into a home; pi's folder in it."""
        folder = home / ".pi" / "agent"
        folder.mkdir(parents=True)
        provider = {
            "baseUrl": f"https://{HOST}",
            "api": "anthropic-messages",
            "apiKey": "worthless",
            "models": [{"id": "demo", "name": "the test's own"}],
        }
        (folder / "models.json").write_text(json.dumps({"providers": {"house": provider}}))
        return folder
