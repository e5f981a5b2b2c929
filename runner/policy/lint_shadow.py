"""Lints about rules that make others pointless. Sound: what is claimed of all requests was computed for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from impyard.addon.paths import MatchFailed
from impyard.addon.policyfile import METHODS
from impyard.addon.request import is_address
from impyard.addon.rules import Entry, Rule
from impyard.addon.yamlnodes import short
from impyard.runner.policy.lint import Finding, Subject
from impyard.runner.policy.lint_ask import attempt, examples, finding, host_for, method_for, query_for
from impyard.runner.policy.places import Placed
from impyard.runner.policy.regexask import begin_alike, is_within, meet, samples_of, tree_of
from impyard.runner.policy.regexlang import Unknown

MAX_OTHERS = 8  # rules that one is compared with: those that match an example of it
MAX_QUESTIONS = 3000  # of one policy; a large one keeps some faults to itself rather than taking minutes
MAX_LOOKS = 1_000_000  # at two rules, for whether they may have to do with each other at all
_OTHER = "\0other"  # a method that no rule names


class _Asking:
    """Questions that cost time, as many as there may be."""

    def __init__(self) -> None:
        self.left = MAX_QUESTIONS
        self.looks = MAX_LOOKS

    def is_within(self, inner: str, outer: Sequence[str]) -> bool:
        if inner in outer:
            return True
        self._count()
        return is_within(inner, outer)

    def meet(self, one: str, other: str) -> bool:
        if one == other:
            return True
        self.look()
        if not begin_alike(one, other):
            return False
        self._count()
        return meet(one, other)

    def look(self, times: int = 1) -> None:
        self.looks -= times
        if self.looks < 0:
            raise Unknown

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Unknown


def findings(subject: Subject) -> list[Finding]:
    asking = _Asking()
    found = []
    for placed in subject.rules:
        for look in (_pointless_query, _never_decides, _deny_nothing):
            try:
                if each := look(subject, placed, asking):
                    found.append(each)
                    break
            except (Unknown, MatchFailed):
                continue
    return found


def _others(subject: Subject, placed: Placed, asking: _Asking) -> list[Placed]:
    """The rules of entries that cover all of this one's host, scheme and port, if they match an example of it."""
    rule = placed.rule
    assert rule is not None
    found: dict[int, Placed] = {}
    texts = samples_of(rule.path)
    for entry in subject.policy.entries_for(host_for(placed.entry)):
        if covers(entry, placed.entry):
            asking.look(len(texts) * len(entry.rules))
            for other in (each for text in texts for each in entry.matching(text) if each is not rule):
                found[id(other)] = subject.placed(other)
    return sorted(found.values(), key=lambda other: other.number)


def _never_decides(subject: Subject, placed: Placed, asking: _Asking) -> Finding | None:
    rule = placed.rule
    assert rule is not None
    # A later file may change what an earlier one says: that is what it is for.
    later = [
        other
        for other in _others(subject, placed, asking)
        if other.number > placed.number and other.source is placed.source
    ]
    able = [other for other in later if _implied(rule, other.rule)][-MAX_OTHERS:]
    deciding: dict[int, Placed] = {}
    for method, socket in _kinds(rule):
        if socket and not rule.allow and not rule.websocket and not _allows_sockets(subject):
            continue  # they are denied without it too
        for other in _enough(asking, rule, [each for each in able if _is_of(each.rule, method, socket)]):
            deciding[other.number] = other
    for path in examples(rule):
        socket = False not in _sockets(rule)
        tried = attempt(subject, placed.entry, method_for(rule), path, query=query_for(rule), websocket=socket)
        by = next((other.rule for other in deciding.values() if other.rule and tried.by(other.rule)), None)
        if by is None:
            continue
        where = _lines(deciding.values())
        match = "matches" if len(deciding) == 1 else "together match"
        outcome = f'{tried.text} is {"allowed" if by.allow else "denied"} by "{short(by.label)}"'
        message = f"has no effect: {where} below {match} all that it does; {outcome}"
        # A DENY that lost is meant to win. An ALLOW that lost to one is not: what is denied on purpose stays so.
        instead = "leave it out" if rule.allow and not by.allow else f"put it below {where}"
        if by.allow == rule.allow:
            instead = f"leave it out, or {instead}"
        return finding(placed, "never-decides", message, instead, example=tried.text)
    return None


def _allows_sockets(subject: Subject) -> bool:
    return any(each.rule is not None and each.rule.allow and each.rule.websocket for each in subject.rules)


def _enough(asking: _Asking, rule: Rule, others: list[Placed]) -> list[Placed]:
    """Those of the others that together match all paths of the rule; empty when they do not."""
    for other in reversed(others):
        assert other.rule is not None
        if asking.is_within(rule.path, [other.rule.path]):
            return [other]
    if len(others) > 1 and asking.is_within(rule.path, [each.rule.path for each in others if each.rule]):
        return others
    raise Unknown


