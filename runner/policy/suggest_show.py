"""A suggestion for people and for programs: the difference on stdout, what is said beside it on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from impyard.addon.policy import shown
from impyard.runner.policy.change import say
from impyard.runner.policy.suggest import Evidence, Suggestion
from impyard.runner.policy.suggest_words import ADVICE
from impyard.runner.policy.write import diff, show_diff
from impyard.runner.text import columns_of, counted, shortened, unstarred, visible, wrapped
from impyard.runner.typed import as_typed

MOST_APART = 12
LONGEST = 120  # characters of a request that is named
LEAST = 40
BESIDE = 34  # columns of what stands around it: mostly the id of a decision


def show(found: Suggestion, root: Path, *, err: bool = False) -> None:
    """Print the difference, on stdout unless `err`."""
    for (path, old), (_, new) in zip(found.before, found.contents, strict=True):
        if old != new:
            show_diff(diff(old, new, shown(path, root)), err=err)


def say_beside(found: Suggestion, *, counts: bool = True) -> None:
    """Say, on stderr, what the rules are good for, what to be careful about, and what no rule mends."""
    covered = sum(each.evidence.count for each in found.rules)
    if found.rules and counts:
        say(f"{counted(len(found.rules), 'rule')} for {counted(covered, 'denied request')}")
    for each in found.rules:
        for warning in each.warnings:
            say(f"careful: {each.where}: {warning}", fg="yellow")
    for remark in dict.fromkeys(found.remarks):
        say(f"note: {remark}")
    if found.allowed_now and counts:
        say(f"{counted(found.allowed_now, 'denied request')} would be allowed by now")
    if found.apart:
        _say_apart(found.apart)


def document(found: Suggestion, root: Path) -> dict[str, Any]:
    """All of it for a program."""
    changed = [
        (shown(path, root), old, new) for (path, old), (_, new) in zip(found.before, found.contents, strict=True)
    ]
    return {
        "rules": [
            {
                "host": each.where.host,
                "scheme": each.where.scheme,
                "port": each.where.port,
                "action": "ALLOW",
                "methods": list(each.rule.methods),
                "path": each.rule.path,
                "query": dict(each.rule.query),
                "websocket": each.rule.websocket,
                "pattern": [{"kind": kind, "values": values} for kind, values in each.places],
                "paths": each.paths,
                **_evidence(each.evidence),
                "warnings": list(each.warnings),
            }
            for each in found.rules
        ],
        "apart": [
            {
                "reason": apart.reason,
                "what": apart.what,
                "at": apart.at,
                **_evidence(evidence),
                "advice": ADVICE.get(apart.reason, ""),
            }
            for apart, evidence in found.apart.items()
        ],
        "allowed_now": found.allowed_now,
        "notes": list(dict.fromkeys(found.remarks)),
        "files": [{"file": name, "diff": "\n".join(diff(old, new, name))} for name, old, new in changed if old != new],
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {"count": evidence.count, "first": evidence.first, "runs": list(evidence.runs)}


def _say_apart(apart: dict[Any, Evidence]) -> None:
    """What no rule is suggested for, the most frequent first, each reason with its advice once."""
    columns = columns_of(sys.stderr)
    total = sum(evidence.count for evidence in apart.values())
    for line in wrapped(f"no rule is suggested for {counted(total, 'denied request')}:", columns, "  ").split("\n"):
        say(line)
    room = min(max((columns or LONGEST) - BESIDE, LEAST), LONGEST)
    reasons = dict.fromkeys(each.reason for each in sorted(apart, key=lambda each: -apart[each].count))
    for reason in reasons:
        click.echo(
            wrapped(f"  {reason}: {visible(as_typed(ADVICE.get(reason, 'no rule can allow it')))}", columns, "    "),
            err=True,
        )
        those = sorted((each for each in apart if each.reason == reason), key=lambda each: -apart[each].count)
        for each in those[:MOST_APART]:
            evidence = apart[each]
            what = " ".join(filter(None, [shortened(unstarred(each.what), room), f"by {each.at}" if each.at else ""]))
            count = f"{evidence.count} times, first " if evidence.count > 1 else ""
            click.echo(visible(f"    {what} ({count}{evidence.first})"), err=True)
        if len(those) > MOST_APART:
            click.echo(f"    and {len(those) - MOST_APART} more", err=True)
