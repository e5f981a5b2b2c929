"""From denied requests to the smallest rules that would allow them, each with its evidence. Pure.

What is suggested is proved: each rule is asked about every request that it was made for, alone and in the policy. What
no rule can mend, or none should be made for, is counted apart (`suggestwords.ADVICE` says what to do instead).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from impyard.addon.policy import Policy, read_policy
from impyard.runner.policy.edit import NewEntry, NewRule, insert_entry
from impyard.runner.policy.mendable import MENDABLE, METHOD, unsuited
from impyard.runner.policy.pathrules import NoRule, PathRule, exact, path_rules
from impyard.runner.policy.put import Contents, Put, Where, deciding, is_below_deny, put
from impyard.runner.policy.recorded import upgrade_of, url_of
from impyard.runner.policy.replay import NotRecorded, Recorded, Replay
from impyard.runner.policy.suggest_words import READING, is_fetch, warnings

ASKED_AGAIN = (*MENDABLE, "rule", "ambiguous-path", "body-limit")  # those that the policy of now decides anew
MOST_KINDS = 5_000  # different requests that are kept; more are only counted
MOST_RULES = 60  # that are suggested at once
SAMPLES = 5  # requests of a kind that a rule is asked about: they differ in query and headers
_EMPTY = (Path("policy"), b"networkPolicies: []\n")

Query = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a rule can tell requests apart by. query: the condition that a rule for it should have."""

    where: Where
    method: str
    path: str
    websocket: bool = False
    query: Query = ()


@dataclass(slots=True)
class Evidence:
    """How often something was asked: in which runs, first by which decision, and some of the requests themselves."""

    count: int = 0
    first: str = ""
    runs: dict[str, None] = field(default_factory=dict)
    redirected_by: str | None = None
    samples: list[Recorded] = field(default_factory=list)

    def add(self, asked: Recorded) -> None:
        self.count += asked.times
        self.first = self.first or asked.id
        self.runs[asked.run] = None
        self.redirected_by = self.redirected_by or asked.redirected_by
        if len(self.samples) < SAMPLES and all(each.query != asked.query for each in self.samples):
            self.samples.append(asked)

    def merge(self, other: Evidence) -> None:
        self.count += other.count
        self.first = self.first or other.first
        self.runs |= other.runs
        self.redirected_by = self.redirected_by or other.redirected_by
        self.samples += other.samples


@dataclass(frozen=True, slots=True)
class Apart:
    """Denials that no rule is suggested for. reason: a key of ADVICE. what: an example of them, `METHOD URL`."""

    reason: str
    what: str
    at: str | None = None


@dataclass(frozen=True, slots=True)
class Suggested:
    """A rule, with what it stands on. paths: how many different ones were asked for. places: as in PathRule."""

    where: Where
    rule: NewRule
    evidence: Evidence
    paths: int
    places: tuple[tuple[str, int], ...]
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Suggestion:
    """All of it. contents: the policy's files with the rules in them; before: as they are."""

    before: Contents
    contents: Contents
    rules: list[Suggested]
    apart: dict[Apart, Evidence]
    allowed_now: int
    remarks: list[str]

    def set_apart(self, reason: str, what: str, evidence: Evidence) -> None:
        """Count what no rule is suggested for after all."""
        self.apart.setdefault(Apart(reason, what), Evidence()).merge(evidence)


