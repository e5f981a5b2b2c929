"""Decisions with what came of them as CSV, row after row, however many there are."""

from __future__ import annotations

import csv
import itertools
import re
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from impyard.runner.decisions import outcomes
from impyard.runner.decisions.lines import Selection
from impyard.runner.decisions.outcome_stream import rows_with_outcomes
from impyard.runner.decisions.outcomes import Row
from impyard.runner.decisions.view import say_left_out, say_nothing, warn_of_damage
from impyard.runner.text import visible

DECISION = ("id", "run", "scheme", "host", "port", "path", "query", "reason", "rule", "at")
HEAD = (
    *("time", "verdict", "method", "url", *DECISION, "nearest", "nearest_failed", "credential"),
    *("status", "error", "bytes_up", "bytes_down", "ms"),
)
NO_OUTCOME = ("", "", "", "", "")
# A spreadsheet takes a cell that begins so for a formula, and computes it when it opens the file.
FORMULA = ("=", "+", "-", "@", "\t", "\r", *"\uff1d\uff0b\uff0d\uff20")
# Where the spreadsheet's own separator is none of ours, a cell may begin in the middle of one.
_BEGUN = re.compile(r"""([;|]["'\s]*)(?=[=+@\uff1d\uff0b\uff0d\uff20-])""")


def write_csv(log: Path, selection: Selection, count: int | None = None) -> None:
    """Print what is meant, oldest first; with `count` its last ones only."""
    found = rows_with_outcomes(log, outcomes.path_beside(log), selection)
    rows = found if count is None else iter(deque(found, maxlen=min(count, sys.maxsize)))
    written = write_table(HEAD, map(_cells, rows))
    warn_of_damage(selection, log)
    if not written and count != 0:
        say_nothing(selection, log)
    say_left_out(selection)


def write_table(head: Sequence[str], records: Iterable[Iterable[Any]]) -> int:
    """Print records as CSV (RFC 4180) with cells that no spreadsheet obeys. How many."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    records = iter(records)
    first = list(itertools.islice(records, 1))  # before the heading, since the log may be none that can be read
    writer.writerow(head)
    count = 0
    for count, record in enumerate(itertools.chain(first, records), 1):  # noqa: B007
        writer.writerow(map(cell, record))
    sys.stdout.flush()
    return count


def cell(value: Any) -> Any:
    """A value as it may stand in a spreadsheet: numbers as they are, text without control characters, and with an
    apostrophe before what would be a formula, also behind a `;`."""
    if not isinstance(value, str):
        return value
    text = _BEGUN.sub(r"\1'", visible(value))
    return f"'{text}" if text.startswith(FORMULA) or value.startswith(FORMULA) else text


def _cells(row: Row) -> list[Any]:
    entry, came = row.entry, row.outcome
    nearest = (entry.nearest.at, entry.nearest.failed) if entry.nearest else ("", "")
    outcome = (
        (came.status, came.text if came.error else "", came.bytes_up, came.bytes_down, came.ms) if came else NO_OUTCOME
    )
    plain = (getattr(entry, name) for name in DECISION)
    return [entry.ts, row.verdict, entry.method, entry.url, *plain, *nearest, entry.credential, *outcome]
