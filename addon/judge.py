"""The judge: a request and a policy in, a decision out.

Values in, values out: no clock, no socket, no file, no log. What cannot be judged is denied.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from impyard.addon.errors import PolicyError
from impyard.addon.policy import Entry, Inject, MatchFailed, Policy, Route, Rule
from impyard.addon.readings import Ambiguous, Query, overrides, readings
from impyard.addon.reasons import HINTS
from impyard.addon.request import CANARY_SUFFIX, METHOD, Request, canonical_host, split_authority

_PATH = re.compile(r"/[!-\"$->@-~]*")  # printable ASCII without space, "#" and "?"
_QUERY = re.compile(r"[!-\"$-~]*")  # the same with "?"
_MAX_METHODS = 4
_MAX_TARGETS = 4
_MAX_QUESTIONS = 256
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # RFC 9110 5.5, 5.2: some origins end a header at a bare CR
_MAX_LENGTH = (1 << 63) - 1  # what origins read a length into: a larger one wraps around in some of them
_FRAMING = "transfer-encoding"  # with more than chunks in it, an origin that knows only chunks would see no body
_VERSIONS = ("1.0", "1.1", "2.0")


class Verdict(enum.Enum):
    """The answer alone."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Nearest:
    """The rule, or the entry, that came closest: at is its "file:line", failed what kept it from allowing the request.

    failed: "host", "port", "scheme", "method", "path", "query", "websocket" or "action".
    """

    at: str
    failed: str


