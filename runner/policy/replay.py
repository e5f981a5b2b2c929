"""Recorded decisions judged again under another policy, by the judge itself.

What a line does not hold is not guessed: a value that was redacted or cut where it would count, or a denial for
something that only that moment knew. Such a decision cannot be judged again, and it is said why. Nothing here reads
files or prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from impyard.addon.judge import Decision, judge
from impyard.addon.policy import Policy
from impyard.addon.readings import OVERRIDES, Ambiguous, Query
from impyard.addon.redact import REDACTED
from impyard.addon.request import Request
from impyard.addon.rules import DEFAULT_PORTS
from impyard.runner.decisions.lines import Entry

# The rules decided, and everything before them had passed: the judge says the same of the same request at any time.
BY_RULES = frozenset({"rule", "no-rule", "unlisted-host", "ambiguous-path", "websocket", "body-limit"})
# Denied for what the request itself is, or how it came: no policy makes a difference.
BEFORE_RULES = frozenset(
    {"canary", "malformed", "not-http", "host-mismatch", "upgrade", "too-large", "too-slow", "busy", "loop"}
    | {"log-unwritable"}
)
# What came after the rules allowed it; and what is known of nothing that the rules would have said.
AFTER_RULES = frozenset({"secret-in-request", "private-address", "credential-unavailable"})
UNSEEN = {
    "policy-broken": "the policy was broken then, so nobody looked whether the request is well-formed",
    "judge-error": "the judge failed on it then",
}

_CUT = "…("  # what a line has behind the beginning of a field that was too long; no request that is well-formed has it
_STARS = "*" * 6  # what stands for a credential's value
_SECRET_NAME = re.compile(rf"(?:^|[&;])[^=&;]*{re.escape(REDACTED)}")
_MOST_REMEMBERED = 100_000


class Recorded(Entry, frozen=True):
    """A decision line with all that the judge asks about. None: a line of a version that did not write it."""

    http: str = "1.1"
    headers: dict[str, str] | None = None
    body_bytes: int | None = None
    upstream: str | None = None
    times: int = 1

    @property
    def authority(self) -> str:
        """Host and port, the port only where it is not the scheme's own; an IPv6 address in brackets."""
        return _authority(self.scheme, self.host, self.port)


class NotRecorded(Exception):
    """What of a request was not written down; its text is for people."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What becomes of a recorded decision. allowed: the verdict now, None when it cannot be known, and `why`. decision:
    the judge's, None where it was not asked. otherwise: allowed as before, yet with another credential or to another
    place."""

    allowed: bool | None
    decision: Decision | None = None
    why: str = ""
    otherwise: bool = False


class _Asked(NamedTuple):
    """All that the judge's word depends on."""

    method: str
    scheme: str
    host: str
    port: int
    path: str
    query: str
    http: str
    headers: tuple[tuple[str, str], ...]
    body_bytes: int | None
    upgrade: str


