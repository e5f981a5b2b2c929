"""The ratios that were reached, in `ratios.json` beside this file, and what was lost since.

Only ratios between runs on one machine are stored: they mean the same on the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

STORED = Path(__file__).with_name("ratios.json")
# What a ratio may be worse than the stored one. Two runs on a machine at rest differ by some 10 %.
MAY_LOSE = 0.20


@dataclass(frozen=True, slots=True)
class Ratio:
    """name: stays the same for good, the measure's own name first ("kept-16"). more: whether more is better."""

    name: str
    value: float
    more: bool = True

    def loss(self, before: float) -> float:
        """How much worse this is than `before`, as a share of it; negative when it is better."""
        return (before - self.value if self.more else self.value - before) / before


def stored(path: Path | None = None) -> dict[str, float]:
    """The stored ratios by name. Raises OSError and ValueError."""
    return {name: float(value) for name, value in json.loads((path or STORED).read_text()).items()}


def store(ratios: Iterable[Ratio], path: Path | None = None) -> None:
    """Store these in place of those of the same names; the others stay. Raises OSError."""
    path = path or STORED
    before = stored(path) if path.exists() else {}
    found = {ratio.name: round(ratio.value, 3) for ratio in ratios}
    path.write_text(json.dumps(dict(sorted((before | found).items())), indent=2) + "\n")


def losses(before: Mapping[str, float], ratios: Iterable[Ratio]) -> list[str]:
    """What has been lost, in words, one for each ratio that is more than MAY_LOSE worse than before."""
    return [
        f"{ratio.name}: {ratio.value:.2f}, stored {before[ratio.name]:.2f}: {loss:.0%} lost"
        for ratio in ratios
        if ratio.name in before and (loss := ratio.loss(before[ratio.name])) > MAY_LOSE
    ]


def names_of(before: Mapping[str, float], measure: str) -> set[str]:
    """The stored names that belong to a measure."""
    return {name for name in before if name == measure or name.startswith(f"{measure}-")}
