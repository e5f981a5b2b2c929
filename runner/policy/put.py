"""Where in a policy a new rule has to stand, so that it decides what it is meant to, and changes little else.

Pure. Last match wins, so a rule that stands high loses to every DENY below it. A new ALLOW goes above all that holds
something of its host back, which keeps its effect, unless it is meant to win against one DENY; a new DENY goes below
what it takes back. What a DENY says about the query, say, is not seen from the request that a rule is made for: whether
both can match one request is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from impyard.addon.judge import Decision, Trace, judge, last_match
from impyard.addon.policy import Policy
from impyard.addon.request import Request
from impyard.addon.rules import Entry, Rule
from impyard.runner.policy.edit import CannotEdit, NewEntry, NewRule, count_entries, insert_entry, insert_rule
from impyard.runner.policy.loaded import policy_of
from impyard.runner.policy.regexask import begin_alike, meet
from impyard.runner.policy.regexlang import Unknown
from impyard.runner.policy.takeout import without_rule

Contents = tuple[tuple[Path, bytes], ...]


@dataclass(frozen=True, slots=True)
class Where:
    """What an entry is about: a canonical host, reached by this scheme at this port."""

    host: str
    scheme: str = "https"
    port: int = 443

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = {"https": 443, "http": 80}[self.scheme] == self.port
        return ("" if self.scheme == "https" else f"{self.scheme}://") + host + ("" if default else f":{self.port}")


@dataclass(frozen=True, slots=True)
class Put:
    """A policy with its addition. file: the number of the file that changed. is_new: that it has a new entry.

    remarks: what a person should know about the place, for people. wins: rules beside `over` that the new ones win
    against in requests other than those that they are for.
    """

    contents: Contents
    policy: Policy
    file: int
    is_new: bool
    remarks: tuple[str, ...] = ()
    wins: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Deciding:
    """The rule that decided, with its entry and its number there."""

    entry: Entry
    rule: Rule
    number: int


def deciding(request: Request, policy: Policy) -> tuple[Decision, Deciding | None]:
    """The decision, and the rule of the policy that made it, if one did.

    For a denial, the lowest DENY that some reading of the request meets, even if another reading meets no rule at all.
    """
    trace = Trace()
    decision = judge(request, policy, trace)
    found: list[Deciding] = []
    for question in trace.questions:
        match = last_match(trace.covering, question)
        if match is not None and match[1].allow is decision.allowed:
            entry, rule = match
            number = next(n for n, each in enumerate(entry.rules) if each is rule)
            found.append(Deciding(entry, rule, number))
    return decision, max(found, key=lambda each: (each.entry.order, each.number), default=None)


def put(
    contents: Contents,
    root: Path | None,
    where: Where,
    rules: Sequence[NewRule],
    *,
    over: Deciding | None = None,
) -> Put:
    """The policy with these rules, all ALLOW or all DENY, for `where`.

    over: the rule that the new ones are to win against; without it, they win against no DENY. Raises PolicyError for a
    policy that is broken, CannotEdit where its text gives no safe place.
    """
    policy = policy_of(contents, root)
    covering = sorted(
        (e for e in policy.entries_for(where.host) if e.covers(where.scheme, where.port)), key=lambda e: e.order
    )
    own = [entry for entry in covering if entry.host == where.host]
    # An entry about more than this scheme would let the rule hold for more; but one that leads elsewhere, or puts a
    # credential on, is what the request is meant for.
    own = [e for e in own if len(e.ports) == 1] or [e for e in own if e.inject is not None or e.upstream is not None]
    allow = rules[0].allow
    if over is None:
        entry = own[0] if own else None
        at = _first_guard(entry) if entry is not None else None
        if entry is not None and _guards(covering, rules, (-1, 0), (entry.order, 0)):
            entry = None
        order = next((e.order for e in covering if _first_guard(e) is not None), None)
    else:
        entry = next((e for e in own if e.order >= over.entry.order), None)
        if entry is not None and entry.order == over.entry.order and allow:
            at = over.number + 1
        else:
            at = _first_guard(entry) if entry is not None and allow else None
            if allow and entry is not None and _guards(covering, rules, _after(over), (entry.order, 0)):
                entry = None
        order = over.entry.order + 1
    several = len(contents) > 1
    counts = [count_entries(data) for _, data in contents] if several else [len(policy.entries)]
    made = None
    if entry is not None:
        try:
            made = _into_entry(contents, _in_file(entry.order, counts), rules, at)
        except CannotEdit:  # its rules are those of other entries too
            order = entry.order + 1 if order is None else order
            entry = None
    if made is None:
        file, index = (len(counts) - 1, None) if order is None else _gap_in_file(order, counts)
        new = NewEntry(where.host, tuple(rules), where.scheme, where.port)
        made = file, insert_entry(contents[file][1], new, index)
    file, data = made
    changed = tuple((path, data if n == file else old) for n, (path, old) in enumerate(contents))
    remarks = tuple(_remarks(entry, covering, where)) if allow else ()
    wins: tuple[Rule, ...] = ()
    if over is not None and allow:
        place = (over.entry.order + 1, 0) if entry is None else (entry.order, inf if at is None else at)
        meant = policy.entries[over.entry.order].rules[over.number]
        passed = _guards(covering, rules, (-1, 0), place)
        # One without a condition is about the request that the exception is for, as `over` is.
        wins = tuple(rule for rule in passed if rule is not meant and (rule.allow or rule.query or rule.websocket))
    return Put(changed, policy_of(changed, root), file, entry is None, remarks, wins)


def take_out(contents: Contents, root: Path | None, met: Deciding) -> tuple[Contents, Policy] | None:
    """The policy without a rule, and the same as text; None where only a person can take it out."""
    file, index = _in_file(met.entry.order, [count_entries(data) for _, data in contents])
    new = without_rule(contents[file][1], index, met.number)
    if new is None:
        return None
    changed = tuple((path, new if n == file else old) for n, (path, old) in enumerate(contents))
    return changed, policy_of(changed, root)


def _into_entry(
    contents: Contents, place: tuple[int, int], rules: Sequence[NewRule], at: int | None
) -> tuple[int, bytes]:
    file, index = place
    data = contents[file][1]
    for number, rule in enumerate(rules):
        data = insert_rule(data, index, rule, None if at is None else at + number)
    return file, data


def is_below_deny(policy: Policy, where: Where) -> bool:
    """Whether a new ALLOW would stand below some DENY about `where`, so that a pattern might reach what that denies."""
    covering = sorted(
        (e for e in policy.entries_for(where.host) if e.covers(where.scheme, where.port)), key=lambda e: e.order
    )
    own = [entry.order for entry in covering if entry.host == where.host]
    return bool(own) and any(e.order < own[0] and not all(rule.allow for rule in e.rules) for e in covering)


def _guards(
    covering: Sequence[Entry], new: Sequence[NewRule], start: tuple[int, float], end: tuple[int, float]
) -> list[Rule]:
    """What holds back some request that one of the new rules matches too, from a place (entry, rule) up to another."""
    return [
        rule
        for entry in covering
        for number, rule in enumerate(entry.rules)
        if start <= (entry.order, number) < end and _is_guard(rule) and any(_can_meet(rule, each) for each in new)
    ]


def _after(over: Deciding) -> tuple[int, float]:
    return over.entry.order, over.number + 1


def _is_guard(rule: Rule) -> bool:
    """Whether it holds something back: all that it matches, or what is larger."""
    return not rule.allow or rule.max_body is not None


def _can_meet(rule: Rule, new: NewRule) -> bool:
    """Whether there is, or may be, a request that both match."""
    if rule.methods is not None and new.methods and rule.methods.isdisjoint(new.methods):
        return False
    if rule.websocket and not rule.allow and not new.websocket:
        return False  # about handshakes only
    try:
        return begin_alike(rule.path, new.path) and meet(rule.path, new.path)
    except Unknown:
        return True


def _first_guard(entry: Entry) -> int | None:
    return next((number for number, rule in enumerate(entry.rules) if _is_guard(rule)), None)


def _in_file(order: int, counts: Sequence[int]) -> tuple[int, int]:
    """The file of an entry, and its number there."""
    for file, count in enumerate(counts):
        if order < count:
            return file, order
        order -= count
    raise IndexError(order)


def _gap_in_file(order: int, counts: Sequence[int]) -> tuple[int, int]:
    """The file and the number there of a new entry that comes before the one of this order; at the end of a file
    rather than at the beginning of the next."""
    for file, count in enumerate(counts):
        if order <= count:
            return file, order
        order -= count
    raise IndexError(order)


def _remarks(entry: Entry | None, covering: Sequence[Entry], where: Where) -> list[str]:
    if entry is None:
        return [
            f"the entry at {e.at} {_what(e)}; the new one for {where} does not"
            for e in covering
            if e.inject is not None or e.upstream is not None
        ]
    remarks = []
    if len(entry.ports) > 1:
        remarks.append(f"the entry at {entry.at} is about {' and '.join(sorted(entry.ports))}: the rule holds for both")
    if entry.inject is not None:
        remarks.append(
            f"the entry at {entry.at} puts the credential {entry.inject.credential} on: it acts with its rights"
        )
    return remarks


def _what(entry: Entry) -> str:
    if entry.inject is not None:
        return f"puts the credential {entry.inject.credential} on"
    return f"leads {entry.upstream}" if str(entry.upstream).startswith("via") else f"leads to {entry.upstream}"
