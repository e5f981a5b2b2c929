"""Alternating rounds: every target once in each round, in turning order, so that a slow moment hits them all.

Other work on the machine changes an absolute figure by half; ratios are taken within a round, and their median counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some figures, and their extremes."""

    median: float
    low: float
    high: float

    def text(self, form: str) -> str:
        """`low-high` in a format such as ".2f"."""
        return f"{self.low:{form}}-{self.high:{form}}"


def spread(values: Sequence[float]) -> Spread:
    """Raises statistics.StatisticsError when there are none."""
    return Spread(statistics.median(values), min(values), max(values))


def alternate[T, R](targets: Sequence[T], rounds: int, measure: Callable[[T], R]) -> list[list[R]]:
    """For each target, in the order given, its result of each round."""
    results: list[list[R]] = [[] for _ in targets]
    for number in range(rounds):
        for offset in range(len(targets)):
            which = (number + offset) % len(targets)
            results[which].append(measure(targets[which]))
    return results


def ratios(above: Sequence[float], below: Sequence[float]) -> Spread:
    """The ratio of two targets' figures, round by round."""
    return spread([a / b for a, b in zip(above, below, strict=True)])
