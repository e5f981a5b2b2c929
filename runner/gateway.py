"""The gateway of a run: started, proved and ended from here.

The two processes hold a socket pair, the lifeline. The gateway ends when the runner's side closes, by whatever death;
and the runner learns at once when the gateway's side does. Nothing here knows of boxes.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import impyard
from impyard.addon.errors import ImpyardError
from impyard.addon.request import CANARY_SUFFIX
from impyard.runner.times import now

# How long a gateway may get nothing done, and how long it may take in any case. Among many runs that start at once each
# gets little of the processors: what is slow is not stuck.
READY_LIMIT_S, READY_AT_MOST_S = 30.0, 600.0
CLOSE_LIMIT_S, CLOSE_AT_MOST_S = 5.0, 60.0
CANARY_LIMIT_S = 60.0
LAST_MOMENT_S = 1.0
RENEWAL_LIMIT_S = 20.0  # more than the gateway waits for a token endpoint
# How far back the canary's line may be: other runs append to the same log, but not this much within a second.
LOG_TAIL_BYTES = 4 * 1024 * 1024
# The longest line that a gateway sends is a denial with a capped path.
LINE_CAP_BYTES = 1024 * 1024
MAX_LOG_BYTES = 16 * 1024 * 1024
DOCTOR = "`impyard doctor` checks what a gateway needs"

Event = dict[str, Any]

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables that are named like a secret: the gateway has credentials from the vault
    alone, and everyone who may look into a process reads its environment. What a keyring is set up by stays."""
    return {name: value for name, value in environ.items() if not _SECRET.search(name) or "KEYRING" in name}


class Spawned:
    """A gateway process that waits for its configuration. Use as a context manager: what `configure` did not take over,
    or did not end, is killed.

    It comes up while the runner loads the rest of itself, which is what a short run waits for most.
    """

    def __init__(self, process: subprocess.Popen[bytes], lifeline: socket.socket, words: BinaryIO) -> None:
        self.process = process
        self.lifeline = lifeline
        self.words = words

    def __enter__(self) -> Spawned:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.lifeline.close()
        self.words.close()