class Replay:
    """Judges decisions again under one policy. The same request is judged once."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._known: dict[_Asked, Decision] = {}
        self._keys: dict[str, frozenset[str]] = {}
        self._queries: dict[tuple[str, str], str] = {}
        self._limits: dict[str, bool] = {}

    def __call__(self, line: Recorded) -> Judged:
        """What the policy makes of a recorded decision."""
        if line.reason in BEFORE_RULES:
            return Judged(False)
        if line.reason == "secret-in-request" and not self._may_pass(line):
            return Judged(False)  # whatever the rules say
        if line.reason not in BY_RULES | AFTER_RULES and line.reason not in UNSEEN:
            return Judged(None, why="another version of impyard recorded it, for a reason that this one does not know")
        try:
            decision = self.decision(line)
        except NotRecorded as exc:
            return Judged(None, why=str(exc))
        if line.reason in UNSEEN:
            # A request of which nothing was seen has no path; one that has is denied if the rules deny it.
            denied = line.path and not decision.allowed
            return Judged(False, decision) if denied else Judged(None, decision, UNSEEN[line.reason])
        if not decision.allowed:
            return Judged(False, decision)
        return self._allowed(line, decision)

    def decision(self, line: Recorded) -> Decision:
        """The judge's decision on the request of a line. Raises NotRecorded when the line does not hold all of it."""
        asked = self._asked(line)
        found = self._known.get(asked)
        if found is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            found = self._known[asked] = judge(_request(asked), self.policy)
        return found

    def request(self, line: Recorded) -> Request:
        """The request of a line as the judge is asked about it. Raises NotRecorded as `decision`."""
        return _request(self._asked(line))

    def _allowed(self, line: Recorded, decision: Decision) -> Judged:
        """What becomes of a request that the rules allow now: what denied it after them then may do so again."""
        credential = decision.inject.credential if decision.inject is not None else None
        if line.reason == "secret-in-request":
            return Judged(None, decision, "it held what this policy lets pass; whether it held more was not recorded")
        if line.reason == "private-address" and decision.upstream is None:
            return Judged(False, decision)  # its address is looked at again
        if line.reason == "credential-unavailable":
            if credential == line.credential:
                return Judged(False, decision)
            if credential is not None:
                return Judged(None, decision, "whether the vault has the credential that goes with it was not recorded")
        place = str(decision.upstream) if decision.upstream is not None else None
        return Judged(True, decision, otherwise=(credential, place) != (line.credential, line.upstream))

    def _may_pass(self, line: Recorded) -> bool:
        """Whether the secret that a request was denied for may go to its host under this policy."""
        secret = line.secret
        if secret is None or secret.credential in self.policy.bound_to(line.host):
            return True
        return secret.kind == "sentinel" and self.policy.sentinels_pass(line.host)

    # -- what was recorded ------------------------------------------------------------------------------------------

    def _asked(self, line: Recorded) -> _Asked:
        headers = line.headers
        if headers is None:
            raise NotRecorded("another version of impyard recorded it, without its headers")
        for what, text in (("method", line.method), ("host", line.host), ("path", line.path)):
            if incomplete := _incomplete(text):
                raise NotRecorded(f"its {what} was {incomplete}")
        if line.query:
            lacks = self._queries.get((line.host, line.query))
            if lacks is None:
                if len(self._queries) >= _MOST_REMEMBERED:
                    self._queries.clear()
                lacks = self._queries[line.host, line.query] = self._lacks(line.host, line.query)
            if lacks:
                raise NotRecorded(lacks)
        if "…" in headers:
            raise NotRecorded("it had more headers than were recorded")
        changed: tuple[tuple[str, str], ...] = ()
        if not OVERRIDES.isdisjoint(headers):
            changed = tuple((name, value) for name, value in headers.items() if name in OVERRIDES)
            for _, value in changed:
                # Values of one name are joined in a line; the judge looks at each.
                if ", " in value or _incomplete(value):
                    raise NotRecorded("a header that names another method or target was not recorded as it was sent")
        return _Asked(
            line.method,
            line.scheme,
            line.host,
            line.port,
            line.path,
            line.query,
            line.http,
            changed,
            line.body_bytes if self._has_limit(line.host) else 0,
            headers.get("upgrade", ""),
        )

    def _has_limit(self, host: str) -> bool:
        """Whether the length of a body counts for a host, so that requests which differ in it alone differ."""
        found = self._limits.get(host)
        if found is None:
            entries = self.policy.entries_for(host)
            found = self._limits[host] = any(rule.max_body is not None for entry in entries for rule in entry.rules)
        return found

    def _lacks(self, host: str, query: str) -> str:
        """What a line lacks of the query that could count, for a rule's `query` or as a method; nothing where it has
        all that does."""
        incomplete = _incomplete(query)
        if not incomplete:
            return ""
        if incomplete != "redacted" or _SECRET_NAME.search(query):
            return f"its query was {incomplete}"
        keys = self._keys.get(host)
        if keys is None:
            rules = [rule for entry in self.policy.entries_for(host) for rule in entry.rules]
            keys = self._keys[host] = frozenset({"_method", *(key for rule in rules for key, _ in rule.query)})
        try:
            fields = Query(query)
            counts = any(REDACTED in value for key in keys for value in fields.values(key))
        except Ambiguous:  # the judge says so too, where it looks
            return ""
        return "a value of its query that a rule asks for was redacted" if counts else ""


def _incomplete(text: str) -> str:
    """What was done to a field of a line, for people; nothing for one that is there as it was sent."""
    if REDACTED in text:
        return "redacted"
    if _CUT in text:
        return "cut"
    return "masked" if _STARS in text else ""


def _request(asked: _Asked) -> Request:
    """The request as the judge had it. What names the host agreed, or the rules would not have been asked; of the
    headers only those are left that rules are asked about."""
    authority = _authority(asked.scheme, asked.host, asked.port)
    return Request(*asked[:9], host_header=authority, upgrade=asked.upgrade)


def _authority(scheme: str, host: str, port: int) -> str:
    host = f"[{host}]" if ":" in host else host
    return host if port == DEFAULT_PORTS.get(scheme) else f"{host}:{port}"