class Collector:
    """Takes denials one by one, asks the policy of now about each, and keeps what it still denies."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.replay = Replay(policy)
        self.kinds: dict[Kind, Evidence] = {}
        self.apart: defaultdict[Apart, Evidence] = defaultdict(Evidence)
        self.allowed_now = 0
        self._known: dict[tuple[object, ...], Kind | Apart | None] = {}

    def add(self, asked: Recorded) -> None:
        """Take one decision; what was allowed, and impyard's own checks, are passed over."""
        if asked.verdict == "deny" and not asked.is_own_check:
            self.add_denied(asked)

    def add_denied(self, asked: Recorded) -> None:
        """Take one request as one that was denied, whatever was decided."""
        size = len(asked.headers or ())
        key = (asked.reason, asked.method, url_of(asked), asked.query, upgrade_of(asked), asked.body_bytes, size)
        if key not in self._known:
            if len(self._known) > MOST_KINDS:
                self._known.clear()
            self._known[key] = self._what(asked)
        found = self._known[key]
        if found is None:
            self.allowed_now += asked.times
        elif isinstance(found, Apart):
            self.apart[found].add(asked)
        elif found in self.kinds or len(self.kinds) < MOST_KINDS:
            self.kinds.setdefault(found, Evidence()).add(asked)
        else:
            self.apart[Apart("many", asked.host)].add(asked)

    def _what(self, asked: Recorded) -> Kind | Apart | None:
        """The kind of a request that is denied still, or why it is none; None for one that would be allowed now."""
        example = _named(asked)
        if asked.verdict == "deny" and asked.reason not in ASKED_AGAIN:
            return Apart(asked.reason, asked.host if asked.reason != "policy-broken" else "", asked.at)
        try:
            decision = self.replay.decision(asked)
        except NotRecorded:
            return Apart("cut", example)
        if decision.allowed:
            return None
        if decision.reason not in MENDABLE:
            return Apart(decision.reason, example, decision.at)
        if "%" in asked.path and (met := deciding(self.replay.request(asked), self.policy)[1]):
            return Apart("rule", example, met.rule.at)  # by another reading: a rule for the path would not get past it
        if why := unsuited(asked.method, asked.scheme, asked.host, asked.port):
            return Apart(why, example)
        return kind_of(asked)


def kind_of(asked: Recorded) -> Kind:
    """What a rule for this request would be about."""
    query: Query = ()
    if asked.path.endswith("/info/refs") and asked.query in ("service=git-upload-pack", "service=git-receive-pack"):
        query = (("service", asked.query.partition("=")[2]),)
    where = Where(asked.host, asked.scheme, asked.port)
    return Kind(where, asked.method, asked.path, upgrade_of(asked) == "websocket", query)


def suggestion(contents: Contents, root: Path | None, found: Collector, *, patterns: bool = True) -> Suggestion:
    """The rules for what was collected, in the order in which it was first asked for, put into the policy.

    patterns: whether rules may match more than what was asked for.
    """
    made = Suggestion(contents, contents, [], dict(found.apart), found.allowed_now, [])
    by_place: defaultdict[Where, dict[Kind, Evidence]] = defaultdict(dict)
    for kind, evidence in found.kinds.items():
        by_place[kind.where][kind] = evidence
    for where, kinds in by_place.items():
        if len(made.rules) >= MOST_RULES:
            for evidence in kinds.values():
                made.set_apart("many", where.host, evidence)
            continue
        rules: list[Suggested] = []
        for each in _rules(where, kinds, made, patterns=patterns and not is_below_deny(found.policy, where)):
            if len(made.rules) + len(rules) < MOST_RULES:
                rules.append(each)
            else:
                made.set_apart("many", where.host, each.evidence)
        if rules:
            done = put(made.contents, root, where, [each.rule for each in rules])
            _ask(rules, done, made)
            made.contents = done.contents
            made.remarks += done.remarks
            made.rules += rules
    return made


def _ask(rules: Sequence[Suggested], done: Put, made: Suggestion) -> None:
    """Ask the policy with the rules about all that they are for; what it denies still is said apart."""
    replay = Replay(done.policy)
    for each in rules:
        for asked in each.evidence.samples:
            if not _allows(replay, asked):
                made.set_apart("otherwise", _named(asked), each.evidence)


def _allows(replay: Replay, asked: Recorded) -> bool:
    try:
        return replay.decision(asked).allowed
    except NotRecorded:  # a rule about the query, where the query was redacted
        return False


def _named(asked: Recorded) -> str:
    return f"{asked.method} {url_of(asked)}"


