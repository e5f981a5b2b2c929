"""Questions about what path expressions match: is one part of others, do two meet, what is an example.

The answers hold for every path that the judge may ask about, in any reading: "*", or "/" and any characters but
controls. A question that takes too long is `Unknown`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from impyard.runner.policy.regexlang import (
    EMPTY,
    TOP,
    Automaton,
    Chars,
    Choice,
    Ranges,
    Repeat,
    Series,
    Tree,
    Unknown,
    automaton,
    parse,
)

MAX_PAIRS = 1500
MAX_SAMPLES = 6
_READ: Ranges = ((32, 126), (160, TOP))  # of a reading, which may be decoded
_SENT: Ranges = ((33, 34), (36, 62), (64, 126))  # of a path as it is sent: no blank, "#" and "?"
# Characters for examples, the nicest first; they have one reading only.
_NICE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~:@=+,!$&'()*"


@lru_cache(maxsize=1 << 17)
def tree_of(expression: str) -> Tree | None:
    """The expression as a tree, None when it is not understood."""
    try:
        return parse(expression)
    except Unknown:
        return None


@lru_cache(maxsize=1024)
def _automaton_of(expressions: tuple[str, ...]) -> Automaton:
    return automaton([parse(expression) for expression in expressions])


def is_within(inner: str, outer: Sequence[str]) -> bool:
    """Whether each path that `inner` matches is matched by one of `outer`. Raises Unknown."""
    return not _finds(_automaton_of((inner,)), _automaton_of(tuple(outer)), also=False, alphabet=_READ)


def meet(one: str, other: str) -> bool:
    """Whether there is a path that both match. Raises Unknown."""
    return _finds(_automaton_of((one,)), _automaton_of((other,)), also=True, alphabet=_READ)


def begin_alike(one: str, other: str) -> bool:
    """Whether the literal beginnings of two expressions leave it open that they meet."""
    first, second = beginning(one), beginning(other)
    size = min(len(first), len(second))
    return first[:size] == second[:size]


@lru_cache(maxsize=1 << 17)
def beginning(expression: str) -> str:
    """The text that all that an expression matches begins with, as far as it is written out."""
    tree = tree_of(expression)
    found = ""
    for part in tree.parts if isinstance(tree, Series) else ():
        if not isinstance(part, Chars) or len(part.ranges) != 1 or part.ranges[0][0] != part.ranges[0][1]:
            break
        found += chr(part.ranges[0][0])
    return found


def matches_any(expression: str, *, as_sent: bool) -> bool:
    """Whether there is a path that it matches; as_sent: not only in a reading of one. Raises Unknown."""
    alphabet = _SENT if as_sent else _READ
    if any(_is_path(text, alphabet) for text in samples_of(expression)):
        return True  # as nearly always, and ten times faster than to look for one
    return _finds(_automaton_of((expression,)), _automaton_of(("(?s).*",)), also=True, alphabet=alphabet)


def _is_path(text: str, alphabet: Ranges) -> bool:
    return text == "*" or (text.startswith("/") and _of_alphabet(alphabet)(text) is not None)


@lru_cache(maxsize=8)
def _of_alphabet(alphabet: Ranges) -> Callable[[str], re.Match[str] | None]:
    """Whether a text has no other characters; a pattern looks ten times faster than a loop."""
    return re.compile("".join(["[", *(rf"\U{low:08x}-\U{high:08x}" for low, high in alphabet), "]*"])).fullmatch


def is_everything(expression: str) -> bool:
    """Whether it matches all paths that begin with "/". Raises Unknown."""
    return is_within("/.*", (expression,))


def _finds(first: Automaton, second: Automaton, *, also: bool, alphabet: Ranges) -> bool:
    """Whether there is a text that the first accepts, and the second too (`also`) or not. Raises Unknown."""
    begin = first.closure((0,)), second.closure((0,))
    queue = []
    for start in "*/":
        a, b = first.after(begin[0], ord(start)), second.after(begin[1], ord(start))
        if first.final in a and (second.final in b) == also:
            return True
        if start == "/":
            queue.append((a, b))
    seen = {queue[0]}
    for a, b in queue:  # grows while it is walked
        for code in _representatives(first.borders(a) | second.borders(b), alphabet):
            after = first.after(a, code), second.after(b, code)
            if not after[0] or (also and not after[1]) or after in seen:
                continue
            if first.final in after[0] and (second.final in after[1]) == also:
                return True
            if len(seen) >= MAX_PAIRS:
                raise Unknown
            seen.add(after)
            queue.append(after)
    return False


@lru_cache(maxsize=1 << 17)
def _representatives(borders: frozenset[int], alphabet: Ranges) -> tuple[int, ...]:
    """One character for each stretch of the alphabet in which none makes a difference, between these borders."""
    found = []
    for low, high in alphabet:
        found.append(low)
        found += [border for border in borders if low < border <= high]
    return tuple(found)


# --- examples -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 17)
def samples_of(expression: str) -> tuple[str, ...]:
    """A few texts that it matches, short ones first, of characters that need no encoding where possible; none where it
    is not understood."""
    tree = tree_of(expression)
    return () if tree is None else _samples(tree)


def _samples(tree: Tree) -> tuple[str, ...]:
    if not isinstance(tree, Series):
        return tuple(sorted(dict.fromkeys(sample(tree, number) for number in range(MAX_SAMPLES)), key=len))
    # What is written out is the same in each, and most of most expressions.
    runs: list[str | Tree] = []
    for part in tree.parts:
        if not isinstance(part, Chars):
            runs.append(part)
        elif runs and isinstance(text := runs[-1], str):
            runs[-1] = text + chr(_nicest(part.ranges))
        else:
            runs.append(chr(_nicest(part.ranges)))
    found = dict.fromkeys(
        "".join([each if isinstance(each, str) else sample(each, number) for each in runs])
        for number in range(MAX_SAMPLES)
    )
    return tuple(sorted(found, key=len))


def sample(tree: Tree, number: int = 0) -> str:
    """One text that the tree matches; another number takes other alternatives and more repetitions."""
    if isinstance(tree, Chars):
        return chr(_nicest(tree.ranges))
    if isinstance(tree, Series):
        return "".join(sample(part, number) for part in tree.parts)
    if isinstance(tree, Choice):
        return sample(tree.parts[number % len(tree.parts)], number // len(tree.parts))
    count = tree.least + number % 2
    if tree.most is not None:
        count = min(count, tree.most)
    return sample(tree.part, number // 2) * count if count else ""


@lru_cache(maxsize=1024)
def _nicest(ranges: Ranges) -> int:
    for char in _NICE:
        if any(low <= ord(char) <= high for low, high in ranges):
            return ord(char)
    for low, high in _SENT:
        for start, end in ranges:
            if max(low, start) <= min(high, end):
                return max(low, start)
    return ranges[0][0] if ranges else ord("a")


def ends_with(tree: Tree) -> set[str] | None:
    """The characters that what the tree matches may end with; None when one of them is no single literal."""
    if isinstance(tree, Chars):
        return {chr(tree.ranges[0][0])} if tree.written == "literal" else None
    if isinstance(tree, Choice):
        return _all(ends_with(part) for part in tree.parts)
    if isinstance(tree, Repeat):
        return ends_with(tree.part) if tree.least else None
    return ends_with(tree.parts[-1]) if tree.parts else None


def _all(found: Iterator[set[str] | None]) -> set[str] | None:
    together: set[str] = set()
    for each in found:
        if each is None:
            return None
        together |= each
    return together


def unbounded(tree: Tree) -> Iterator[Tree]:
    """The tree with more of a word in place of `.*`, or of what comes to the same, for each that stands right behind a
    word and goes on to the next "/" or the end."""
    if isinstance(tree, Choice):
        for part in tree.parts:
            yield from unbounded(part)
    elif isinstance(tree, Series):
        for number, part in enumerate(tree.parts):
            before, after = tree.parts[:number], tree.parts[number + 1 :]
            if after and not _is_slash(after[0]):
                continue
            if _is_anything(part):
                last = ends_with(Series(before))
                if last and all(char.isalnum() for char in last):
                    more = "0" if sample(Series(before))[-1].isdigit() else "bar"
                    yield Series((*before, *(Chars(((ord(char), ord(char)),), "literal") for char in more), *after))
            elif isinstance(part, Choice):
                for variant in unbounded(part):
                    yield Series((*before, variant, *after))


def _is_slash(tree: Tree) -> bool:
    return isinstance(tree, Chars) and tree.ranges == ((ord("/"), ord("/")),)


def _is_anything(tree: Tree) -> bool:
    if isinstance(tree, Repeat):
        if tree.most is None and isinstance(tree.part, Chars):
            ranges = tree.part.ranges
            return all(any(low <= ord(char) <= high for low, high in ranges) for char in "/-.0aA")
        return tree.least == 0 and tree.most == 1 and _is_anything(tree.part)
    return False


def lone_dots(tree: Tree) -> list[Chars]:
    """The dots that stand for one character just before a letter or digit, as in `/v1.0` and `/x.json`."""
    if isinstance(tree, Series):
        found = [dot for part in tree.parts for dot in lone_dots(part)]
        for place, part in enumerate(tree.parts[:-1]):
            before = tree.parts[place - 1] if place else EMPTY
            if _is_dot(part) and _is_word(tree.parts[place + 1]) and not _is_dot(before):
                assert isinstance(part, Chars)
                found.append(part)
        return found
    if isinstance(tree, Choice):
        return [dot for part in tree.parts for dot in lone_dots(part)]
    return lone_dots(tree.part) if isinstance(tree, Repeat) else []


def _is_dot(tree: Tree) -> bool:
    return isinstance(tree, Chars) and tree.written == "any"


def _is_word(tree: Tree) -> bool:
    if isinstance(tree, Choice):
        return all(map(_is_word, tree.parts))
    if isinstance(tree, Series):
        return bool(tree.parts) and _is_word(tree.parts[0])
    return isinstance(tree, Chars) and tree.written == "literal" and chr(tree.ranges[0][0]).isalnum()


def with_x(tree: Tree, dot: Chars) -> Tree:
    """The tree with the letter x in place of this very dot."""
    if tree is dot:
        return Chars(((ord("x"), ord("x")),), "literal")
    if isinstance(tree, Series):
        return Series(tuple(with_x(part, dot) for part in tree.parts))
    if isinstance(tree, Choice):
        return Choice(tuple(with_x(part, dot) for part in tree.parts))
    return Repeat(with_x(tree.part, dot), tree.least, tree.most) if isinstance(tree, Repeat) else tree
