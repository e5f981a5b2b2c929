"""The attempts that ship with impyard, scored: in a box of `prove --deep`, or against any other proxy.

The attempts are made by box/attacks; what the origins saw and what the log says is read here, on this machine.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from impyard.box.attacks import run, score
from impyard.box.attacks.bed import chosen, policy, policy_here
from impyard.box.attacks.model import EVIL, GROUPS, OK, WS, Attempt, Line, Seen, Tried
from impyard.box.attacks.origin import CountingOrigin
from impyard.runner.text import columns_of, visible, wrapped

NAMES = (OK, WS, EVIL, "*.wild.test")
SHOWN = 40


@dataclass(frozen=True, slots=True)
class Verdict:
    """One attempt and what is wrong with how it ended; `faults` is empty when it was held."""

    attempt: Attempt
    faults: tuple[str, ...]


class Bench:
    """Counting origins on this machine's loopback, their authority, and the policy that leads there. A context.

    groups: of the attempts that are to be judged; without any, all. origins: how many, of which impyard's own box uses
    the first.
    """

    def __init__(self, groups: Collection[str] = (), *, origins: int = 1) -> None:
        self.attempts = chosen(groups)
        self._count = origins

    def __enter__(self) -> Bench:
        from impyard.certs.throwaway import Pki

        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="impyard-deep-")))
        pki = Pki(folder)
        context = pki.context(*NAMES)
        self.origins = [CountingOrigin(context) for _ in range(self._count)]
        for origin in self.origins:
            self._stack.callback(origin.close)
        self.ca = pki.ca_path
        self.policy = folder / "deep.yaml"
        self.policy.write_text(policy(self.origins[0].port, str(self.ca)), "utf-8")
        self.policy_here = folder / "here.yaml"
        self.policy_here.write_text(policy_here([origin.port for origin in self.origins], str(self.ca)), "utf-8")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def judged(self, tried: Sequence[Tried], log: Iterable[Mapping[str, Any]] | None) -> list[Verdict]:
        """A verdict on every attempt. log: the decisions of the run; None where there is no log to look at."""
        seen: dict[int, Seen] = {}
        for origin in self.origins:
            seen |= run.by_attempt(origin.take())
        lines: dict[int, list[Line]] | None = None
        if log is not None:
            lines = run.lines_by_attempt(run.line_from(entry) for entry in log)
        by_key = {each.key: each for each in tried}
        found = []
        owed: score.Owed = Counter()
        for attempt in self.attempts:
            made = by_key.get(attempt.key)
            if made is None:
                found.append(Verdict(attempt, ("it was not made",)))
                continue
            said = None if lines is None else lines.get(made.number, [])
            reached = seen.get(made.number, Seen())
            if said is not None:
                reached, owed = score.settled(reached, said, owed)
            faults = score.faults(attempt, made.result, said, reached)
            if made.after != 200:
                faults.append("the honest request after it did not work")
            found.append(Verdict(attempt, tuple(faults)))
        return found


def reported(event: Mapping[str, Any]) -> list[Tried]:
    """The attempts that a box says it made; what is no such report is left out."""
    found = []
    for item in event.get("tried") or ():
        try:
            found.append(run.from_json(item))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def document(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The scoreboard as JSON."""
    failed = [verdict for verdict in verdicts if verdict.faults]
    return {
        "ok": not failed,
        "groups": {
            group: {"name": name, "attempts": count, "held": held} for group, name, count, held in _groups(verdicts)
        },
        "failed": [{"attempt": verdict.attempt.key, "faults": list(verdict.faults)} for verdict in failed],
    }


def show(verdicts: Sequence[Verdict]) -> None:
    """Print a line for each group, then what failed."""
    click.echo(click.style("attempts to get past the proxy", bold=True))
    for group, name, count, held in _groups(verdicts):
        mark = click.style("ok  ", fg="green") if held == count else click.style("FAIL", fg="red", bold=True)
        missed = "" if held == count else f", {count - held} failed"
        click.echo(f"  {mark}  {group}  {name:<24}  {count} made, {held} held{missed}")
    failed = [verdict for verdict in verdicts if verdict.faults]
    columns = columns_of(sys.stdout)
    for verdict in failed[:SHOWN]:
        line = f"  {visible(verdict.attempt.key)}: {visible('; '.join(verdict.faults))}"
        click.echo(wrapped(line, columns, "    "))
    if len(failed) > SHOWN:
        click.echo(f"  and {len(failed) - SHOWN} more: --json lists all")


def _groups(verdicts: Sequence[Verdict]) -> list[tuple[str, str, int, int]]:
    found = []
    for group, name in GROUPS.items():
        mine = [verdict for verdict in verdicts if verdict.attempt.group == group]
        if mine:
            found.append((group, name, len(mine), sum(not verdict.faults for verdict in mine)))
    return found
