"""Outcomes that are gone. No chain holds them, but a run's receipt counts them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from impyard.runner.decisions import logread
from impyard.runner.decisions.filelist import Known
from impyard.runner.decisions.logfiles import open_log, rotated_name
from impyard.runner.receipt import mapping

_BEGIN = re.compile(rb'"run":"([^"\\]{1,200})","seq":1,')  # of a run, as the judge writes its first decision
_OF_RUN = re.compile(rb'^\{"ts":"[^"\\]{1,40}","id":"[^"\\]{1,240}","run":"([^"\\]{1,200})",', re.MULTILINE)


def outcomes_of(receipt: Mapping[str, Any]) -> int:
    """How many outcomes of a run there are at least, by its receipt.

    One of an earlier version does not count them: there, bytes of bodies and failures tell of one. The gateway of a
    killed run may not have come to write any.
    """
    traffic = mapping(receipt.get("traffic"))
    if "outcomes" in traffic:
        return _count(traffic["outcomes"])
    return int(any(_count(traffic.get(name)) for name in ("bytes_up", "bytes_down", "upstream_errors")))


def lost(known: Known, log: Path, outcome_log: Path, counted: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """The file of outcomes that lacks some, and which: for each run, `counted` says how many there are at least.

    Of a run that began in files that were removed on purpose, nothing is known. Raises ImpyardError when a log cannot
    be read.
    """
    expected = {run: count for run, count in counted.items() if count}
    stamps = [each.stamp for name in known.removed if (each := rotated_name(outcome_log, name)) is not None]
    if expected and stamps:
        begun = set(_begun_behind(max(stamps), log))
        expected = {run: count for run, count in expected.items() if run in begun}
    if not expected:
        return
    there: Counter[str] = Counter()
    needles = tuple(run.encode() for run in expected) if len(expected) == 1 else ()
    with open_log(outcome_log, say=_said_elsewhere) or nullcontext() as found:
        for _, piece in logread.blocks(found, 0, found.size, needles) if found is not None else ():
            of_piece = Counter(_OF_RUN.findall(piece))
            there.update({name: count for run, count in of_piece.items() if (name := run.decode()) in expected})
    for run, count in expected.items():
        if there[run] < count:
            yield outcome_log.name, f"outcomes of run {run} are missing: there are {there[run]} of at least {count}"


def _begun_behind(stamp: str, log: Path) -> Iterator[str]:
    """The runs whose first decision is in a file that was rotated after `stamp`, or not yet.

    Both logs are rotated together, outcomes first: theirs are in such files too, whatever the clocks say.
    """
    with open_log(log, say=_said_elsewhere) or nullcontext() as found:
        if found is None:
            return
        for path, base in found.bounds():
            each = rotated_name(log, path.name)
            if each is None or each.stamp > stamp:
                for _, piece in logread.blocks(found, base, found.size):
                    yield from (run.decode("ascii", "replace") for run in _BEGIN.findall(piece))
                return


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _said_elsewhere(_path: Path, _what: str) -> None:
    """What cannot be read is a fault that is named by who checks the files."""
