"""Lints: what is no fault in a policy, and probably not what its author meant.

Each shows an example request, and the judge itself was asked about it: what a lint says of the example is so. No lint
is better than a wrong one. `lints` is what there is to call; the single ones are in `policylint_*.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from impyard.addon.policy import Policy, read_policy
from impyard.addon.rules import Entry, Rule
from impyard.addon.yamlnodes import nearest, short
from impyard.runner.policy.places import Placed, Source, placed

# code -> what it is about, as `impyard policy check --codes` and docs/policy-tools.md have it
CODES: dict[str, str] = {
    "never-decides": "later rules match all that this one matches",
    "never-matches": "no path is such that the rule matches it",
    "deny-nothing": "a DENY of what nothing above it allows",
    "deny-children": "a DENY of a path, but not of what is below it",
    "deny-case": "a DENY that another spelling gets around, on a host that ignores case",
    "no-boundary": "`/foo.*` also allows `/foobar`",
    "unescaped-dot": "a dot that matches any character",
    "takes-uploads": "an ALLOW with a wildcard that lets data be stored on the host",
    "wide-allow": "an ALLOW of every path, with methods that change something",
    "wide-inject": "the same, with a credential put on",
    "wide-beside-narrow": "an ALLOW of every path that makes narrower ones beside it pointless",
    "any-host": "an ALLOW for hosts that anybody can have",
    "private-host": "an ALLOW for a private address without `upstream`, which is denied all the same",
    "host-spelling": "one host in two spellings",
    "unknown-method": "a method that does not exist",
    "unknown-field": "a field in a header of `inject` that looks like a slip of the pen",
    "pointless-query": "a query condition, where another rule allows the same without it",
    "needless-comment": "an `impyard: allow` comment that silences nothing",
}


@dataclass(frozen=True, slots=True)
class Lint:
    """One finding. line and column count from 1; message has the example in it; instead: what to write.

    example: a request as "METHOD URL", "" where none shows it.
    """

    file: str
    line: int
    column: int
    code: str
    message: str
    instead: str
    example: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A lint with what it is about, before comments are looked at."""

    about: Placed
    lint: Lint


class Subject:
    """What lints look at: the policy with its places. entries, rules: in order, over all files."""

    def __init__(
        self, policy: Policy, sources: Sequence[Source], entries: Sequence[Placed], rules: Sequence[Placed]
    ) -> None:
        self.policy, self.sources, self.entries, self.rules = policy, sources, entries, rules
        self._by_entry: dict[int, list[Placed]] = {id(each.entry): [] for each in entries}
        self._by_rule = {id(each.rule): each for each in rules}
        for each in rules:
            self._by_entry[id(each.entry)].append(each)

    def rules_of(self, entry: Entry) -> list[Placed]:
        """The rules of an entry."""
        return self._by_entry[id(entry)]

    def placed(self, rule: Rule) -> Placed:
        """A rule with its place."""
        return self._by_rule[id(rule)]


def lints(
    contents: Sequence[tuple[Path, bytes]], *, root: Path | None = None, policy: Policy | None = None
) -> list[Lint]:
    """What is odd in the policy of these files (path and bytes, judged as one), in file order, silenced ones left out.

    policy: the same, if it was read already. Raises PolicyError where it has faults.
    """
    from impyard.runner.policy import lint_hosts as policylint_hosts
    from impyard.runner.policy import lint_paths as policylint_paths
    from impyard.runner.policy import lint_shadow as policylint_shadow
    from impyard.runner.policy import lint_wide as policylint_wide

    policy = policy or read_policy(contents, root=root)
    subject = Subject(policy, *placed(policy, contents, root))
    found: list[Finding] = []
    for module in (policylint_hosts, policylint_paths, policylint_shadow, policylint_wide):
        found += module.findings(subject)
    return sorted(_not_silenced(subject, found), key=lambda lint: (_order(subject, lint.file), lint.line, lint.column))


def _order(subject: Subject, file: str) -> int:
    return next(number for number, source in enumerate(subject.sources) if source.file == file)


def _not_silenced(subject: Subject, found: Iterable[Finding]) -> list[Lint]:
    comments: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}
    for source in subject.sources:
        for line, column, code in source.silenced():
            comments.setdefault((source.file, line), {})[code] = (line, column)
    used: set[tuple[str, int, str]] = set()
    kept = []
    for finding in found:
        source, code = finding.about.source, finding.lint.code
        if place := next(
            (line for line in _speaking(subject, finding) if code in comments.get((source.file, line), ())), 0
        ):
            used.add((source.file, place, code))
        else:
            kept.append(finding.lint)
    for (file, _), codes in comments.items():
        for code, (line, column) in codes.items():
            if (file, line, code) not in used:
                kept.append(_needless(file, line, column, code))
    return kept


def _speaking(subject: Subject, finding: Finding) -> list[int]:
    """The lines whose comments are about a finding: those of its rule, the entry's first, and comments right above."""
    about = finding.about
    entry = next(each for each in subject.entries if each.entry is about.entry)
    lines = [*about.lines] if about.rule is not None else [about.lines[0], finding.lint.line]
    lines.append(entry.lines[0])
    for first in (about.lines[0], entry.lines[0]):
        above = first - 1
        while about.source.line(above).lstrip().startswith("#"):
            lines.append(above)
            above -= 1
    return lines


def _needless(file: str, line: int, column: int, code: str) -> Lint:
    if code in CODES:
        return Lint(file, line, column, "needless-comment", f"there is no {code} here to allow", "leave it out")
    meant = nearest(code, tuple(CODES))
    instead = f"did you mean {meant}?" if meant else "`impyard policy check --codes` lists them"
    return Lint(file, line, column, "needless-comment", f'no lint is called "{short(code)}"', instead)