@dataclass(frozen=True, slots=True)
class Secret:
    """What was found in a request to a host that it is not bound to; never the value.

    credential: its name. kind: "sentinel" or "value". where: "header <name>", "method", "path", "query", "host", "body"
    or "message".
    """

    credential: str
    kind: str
    where: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with what led to it.

    reason: one of REASONS. rule, at: label and "file:line" of the deciding rule, None when none decided (for a broken
    policy `at` is its first fault). nearest: for denials that a person may want to turn into a rule.
    hint: one sentence for the agent. upstream: where to connect instead of the host, or through which proxy.
    led_by: the id of the decision whose answer redirected to the host. max_body: bytes that the body may have; the
    gateway counts them when the length is not declared. times: how many refusals of a flood it stands for.
    inject: the credential that the deciding entry wants put on. injected: lower-case names of the headers that were.
    secret: what does not belong into the request. follows: the id of the decision that allowed a request whose body
    this one is about.
    """

    verdict: Verdict
    reason: str
    rule: str | None = None
    at: str | None = None
    nearest: Nearest | None = None
    hint: str = ""
    upstream: Route | None = None
    max_body: int | None = None
    led_by: str | None = None
    times: int = 1
    inject: Inject | None = None
    injected: tuple[str, ...] = ()
    secret: Secret | None = None
    follows: str | None = None

    @property
    def allowed(self) -> bool:
        return self.verdict is Verdict.ALLOW


def denial(reason: str, *, hint: str | None = None, at: str | None = None) -> Decision:
    """A denial for a reason that no rule gave."""
    return Decision(Verdict.DENY, reason, at=at, hint=hint or HINTS.get(reason, ""))


@dataclass(slots=True)
class Question:
    """One reading of a request: what rules are asked about."""

    method: str
    path: str
    query: Query
    websocket: bool


@dataclass(slots=True)
class Trace:
    """What `judge` looked at on its way to a decision, for people. Empty where it did not come so far.

    about: the entries about the host, covering: those of them that are about its scheme and port too; both last first.
    questions: every reading of the request; the first that is not allowed decides.
    """

    about: Sequence[Entry] = ()
    covering: Sequence[Entry] = ()
    questions: list[Question] = field(default_factory=list)


def judge(request: Request, policy: Policy | PolicyError, trace: Trace | None = None) -> Decision:
    """The decision on `request`. Never raises for a `Request`; callers treat an exception as a denial all the same.

    trace: is told what was looked at; it changes nothing.
    """
    if request.host.endswith(CANARY_SUFFIX):
        return denial("canary")
    if isinstance(policy, PolicyError):
        fault = policy.faults[0]
        return denial("policy-broken", at=f"{fault.file}:{fault.line}" if fault.line else fault.file)
    if why := _malformed(request):
        return denial("malformed", hint=f"send a well-formed HTTP request: {why}")
    if request.method == "CONNECT":
        return denial("not-http")
    if not _one_host(request):
        return denial("host-mismatch")
    upgrade = request.upgrade.strip().lower()
    if upgrade and upgrade != "websocket":
        return denial("upgrade")
    try:
        return _by_rules(request, policy, bool(upgrade), trace or Trace())
    except Ambiguous as exc:
        return denial("ambiguous-path", hint=f"send the request in its plain form: {exc}")
    except MatchFailed:
        return denial("judge-error")


def _by_rules(request: Request, policy: Policy, websocket: bool, trace: Trace) -> Decision:
    trace.about = entries = policy.entries_for(request.host)
    if not entries:
        related = policy.related(request.host)
        nearest = Nearest(related.at, "host") if related else None
        return replace(denial("unlisted-host"), nearest=nearest)
    trace.covering = covering = [entry for entry in entries if entry.covers(request.scheme, request.port)]
    if not covering:
        failed = "port" if any(request.scheme in entry.ports for entry in entries) else "scheme"
        return replace(denial("no-rule"), nearest=Nearest(entries[0].at, failed))
    first: tuple[Entry, Rule] | None = None
    max_body: int | None = None
    trace.questions = questions = _questions(request, websocket)
    for question in questions:
        found = last_match(covering, question)
        if found is None or not found[1].allow:
            return _denied(covering, question, found, request, read_otherwise=first is not None)
        first = first or found
        if found[0] is not first[0] and not _leads_alike(found[0], first[0]):
            raise Ambiguous("entries that lead to different places, or inject differently, all match it")
        limit = found[1].max_body
        if limit is not None and (max_body is None or limit < max_body):
            max_body = limit
    if first is None:  # no question, no verdict
        return denial("judge-error")
    entry, rule = first
    if max_body is not None and request.body_bytes is not None and request.body_bytes > max_body:
        return Decision(Verdict.DENY, "body-limit", rule.label, rule.at, hint=HINTS["body-limit"], max_body=max_body)
    return Decision(
        Verdict.ALLOW, "rule", rule.label, rule.at, upstream=entry.upstream, max_body=max_body, inject=entry.inject
    )


def _leads_alike(a: Entry, b: Entry) -> bool:
    """Whether it makes no difference for a forwarded request which of the two entries allowed it."""
    return a.upstream == b.upstream and a.inject == b.inject


def _questions(request: Request, websocket: bool) -> list[Question]:
    """Every reading of the request, the one as sent first. Raises Ambiguous."""
    path, query = request.path, request.query
    methods, targets = overrides(request.headers)
    if "method" in _plain(query):  # PHP takes ".method" for "_method", ASP.NET any case of it
        methods += [value.upper() for value in Query(query).values("_method")]
    paths = readings(path) if path != "*" else ("*",)
    if len(paths) == 1 and not methods and not targets:
        return [Question(request.method, path, Query(query), websocket)]
    methods = list(dict.fromkeys([request.method, *methods]))
    if len(methods) > _MAX_METHODS or not all(METHOD.fullmatch(method) for method in methods):
        raise Ambiguous("it names several methods")
    pairs = [(reading, text) for text in _query_readings(paths, query) for reading in paths]
    if len(set(targets)) > _MAX_TARGETS:
        raise Ambiguous("headers name several targets")
    for target in dict.fromkeys(targets):
        other, _, text = target.partition("?")
        if not _PATH.fullmatch(other) or not _QUERY.fullmatch(text):
            raise Ambiguous("a header names another target")
        paths = readings(other)
        pairs += [(reading, each) for each in _query_readings(paths, text) for reading in paths]
    if len(pairs) > _MAX_QUESTIONS:
        raise Ambiguous("it can be read in too many ways")
    queries = {text: Query(text) for _, text in pairs}
    return [Question(method, reading, queries[text], websocket) for reading, text in pairs for method in methods]


def _plain(query: str) -> str:
    """The query decoded as often as any server does, in lower case."""
    return (unquote(unquote(query)) if "%" in query else query).lower()


def _query_readings(paths: tuple[str, ...], query: str) -> list[str]:
    """The query as sent, and behind what comes after an encoded "?" for servers that decode before they split."""
    return [query, *dict.fromkeys(f"{path.partition('?')[2]}&{query}" for path in paths if "?" in path)]


def last_match(entries: Sequence[Entry], question: Question) -> tuple[Entry, Rule] | None:
    """The last rule of the policy that matches, with its entry. `entries` come last first. Raises MatchFailed."""
    for entry, rule, failed in compared(entries, question):
        if failed is None:
            return entry, rule
    return None


def compared(entries: Sequence[Entry], question: Question) -> Iterator[tuple[Entry, Rule, str | None]]:
    """Each rule whose path matches, last first, with its entry and what else keeps it from matching, if anything."""
    for entry in entries:
        for rule in entry.matching(question.path):
            yield entry, rule, _mismatch(rule, question)


def _mismatch(rule: Rule, question: Question) -> str | None:
    """What keeps a rule whose path matches from matching altogether; None when nothing does."""
    if rule.methods is not None and question.method not in rule.methods:
        return "method"
    if rule.query and not _query_matches(rule, question.query):
        return "query"
    if question.websocket != rule.websocket and question.websocket == rule.allow:
        return "websocket"  # an ALLOW covers handshakes only if it says so; a DENY that says so covers nothing else
    return None


def _query_matches(rule: Rule, query: Query) -> bool:
    """An ALLOW wants every value of every key to match; a DENY holds as soon as one value of each does."""
    for key, expression in rule.query:
        values = query.values(key)
        if rule.allow:
            if not query.has(key) or not all(expression.fullmatch(value) for value in values):
                return False
        elif not any(expression.fullmatch(value) for value in values):
            return False
    return True


def _denied(
    entries: list[Entry],
    question: Question,
    found: tuple[Entry, Rule] | None,
    request: Request,
    *,
    read_otherwise: bool,
) -> Decision:
    """The denial for a question that no rule or a DENY rule answered."""
    if found is not None:
        rule = found[1]
        denied = Decision(Verdict.DENY, "rule", rule.label, rule.at, Nearest(rule.at, "action"))
    else:
        nearest = _nearest(entries, question)
        wants_socket = nearest is not None and nearest.failed == "websocket"
        denied = Decision(Verdict.DENY, "websocket" if wants_socket else "no-rule", nearest=nearest)
    other_target = (question.path, question.query.raw) != (request.path, request.query)
    reason = "ambiguous-path" if read_otherwise and other_target else denied.reason
    return replace(denied, reason=reason, hint=HINTS[reason])


# The order in which fields are compared: who fails on a later one came closer.
_CLOSENESS = ("path", "method", "query", "websocket")


def _nearest(entries: list[Entry], question: Question) -> Nearest | None:
    """The ALLOW rule that came closest to a question that no rule answered."""
    best: tuple[int, Rule] | None = None
    for _, rule, failed in compared(entries, question):
        if rule.allow and failed:
            closeness = _CLOSENESS.index(failed)
            if best is None or closeness > best[0]:
                best = closeness, rule
    if best is not None:
        return Nearest(best[1].at, _CLOSENESS[best[0]])
    for entry in entries:
        alike = [rule for rule in entry.resembling(question.path) if rule.allow]
        for rule in alike:
            if rule.methods is None or question.method in rule.methods:
                return Nearest(rule.at, "path")
        if alike:
            return Nearest(alike[0].at, "path")
    return None


def _malformed(request: Request) -> str | None:
    """What is wrong with the request itself, for people; None when it is well-formed."""
    if not METHOD.fullmatch(request.method):
        return "the method is no token, or too long"
    if request.http not in _VERSIONS:
        return "the version is none that is spoken here"
    if _CONTROL.search("".join([value for _, value in request.headers])):
        return "a header holds control characters or is folded"
    if request.body_bytes is not None and request.body_bytes > _MAX_LENGTH:
        return "the length of the body is no plausible number"
    if any(value.strip().lower() != "chunked" for name, value in request.headers if name.lower() == _FRAMING):
        return "the body is framed in another way than in plain chunks"
    try:
        if canonical_host(request.host) != request.host:
            return "the host is not in its normal form"
    except ValueError:
        return "the host is no legal name"
    if not _PATH.fullmatch(request.path) and not (request.path == "*" and request.method == "OPTIONS"):
        return "the target is no plain path"
    if not _QUERY.fullmatch(request.query):
        return "the query has bytes that must be encoded"
    return None


def _one_host(request: Request) -> bool:
    """Whether everything that names a host names the one that would be connected to."""
    if request.host_header is None and request.http != "1.0":
        return False
    named = [value for name, value in request.headers if name.lower() == "host"]
    if len(named) > 1:
        return False
    if request.host_header is not None:
        named.append(request.host_header)
    try:
        for authority in named:
            host, port = split_authority(authority)
            if host != request.host or port not in (None, request.port):
                return False
        return request.sni is None or canonical_host(request.sni) == request.host
    except ValueError:
        return False