def _rules(where: Where, kinds: dict[Kind, Evidence], made: Suggestion, *, patterns: bool) -> list[Suggested]:
    """The rules for one place, those for reading merged where they are about the same paths."""
    groups: defaultdict[tuple[str, bool, Query], dict[str, Evidence]] = defaultdict(dict)
    for kind, evidence in kinds.items():
        try:
            expression = exact(kind.path)
        except NoRule:
            made.set_apart("ambiguous-path", _named(evidence.samples[0]), evidence)
            continue
        if _fails(where, kind, expression, evidence):
            made.set_apart("otherwise", _named(evidence.samples[0]), evidence)
            continue
        groups[kind.method, kind.websocket, kind.query][kind.path] = evidence
    # Who may GET something may ask for its HEAD: one rule for both.
    heads: dict[tuple[str, bool, Query], Evidence] = {}
    for (_, websocket, query), paths in [item for item in groups.items() if item[0][0] == "GET"]:
        asked = groups.get(("HEAD", websocket, query), {})
        for path in set(asked) & set(paths):
            heads[path, websocket, query] = asked.pop(path)
    merged: dict[tuple[str, bool, Query, str], tuple[list[str], PathRule, Evidence]] = {}
    for (method, websocket, query), paths in groups.items():
        for path_rule in path_rules(paths, patterns=patterns):
            key = (path_rule.expression, websocket, query, "" if method in READING else method)
            methods, _, evidence = merged.setdefault(key, ([], path_rule, Evidence()))
            methods.append(method)
            for path in path_rule.paths:
                evidence.merge(paths[path])
                if method == "GET" and (head := heads.get((path, websocket, query))):
                    evidence.merge(head)
                    methods += ["HEAD"] if "HEAD" not in methods else []
    return [
        _suggested(where, tuple(methods), path_rule, websocket, query, evidence)
        for (_, websocket, query, _), (methods, path_rule, evidence) in merged.items()
    ]


def _suggested(
    where: Where, methods: tuple[str, ...], path_rule: PathRule, websocket: bool, query: Query, evidence: Evidence
) -> Suggested:
    told = warnings(where.host, methods, path_rule.expression, query)
    count = len(path_rule.paths)
    lines = [_asked(evidence)] if evidence.first else []
    if path_rule.places:
        kinds = ", ".join(f"{kind} ({values} values)" for kind, values in path_rule.places)
        lines.append(f"a pattern, from {count} paths: {kinds}")
    elif count > 1 and lines:
        lines[0] = f"{count} paths, {lines[0]}"
    if evidence.redirected_by:
        lines.append(f"the answer to {evidence.redirected_by} sent the client here")
    if is_fetch(methods, path_rule.expression):
        lines.append("git asks so for what it fetches; a push stays denied")
    lines += [f"careful: {warning}" for warning in told]
    rule = NewRule(methods, path_rule.expression, query=query, websocket=websocket, comment=tuple(lines))
    return Suggested(where, rule, evidence, count, path_rule.places, told)


def rule_of(kind: Kind, asked: Recorded, *, allow: bool = True) -> tuple[NewRule, tuple[str, ...]]:
    """The rule for just one request, and warnings about it. Raises NoRule where none should be written."""
    if not METHOD.fullmatch(kind.method):
        raise NoRule("method")
    told = warnings(kind.where.host, (kind.method,), exact(kind.path), kind.query) if allow else ()
    comment: tuple[str, ...] = (f"for {asked.id}",) if asked.id else ()
    comment += tuple(f"careful: {warning}" for warning in told)
    rule = NewRule((kind.method,), exact(kind.path), allow, kind.query, websocket=kind.websocket, comment=comment)
    return rule, told


def _fails(where: Where, kind: Kind, expression: str, evidence: Evidence) -> bool:
    """Whether a policy of just this rule does not allow what it is made for: headers or the query may ask for more."""
    rule = NewRule((kind.method,), expression, query=kind.query, websocket=kind.websocket)
    name, data = _EMPTY
    policy = read_policy([(name, insert_entry(data, NewEntry(where.host, (rule,), where.scheme, where.port)))])
    replay = Replay(policy)
    return not all(_allows(replay, asked) for asked in evidence.samples)


def collect(policy: Policy, decisions: Iterable[Recorded]) -> Collector:
    """What a log holds that this policy denies."""
    found = Collector(policy)
    for asked in decisions:
        found.add(asked)
    return found


def _asked(evidence: Evidence) -> str:
    """How often, in which runs, and the first decision, whose id names its run."""
    if evidence.count == 1:
        return f"asked once: {evidence.first}"
    runs = f" in {len(evidence.runs)} runs" if len(evidence.runs) > 1 else ""
    return f"asked {evidence.count} times{runs}, first {evidence.first}"
