"""The table that a person reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.bench.stored import Ratio


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. target: in words, "" when there is none; ok: whether it was met; note: what it was made of.

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
        return self.what, self.figure, self.spread, self.target, met, self.note


HEAD = ("what", "median", "min-max", "target", "", "made of")


def lines(rows: Iterable[Row]) -> list[str]:
    """Aligned columns under a head."""
    cells = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    aligned = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    ]
    return [aligned[0], "-" * len(aligned[0].rstrip()), *aligned[1:]]
