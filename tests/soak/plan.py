"""How much is done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """runs: one after the other; rounds of `at_once` at the same time. requests: in all, measured every `step`.

    streams: on one HTTP/2 connection. connections: of HTTP/2, half of them aborted. kills, seed: how many, and of what
    chance; every so many of them is one of the engine.
    """

    runs: int = 500
    rounds: int = 10
    at_once: int = 8
    requests: int = 1_000_000
    step: int = 50_000
    streams: int = 20_000
    connections: int = 2_000
    transfers: int = 200
    kills: int = 200
    seed: int = 1
    engine_every: int = 25
