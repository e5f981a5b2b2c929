"""What may have been meant by a host or method that no decision has: a suggestion for who sees nothing."""

from __future__ import annotations

import difflib
import http
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.runner.decisions.lines import Entry, Selection, parse
from impyard.runner.decisions.logfiles import open_log
from impyard.runner.ownhosts import is_own
from impyard.runner.text import visible

TAIL_BYTES = 1 << 20  # of the log, whose hosts and methods are known


def suggestion(selection: Selection, log: Path) -> str:
    """What may have been meant, as options to type; empty where the log's end has what was asked for, or nothing
    near."""
    if not (selection.hosts or selection.methods):
        return ""
    entries = list(_newest(log))
    hosts = dict.fromkeys(name for entry in entries if not is_own(entry.host) for name in (entry.host, entry.place))
    methods = dict.fromkeys([*(entry.method.upper() for entry in entries), *map(str, http.HTTPMethod)])
    meant = [f"--host {shlex.quote(visible(name))}" for name in _near(selection.hosts, list(hosts))]
    meant += [f"--method {shlex.quote(visible(name))}" for name in _near(selection.methods, list(methods))]
    return f"did you mean `{' '.join(meant)}`?" if meant else ""


def _near(given: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    """For each of these that is not known, what is nearest to it, if anything is. One with `*` is no name."""
    for name in given:
        if name not in known and "*" not in name:
            yield from difflib.get_close_matches(name, known, 1)


def _newest(log: Path) -> Iterator[Entry]:
    try:
        found = open_log(log, say=_said_elsewhere)
    except ImpyardError:  # that was said by who looked for the decisions
        return
    if found is None:
        return
    with found:
        for line in found.pread(TAIL_BYTES, max(found.size - TAIL_BYTES, 0)).split(b"\n"):
            if (entry := parse(line)) is not None:
                yield entry


def _said_elsewhere(_path: Path, _what: str) -> None:
    """The same."""
