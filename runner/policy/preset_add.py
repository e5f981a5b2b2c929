"""Putting a preset's entries into a policy: which of them are new, where they stand, and what your rules say to them.

Last match wins, so an entry at the end would win over a DENY that somebody wrote above it. An entry about a host that
the policy is about already goes above those: what stands in the policy goes on to decide all that it decided, and the
preset adds only what was without a rule. Pure: bytes in, bytes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from impyard.addon.policy import Policy, read_policy
from impyard.addon.rules import Entry, Rule
from impyard.runner.policy.edit import insert_text
from impyard.runner.policy.expect import Expectation, Outcome, judged
from impyard.runner.policy.lint import lints

_NEVER_DECIDES = "never-decides"


@dataclass(slots=True)
class Addition:
    """What adding a preset does. data: the new bytes, the old ones where nothing is new. added: the hosts of its new
    entries. notes: what a person should know, one sentence each."""

    data: bytes
    added: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def add(data: bytes, path: Path, root: Path, texts: Sequence[str], preset: str) -> Addition:
    """The policy's bytes with those entries of `texts` that are not in it. Raises PolicyError and CannotEdit."""
    policy = read_policy([(path, data)], root=root)
    done = Addition(data)
    above: list[tuple[int | None, str]] = []
    for text in texts:
        (entry,) = read_policy([(Path(f"{preset}.yaml"), f"networkPolicies:\n{text}".encode())]).entries
        if (same := _same(policy, entry)) is not None:
            if not _injects_alike(same, entry):
                done.notes.append(_of_inject(same, entry))
            continue
        first = _first_about(policy, entry)
        if first is not None:
            met = policy.entries[first]
            done.notes.append(
                f"{met.at} is about {_named(met.host)} too: the preset's entry goes above it, so that what you wrote "
                "there goes on to win"
            )
        above.append((first, text))
        done.added.append(entry.host)
    heading = f"# Preset {preset}: `impyard policy preset show {preset}` says more.\n"
    # From the end on, so that the places of the others stay right; those for one place together, in their order.
    groups: dict[int | None, list[str]] = {}
    for at, text in above:
        groups.setdefault(at, []).append(text)
    for at in sorted(groups, key=lambda at: len(policy.entries) if at is None else at, reverse=True):
        done.data = insert_text(done.data, heading + _outdented("".join(groups[at])), at)
    return done


def held_back(old: bytes, new: bytes, path: Path, root: Path, expected: Sequence[Expectation]) -> list[str]:
    """What of presets' expectations the policy does not meet, for people: denied by rules that stood in it before, or
    allowed by them though the preset would not."""
    before, after = (read_policy([(path, data)], root=root) for data in (old, new))
    notes: dict[str, list[str]] = {}
    for outcome in judged([each for each in expected if each.allow], after):
        if not outcome.decision.allowed:
            notes.setdefault(f"stays denied by {_by(outcome)}", []).append(_asked(outcome))
    for outcome in judged([each for each in expected if not each.allow], before):
        if outcome.decision.allowed:
            notes.setdefault(f"was allowed before by {_by(outcome)}, not by the preset", []).append(_asked(outcome))
    return [f"{what}: {_some(urls)}" for what, urls in notes.items()]


def without_effect(old: bytes, new: bytes, path: Path, root: Path) -> list[str]:
    """The rules that are new in the policy and decide nothing, for people: what the policy says already goes on to
    win, and matches all that they do."""
    before, after = (lints([(path, data)], root=root) for data in (old, new))
    known = {lint.example for lint in before if lint.code == _NEVER_DECIDES}
    return [
        f"{lint.file}:{lint.line} {lint.message}; take that out if only the narrower is meant"
        for lint in after
        if lint.code == _NEVER_DECIDES and lint.example not in known
    ]


def _by(outcome: Outcome) -> str:
    decision = outcome.decision
    return f"{decision.at} {decision.rule}" if decision.at else decision.reason


def _asked(outcome: Outcome) -> str:
    asked = outcome.expectation.asked
    return f"{asked.method} {asked.url}"


def _some(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} and {len(texts) - 1} more of the preset's examples"


def _same(policy: Policy, wanted: Entry) -> Entry | None:
    """The entry of the policy that says what `wanted` says, whatever it injects."""
    for entry in policy.entries:
        if (entry.host, entry.ports, entry.upstream) == (wanted.host, wanted.ports, wanted.upstream) and [
            _said(rule) for rule in entry.rules
        ] == [_said(rule) for rule in wanted.rules]:
            return entry
    return None


def _said(rule: Rule) -> tuple[object, ...]:
    query = sorted((key, expression.pattern) for key, expression in rule.query)
    return rule.allow, rule.methods, rule.path, rule.websocket, rule.max_body, query


def _injects_alike(a: Entry, b: Entry) -> bool:
    return (a.inject and a.inject.credential) == (b.inject and b.inject.credential)


def _of_inject(there: Entry, wanted: Entry) -> str:
    if wanted.inject is None:
        assert there.inject is not None
        return f"{there.at} has this entry, with `inject: {there.inject.credential}`; it stays so"
    return f"{there.at} has this entry without the credential; write `inject: {wanted.inject.credential}` there"


def _first_about(policy: Policy, wanted: Entry) -> int | None:
    """The number of the first entry that is about a host and port of `wanted` too; None when none is."""
    for number, entry in enumerate(policy.entries):
        if set(entry.ports.items()) & set(wanted.ports.items()) and _meet(entry.host, wanted.host):
            return number
    return None


def _meet(a: str, b: str) -> bool:
    """Whether some host is meant by both patterns."""
    if a == b or "*" in (a, b):
        return True
    for wide, other in ((a, b), (b, a)):
        if wide.startswith("*.") and other.removeprefix("*").removeprefix(".").endswith(wide[1:]):
            return True
    return False


def _named(host: str) -> str:
    return "every host" if host == "*" else host


def _outdented(text: str) -> str:
    return "".join(line.removeprefix("  ") for line in text.splitlines(keepends=True))
