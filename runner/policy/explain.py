"""What the judge looked at for one request, in parts that can be shown. The verdict is the judge's own.

`explain` asks `judge` and keeps what it traced; which rule matches what is asked of the same functions that the judge
uses. No click, no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from impyard.addon.errors import PolicyError
from impyard.addon.judge import Decision, Question, Trace, Verdict, compared, judge, last_match
from impyard.addon.paths import MatchFailed
from impyard.addon.policy import Policy, Proxy
from impyard.addon.publicaddresses import leads_inside
from impyard.addon.readings import Ambiguous
from impyard.addon.request import Request
from impyard.addon.rules import Entry, Rule


@dataclass(frozen=True, slots=True)
class Considered:
    """A rule of an entry about the host. failed: what kept it from matching, in the words of a refusal's `nearest`
    ("port" and "scheme" are the entry's); None for one that matches. won: it decided."""

    entry: Entry
    rule: Rule
    failed: str | None
    won: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read the request. rule: the one that decides it, None when none matches. unread: why it could not be
    read after all. decides: the verdict is this reading's."""

    method: str
    path: str
    query: str
    rule: Rule | None
    decides: bool
    unread: str = ""

    @property
    def allowed(self) -> bool:
        return self.rule is not None and self.rule.allow


@dataclass(frozen=True, slots=True)
class Explanation:
    """decision: the judge's. readings: as it asked, the one as sent first; none where it did not come so far.
    considered: the rules about the host, in the order of the policy, for the reading that decides."""

    decision: Decision
    readings: tuple[Reading, ...] = ()
    considered: tuple[Considered, ...] = ()


def explain(request: Request, policy: Policy | PolicyError) -> Explanation:
    """The judge's decision on a request, and what it rests on."""
    trace = Trace()
    decision = judge(request, policy, trace)
    readings = [_read(trace, question) for question in trace.questions]
    deciding = next((number for number, reading in enumerate(readings) if not reading.allowed), 0)
    considered: tuple[Considered, ...] = ()
    if readings:
        readings[deciding] = _decides(readings[deciding])
        considered = tuple(_considered(trace, trace.questions[deciding], readings[deciding].rule))
    elif trace.about and not trace.covering:
        considered = tuple(_elsewhere(request, trace))
    return Explanation(decision, tuple(readings), considered)


def routed(request: Request, found: Explanation) -> Explanation:
    """The same, with the denial of what the rules allow where the gateway needs to ask nobody for it: the host is a
    private address, or named so, and the policy does not say where it leads."""
    decision = found.decision
    if not decision.allowed or not isinstance(decision.upstream, Proxy | None) or not leads_inside(request.host):
        return found
    hint = f"write `upstream` into the entry of {request.host}: nothing private is reached otherwise"
    return replace(found, decision=replace(decision, verdict=Verdict.DENY, reason="private-address", hint=hint))


def unsupplied(found: Explanation, why: str) -> Explanation:
    """The same, denied for want of the credential that the policy puts on; `why` says what is wrong with it."""
    decision = replace(found.decision, verdict=Verdict.DENY, reason="credential-unavailable", hint=why)
    return replace(found, decision=decision)


def _read(trace: Trace, question: Question) -> Reading:
    try:
        found = last_match(trace.covering, question)
    except (Ambiguous, MatchFailed) as exc:
        return Reading(question.method, question.path, question.query.raw, None, False, str(exc) or "too large")
    return Reading(question.method, question.path, question.query.raw, found[1] if found else None, False)


def _decides(reading: Reading) -> Reading:
    return Reading(reading.method, reading.path, reading.query, reading.rule, True, reading.unread)


def _considered(trace: Trace, question: Question, winner: Rule | None) -> Iterator[Considered]:
    try:
        failed = {id(rule): why for _, rule, why in compared(trace.covering, question)}
    except (Ambiguous, MatchFailed):
        return
    for entry in reversed(trace.covering):
        for rule in entry.rules:
            yield Considered(entry, rule, failed.get(id(rule), "path"), rule is winner)


def _elsewhere(request: Request, trace: Trace) -> Iterator[Considered]:
    """The rules of entries that are about the host, but not about this scheme or port."""
    for entry in reversed(trace.about):
        for rule in entry.rules:
            yield Considered(entry, rule, "port" if request.scheme in entry.ports else "scheme")
