"""`impyard decisions --verify`: is the log whole, line by line and up to the ends that the receipts name?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from impyard.addon.decisions import verify
from impyard.addon.errors import ImpyardError
from impyard.runner import runs
from impyard.runner.decisions import removed
from impyard.runner.decisions.filelist import FileList, Known, names
from impyard.runner.decisions.logfiles import Log, open_log
from impyard.runner.decisions.lostoutcomes import lost, outcomes_of
from impyard.runner.decisions.numbered import Numbered
from impyard.runner.decisions.outcomes import path_beside
from impyard.runner.project import RunPaths
from impyard.runner.receipt import read_receipt
from impyard.runner.text import columns_of, counted, visible, wrapped

_LOOKS = 3  # at a log whose old files are removed meanwhile


def verify_log(root: Path, log: Path, run: str | None, as_json: bool) -> bool:
    """Check the log's chains, and their ends against the receipts; `run` limits it to one. Whether there was any line.

    Raises ImpyardError naming the first fault.
    """
    if not log.parent.is_dir():
        raise ImpyardError(f"there is no log: {log.parent} does not exist", hint="`impyard run` makes one")
    receipts, answered, unread = _of_receipts(root, run)
    for _ in range(_LOOKS):
        known = FileList(log.parent).read()
        named, count = _faults(log, run, receipts, answered, known)
        if not named or FileList(log.parent).read() == known:  # else files were removed on purpose meanwhile
            break
    if run is not None and not count and not receipts:
        return False
    lines = counted(count, "line")
    if as_json:
        gone = removed.files(known, log)
        left = {"files": len(gone), "lines": sum(gone.values())}
        click.echo(json.dumps({"ok": not named, "lines": count, "removed": left, "faults": named}))
    elif not (named or count or receipts or known.removed):
        click.echo(f"ok: there is nothing to check in {log.parent} yet")
    elif not named:
        ends = f"{len(receipts)} ended as the receipts say" if receipts else "no receipt to check an end by"
        click.echo(wrapped(f"ok: {lines}, every run's chain is whole; {ends}", columns_of(sys.stdout), "  "))
    if not as_json:
        removed.say(log, known)
    for name in unread:
        click.echo(
            f"warning: the receipt of run {name} cannot be read, so the end of its chain is not checked", err=True
        )
    if named:
        raise _error(named, log)
    return bool(count)


def _faults(
    log: Path, run: str | None, receipts: dict[str, tuple[int, str]], answered: dict[str, int], known: Known
) -> tuple[list[dict[str, Any]], int]:
    """What is wrong with the log, and how many lines were looked at. answered: how many outcomes of
    each run there are at least."""
    said: dict[tuple[Path, str], None] = {}
    with open_log(log, say=lambda path, what: said.setdefault((path, what))) or nullcontext() as found:
        numbered = Numbered(found, run)
        faults = verify(numbered.lines(), receipts=receipts, before=_of_run(known, run))
        named = [_fault(path.name, 0, 0, what) for path, what in said]
        unreadable = {path.name for path, _ in said}
        named += [_fault(name, 0, 0, what) for name, what in _missing(known, log, found, unreadable)]
        named += [_fault(*numbered.place(fault.line), fault.what) for fault in faults]
    return named + _of_outcomes(known, log, answered), numbered.count


def _error(named: list[dict[str, Any]], log: Path) -> ImpyardError:
    first = named[0]
    path = log.with_name(first["file"]) if first["file"] else log
    number, where = (f":{first['line']}", f" (byte {first['byte']})") if first["line"] else ("", "")
    more = f" ({len(named) - 1} more)" if len(named) > 1 else ""
    return ImpyardError(
        f"{path}{number}: {first['what']}{where}{more}",
        hint="the log was changed after it was written; `--verify --json` lists every fault",
    )


def _fault(file: str, line: int, byte: int, what: str) -> dict[str, Any]:
    return {"file": file, "line": line, "byte": byte, "what": visible(what)}


def _of_run(known: Known, run: str | None) -> dict[str, tuple[int, str]]:
    return {name: end for name, end in known.ends.items() if run is None or name.startswith(run)}


def _missing(known: Known, log: Path, found: Log | None, said: set[str]) -> Iterator[tuple[str, str]]:
    """The rotated files that are not what is noted of them, and why; without those of which something is `said`."""
    for name in names(known, log):
        path = log.with_name(name)
        size = found.text_size(path) if found is not None else None
        if size is None and found is not None:
            size = found.text_size(path.with_suffix(""))  # unpacked again
        if size is None and name not in said:
            hint = "`impyard decisions rotate --older-than` removes old files so that this check knows"
            yield name, f"it is missing, with the {known.sizes[name]} bytes that it held; {hint}"
        elif size is not None and size != known.sizes[name]:
            yield name, f"exchanged or edited: it holds {size} bytes, and held {known.sizes[name]}"


def _of_outcomes(known: Known, log: Path, answered: dict[str, int]) -> list[dict[str, Any]]:
    """What is wrong with the files of outcomes, which have no chain."""
    said: dict[tuple[Path, str], None] = {}
    path = path_beside(log)
    try:
        with open_log(path, say=lambda path, what: said.setdefault((path, what))) or nullcontext() as found:
            missing = list(_missing(known, path, found, {path.name for path, _ in said}))
        if not (said or missing):  # else it is known that some are gone
            missing += lost(known, log, path, answered)
    except ImpyardError as exc:
        return [_fault(path.name, 0, 0, exc.message)]
    return [_fault(path.name, 0, 0, what) for path, what in said] + [_fault(name, 0, 0, what) for name, what in missing]


def _of_receipts(root: Path, run: str | None) -> tuple[dict[str, tuple[int, str]], dict[str, int], list[str]]:
    """The number and hash of each ended run's last line, by its receipt; how many outcomes it has at least; and
    the runs whose receipt is unreadable."""
    ends: dict[str, tuple[int, str]] = {}
    answered: dict[str, int] = {}
    unread = []
    for name in runs.ids(root):
        if run is not None and not name.startswith(run):
            continue
        path = RunPaths(root, name).receipt
        try:
            receipt = read_receipt(path)
        except ImpyardError as exc:
            if not isinstance(exc.__cause__, FileNotFoundError):
                unread.append(name)
            continue
        decisions = receipt.get("decisions")
        if receipt.get("ended") and isinstance(decisions, dict):
            seq, last = decisions.get("seq"), decisions.get("last")
            if isinstance(seq, int) and isinstance(last, str):
                ends[name] = (seq, last)
                answered[name] = outcomes_of(receipt)
    return ends, answered, unread
