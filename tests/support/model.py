"""A model of the test's own: the demo model's answers, with every call remembered."""

from __future__ import annotations

import io
import json
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from impyard.runner.demo import DemoServer, Reply, _Handler, sse_events

HOST = "model.test"
MODEL = "house/demo"
KEY = "house-key-that-only-the-model-may-see"


@dataclass
class Call:
    """One request as it came: `line` is its request line, `at` Unix time, `seen` what `look` gave at that moment."""

    line: str
    at: float
    seen: object = None


@dataclass
class Model:
    """Serves on 127.0.0.1:`port` until `close`. `look` is called as a request arrives, before it is answered.

    silence_s: how long it thinks, once, before the first byte of an answer. tears: so many answers end in a reset, in
    the middle. bodies: what was posted, whole, in order.
    """

    look: Callable[[], object] = lambda: None
    silence_s: float = 0.0
    tears: int = 0
    calls: list[Call] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = self

        class Handler(_Handler):
            def parse_request(self) -> bool:
                fine = super().parse_request()
                model.calls.append(Call(self.requestline, time.time(), model.look()))
                return fine

            def do_POST(self) -> None:
                connection = self.rfile
                body = connection.read(int(self.headers.get("content-length", "0")))
                model.bodies.append(body)
                self.rfile = io.BytesIO(body)
                try:
                    super().do_POST()
                finally:
                    self.rfile = connection

            def _answer_stream(self, reply: Reply, input_tokens: int) -> None:
                silence, model.silence_s = model.silence_s, 0.0
                time.sleep(silence)
                if not model.tears:
                    super()._answer_stream(reply, input_tokens)
                    return
                model.tears -= 1
                self.wfile.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                name, data = next(sse_events(reply, input_tokens))
                event = f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                time.sleep(0.2)  # so that the event is not overtaken by the reset
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.shutdown(socket.SHUT_RD)
                self.close_connection = True

        self._server = DemoServer()
        self._server._server.RequestHandlerClass = Handler
        self.port = self._server.port

    def close(self) -> None:
        self._server.close()

    def policy(self, path: str = "/v1/messages") -> str:
        """The entry that leads the judge here; without its rule for /v1/messages the model cannot be reached."""
        return (
            f"networkPolicies:\n  - host: {HOST}\n    upstream: http://127.0.0.1:{self.port}\n"
            '    inject: {credential: house, headers: {x-api-key: "{key}"}, over_http: true}\n    policies:\n'
            f"      - {{action: ALLOW, method: POST, path: {path}, name: the model}}\n"
        )

    def register(self, home: Path) -> Path:
        """Write pi's settings for `--model house/demo` into a home; pi's folder in it."""
        folder = home / ".pi" / "agent"
        folder.mkdir(parents=True)
        provider = {
            "baseUrl": f"https://{HOST}",
            "api": "anthropic-messages",
            "apiKey": KEY,
            "models": [{"id": "demo", "name": "the test's own"}],
        }
        (folder / "models.json").write_text(json.dumps({"providers": {"house": provider}}))
        return folder
