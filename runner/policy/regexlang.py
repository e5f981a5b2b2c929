"""Regular expressions of a policy as languages: enough of RE2 to say what one matches and another does not.

An expression becomes a tree, and a tree an automaton over ranges of characters. What is not understood here (character
classes of Unicode, word boundaries) is `Unknown`: questions about it have no answer, and nobody may guess one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

TOP = 0x10FFFF
MAX_STATES = 4000  # of one expression; repetition like {1,1000} is written out


class Unknown(Exception):
    """The expression has something in it that is not understood, or it is too large."""


Ranges = tuple[tuple[int, int], ...]  # inclusive, sorted, apart from each other


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of some ranges. written: "literal" for one that stands for itself, "any" for the dot, "class"
    for all else. at: where it stands in the expression."""

    ranges: Ranges
    written: str
    at: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class Series:
    """Parts one after the other; none of them is the empty text."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several parts."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part `least` to `most` times; None is without end."""

    part: Tree
    least: int
    most: int | None


Tree = Chars | Series | Choice | Repeat
EMPTY = Series(())


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters as sorted ranges that do not touch."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def inverted(ranges: Ranges) -> Ranges:
    """All other characters."""
    found, start = [], 0
    for low, high in ranges:
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    if start <= TOP:
        found.append((start, TOP))
    return tuple(found)


_DIGIT: Ranges = ((48, 57),)
_SPACE: Ranges = merged([(9, 10), (12, 13), (32, 32)])
_WORD: Ranges = merged([(48, 57), (65, 90), (95, 95), (97, 122)])
_CLASSES = {"d": _DIGIT, "s": _SPACE, "w": _WORD}
_POSIX: dict[str, Ranges] = {
    "alnum": merged([(48, 57), (65, 90), (97, 122)]),
    "alpha": merged([(65, 90), (97, 122)]),
    "ascii": ((0, 127),),
    "blank": merged([(9, 9), (32, 32)]),
    "cntrl": merged([(0, 31), (127, 127)]),
    "digit": _DIGIT,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": merged([(33, 47), (58, 64), (91, 96), (123, 126)]),
    "space": merged([(9, 13), (32, 32)]),
    "upper": ((65, 90),),
    "word": _WORD,
    "xdigit": merged([(48, 57), (65, 70), (97, 102)]),
}
_ESCAPES = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
# Under (?i) these ASCII letters stand for one more character of Unicode each: the long s and the Kelvin sign.
_FOLDS_BEYOND = {ord("s"): 0x17F, ord("k"): 0x212A}


def parse(expression: str) -> Tree:
    """The tree of an expression that is matched with the whole text. Raises Unknown; RE2 has accepted it before."""
    reader = _Parser(expression)
    try:
        tree = reader.choice()
    except (IndexError, RecursionError) as exc:
        raise Unknown from exc
    if reader.at < len(expression):
        raise Unknown
    return tree


_PLAIN_RUN = re.compile(r"[A-Za-z0-9/_~:@%-]+")
_REPEATS = frozenset("*+?{")


