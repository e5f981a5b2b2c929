"""What is shown of a run while it goes on: for a person by pi's events, or those as they are, for scripts."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, TextIO

from impyard.runner.columns import cells
from impyard.runner.outcome import Event, text_of
from impyard.runner.printer import SHOWN_CHARS, Printer
from impyard.runner.receipt import Receipt
from impyard.runner.run_summary import print_summary
from impyard.runner.spotted import secret_text
from impyard.runner.text import counted, duration_text, unstarred, visible, wants_plain

TOOL_LINES = 12  # of a tool's output; the whole of it is in stdout.jsonl
SAME_DENIALS = 3  # of one kind shown one by one; the summary counts them all
SHOWN_TEXT_CHARS = 256 * 1024  # of an answer that was not streamed

# The argument that says what a call does, for pi's own tools.
MAIN_ARGUMENT = {"bash": "command", "read": "path", "write": "path", "edit": "path", "ls": "path", "grep": "pattern"}


class View(Protocol):
    """What a run tells. `OSError` from any of these means that nobody can read it any more."""

    def opening(self, run: str, model: str, workspace: str, ceiling_s: float) -> None: ...
    def event(self, line: bytes, event: Event | None) -> None: ...
    def denied(self, event: Event) -> None: ...
    def note(self, text: str) -> None: ...
    def closing(self, receipt: Receipt, command: str, log: str, more: Sequence[tuple[str, str]] = ()) -> None: ...


class JsonView:
    """For scripts: pi's events as they are on standard output, notes on standard error, nothing else.

    A terminal gets the same lines with what it would obey escaped (`on_terminal`): pi's own lines stay JSON.
    """

    def __init__(self, *, on_terminal: bool = False) -> None:
        self._on_terminal = on_terminal

    def opening(self, run: str, model: str, workspace: str, ceiling_s: float) -> None:
        """Nothing: the first line is pi's."""

    def event(self, line: bytes, event: Event | None) -> None:
        if self._on_terminal:
            line = visible(line.decode("utf-8", "replace")).encode()
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    def denied(self, event: Event) -> None:
        """Nothing: denials are in the decision log."""

    def note(self, text: str) -> None:
        print(visible(text), file=sys.stderr, flush=True)

    def closing(self, receipt: Receipt, command: str, log: str, more: Sequence[tuple[str, str]] = ()) -> None:
        """Nothing: the receipt is in the run's folder."""


