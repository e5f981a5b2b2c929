"""What the decision log says of one run, for a run whose gateway went away without its closing words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from impyard.addon.decisions import line_hash
from impyard.addon.errors import ImpyardError
from impyard.runner.decisions import logread
from impyard.runner.decisions.logfiles import open_log


@dataclass(frozen=True, slots=True)
class Tally:
    """Decisions of a run: how many of each, and the number and hash of the last. Without a line, `seq` is None."""

    allowed: int = 0
    denied: int = 0
    seq: int | None = None
    last: str | None = None


def tally(log: Path, run: str) -> Tally:
    """Count the lines of `run`, from the log's end back to its first. A log that cannot be read counts as empty."""
    counts = {"allow": 0, "deny": 0}
    seq, last = None, None
    try:
        found = open_log(log)
    except ImpyardError:
        return Tally()
    if found is None:
        return Tally()
    with found:
        for line in logread.from_end(found, needles=(f'"run":"{run}"'.encode(),)):
            try:
                entry = json.loads(line.text)
            except ValueError:
                continue
            if not isinstance(entry, dict) or entry.get("run") != run or entry.get("verdict") not in counts:
                continue
            if seq is None:
                seq, last = int(entry.get("seq", 0)), line_hash(line.text)
            counts[entry["verdict"]] += 1
            if entry.get("seq") == 1:
                break
    return Tally(counts["allow"], counts["deny"], seq, last)
