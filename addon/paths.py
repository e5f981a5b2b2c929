"""The path expressions of one entry: which of them match a path? Linear in the path, whatever the expressions are.

They are matched together, as RE2 sets, so that thousands cost what one does. RE2 compiles a set without giving other
threads their turn, which is why a long entry gets several, and a path is held only against those that it could match:
by the plain text that expressions begin with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import re2

# A set of so many takes some 5 ms to compile, and about a microsecond to ask.
PART_RULES = 512
_PART_CHARS = 64 << 10

# RE2's own default, and more for many rules. What compiling leaves of it is a cache that is filled as paths come in, so
# this is also what the sender of many odd paths can make the gateway hold: sets that need more get more, no others.
_MIN_MEM = 8 << 20
_MEM_PER_RULE = 8 << 10
_MORE_MEM = 8
_LARGE_MEM = 1 << 20  # what a large expression does not fit into; hundreds of usual ones do
_MOST_NAMED = 3
_EVERYTHING = "(?s).*"  # matches every path: its absence tells a failure from "nothing matched"

_PLAIN = re.compile(r"[A-Za-z0-9/_%@:~-]{0,64}")
_PLAIN_GROUP = re.compile(r"\((?:\?:)?[A-Za-z0-9/_%@:~|-]*\)")


class MatchFailed(Exception):
    """RE2 gave up on a path for want of memory. No verdict may be taken from what did not match."""


class BadExpressions(Exception):
    """RE2 cannot parse some of the expressions. places: which."""

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__(places)
        self.places = places


class Paths:
    """Path expressions in their order, compiled."""

    __slots__ = ("_asked", "_parts", "_sizes")

    def __init__(self, expressions: Sequence[str], rest: Callable[[], None] | None = None) -> None:
        """Raises BadExpressions, and re2.error when all of them parse and are too large together.

        rest: called when a set has been compiled.
        """
        try:
            self._compile(expressions, rest)
        except re2.error:
            if bad := _unparsable(expressions):
                raise BadExpressions(bad) from None
            raise

    def _compile(self, expressions: Sequence[str], rest: Callable[[], None] | None) -> None:
        if len(expressions) <= PART_RULES:
            self._parts = [_Part(expressions, range(len(expressions)), _MIN_MEM)]
            if rest is not None:
                rest()
            return
        begins = [beginning(expression) for expression in expressions]
        order = sorted(range(len(expressions)), key=begins.__getitem__)
        shares = list(_shares(order, expressions))
        self._parts = []
        asked: dict[str, dict[_Part, None]] = {}
        for share in shares:
            part = _Part([expressions[n] for n in share], share, _MIN_MEM // len(shares))
            self._parts.append(part)
            if rest is not None:
                rest()
            for n in share:
                asked.setdefault(begins[n], {})[part] = None
        self._asked = {begin: tuple(parts) for begin, parts in asked.items()}
        self._sizes = sorted({len(begin) for begin in asked})

    def matching(self, path: str) -> list[int]:
        """The places of the expressions that match the whole path, last first. Raises MatchFailed."""
        parts = self._parts
        if len(parts) == 1:
            return parts[0].matching(path)
        asked = self._asked
        wanted = {part for size in self._sizes for part in asked.get(path[:size], ())}
        found = [place for part in wanted for place in part.matching(path)]
        found.sort(reverse=True)
        return found


class _Part:
    """Some of the expressions as one RE2 set. places: where each of them stands among all."""

    __slots__ = ("_places", "_set")

    def __init__(self, expressions: Sequence[str], places: Sequence[int], mem: int) -> None:
        mem += _MEM_PER_RULE * len(expressions)
        self._places = places
        self._set = _new_set(mem)
        for expression in (*expressions, _EVERYTHING):
            self._set.Add(expression)
        try:
            self._set.Compile()
        except re2.error:
            self._set = _new_set(max(mem, _MIN_MEM) * _MORE_MEM)
            for expression in (*expressions, _EVERYTHING):
                self._set.Add(expression)
            self._set.Compile()

    def matching(self, path: str) -> list[int]:
        """The places of the expressions that match the whole path, last first. Raises MatchFailed."""
        found: list[int] | None = self._set.Match(path)
        places = self._places
        if not found or len(places) not in found:
            raise MatchFailed
        if len(found) == 1:
            return []
        found.sort(reverse=True)
        return [places[n] for n in found[1:]]


def beginning(expression: str) -> str:
    """Text that every match of an expression begins with, "" where that is not plain to see.

    Invariant: whatever the expression is, as long as RE2 can parse it. A path that does not begin so is not held
    against it, so a beginning too many would lose a rule.
    """
    # An alternative outside of all groups has a beginning of its own. "(a|b)" is always within one: either its end ends
    # a group, which began there or before it; or the end is part of a class or a quotation, and so is the whole of it.
    if "|" in expression and "|" in _PLAIN_GROUP.sub("", expression):
        return ""
    plain = _PLAIN.match(expression)
    assert plain is not None
    end = plain.end()
    # What follows may make the last letter one that can be missing, and not only when it stands right behind it: RE2
    # reads both "b(?i)*" and "b\Q\E*" as "b*".
    return expression if end == len(expression) else expression[: max(0, end - 1)]


def _shares(order: Sequence[int], expressions: Sequence[str]) -> Iterator[list[int]]:
    share: list[int] = []
    chars = 0
    for n in order:
        if share and (len(share) == PART_RULES or chars + len(expressions[n]) > _PART_CHARS):
            yield share
            share, chars = [], 0
        share.append(n)
        chars += len(expressions[n])
    yield share


def _unparsable(expressions: Sequence[str]) -> list[int]:
    parser, bad = re2.Set.FullMatchSet(path_options()), []
    for n, expression in enumerate(expressions):
        try:
            parser.Add(expression)  # parses, which is 20 times faster than compiling each on its own
        except re2.error:
            bad.append(n)
    return bad


def heaviest(expressions: Sequence[str], rest: Callable[[], None] | None = None) -> list[int]:
    """The places of those that are large by themselves, a few: where a repetition is written out, above all.

    rest: called when one has been compiled, which takes some milliseconds at most.
    """
    options, found = path_options(), []
    options.max_mem = _LARGE_MEM
    for n, expression in enumerate(expressions):
        try:
            re2.compile(expression, options)
        except re2.error:
            found.append(n)
            if len(found) == _MOST_NAMED:
                break
        if rest is not None:
            rest()
    return found


def _new_set(max_mem: int) -> re2.Set:
    options = path_options()
    options.max_mem = max_mem
    return re2.Set.FullMatchSet(options)


def path_options() -> re2.Options:
    """How path and query expressions are compiled: UTF-8, and no message on stderr for a bad one."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    return options
