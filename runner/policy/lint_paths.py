"""Lints about one path expression: its end, its dots, and whether it can match at all."""

from __future__ import annotations

from impyard.addon.rules import Rule
from impyard.addon.yamlnodes import short
from impyard.runner.policy.lint import Finding, Subject
from impyard.runner.policy.lint_ask import Tried, attempt, examples, finding, is_plain, method_for
from impyard.runner.policy.places import Placed
from impyard.runner.policy.regexask import (
    ends_with,
    lone_dots,
    matches_any,
    sample,
    samples_of,
    tree_of,
    unbounded,
    with_x,
)
from impyard.runner.policy.regexlang import Tree, Unknown

# Of these it is documented that names in paths are the same in any case.
_IGNORE_CASE = ("github.com", "api.github.com", "codeload.github.com", "uploads.github.com", "gitlab.com")


def findings(subject: Subject) -> list[Finding]:
    found: list[Finding] = []
    for placed in subject.rules:
        rule = placed.rule
        assert rule is not None
        tree = tree_of(rule.path)
        if tree is None:
            continue
        never = _never_matches(subject, placed, rule, tree)
        if never:
            found.append(never)
            continue
        looks = (_no_boundary, _dots) if rule.allow else (_dots, _children, _case)
        found += [each for look in looks if (each := look(subject, placed, rule, tree))]
    return found


def _never_matches(subject: Subject, placed: Placed, rule: Rule, tree: Tree) -> Finding | None:
    try:
        if matches_any(rule.path, as_sent=True):
            return None
        if matches_any(rule.path, as_sent=False) and not any(
            mark in text for text in samples_of(rule.path) for mark in "?#"
        ):
            return None  # a rule for how a path reads once it is decoded
    except Unknown:
        return None
    text = sample(tree)
    if not text.startswith("/"):
        message = f'path "{short(rule.path)}" matches no path: each begins with "/"'
        return finding(placed, "never-matches", message, 'begin it with "/"')
    path, mark, rest = text.partition("?")
    if not mark:
        return finding(
            placed,
            "never-matches",
            f'path "{short(rule.path)}" matches no path: what comes after "#" is never sent',
            "leave that out",
        )
    tried = attempt(subject, placed.entry, method_for(rule), path, query=rest)
    if tried.by(rule):
        return None
    message = f"the query is no part of the path: {tried.text} is not {'allowed' if rule.allow else 'denied'} by it"
    name, _, value = rest.partition("=")
    return finding(
        placed,
        "never-matches",
        message,
        f"write the query beside the path, as in query: {{{name or 'key'}: {value or 'value'}}}",
        example=tried.text,
    )


def _no_boundary(subject: Subject, placed: Placed, rule: Rule, tree: Tree) -> Finding | None:
    ends = list(unbounded(tree))
    for more in ends:
        if tried := _tried(subject, placed, rule, sample(more)):
            message, instead = f"also allows {tried.text}", f"write {_bounded(rule.path, only=len(ends) == 1)}"
            return finding(placed, "no-boundary", message, instead, example=tried.text)
    return None


def _bounded(expression: str, *, only: bool) -> str:
    """The expression with a boundary; only: it has one such end."""
    for tail in (".*?", "(.*)?", "(?:.*)", "(.*)", ".*", ".+"):
        if only and expression.endswith(tail):
            return f"{expression.removesuffix(tail)}(/.*)?"
    return "(/.*)? in place of what goes on behind a word"


def _dots(subject: Subject, placed: Placed, rule: Rule, tree: Tree) -> Finding | None:
    dots = lone_dots(tree)
    for dot in dots:
        for number in range(4):
            tried = _tried(subject, placed, rule, sample(with_x(tree, dot), number))
            if tried is None:
                continue
            escaped = rule.path
            for each in sorted(dots, key=lambda found: found.at, reverse=True):
                escaped = escaped[: each.at] + "\\" + escaped[each.at :]
            does = "allows" if rule.allow else "denies"
            shift = _shift(placed, rule, dot.at)
            return finding(
                placed,
                "unescaped-dot",
                f"a dot is any character: also {does} {tried.text}",
                f"write {escaped}",
                example=tried.text,
                shift=shift,
            )
    return None


def _shift(placed: Placed, rule: Rule, at: int) -> int:
    """How far behind the beginning of the path's value a character of it stands in its line; 0 if unclear."""
    raw = placed.place("path").raw
    for quote in ("", "'", '"'):
        if raw.startswith(quote + rule.path):
            return len(quote) + at
    return 0


def _children(subject: Subject, placed: Placed, rule: Rule, tree: Tree) -> Finding | None:
    last = ends_with(tree)
    if not last or not all(char.isalnum() for char in last):
        return None
    for path in examples(rule):
        under = path + "/x"
        here = attempt(subject, placed.entry, method_for(rule), path)
        below = attempt(subject, placed.entry, method_for(rule), under)
        if here.by(rule) and below.decision.allowed:
            return finding(
                placed,
                "deny-children",
                f"denies {path} alone: still allows {below.text}",
                f"write {rule.path}(/.*)?" if "|" not in rule.path else f"write ({rule.path})(/.*)?",
                example=below.text,
            )
    return None


def _case(subject: Subject, placed: Placed, rule: Rule, tree: Tree) -> Finding | None:
    if placed.entry.host not in _IGNORE_CASE:
        return None
    for path in examples(rule):
        head, slash, name = path.rstrip("/").rpartition("/")
        for other in (head + slash + name.upper(), path.upper()):
            here = attempt(subject, placed.entry, method_for(rule), path)
            shouted = attempt(subject, placed.entry, method_for(rule), other)
            if other != path and here.by(rule) and shouted.decision.allowed:
                return finding(
                    placed,
                    "deny-case",
                    f"{placed.entry.host} ignores case in names: still allows {shouted.text}",
                    f"write (?i){rule.path}",
                    example=shouted.text,
                )
    return None


def _tried(subject: Subject, placed: Placed, rule: Rule, path: str) -> Tried | None:
    """The judge's answer, where it is this rule that decides."""
    if not is_plain(path):
        return None
    tried = attempt(subject, placed.entry, method_for(rule), path)
    return tried if tried.by(rule) else None