def _deny_nothing(subject: Subject, placed: Placed, asking: _Asking) -> Finding | None:
    rule = placed.rule
    assert rule is not None
    if rule.allow or tree_of(rule.path) is None:
        return None
    if not any(other.rule and other.rule.allow for other in subject.rules if other.source is placed.source):
        return None  # a list of what to deny, to be put behind other files
    if any(
        o.rule and o.rule.allow and o.number < placed.number and _same_kind(rule, o.rule)
        for o in _others(subject, placed, asking)
    ):
        return None
    below = None
    for entry in subject.entries:
        if not _meets(entry.entry, placed.entry):
            continue
        for other in subject.rules_of(entry.entry):
            assert other.rule is not None
            if not other.rule.allow or not _same_kind(rule, other.rule):
                continue
            if other.number > placed.number and (below is not None or not covers(other.entry, placed.entry)):
                continue
            if not asking.meet(rule.path, other.rule.path):
                continue
            if other.number < placed.number:
                return None
            below = other
    if below is None or below.rule is None:
        for path in examples(rule)[:1]:
            tried = attempt(subject, placed.entry, method_for(rule), path)
            if not tried.by(rule):
                return None
            message = f"takes nothing away: nothing above allows {tried.text} or any other request that it matches"
            return finding(
                placed, "deny-nothing", message, "leave it out: what no rule allows is denied", example=tried.text
            )
        return None
    for path in examples(rule):
        tried = attempt(subject, placed.entry, method_for(rule), path)
        if tried.by(below.rule):
            where = _lines([below])
            message = f"takes nothing away: the last matching rule wins, and {where} allows {tried.text}"
            return finding(placed, "deny-nothing", message, f"put it below {where}", example=tried.text)
    return None


def _pointless_query(subject: Subject, placed: Placed, asking: _Asking) -> Finding | None:
    rule = placed.rule
    assert rule is not None
    if not rule.allow or not rule.query:
        return None
    for other in _others(subject, placed, asking)[:MAX_OTHERS]:
        beside = other.rule
        assert beside is not None
        if not beside.allow or beside.query or other.source is not placed.source:
            continue
        if not all(_is_of(beside, *kind) for kind in _kinds(rule)) or not asking.is_within(rule.path, [beside.path]):
            continue
        if other.number < placed.number and (rule.max_body is not None or denies_between(subject, other, placed)):
            continue
        if (other.entry.inject, other.entry.upstream) != (placed.entry.inject, placed.entry.upstream):
            continue
        for path in examples(rule):
            tried = attempt(subject, placed.entry, method_for(rule), path)
            if tried.by(beside):
                where = _lines([other])
                message = f"the query makes no difference: {where} allows {tried.text} without it"
                return finding(
                    placed,
                    "pointless-query",
                    message,
                    f"narrow {where}, or leave this rule out",
                    example=tried.text,
                    key="query",
                )
    return None


def denies_between(subject: Subject, first: Placed, last: Placed) -> bool:
    """Whether a DENY after the first, and before the last, may be about what the last allows: then that one counts."""
    return any(
        not each.rule.allow and _meets(each.entry, last.entry) and _same_kind(each.rule, last.rule)
        for each in subject.rules[first.number + 1 : last.number]
        if each.rule is not None and last.rule is not None
    )


def _lines(placed: Iterable[Placed]) -> str:
    numbers = sorted(each.lines[0] for each in placed)
    return f"line {numbers[0]}" if len(numbers) == 1 else f"lines {', '.join(map(str, numbers))}"


# --- what one rule says of another --------------------------------------------------------------------------------


def covers(outer: Entry, inner: Entry) -> bool:
    """Whether each request that the inner entry is about is one of the outer's too."""
    return _host_covers(outer.host, inner.host) and set(inner.ports.items()) <= set(outer.ports.items())


def _host_covers(outer: str, inner: str) -> bool:
    if outer == inner:
        return True
    if is_address(inner):
        return False
    return outer == "*" or (outer.startswith("*.") and inner.removeprefix("*.").endswith(outer[1:]))


def _meets(one: Entry, other: Entry) -> bool:
    """Whether some request may be about both."""
    hosts = _host_covers(one.host, other.host) or _host_covers(other.host, one.host)
    return hosts and not set(one.ports.items()).isdisjoint(other.ports.items())


def _sockets(rule: Rule) -> set[bool]:
    """Whether a rule is about WebSockets (True), about other requests (False)."""
    if rule.allow:
        return {False, True} if rule.websocket else {False}
    return {True} if rule.websocket else {False, True}


def _kinds(rule: Rule) -> list[tuple[str, bool]]:
    methods = sorted(rule.methods) if rule.methods is not None else [*METHODS, _OTHER]
    return [(method, socket) for method in methods for socket in _sockets(rule)]


def _is_of(rule: Rule | None, method: str, socket: bool) -> bool:
    return rule is not None and (rule.methods is None or method in rule.methods) and socket in _sockets(rule)


def _same_kind(one: Rule, other: Rule) -> bool:
    """Whether some method and kind of request is both rules'."""
    both = one.methods is None or other.methods is None or not one.methods.isdisjoint(other.methods)
    return both and not _sockets(one).isdisjoint(_sockets(other))


def _implied(rule: Rule, other: Rule | None) -> bool:
    """Whether the query holds for the other rule wherever it holds for this one."""
    if other is None:
        return False
    wanted = {(key, expression.pattern) for key, expression in other.query}
    given = {(key, expression.pattern) for key, expression in rule.query}
    # What an ALLOW wants of all values holds for one; not the other way round.
    return wanted <= given and (not wanted or rule.allow or not other.allow)
