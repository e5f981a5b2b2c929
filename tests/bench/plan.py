"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """rounds: of each comparison. seconds: of each load. connections: which numbers of them. body_mib: of a big body.

    rules: how many of them are many. commands: how often a command is started. at_once: which numbers of runs.
    decisions: how many of them a long log has.
    """

    rounds: int = 11
    seconds: float = 1.0
    connections: tuple[int, ...] = (1, 16, 64)
    body_mib: int = 1024
    rules: int = 10_000
    commands: int = 10
    at_once: tuple[int, ...] = (1, 4, 16, 64)
    decisions: int = 1_000_000
