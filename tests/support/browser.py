"""A real Chromium without a window, driven through a pair of pipes (its `--remote-debugging-pipe`)."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 60.0  # for one answer, on a busy machine


def chromium() -> str:
    """The browser's program. `make test` installs it where it can; elsewhere the test is skipped, but never in CI."""
    found = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium here, which `make test` should have installed")
        pytest.skip("no Chromium here: sudo apt-get install chromium")
    return found


class Browser:
    """One browser process with one page. Everything that the page asks for is in `asked`, what it says in `said`."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        self.said: list[str] = []
        self._count = 0
        self._session: str | None = None
        self._buffer = b""
        self._loaded = False
        near, self._write = os.pipe()
        self._read, far = os.pipe()
        # It reads from descriptor 3 and writes to 4, whatever those are here.
        to_browser, from_browser = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (near, far))
        command = [
            chromium(),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"),
        ]
        script = f'exec 3<&{to_browser} 4>&{from_browser} {to_browser}<&- {from_browser}>&-; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (near, far, to_browser, from_browser):
            os.close(end)
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the DevTools protocol, and its result. Raises RuntimeError for an error."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def load(self, page: Path, width: int, height: int, *, dark: bool = False) -> None:
        """Load a file in a window of this size, and wait until it is there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.asked, self.said, self._loaded = [], [], False
        self.call("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._next()

    def ask(self, expression: str) -> Any:
        """What a script of the debugger's sees in the page; the page's own policy does not hold for it."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def screenshot(self, file: Path | None = None, *, whole: bool = False) -> bytes:
        """A PNG of what is in the window, or of the `whole` page."""
        result = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        data = base64.b64decode(result["data"])
        if file is not None:
            file.write_bytes(data)
        return data

    def _next(self) -> dict[str, Any]:
        """The next message from the browser; events are noted."""
        deadline = time.monotonic() + LIMIT_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(self._read, 1 << 16) if ready else b""
            if not data:
                raise RuntimeError("Chromium ended" if ready else "Chromium does not answer")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        parameters = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.asked.append(parameters["request"]["url"])
            case "Log.entryAdded":
                self.said.append(parameters["entry"]["text"])
            case "Page.loadEventFired":
                self._loaded = True
        return message