@lru_cache(maxsize=256)
def _literal(char: str) -> Chars:
    return Chars(((ord(char), ord(char)),), "literal")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.fold = False
        self.dot_all = False

    def peek(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def choice(self) -> Tree:
        fold, dot_all = self.fold, self.dot_all  # flags set inside hold to the end of the group
        parts = [self.series()]
        while self.peek() == "|":
            self.at += 1
            parts.append(self.series())
        self.fold, self.dot_all = fold, dot_all
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def series(self) -> Tree:
        parts: list[Tree] = []
        while self.at < len(self.text) and self.peek() not in "|)":
            here = self.at
            if not self.fold and (run := self.plain_run()):
                parts += run
                continue
            if self.peek() == "^" or self.peek(2) == r"\A":  # at the very beginning it says nothing
                if not self._is_all_before(here):
                    raise Unknown
                self.at += len(self.peek(2)) if self.peek() == "\\" else 1
                continue
            if self.peek() == "$" or self.peek(2) == r"\z":
                self.at += 1 if self.peek() == "$" else 2
                if self.at != len(self.text):
                    raise Unknown
                continue
            part = self.repeated(self.atom())
            if isinstance(part, Series):
                parts += part.parts
            else:
                parts.append(part)
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def plain_run(self) -> list[Tree]:
        """The characters from here on that stand for themselves, once each: by far the most of a path."""
        found = _PLAIN_RUN.match(self.text, self.at)
        if found is None:
            return []
        end = found.end()
        if self.text[end : end + 1] in _REPEATS:
            end -= 1  # the last one may be there more than once
        start, self.at = self.at, end
        return [_literal(char) for char in self.text[start:end]]

    def _is_all_before(self, at: int) -> bool:
        return self.text[:at] in ("", "(?i)", "(?s)", "(?is)", "(?si)")

    def atom(self) -> Tree:
        char = self.text[self.at]
        self.at += 1
        if char == "(":
            return self.group()
        if char == "[":
            return Chars(self.char_class(), "class")
        if char == ".":
            return Chars(((0, TOP),) if self.dot_all else ((0, 9), (11, TOP)), "any", self.at - 1)
        if char == "\\":
            return self.escape()
        if char in "*+?":
            raise Unknown
        return self.literal(ord(char))

    def literal(self, code: int) -> Chars:
        return Chars(self.folded(((code, code),)) if self.fold else ((code, code),), "literal")

    def folded(self, ranges: Ranges) -> Ranges:
        found = list(ranges)
        for low, high in ranges:
            if high > 127:
                raise Unknown
            for code in range(low, high + 1):
                other = ord(chr(code).swapcase())
                found.append((other, other))
                beyond = _FOLDS_BEYOND.get(ord(chr(code).lower()))
                if beyond:
                    found.append((beyond, beyond))
        return merged(found)

    def group(self) -> Tree:
        if self.peek(2) == "?:":
            self.at += 2
        elif self.peek(2) in ("?P", "?<"):
            self.at = self.text.index(">", self.at) + 1
        elif self.peek() == "?":
            end = self.at + 1
            while self.text[end] in "ims-U":
                end += 1
            flags, self.at = self.text[self.at + 1 : end], end + 1
            if self.text[end] == ")":
                self.set_flags(flags)
                return EMPTY
            if self.text[end] != ":":
                raise Unknown
            fold, dot_all = self.fold, self.dot_all
            self.set_flags(flags)
            tree = self.closed()
            self.fold, self.dot_all = fold, dot_all
            return tree
        return self.closed()

    def closed(self) -> Tree:
        tree = self.choice()
        if self.peek() != ")":
            raise Unknown
        self.at += 1
        return tree

    def set_flags(self, flags: str) -> None:
        on, _, off = flags.partition("-")
        if set(on + off) - set("is"):
            raise Unknown  # m moves the ends, U only swaps greed
        self.fold = (self.fold or "i" in on) and "i" not in off
        self.dot_all = (self.dot_all or "s" in on) and "s" not in off

    def escape(self) -> Tree:
        char = self.text[self.at]
        if char.lower() in _CLASSES or char in "xaftnrv0" or not char.isalnum():
            ranges, single = self.escaped()
            if single and self.fold:
                ranges = self.folded(ranges)
            return Chars(ranges, "literal" if single else "class")
        raise Unknown

    def escaped(self) -> tuple[Ranges, bool]:
        """The characters of the escape that begins here, behind its backslash, and whether it is one character."""
        char = self.text[self.at]
        self.at += 1
        if char.lower() in _CLASSES:
            ranges = _CLASSES[char.lower()]
            if self.fold:
                ranges = self.folded(ranges)
            return (inverted(ranges) if char.isupper() else ranges), False
        if char == "x":
            if self.peek() == "{":
                end = self.text.index("}", self.at)
                code, self.at = int(self.text[self.at + 1 : end], 16), end + 1
            else:
                code, self.at = int(self.peek(2), 16), self.at + 2
            return ((code, code),), True
        if char in _ESCAPES:
            return ((_ESCAPES[char], _ESCAPES[char]),), True
        if char.isalnum():
            raise Unknown
        return ((ord(char), ord(char)),), True

    def char_class(self) -> Ranges:
        negated = self.peek() == "^"
        self.at += negated
        found: list[tuple[int, int]] = []
        first = True
        while first or self.peek() != "]":
            first = False
            if self.peek(2) == "[:":
                end = self.text.index(":]", self.at)
                name = self.text[self.at + 2 : end]
                self.at = end + 2
                ranges = _POSIX.get(name.removeprefix("^"))
                if ranges is None or self.fold:
                    raise Unknown
                found += inverted(ranges) if name.startswith("^") else ranges
                continue
            low, single = self.class_char()
            if single and self.peek() == "-" and self.peek(2) not in ("-]", "-"):
                self.at += 1
                high, also = self.class_char()
                if not also:
                    raise Unknown
                found.append((low[0][0], high[0][0]))
            else:
                found += low
        self.at += 1
        ranges = merged(found)
        if self.fold:
            ranges = self.folded(ranges)
        return inverted(ranges) if negated else ranges

    def class_char(self) -> tuple[Ranges, bool]:
        char = self.text[self.at]
        self.at += 1
        return self.escaped() if char == "\\" else (((ord(char), ord(char)),), True)

    def repeated(self, part: Tree) -> Tree:
        while self.at < len(self.text):
            char = self.peek()
            if char in "*+?":
                self.at += 1
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            elif char == "{" and (counts := self.counts()):
                least, most = counts
            else:
                break
            if self.peek() == "?":  # lazy: the same texts
                self.at += 1
            part = Repeat(part, least, most) if part != EMPTY else part
        return part

    def counts(self) -> tuple[int, int | None] | None:
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if end < 0 or not low.isdecimal() or not low.isascii() or (high and not (high.isdecimal() and high.isascii())):
            return None  # then it is a literal brace
        self.at = end + 1
        return int(low), int(high) if high else (None if comma else int(low))


# --- automata ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Automaton:
    """States with steps. free: steps without a character. `final` is the one that accepts, 0 the first."""

    steps: list[list[tuple[Ranges, int]]] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    final: int = 0

    def new(self) -> int:
        if len(self.steps) >= MAX_STATES:
            raise Unknown
        self.steps.append([])
        self.free.append([])
        return len(self.steps) - 1

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """The states and all that is reached from them without a character."""
        found = set(states)
        queue = list(found)
        for state in queue:
            for other in self.free[state]:
                if other not in found:
                    found.add(other)
                    queue.append(other)
        return frozenset(found)

    def after(self, states: frozenset[int], code: int) -> frozenset[int]:
        """The states behind one character."""
        reached = {
            target
            for state in states
            for ranges, target in self.steps[state]
            if any(low <= code <= high for low, high in ranges)
        }
        return self.closure(reached)

    def borders(self, states: frozenset[int]) -> frozenset[int]:
        """Where what a character leads to, from these states, may change."""
        steps = [ranges for state in states for ranges, _ in self.steps[state]]
        return frozenset([border for ranges in steps for low, high in ranges for border in (low, high + 1)])


def automaton(trees: Iterable[Tree]) -> Automaton:
    """The automaton that accepts what any of the trees matches. Raises Unknown when it would be too large."""
    made = Automaton()
    start, end = made.new(), made.new()
    made.final = end
    for tree in trees:
        _add(made, tree, start, end)
    return made


def _add(made: Automaton, tree: Tree, start: int, end: int) -> None:
    if isinstance(tree, Chars):
        made.steps[start].append((tree.ranges, end))
    elif isinstance(tree, Series):
        here = start
        for part in tree.parts:
            there = made.new()
            _add(made, part, here, there)
            here = there
        made.free[here].append(end)
    elif isinstance(tree, Choice):
        for part in tree.parts:
            first, last = made.new(), made.new()
            made.free[start].append(first)
            made.free[last].append(end)
            _add(made, part, first, last)
    else:
        here = start
        for _ in range(tree.least):
            there = made.new()
            _add(made, tree.part, here, there)
            here = there
        if tree.most is None:
            first, last = made.new(), made.new()
            made.free[here].append(first)
            made.free[first].append(end)
            made.free[last].append(first)
            _add(made, tree.part, first, last)
        else:
            for _ in range(tree.most - tree.least):
                there = made.new()
                made.free[here].append(end)
                _add(made, tree.part, here, there)
                here = there
            made.free[here].append(end)
