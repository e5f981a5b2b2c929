"""The summary at the end of a run: what its receipt says to a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impyard.runner.columns import cells, lines_of
from impyard.runner.failures import failure_text, failures_of
from impyard.runner.printer import Printer
from impyard.runner.receipt import Receipt, counts_text, failed_of, file_text
from impyard.runner.spotted import advice, record_text
from impyard.runner.text import duration_text, unstarred, visible
from impyard.runner.typed import as_typed

SUMMARY_FILES = 10
SUMMARY_REPOSITORIES = 3
SUMMARY_HOSTS = 8
SUMMARY_SECRETS = 4
SUMMARY_FAILURES = 3
NAME_COLUMNS = 11  # of a line in the summary

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


def print_summary(
    printer: Printer, receipt: Receipt, command: str, log: str, more: Sequence[tuple[str, str]] = ()
) -> None:
    """Print it. `command` shows what was denied or failed, `log` is the file with all of the run's output where some of
    it was not shown, `more` are further commands by name."""
    words = REASON_WORDS.get(receipt.exit_reason, receipt.exit_reason)
    title = f"{printer.marks.rule * 2} {words} in {duration_text(receipt.duration_s or 0)} "
    style = "green" if receipt.exit_reason == "finished" else "red"
    printer.line(title + printer.marks.rule * max(printer.columns() - cells(title) - 1, 2), style)
    if receipt.error:
        _field(printer, "error", unstarred(receipt.error))
    if receipt.refused_key:
        _field(printer, "key", as_typed(receipt.refused_key))
    names = [file_text(file) for file in receipt.files[:SUMMARY_FILES]]
    rest = len(receipt.files) + receipt.files_more - len(names)
    _items(printer, "files", names, rest, none="none new or changed")
    if not receipt.files_complete:
        _field(
            printer, "", "the workspace holds more than is looked at: files and git repositories may be missing here"
        )
    remarks = [f"{name} is a link: remove it before git here writes where it leads" for name in receipt.links]
    remarks += [f"{name} is new: look at it before you use git here" for name in receipt.repositories]
    if remarks:
        shown = remarks[:SUMMARY_REPOSITORIES]
        _items(printer, "git", shown, len(remarks) - len(shown))
    _field(printer, "in", receipt.workspace, whole=True)
    if log:
        _field(printer, "log", log, whole=True)
    counts = receipt.decisions
    if counts:
        _field(printer, "decisions", counts_text(counts, receipt.traffic))
    failures = failures_of(receipt.traffic)
    for number, failure in enumerate(failures[:SUMMARY_FAILURES]):
        _field(printer, "failed" if number == 0 else "", unstarred(failure_text(failure)))
    if len(failures) > SUMMARY_FAILURES:
        _field(printer, "", f"{len(failures) - SUMMARY_FAILURES} more")
    for number, secret in enumerate(receipt.secrets[:SUMMARY_SECRETS]):
        _field(printer, "secrets" if number == 0 else "", record_text(secret), style="red")
    if len(receipt.secrets) > SUMMARY_SECRETS:
        _field(printer, "", f"{len(receipt.secrets) - SUMMARY_SECRETS} more", style="red")
    if receipt.exit_reason == "agent-error" and (what := advice(receipt.secrets)):
        _field(printer, "", what)
    hosts: Mapping[str, int] = counts.get("denied_hosts") or {}
    if hosts:
        ranked = sorted(hosts.items(), key=lambda item: (-item[1], item[0]))
        shown = [f"{unstarred(host)} ({count})" for host, count in ranked[:SUMMARY_HOSTS]]
        _items(printer, "denied", shown, len(ranked) - len(shown))
    if hosts or failed_of(receipt.traffic):
        _field(printer, "look", command, whole=True)
    for name, what in more:
        _field(printer, name, what, whole=True)


def _field(printer: Printer, name: str, value: str, *, whole: bool = False, style: str = "") -> None:
    lines = [value]
    if printer.wraps and not whole:
        lines = lines_of(visible(value), printer.columns() - 1 - NAME_COLUMNS)
    for number, line in enumerate(lines):
        printer.line(f"{name if number == 0 else '':<{NAME_COLUMNS - 1}} {line}", style, whole=True)


def _items(printer: Printer, name: str, items: list[str], rest: int, none: str = "") -> None:
    """Items in lines that fit the width, under one name."""
    more = f"{rest} more" if rest else ""
    lines = [""]
    for item in [*items, *([more] if more else [])] or [none]:
        if lines[-1] and cells(f"{lines[-1]}, {item}") > printer.columns() - 12:
            lines[-1] += ","
            lines.append("")
        lines[-1] += f", {item}" if lines[-1] else item
    for number, line in enumerate(lines):
        _field(printer, name if number == 0 else "", line)
