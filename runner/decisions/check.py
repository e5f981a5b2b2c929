"""`impyard decisions --verify`: is the log whole, line by line and up to the ends that the receipts name?"""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import click

from impyard.addon.decisions import is_of_run, verify
from impyard.addon.errors import ImpyardError
from impyard.runner import runs
from impyard.runner.decisions import logread
from impyard.runner.project import RunPaths
from impyard.runner.receipt import read_receipt
from impyard.runner.text import columns_of, counted, visible, wrapped


def verify_log(root: Path, log: Path, run: str | None, as_json: bool) -> bool:
    """Check the log's chains, and their ends against the receipts; `run` limits it to one. Whether there was any line.

    Raises ImpyardError naming the first fault.
    """
    receipts, unread = _chain_ends(root, run)
    # Of the lines that are checked: the number of each in the file, and its first byte.
    numbers, offsets = array("Q"), array("Q")
    descriptor = logread.open_log(log)
    try:
        faults = verify(_numbered(descriptor, run, numbers, offsets), receipts=receipts)
    finally:
        if descriptor is not None:
            os.close(descriptor)
    if run is not None and not numbers and not receipts:
        return False
    found = [
        (numbers[fault.line - 1], offsets[fault.line - 1], visible(fault.what))
        if fault.line
        else (0, 0, visible(fault.what))
        for fault in faults
    ]
    count = counted(len(numbers), "line")
    if as_json:
        named = [{"line": number, "byte": offset, "what": what} for number, offset, what in found]
        document = {"ok": not found, "lines": len(numbers), "faults": named}
        click.echo(json.dumps(document))
    elif not found:
        ends = f"{len(receipts)} ended as the receipts say" if receipts else "no receipt to check an end by"
        click.echo(wrapped(f"ok: {count}, every run's chain is whole; {ends}", columns_of(sys.stdout), "  "))
    for name in unread:
        click.echo(
            f"warning: the receipt of run {name} cannot be read, so the end of its chain is not checked", err=True
        )
    if found:
        number, offset, what = found[0]
        what += f" (byte {offset})" if number else ""
        more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
        raise ImpyardError(
            f"{log}{f':{number}' if number else ''}: {what}{more}",
            hint="the log was changed after it was written; `--verify --json` lists every fault",
        )
    return bool(numbers)


def _numbered(descriptor: int | None, run: str | None, numbers: array[int], offsets: array[int]) -> Iterator[bytes]:
    """The log's lines, or those of `run`; the number and first byte of each are added to `numbers` and `offsets`."""
    if descriptor is not None:
        for number, (offset, line) in enumerate(logread.placed_lines(descriptor), 1):
            if run is None or is_of_run(line, run):
                numbers.append(number)
                offsets.append(offset)
                yield line


def _chain_ends(root: Path, run: str | None) -> tuple[dict[str, tuple[int, str]], list[str]]:
    """The number and hash of each ended run's last line, by its receipt; and the runs whose receipt is unreadable."""
    ends: dict[str, tuple[int, str]] = {}
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
    return ends, unread
