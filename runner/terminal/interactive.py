"""`run -i`: pi's own terminal UI in the box. What a person sees before, while and after the box has the terminal.

While it has, nothing of impyard's is printed: the window's title says how many requests were denied, and what there was
to say is said at the end. Nothing of the box's comes through but what screenfilter.py lets pass, also into the
transcript, `terminal.log`.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal

from impyard.runner.outcome import Event
from impyard.runner.receipt import Receipt
from impyard.runner.terminal.screenfilter import ScreenFilter
from impyard.runner.terminal.userterminal import Send, UserTerminal
from impyard.runner.text import unstarred, visible
from impyard.runner.view import View

MAX_LATER = 100  # things to say at the end
MAX_TRANSCRIPT = 256 * 1024 * 1024
TITLE_CHARS = 60
TITLE_PAUSE_S = 0.5
SELECT_UTF8 = b"\x1b%G"  # ISO 2022; said where nobody says how a terminal is set, which may be in 8 bits
SAVE_TITLE, RESTORE_TITLE = b"\x1b[22;2t", b"\x1b[23;2t"


class InteractiveView:
    """The view of a run with a terminal. `inner` shows what comes before and after."""

    def __init__(self, inner: View, terminal: UserTerminal, *, ascii_only: bool = False, charset: bytes = b"") -> None:
        self._inner = inner
        self._terminal = terminal
        self._filter = ScreenFilter(ascii_only=ascii_only)
        self._charset = charset
        self._has_screen = False
        self._torn = False  # a write did not come to its end
        self._later: deque[tuple[Callable[..., None], Any]] = deque()
        self._unsaid = 0
        self._denied = 0
        self._title_at = 0.0
        self._run = ""
        self._transcript: BinaryIO | None = None
        self._stored = 0

    def size(self) -> tuple[int, int]:
        """Rows and columns of the terminal."""
        return self._terminal.size()

    def opening(self, run: str, model: str, workspace: str, ceiling_s: float) -> None:
        self._run = run
        self._inner.opening(run, model, workspace, ceiling_s)
        self._inner.note("pi's own screen follows; leave it as ever (/quit). Three times Ctrl-\\ ends the run at once")

    def begin(self, send: Send, transcript: Path, end: Callable[[], None]) -> None:
        """The agent starts: the terminal is the box's. `end` ends the run. Raises OSError."""
        with suppress(OSError):
            self._transcript = open(transcript, "ab", buffering=0)  # noqa: SIM115 - closed when the screen is left
        self._has_screen = True
        self._terminal.enter(send, end)
        self._terminal.write(self._charset + SAVE_TITLE + title(f"impyard {self._run}"))

    def screen(self, data: bytes) -> None:
        """Show what the agent's terminal got. Raises OSError."""
        shown = self._filter.feed(data)
        if self._transcript is not None and self._stored < MAX_TRANSCRIPT:
            self._stored += len(shown)
            with suppress(OSError):
                self._transcript.write(shown)
        self._torn = True
        self._terminal.write(shown)
        self._torn = False

    def leave(self) -> None:
        """The terminal is the person's again. Safe at any time."""
        if not self._has_screen:
            return
        self._has_screen = False
        last = self._filter.undo(torn=self._torn) + RESTORE_TITLE + b"\r\n\x1b[J"
        self._terminal.leave(last, asked=self._filter.asked)
        if self._transcript is not None:
            self._transcript.close()

    def event(self, line: bytes, event: Event | None) -> None:
        """A line before the agent's: of the relay, when it refuses."""
        self._inner.event(line, event)

    def denied(self, event: Event) -> None:
        self._denied += 1
        self._say_later(self._inner.denied, event)
        if self._has_screen and time.monotonic() > self._title_at + TITLE_PAUSE_S:
            self._title_at = time.monotonic()
            last = unstarred(f"{event.get('method')} {event.get('host')}")
            self._terminal.write(title(f"impyard {self._run}: {self._denied} denied, {last}"))

    def note(self, text: str) -> None:
        self._say_later(self._inner.note, text)

    def closing(self, receipt: Receipt, command: str, log: str, more: Sequence[tuple[str, str]] = ()) -> None:
        self.leave()
        while self._later:
            show, what = self._later.popleft()
            show(what)
        if self._unsaid:
            self._inner.note(f"and {self._unsaid} more")
        if receipt.exit_reason != "finished" and (words := self._filter.last_words.strip()):
            self._inner.note(f"pi's last words: {visible(' '.join(words.split()))}")
        self._inner.closing(receipt, command, log, more)

    def _say_later(self, show: Callable[..., None], what: Any) -> None:
        if not self._has_screen:
            show(what)
        elif len(self._later) < MAX_LATER:
            self._later.append((show, what))
        else:
            self._unsaid += 1


def make_interactive(inner: View) -> InteractiveView:
    """The view on this process's terminal."""
    charset = charset_of(_environment_at_start())
    return InteractiveView(
        inner, UserTerminal(), ascii_only=charset == "other", charset=SELECT_UTF8 if charset == "unknown" else b""
    )


def charset_of(environ: Mapping[bytes, bytes]) -> Literal["utf-8", "other", "unknown"]:
    """What a terminal takes bytes for, by the locale that the variables name (POSIX, section 8.2)."""
    for name in (b"LC_ALL", b"LC_CTYPE", b"LANG"):
        if value := environ.get(name):
            return "utf-8" if b"utf8" in value.lower().replace(b"-", b"") else "other"
    return "unknown"


def _environment_at_start() -> dict[bytes, bytes]:
    """Python itself names UTF-8 in its environment, and its streams, where the locale is C (PEP 538, 540)."""
    with suppress(OSError):
        pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
        return {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}
    return dict(os.environb)


def title(text: str) -> bytes:
    """The sequence that sets the window's title: printable ASCII only."""
    shown = visible(text).encode("ascii", "backslashreplace")[:TITLE_CHARS].decode()
    return f"\x1b]2;{shown}\x07".encode()
