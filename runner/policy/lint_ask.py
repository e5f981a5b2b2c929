"""Example requests for lints, judged by the judge itself."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlencode

from impyard.addon.judge import Decision, judge
from impyard.addon.policyfile import METHODS
from impyard.addon.rules import DEFAULT_PORTS, Entry, Rule
from impyard.runner.policy.asked import Asked, sent
from impyard.runner.policy.lint import Finding, Lint, Subject
from impyard.runner.policy.places import Placed
from impyard.runner.policy.regexask import samples_of

_ODD = frozenset('%\\;#? "<>`')
WRITES = ("DELETE", "PUT", "POST", "PATCH")


@dataclass(frozen=True, slots=True)
class Tried:
    """An example as people write it, and the judge's answer."""

    text: str
    decision: Decision

    def by(self, rule: Rule) -> bool:
        """Whether this very rule decided."""
        return self.decision.reason == "rule" and (self.decision.at, self.decision.rule) == (rule.at, rule.label)


def host_for(entry: Entry) -> str:
    """A host that the entry is about."""
    if entry.host == "*":
        return "anybody.example.net"
    return f"any.{entry.host[2:]}" if entry.host.startswith("*.") else entry.host


def method_for(rule: Rule) -> str:
    """A method that the rule is about, a usual one where there is any."""
    return next((name for name in METHODS if is_about(rule, name)), min(rule.methods or {"GET"}))


def query_for(rule: Rule) -> str:
    """A query that meets the rule's conditions, as far as one is known; "" for a rule without any."""
    values = {key: next(iter(samples_of(expression.pattern)), "") for key, expression in rule.query}
    return urlencode(values, quote_via=quote)


def is_about(rule: Rule, method: str) -> bool:
    return rule.methods is None or method in rule.methods


def attempt(
    subject: Subject, entry: Entry, method: str, path: str, *, host: str = "", query: str = "", websocket: bool = False
) -> Tried:
    """What the judge says to a request that the entry is about."""
    scheme = "https" if "https" in entry.ports else "http"
    port = entry.ports[scheme]
    asked = Asked(method, scheme, host or host_for(entry), port, path, query, websocket=websocket)
    return Tried(f"{method} {asked.url}", judge(sent(asked), subject.policy))


def examples(rule: Rule) -> list[str]:
    """Some paths that the rule matches, without those that may be read in several ways; empty where none is known."""
    return [path for path in samples_of(rule.path) if is_plain(path)]


def is_plain(path: str) -> bool:
    """Whether a path is sent as it is, and read in one way."""
    return path.startswith("/") and path.isascii() and not _ODD.intersection(path) and "//" not in path


def finding(
    about: Placed,
    code: str,
    message: str,
    instead: str,
    *,
    example: str = "",
    key: str = "path",
    item: int | None = None,
    shift: int = 0,
) -> Finding:
    """A lint at the value of a key. shift: how far behind its beginning."""
    place = about.place(key, item)
    return Finding(about, Lint(place.file, place.line, place.column + shift, code, message, instead, example))


def line_of(at: str) -> str:
    """ "line 12" for "file:12"."""
    return f"line {at.rpartition(':')[2]}"


def is_default(scheme: str, port: int) -> bool:
    return DEFAULT_PORTS.get(scheme) == port
