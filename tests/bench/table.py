"""The table that a person reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.bench.stored import Ratio

FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, FAILED when there is none for a reason that the note says. target: in words, "" when there is none;
    ok: whether it was met; note: what it was made of.

    ratio: the figure as `make bench-check` compares it with the stored one, None for what says little elsewhere.
    """

    what: str
    figure: str
    spread: str = ""
    target: str = ""
    ok: bool | None = None
    note: str = ""
    ratio: Ratio | None = None

    def cells(self) -> tuple[str, ...]:
        met = "" if self.ok is None else "ok" if self.ok else "MISS"
        note = " ".join(self.note.split())  # what a program said of its failure has lines of its own
        return self.what, self.figure, self.spread or "-", self.target or "-", met or "-", note


HEAD = ("what", "median", "min-max", "target", "", "made of")


def lines(rows: Iterable[Row]) -> list[str]:
    """Aligned columns under a head."""
    cells = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    aligned = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    ]
    return [aligned[0], "-" * len(aligned[0].rstrip()), *aligned[1:]]


def summary(rows: Iterable[Row]) -> str:
    """How many targets were met, in a line for the end."""
    met = [row.ok for row in rows if row.ok is not None]
    missed = met.count(False)
    text = f"{met.count(True)} of {len(met)} targets met" + (f", {missed} missed" if missed else "")
    return text + ("; a miss does not change the exit status" if missed else "")