class HumanView:
    """For a person, on `out`; `color` and `width` as for a Printer."""

    def __init__(self, out: TextIO, *, color: bool, width: int | None = None) -> None:
        self._out = Printer(out, color=color, width=width)
        self._marks = self._out.marks
        self._left_out = False  # some lines of a tool's output
        self._streamed = False  # the message that ends next has been shown as it came
        self._denials: Counter[tuple[str, ...]] = Counter()

    def opening(self, run: str, model: str, workspace: str, ceiling_s: float) -> None:
        """Say what starts."""
        self._out.line(f"run {run}: {model}, at most {duration_text(ceiling_s)}", "dim")

    def event(self, line: bytes, event: Event | None) -> None:
        """Show one line of pi's output."""
        if event is None:
            if line.strip():
                self._left_out = self._left_out or len(line) > SHOWN_CHARS
                self._out.line(line[: SHOWN_CHARS + 1].decode("utf-8", "replace"), "dim", boxed=True)
            return
        show = getattr(self, f"_on_{event['type']}", None)
        if show is not None:
            show(event)

    def denied(self, event: Event) -> None:
        """Show a denial, as it happens."""
        kind = tuple(str(event.get(key)) for key in ("method", "host", "port", "reason", "secret"))
        self._denials[kind] += 1
        if self._denials[kind] > SAME_DENIALS:
            return
        port = f":{event.get('port')}" if event.get("port") not in (443, 80, None) else ""
        what = unstarred(f"{event.get('method')} {event.get('host')}{port}{event.get('path') or ''}")
        rule = f", {event['at']}" if event.get("at") else ""
        if isinstance(event.get("secret"), dict):
            rule = f": {secret_text(event['secret'])}"
        more = f"; more of these are only counted {self._marks.more}" if self._denials[kind] == SAME_DENIALS else ""
        tail = f" ({event.get('reason')}{rule}{more})"
        room = max(self._out.columns() - 1 - cells(f"{self._marks.no} denied {tail}"), 20)
        self._out.line(f"{self._marks.no} denied {self._out.fit(what, room)}{tail}", "red")

    def note(self, text: str) -> None:
        """Show a remark of impyard's own."""
        self._out.line(text, "dim")

    def closing(self, receipt: Receipt, command: str, log: str, more: Sequence[tuple[str, str]] = ()) -> None:
        """The summary. `command` shows what was denied or failed, `log` is the file with all of the run's output,
        `more` are further commands by name."""
        print_summary(self._out, receipt, command, log if self._left_out else "", more)

    def _on_message_start(self, event: Event) -> None:
        self._streamed = False

    def _on_message_update(self, event: Event) -> None:
        inner = event.get("assistantMessageEvent")
        if not isinstance(inner, dict) or inner.get("type") != "text_delta":
            return
        delta = str(inner.get("delta", ""))
        self._left_out = self._left_out or len(delta) > SHOWN_CHARS
        lines = delta[:SHOWN_CHARS].replace("\t", "    ").split("\n")
        if text := "\n".join(map(visible, lines)):
            self._out.stream(text)
            self._streamed = True

    def _on_message_end(self, event: Event) -> None:
        message = event.get("message")
        if not isinstance(message, dict) or message.get("role") != "assistant":
            return
        text = text_of(message.get("content"))
        if text.strip() and not self._streamed:
            self._left_out = self._left_out or len(text) > SHOWN_TEXT_CHARS
            for line in text[:SHOWN_TEXT_CHARS].splitlines():
                self._out.line(line, boxed=True)
        self._out.end_text()
        if message.get("stopReason") == "error":
            what = unstarred(str(message.get("errorMessage")))
            self._out.line(f"{self._marks.no} the model call failed: {what}", "red", cut=True)

    def _on_tool_execution_start(self, event: Event) -> None:
        name, arguments = str(event.get("toolName")), event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        main = arguments.get(MAIN_ARGUMENT.get(name, ""))
        what = main if isinstance(main, str) else json.dumps(arguments, ensure_ascii=False)
        self._out.line(f"{self._marks.call} {name} {what}", "bold", cut=True)

    def _on_tool_execution_end(self, event: Event) -> None:
        result = event.get("result")
        text = text_of(result.get("content")) if isinstance(result, dict) else ""
        if not event.get("isError") and event.get("toolName") in ("write", "edit", "read"):
            return  # what it wrote or read is not news; that it failed would be
        lines = text.rstrip().splitlines()
        failed = bool(event.get("isError"))
        if failed:
            self._out.line(f"{self._marks.no} failed", "red")  # and no word of the box's behind a mark of ours
        first = lines[: TOOL_LINES // 2 if failed and len(lines) > TOOL_LINES else TOOL_LINES]
        last = lines[len(first) :][-(TOOL_LINES - TOOL_LINES // 2) :] if failed else []  # which says why
        for line in first:
            self._out.line(line, "red" if failed else "dim", cut=True, boxed=True)
        if hidden := len(lines) - len(first) - len(last):
            self._out.line(f"{self._marks.more} {counted(hidden, 'more line')}", "dim", boxed=True)
            self._left_out = True
        for line in last:
            self._out.line(line, "red", cut=True, boxed=True)

    def _on_auto_retry_start(self, event: Event) -> None:
        delay = event.get("delayMs")
        delay_s = delay / 1000 if isinstance(delay, int | float) else 0
        attempts = f"{event.get('attempt')} of {event.get('maxAttempts')}"
        self._out.line(f"{self._marks.more} trying again in {delay_s:g} s ({attempts})", "dim", cut=True)

    def _on_compaction_start(self, event: Event) -> None:
        self._out.line(f"{self._marks.more} the conversation is long; pi sums it up", "dim")


def make_view(*, as_json: bool, environ: Mapping[str, str]) -> View:
    """The view for standard output as it is."""
    if as_json:
        return JsonView(on_terminal=sys.stdout.isatty())
    color = sys.stdout.isatty() and not wants_plain(environ)
    return HumanView(sys.stdout, color=color)
