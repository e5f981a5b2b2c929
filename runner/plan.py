"""What a run or a proof asks for, before anything of it is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from impyard.runner import defaults
from impyard.runner.agent import Agent
from impyard.runner.resumed import Resumed

if TYPE_CHECKING:
    from impyard.runner.clone.make import Clone


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be opened. `root` and `workspace` are resolved; a `workspace` of None is a new folder of the run,
    with a clone of the project in it where `clone` says so.

    `allowed` are files that the box may see although they hold a secret, relative to the root or absolute.
    `policies` are the policy files in order; the demo model's own is added to them. `None` leaves a limit to impyard;
    `memory` in bytes. `mode` is "run" (`agent` on `prompt`) or "prove" (no agent). `listeners` are addresses
    and ports of this machine that "prove" tries to reach; `deep` are groups of the attempts of box/attacks that
    it adds. `terminal` (rows and columns) is for pi's own UI, to which the `prompt` is typed first. `resumed` is what
    an earlier run left to go on with.
    """

    root: Path
    policies: tuple[Path, ...]
    ceiling_s: float
    mode: str = "run"
    agent: Agent | None = None
    prompt: bytes = b""
    workspace: Path | None = None
    clone: Clone | None = None
    cpus: float | None = None
    memory: int | None = None
    pids: int = defaults.PIDS
    image: str | None = None
    allowed: tuple[Path, ...] = ()
    listeners: tuple[tuple[str, int], ...] = ()
    deep: tuple[str, ...] = ()
    terminal: tuple[int, int] | None = None
    resumed: Resumed | None = None
