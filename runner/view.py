"""What a person sees of a run while it goes on, and the summary at its end.

Everything that comes from the box is shown with its control characters escaped: a terminal obeys them. What the agent,
the model and its tools say stands behind a bar, on each line: the first column is impyard's own, so that nobody in the
box can speak for it. Works on a terminal of any width and without one.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, TextIO

from impyard.runner.columns import broken, cells, lines_of
from impyard.runner.failures import failure_text, failures_of
from impyard.runner.outcome import Event, text_of
from impyard.runner.receipt import Receipt, counts_text, failed_of, file_text
from impyard.runner.spotted import advice, record_text, secret_text
from impyard.runner.text import duration_text, unstarred, visible, wants_plain
from impyard.runner.typed import as_typed

TOOL_LINES = 12  # of a tool's output; the whole of it is in stdout.jsonl
SAME_DENIALS = 3  # of one kind shown one by one; the summary counts them all
SUMMARY_FILES = 10
SUMMARY_REPOSITORIES = 3
SUMMARY_HOSTS = 8
SUMMARY_SECRETS = 4
SUMMARY_FAILURES = 3
LEAST_COLUMNS = 24  # a terminal that is narrower breaks lines itself
SHOWN_CHARS = 64 * 1024  # of one line, or of one piece of a streamed text
SHOWN_TEXT_CHARS = 256 * 1024  # of an answer that was not streamed
NAME_COLUMNS = 11  # of a line in the summary
GUTTER = 2  # columns: the bar before what the box says
NEAR = 12  # columns: a cut goes to a blank that is so near
WORD = 20  # columns: so close to the edge a streamed word waits for its end

# The argument that says what a call does, for pi's own tools.
MAIN_ARGUMENT = {"bash": "command", "read": "path", "write": "path", "edit": "path", "ls": "path", "grep": "pattern"}

REASON_WORDS = {
    "finished": "finished",
    "agent-error": "ended with an error",
    "exposed": "ended, as a cover came off",
    "disk-full": "ended, as the disk is full",
    "ceiling": "stopped at its ceiling",
    "refused": "refused to start",
    "gateway-lost": "lost its gateway",
    "interrupted": "interrupted",
    "out-of-memory": "out of memory",
}


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
    """For a person, on `out`. `color` only where a terminal can show it; `width` fixes the columns, else as it is.

    On a terminal lines are broken between words. Anywhere else they are left whole, unless a `width` is given.
    """

    def __init__(self, out: TextIO, *, color: bool, width: int | None = None) -> None:
        self._out = out
        self._color = color
        self._width = width
        self._wraps = width is not None or out.isatty()
        self._start = "\r" if out.isatty() else ""  # over the ^C that a terminal shows
        self._column = 0  # of the cursor, behind text of the model
        self._held = ""  # the beginning of a word near the edge
        self._left_out = False  # some lines of a tool's output
        self._streamed = False  # the message that ends next has been shown as it came
        self._in_word = False  # the cursor stands behind part of a word
        self._denials: Counter[tuple[str, ...]] = Counter()
        plain = (out.encoding or "ascii").lower().replace("-", "") not in ("utf8", "utf_8")
        self._call, self._no, self._rule, self._more = (">", "x", "-", "...") if plain else ("▸", "✗", "─", "…")
        self._bar = "|" if plain else "│"

    def opening(self, run: str, model: str, workspace: str, ceiling_s: float) -> None:
        """Say what starts."""
        self._line(f"run {run}: {model}, at most {duration_text(ceiling_s)}", "dim")

    def event(self, line: bytes, event: Event | None) -> None:
        """Show one line of pi's output."""
        if event is None:
            if line.strip():
                self._left_out = self._left_out or len(line) > SHOWN_CHARS
                self._line(line[: SHOWN_CHARS + 1].decode("utf-8", "replace"), "dim", boxed=True)
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
        more = f"; more of these are only counted {self._more}" if self._denials[kind] == SAME_DENIALS else ""
        tail = f" ({event.get('reason')}{rule}{more})"
        room = max(self._columns() - cells(f"{self._no} denied {tail}"), 20)
        self._line(f"{self._no} denied {self._fit(what, room)}{tail}", "red")

    def note(self, text: str) -> None:
        """Show a remark of impyard's own."""
        self._line(text, "dim")

    def closing(self, receipt: Receipt, command: str, log: str, more: Sequence[tuple[str, str]] = ()) -> None:
        """The summary. `command` shows what was denied or failed, `log` is the file with all of the run's output,
        `more` are further commands by name."""
        words = REASON_WORDS.get(receipt.exit_reason, receipt.exit_reason)
        title = f"{self._rule * 2} {words} in {duration_text(receipt.duration_s or 0)} "
        style = "green" if receipt.exit_reason == "finished" else "red"
        self._line(title + self._rule * max(self._columns() - cells(title) - 1, 2), style)
        if receipt.error:
            self._field("error", unstarred(receipt.error))
        if receipt.refused_key:
            self._field("key", as_typed(receipt.refused_key))
        names = [file_text(file) for file in receipt.files[:SUMMARY_FILES]]
        rest = len(receipt.files) + receipt.files_more - len(names)
        self._list("files", names, rest, none="none new or changed")
        if not receipt.files_complete:
            self._field(
                "", "the workspace holds more than is looked at: files and git repositories may be missing here"
            )
        remarks = [f"{name} is a link: remove it before git here writes where it leads" for name in receipt.links]
        remarks += [f"{name} is new: look at it before you use git here" for name in receipt.repositories]
        if remarks:
            shown = remarks[:SUMMARY_REPOSITORIES]
            self._list("git", shown, len(remarks) - len(shown))
        self._field("in", receipt.workspace, whole=True)
        if self._left_out:
            self._field("log", log, whole=True)
        counts = receipt.decisions
        if counts:
            self._field("decisions", counts_text(counts, receipt.traffic))
        failures = failures_of(receipt.traffic)
        for number, failure in enumerate(failures[:SUMMARY_FAILURES]):
            self._field("failed" if number == 0 else "", unstarred(failure_text(failure)))
        if len(failures) > SUMMARY_FAILURES:
            self._field("", f"{len(failures) - SUMMARY_FAILURES} more")
        for number, secret in enumerate(receipt.secrets[:SUMMARY_SECRETS]):
            self._field("secrets" if number == 0 else "", record_text(secret), style="red")
        if len(receipt.secrets) > SUMMARY_SECRETS:
            self._field("", f"{len(receipt.secrets) - SUMMARY_SECRETS} more", style="red")
        if receipt.exit_reason == "agent-error" and (what := advice(receipt.secrets)):
            self._field("", what)
        hosts: Mapping[str, int] = counts.get("denied_hosts") or {}
        if hosts:
            ranked = sorted(hosts.items(), key=lambda item: (-item[1], item[0]))
            shown = [f"{unstarred(host)} ({count})" for host, count in ranked[:SUMMARY_HOSTS]]
            self._list("denied", shown, len(ranked) - len(shown))
        if hosts or failed_of(receipt.traffic):
            self._field("look", command, whole=True)
        for name, what in more:
            self._field(name, what, whole=True)
        self._out.flush()

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
            self._stream(text)
            self._streamed = True

    def _on_message_end(self, event: Event) -> None:
        message = event.get("message")
        if not isinstance(message, dict) or message.get("role") != "assistant":
            return
        text = text_of(message.get("content"))
        if text.strip() and not self._streamed:
            self._left_out = self._left_out or len(text) > SHOWN_TEXT_CHARS
            for line in text[:SHOWN_TEXT_CHARS].splitlines():
                self._line(line, boxed=True)
        self._end_text()
        if message.get("stopReason") == "error":
            self._line(
                f"{self._no} the model call failed: {unstarred(str(message.get('errorMessage')))}", "red", cut=True
            )

    def _on_tool_execution_start(self, event: Event) -> None:
        name, arguments = str(event.get("toolName")), event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        main = arguments.get(MAIN_ARGUMENT.get(name, ""))
        what = main if isinstance(main, str) else json.dumps(arguments, ensure_ascii=False)
        self._line(f"{self._call} {name} {what}", "bold", cut=True)

    def _on_tool_execution_end(self, event: Event) -> None:
        result = event.get("result")
        text = text_of(result.get("content")) if isinstance(result, dict) else ""
        if not event.get("isError") and event.get("toolName") in ("write", "edit", "read"):
            return  # what it wrote or read is not news; that it failed would be
        lines = text.rstrip().splitlines()
        failed = bool(event.get("isError"))
        if failed:
            self._line(f"{self._no} failed", "red")  # and no word of the box's behind a mark of ours
        first = lines[: TOOL_LINES // 2 if failed and len(lines) > TOOL_LINES else TOOL_LINES]
        last = lines[len(first) :][-(TOOL_LINES - TOOL_LINES // 2) :] if failed else []  # which says why
        for line in first:
            self._line(line, "red" if failed else "dim", cut=True, boxed=True)
        if hidden := len(lines) - len(first) - len(last):
            self._line(f"{self._more} {hidden} more lines", "dim", boxed=True)
            self._left_out = True
        for line in last:
            self._line(line, "red", cut=True, boxed=True)

    def _on_auto_retry_start(self, event: Event) -> None:
        delay = event.get("delayMs")
        delay_s = delay / 1000 if isinstance(delay, int | float) else 0
        attempts = f"{event.get('attempt')} of {event.get('maxAttempts')}"
        self._line(f"{self._more} trying again in {delay_s:g} s ({attempts})", "dim", cut=True)

    def _on_compaction_start(self, event: Event) -> None:
        self._line(f"{self._more} the conversation is long; pi sums it up", "dim")

    def _columns(self) -> int:
        return max(self._width or shutil.get_terminal_size((100, 24)).columns, LEAST_COLUMNS)

    def _stream(self, text: str, *, is_end: bool = False) -> None:
        """Show text as it comes. Near the edge a word waits until it is whole, to see whether it fits."""
        room = self._columns() - 1
        begun = self._column > 0 and not self._held and self._in_word
        pieces = re.findall(r"\n| +|[^ \n]+", self._held + text)
        self._held = ""
        for number, piece in enumerate(pieces):
            width = cells(piece)
            is_word = piece[0] not in " \n"
            if is_word and self._wraps and self._column and not (begun and number == 0):
                if number == len(pieces) - 1 and not is_end and width < WORD and self._column + width + WORD > room:
                    self._held = piece
                    break
                if self._column + width > room:
                    self._out.write("\n")
                    self._column = 0
            self._put(piece, room)
            self._in_word = is_word
        self._out.flush()

    def _put(self, piece: str, room: int) -> None:
        """Write a word, blanks or the end of a line, behind the bar; a word that fits no line is broken."""
        if piece == "\n":
            self._out.write("\n" if self._column else f"{self._bar}\n")
            self._column = 0
            return
        if not self._column:
            self._out.write(f"{self._bar} ")
            self._column = GUTTER
        if self._wraps and self._column + cells(piece) > room:
            if piece[0] == " ":
                piece = piece[: max(room - self._column, 0)]
            else:
                first, *rest = broken(piece, room - GUTTER, room - self._column)
                self._out.write(first)
                for line in rest:
                    self._out.write(f"\n{self._bar} {line}")
                    self._column = GUTTER
                piece = ""
                self._column += cells(rest[-1] if rest else first)
        self._out.write(piece)
        self._column += cells(piece)

    def _end_text(self) -> None:
        if self._held:
            self._stream("", is_end=True)
        if self._column:
            self._out.write("\n")
            self._column = 0

    def _line(self, text: str, style: str = "", *, cut: bool = False, whole: bool = False, boxed: bool = False) -> None:
        """One line: `cut` to the width, or `whole` whatever the width, or broken between words. `boxed` puts the bar
        before each line: it is the box that speaks."""
        self._end_text()
        shown = visible(text[:SHOWN_CHARS].replace("\t", "    "))
        if len(text) > SHOWN_CHARS:  # what is escaped is looked at letter by letter
            shown += self._more
        room = self._columns() - 1 - (GUTTER if boxed else 0)
        if cut:
            lines = [self._fit(shown, room, at_blank=True)]
        elif whole or not self._wraps:
            lines = [shown]
        else:
            lines = lines_of(shown, room, "" if boxed else "  ")
        codes = {"dim": "2", "bold": "1", "red": "31", "green": "32"}
        for line in lines:
            if boxed:
                line = f"{self._bar} {line}" if line else self._bar
            if self._color and style:
                line = f"\x1b[{codes[style]}m{line}\x1b[0m"
            self._out.write(f"{self._start}{line}\n")
        self._out.flush()

    def _field(self, name: str, value: str, *, whole: bool = False, style: str = "") -> None:
        lines = [value]
        if self._wraps and not whole:
            lines = lines_of(visible(value), self._columns() - 1 - NAME_COLUMNS)
        for number, line in enumerate(lines):
            self._line(f"{name if number == 0 else '':<{NAME_COLUMNS - 1}} {line}", style, whole=True)

    def _list(self, name: str, items: list[str], rest: int, none: str = "") -> None:
        """Items in lines that fit the width, under one name."""
        more = f"{rest} more" if rest else ""
        lines = [""]
        for item in [*items, *([more] if more else [])] or [none]:
            if lines[-1] and cells(f"{lines[-1]}, {item}") > self._columns() - 12:
                lines[-1] += ","
                lines.append("")
            lines[-1] += f", {item}" if lines[-1] else item
        for number, line in enumerate(lines):
            self._field(name if number == 0 else "", line)

    def _fit(self, text: str, room: int, *, at_blank: bool = False) -> str:
        """`text`, escaped, cut at the end to `room` columns; `at_blank` where one is near."""
        shown = visible(text)
        if cells(shown) <= room:
            return shown
        kept, used = "", len(self._more)
        for char in shown:
            used += cells(char)
            if used > room:
                break
            kept += char
        head, blank, tail = kept.rpartition(" ")
        if at_blank and blank and head.strip() and cells(tail) <= NEAR:
            kept = head + blank
        return kept + self._more


def make_view(*, as_json: bool, environ: Mapping[str, str]) -> View:
    """The view for standard output as it is."""
    if as_json:
        return JsonView(on_terminal=sys.stdout.isatty())
    color = sys.stdout.isatty() and not wants_plain(environ)
    return HumanView(sys.stdout, color=color)
