"""`impyard policy replay`: what an edited policy would have changed, by the decisions that were recorded."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from impyard.runner.decisions.when import When
from impyard.runner.options import project_option, run_option
from impyard.runner.policy.place import located, policy_option
from impyard.runner.text import columns_of, counted, visible, wrapped
from impyard.runner.typed import as_typed

OPENED, CLOSED = "deny-to-allow", "allow-to-deny"
_TITLES = {OPENED: "deny -> allow", CLOSED: "allow -> deny"}
_UNDER = " " * 10  # below what a count is of
_SHOWN = 20  # groups of each kind; --all shows every one


@click.command()
@project_option
@policy_option
@run_option
@click.option("--since", type=When(), metavar="TIME", help="Only decisions since then: 2h, 7d, 2026-11-30.")
@click.option(
    "--fail-on",
    "fail_on",
    type=click.Choice([OPENED, CLOSED, "any", "unknown"]),
    multiple=True,
    metavar="CHANGE",
    help=f"Exit with 1 when there is one: {OPENED}, {CLOSED}, any, or unknown, a decision that cannot be judged again. "
    "May be given again.",
)
@click.option("--all", "everything", is_flag=True, help="Show every group of changes, not only the largest.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON document.")
def replay(
    project: Path | None,
    policies: tuple[Path, ...],
    run: str | None,
    since: str | None,
    fail_on: tuple[str, ...],
    everything: bool,
    as_json: bool,
) -> int:
    """Judge recorded decisions again, and show what the policy would change.

    It is the judge itself that judges, on what the log holds. What the log does not hold is not guessed: such
    decisions are counted, with the reason.

    \b
    Examples:
      impyard policy replay --since 1d
      impyard policy replay --policy new.yaml --fail-on deny-to-allow
    """
    from impyard.addon.policy import read_policy
    from impyard.runner import proofs, runs
    from impyard.runner.decisions.lines import Selection
    from impyard.runner.policy.read import read_files

    root, files = located(project, policies)
    policy = read_policy(read_files(files, root), root=root)
    log = root / "runs" / "decisions.jsonl"
    selection = Selection(
        runs.resolve(root, run) if run is not None else None, own_checks=False, since=since, proofs=proofs.known()
    )
    collecting = gc.isenabled()
    gc.disable()  # what is remembered is much and has no circles: looking for some would take a third of the time
    try:
        tally = replayed(log, selection, policy)
    finally:
        if collecting:
            gc.enable()
    if as_json:
        click.echo(json.dumps({"policy": policy.hash, **tally.document(), "damaged": selection.damaged}))
    else:
        _print(tally, everything)
    if selection.damaged:
        lines = counted(selection.damaged, "damaged line")
        click.echo(as_typed(f"warning: {lines} left out; `impyard decisions --verify` checks every line"), err=True)
    if not tally.count and not as_json:
        own = selection.own or selection.demo
        left_out = ": impyard's own checks and its demo model are left out" if own else ""
        click.echo(f"no decisions to judge again{left_out}", err=True)
    return _status(tally, fail_on, damaged=bool(selection.damaged))


def _status(tally: Tally, fail_on: Iterable[str], *, damaged: bool) -> int:
    if fail_on and not tally.count:
        return 1  # a gate that nothing went through: the log is elsewhere, say
    happened = {kind for kind, _, _ in tally.groups_by_size()} | ({"unknown"} if tally.unknown or damaged else set())
    wanted = set(fail_on)
    if "any" in wanted:
        wanted |= {OPENED, CLOSED}
    return 1 if happened & wanted else 0


@dataclass(frozen=True, slots=True)
class Change:
    """Decisions that change alike. was, now: reason and rule, for people."""

    kind: str
    method: str
    place: str
    was: str
    now: str


@dataclass(slots=True)
class Group:
    """How many, and the id of one."""

    example: str
    count: int = 0


@dataclass(slots=True)
class Tally:
    """What became of all decisions."""

    count: int = 0
    changes: dict[Change, Group] = field(default_factory=dict)
    unchanged: Counter[str] = field(default_factory=Counter)
    otherwise: Group = field(default_factory=lambda: Group(""))
    unknown: dict[str, Group] = field(default_factory=dict)

    def groups_by_size(self, kind: str | None = None) -> list[tuple[str, Change, Group]]:
        found = [(c.kind, c, g) for c, g in self.changes.items() if kind is None or c.kind == kind]
        return sorted(found, key=lambda each: (-each[2].count, each[1].place, each[1].method))

    def document(self) -> dict[str, Any]:
        """The same for other programs."""
        return {
            "decisions": self.count,
            "changes": [
                {
                    "change": kind,
                    "count": group.count,
                    "method": change.method,
                    "place": change.place,
                    "was": change.was,
                    "now": change.now,
                    "example": group.example,
                }
                for wanted in (OPENED, CLOSED)
                for kind, change, group in self.groups_by_size(wanted)
            ],
            "unchanged": {"allow": self.unchanged["allow"], "deny": self.unchanged["deny"]},
            "otherwise": {"count": self.otherwise.count, "example": self.otherwise.example or None},
            "unknown": [
                {"why": why, "count": group.count, "example": group.example}
                for why, group in sorted(self.unknown.items(), key=lambda item: -item[1].count)
            ],
        }


def replayed(log: Path, selection: Any, policy: Any) -> Tally:
    """What becomes of the selected decisions of a log under a policy. Raises ImpyardError for a log it cannot read."""
    from impyard.runner.decisions import read as decisions_read
    from impyard.runner.decisions.pathshape import shape
    from impyard.runner.policy.recorded import recorded
    from impyard.runner.policy.replay import Replay

    judged_again = Replay(policy)
    tally = Tally()
    for line in decisions_read.lines(log, selection):
        entry = recorded(line.text)
        if entry is None:
            selection.entry(line)  # counts the damage
            continue
        if not selection.wants(entry):
            continue
        tally.count += entry.times
        judged = judged_again(entry)
        was = entry.verdict == "allow"
        if judged.allowed is None:
            _count(tally.unknown, judged.why, entry)
        elif judged.allowed == was:
            tally.unchanged[entry.verdict] += entry.times
            if judged.otherwise:
                tally.otherwise.example = tally.otherwise.example or entry.id
                tally.otherwise.count += entry.times
        else:
            decision = judged.decision
            rule = _ruled(decision.reason, decision.rule, decision.at) if decision is not None else ""
            change = Change(
                OPENED if judged.allowed else CLOSED,
                entry.method,
                f"{entry.scheme}://{entry.authority}{shape(entry.path)}",
                _ruled(entry.reason, entry.rule, entry.at),
                rule,
            )
            _count(tally.changes, change, entry)
    return tally


def _count(groups: dict[Any, Group], key: Any, entry: Any) -> None:
    group = groups.get(key)
    if group is None:
        group = groups[key] = Group(entry.id)
    group.count += entry.times


def _ruled(reason: str, rule: str | None, at: str | None) -> str:
    """The rule that decided with its place, else the reason."""
    if rule is None:
        return reason
    return " ".join(part for part in (at, rule, f"({reason})" if reason != "rule" else "") if part)


def _print(tally: Tally, everything: bool) -> None:
    columns = columns_of(sys.stdout)
    for kind, color in ((OPENED, "red"), (CLOSED, "yellow")):
        groups = tally.groups_by_size(kind)
        total = sum(group.count for _, _, group in groups)
        if not groups:
            click.echo(f"{_TITLES[kind]}: none")
            continue
        click.secho(f"{_TITLES[kind]}: {_decisions(total)}", fg=color, bold=True)
        for _, change, group in groups if everything else groups[:_SHOWN]:
            click.secho(f"  {group.count:>6,}  {visible(change.method)} {visible(change.place)}", fg=color)
            told = f"was {visible(change.was)}, now {visible(change.now)}; as {visible(group.example)}"
            click.echo(wrapped(_UNDER + told, columns, _UNDER))
        if not everything and len(groups) > _SHOWN:
            click.echo(f"{_UNDER}and {len(groups) - _SHOWN} more groups: --all shows them")
    allowed, denied = tally.unchanged["allow"], tally.unchanged["deny"]
    click.echo(f"unchanged: {_decisions(allowed + denied)} ({allowed:,} allow, {denied:,} deny)")
    if tally.otherwise.count:
        told = f"allowed as before, with another credential or to another place; as {visible(tally.otherwise.example)}"
        click.echo(wrapped(f"  {tally.otherwise.count:>6,}  {told}", columns, _UNDER))
    if tally.unknown:
        total = sum(group.count for group in tally.unknown.values())
        click.secho(f"cannot be judged again: {_decisions(total)}", fg="magenta")
        for why, group in sorted(tally.unknown.items(), key=lambda item: -item[1].count):
            click.echo(wrapped(f"  {group.count:>6,}  {why}; as {visible(group.example)}", columns, _UNDER))


def _decisions(count: int) -> str:
    return "1 decision" if count == 1 else f"{count:,} decisions"