def spawn() -> Spawned:
    """Start a gateway process. Raises ImpyardError when that is not possible."""
    ours, theirs = socket.socketpair()
    # Not this folder first on the module path: a project may hold a file named like one of ours.
    paths = [str(Path(impyard.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by Spawned
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-X", "utf8", "-m", "impyard.addon", "--lifeline", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            pass_fds=(theirs.fileno(),),
            cwd="/",
            env={**without_secrets(os.environ), "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C in the terminal must not take the judge before the box
        )
    except OSError as exc:
        ours.close()
        words.close()
        raise ImpyardError(f"cannot start the gateway: {exc}", hint=DOCTOR) from exc
    finally:
        theirs.close()
    return Spawned(process, ours, words)


class Gateway:
    """A gateway process with its configuration. `close` it in any case.

    `on_event` is called in a thread of this object with each denial and warning; `on_lost`, once, when the gateway has
    gone without having been closed. What the gateway printed, normally nothing, is written to `log` at the end.
    """

    def __init__(
        self,
        spawned: Spawned,
        config: Mapping[str, Any],
        log: Path,
        on_event: Callable[[Event], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._process = spawned.process
        self._lifeline = spawned.lifeline
        self._words = spawned.words
        self._config = config
        self._log = log
        self._on_event = on_event
        self._on_lost = on_lost
        self._started: Event | None = None
        self._first = threading.Event()
        self._ended = threading.Event()
        self._closing = False
        self._log_error = threading.Event()
        self._renewing = False
        self._closed: Event | None = None
        with contextlib.suppress(OSError):  # a process that died at once shows as the end of the lifeline
            self._lifeline.sendall(json.dumps(config).encode() + b"\n")
        self._thread = threading.Thread(target=self._listen, daemon=True, name="lifeline")
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lost(self) -> bool:
        """Whether it has gone without having been closed."""
        return self._ended.is_set() and not self._closing

    def ready(self) -> Event:
        """Wait until the door is open and return the `ready` event. Raises ImpyardError when it does not come."""
        if not self._comes(self._first, READY_LIMIT_S, READY_AT_MOST_S):
            raise ImpyardError(f"the gateway does not start{self._last_words()}", hint=DOCTOR)
        event = self._started or {}
        if event.get("event") == "failed":
            raise ImpyardError(str(event.get("error", "the gateway failed")), hint=event.get("hint") or None)
        if event.get("event") != "ready":
            raise ImpyardError(f"the gateway ended before it was ready{self._last_words()}", hint=DOCTOR)
        return event

    def prove(self) -> None:
        """Have the judge deny a request through the door.

        The answer must come from the process that was started, carry the word that only it can make, and be in the
        log. Raises ImpyardError otherwise: then whatever answers at the door is not to be trusted with a box.
        """
        challenge = secrets.token_hex(16)
        host = challenge + CANARY_SUFFIX
        try:
            status, headers = self._ask(f"http://{host}/", host)
        except (OSError, ValueError) as exc:
            if self.lost or self._process.poll() is not None:
                raise ImpyardError(f"the gateway ended right after its start{self._last_words()}", hint=DOCTOR) from exc
            raise ImpyardError(f"nothing answers at the gateway's door: {exc}", hint=DOCTOR) from exc
        if not headers.get("x-impyard-decision") and self._log_error.wait(0.5):
            raise ImpyardError(
                f"the judge cannot write {Path(self._config['runs']) / 'decisions.jsonl'}, so it denies everything",
                hint="make that file writable for you, or free some space where it lies",
            )
        expected = hmac.new(bytes.fromhex(self._config["secret"]), challenge.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(headers.get("x-impyard-canary", ""), expected):
            raise ImpyardError(
                f"what answers at the gateway's door is not this run's gateway (status {status})",
                hint="another process has taken the door; look at who else writes to the project's runs/ folder",
            )
        if status != 403:
            raise ImpyardError(f"the gateway answered a request that it must deny with status {status}", hint=DOCTOR)
        decision = headers.get("x-impyard-decision", "")
        if not self._is_recorded(decision, host):
            raise ImpyardError(
                f"the gateway's denial is not in {Path(self._config['runs']) / 'decisions.jsonl'}",
                hint="the log must be writable, and in the place where the judge writes",
            )

    def close(self) -> Event | None:
        """End the gateway and return its closing event, None when it gave none. Safe to call twice."""
        self._closing = True
        if not self._first.is_set():
            self._process.kill()  # still coming up: it has nothing to close and nothing to say
        with contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_WR)
        if not self._comes(self._ended, CLOSE_LIMIT_S, CLOSE_AT_MOST_S) and self._renewing:
            self._ended.wait(RENEWAL_LIMIT_S)  # killed now, it would lose a login
        for insist in (self._process.terminate, self._process.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_LIMIT_S / 2)
                break
            insist()
        self._process.wait()
        self._thread.join(CLOSE_LIMIT_S)
        self._keep_words()
        return self._closed

    def _comes(self, event: threading.Event, limit_s: float, at_most_s: float) -> bool:
        """Wait for what the gateway's work brings, unless it uses no processor time for `limit_s`; whether it came."""
        give_up_at = time.monotonic() + at_most_s
        before = -1
        while (used := _ticks(self._process.pid)) != before and time.monotonic() < give_up_at:
            if event.wait(limit_s):
                return True
            before = used
        return event.is_set()

    def _listen(self) -> None:
        with contextlib.suppress(OSError), self._lifeline.makefile("rb") as lines:
            while line := lines.readline(LINE_CAP_BYTES):
                try:
                    event = json.loads(line)
                except ValueError:
                    break  # not our gateway's language: as good as gone
                if not isinstance(event, dict):
                    break
                if not self._first.is_set():
                    self._started = event
                    self._first.set()
                elif event.get("event") == "closed":
                    self._closed = event
                elif event.get("event") == "renewing":
                    self._renewing = True
                else:
                    if event.get("event") == "log-unwritable":
                        self._log_error.set()
                    self._on_event(event)
        self._ended.set()
        self._first.set()
        if not self._closing:
            self._on_lost()

    def _ask(self, url: str, host: str) -> tuple[int, dict[str, str]]:
        """One request through the door: status and headers (lower-case names). Raises OSError or ValueError."""
        folder = os.open(self._config["door"], os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with socket.socket(socket.AF_UNIX) as door:
                door.settimeout(CANARY_LIMIT_S)
                door.connect(f"/proc/self/fd/{folder}/judge.sock")  # a long path would not fit a socket's address
                pid = struct.unpack("3i", door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                if pid != self._process.pid:
                    raise ValueError(f"process {pid} listens there, not the gateway {self._process.pid}")
                door.sendall(f"GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answer = b""
                while b"\r\n\r\n" not in answer and len(answer) < 65536 and (data := door.recv(65536)):
                    answer += data
        finally:
            os.close(folder)
        lines = answer.split(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise ValueError("the answer is not HTTP")
        return int(words[1]), {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }

    def _is_recorded(self, decision: str, host: str) -> bool:
        if not decision:
            return False
        log = Path(self._config["runs"]) / "decisions.jsonl"
        try:
            handle = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(handle, "rb") as file:
                file.seek(max(0, os.fstat(handle).st_size - LOG_TAIL_BYTES))
                tail = file.read()
        except FileNotFoundError:
            tail = b""
        except OSError:
            return False
        if decision.encode() in tail:
            return _holds_canary(tail, decision, host)
        # It may have been rotated in the meantime.
        from impyard.runner.decisions.logfiles import open_log

        try:
            found = open_log(log, since=now())
        except ImpyardError:
            return False
        if found is None:
            return False
        with found:
            return _holds_canary(found.pread(LOG_TAIL_BYTES, max(0, found.size - LOG_TAIL_BYTES)), decision, host)

    def _last_words(self) -> str:
        """What it said last, or what ended it without a word; with a colon in front of it."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # its end of the lifeline closes a moment before its end
            if self._process.wait(LAST_MOMENT_S) == -signal.SIGKILL:
                return ": it was killed, as the kernel does when memory is short"
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(self._words.fileno()).st_size
            lines = os.pread(self._words.fileno(), 4096, max(0, size - 4096)).decode("utf-8", "replace").splitlines()
            if lines:
                return f": {lines[-1].strip()}"
        return ""

    def _keep_words(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if size := os.fstat(self._words.fileno()).st_size:
                with open(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as log:
                    log.write(os.pread(self._words.fileno(), MAX_LOG_BYTES, max(0, size - MAX_LOG_BYTES)))


def _ticks(pid: int) -> int:
    """The processor time that a process has used, in clock ticks (proc(5)); 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return 0


def _holds_canary(tail: bytes, decision: str, host: str) -> bool:
    """Whether the end of a log has the denial of a canary for this host under this id."""
    for line in reversed(tail.splitlines()):
        if decision.encode() in line:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("id") == decision:
                    return bool(
                        entry.get("host") == host and entry.get("reason") == "canary" and entry.get("verdict") == "deny"
                    )
    return False
