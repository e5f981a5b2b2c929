"""Path expressions for requests that were seen: exact ones, and patterns where the evidence supports them. Pure.

The rule: paths may become one pattern when they differ in nothing but numbers, hashes, UUIDs or versions, and each of
these places was seen with at least `EVIDENCE` different values. A place stands for its kind then, never for any text:
`/issues/1`, `/issues/7`, `/issues/9` become `/issues/[0-9]+`. All else stays exact: paths that differ in one segment of
another kind become a list of just these, as `/repos/o/(a|b)`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile

from impyard.addon.readings import Ambiguous, readings

EVIDENCE = 3  # different values in one place
MOST_READINGS = 8  # of one path; what can be read in more ways should be asked for in a plainer form
MOST_COMPARED = 300  # paths; of more, none are put into lists
MOST_PLACES = 8  # values in a path; one that has more stays exact, as each of them is looked at by itself
LONGEST_LIST = 100  # characters of a list in brackets

# Not the plain form of a path: what servers resolve or cut. Only encoded characters are written in both forms.
_TRICK = re.compile(r"//|/\.{1,2}(?:/|\Z)|[\\;?#]")
_META = re.compile(r"[\\.+*?()|\[\]{}^$]")
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# Values that stand between other characters than letters and digits. A hash has letters and digits both, or the length
# of a usual one; `facade` and `v1` are names.
_VALUE = re.compile(
    rf"(?<![0-9A-Za-z])(?:(?P<uuid>{_UUID})|(?P<hash>(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{{7,64}}|[a-f]{{32,64}})"
    r"|(?P<version>v?[0-9]+(?:\.[0-9]+){2,3})|(?P<number>[0-9]+))(?![0-9A-Za-z])(?!\.[0-9])"
)


class NoRule(ValueError):
    """A path that no expression should be written for; its text says why."""


@dataclass(frozen=True, slots=True)
class PathRule:
    """An expression that matches each of `paths`, in all ways that origins read them, and what it stands on.

    places: for each place of a pattern, its kind and how many values it was seen with; empty for one that matches
    nothing but `paths`.
    """

    expression: str
    paths: tuple[str, ...]
    places: tuple[tuple[str, int], ...] = ()


def path_rules(paths: Iterable[str], *, patterns: bool = True) -> list[PathRule]:
    """The fewest expressions for these paths, in the order of the paths. Raises NoRule for none that can be read.

    patterns: whether an expression may match more than the paths.
    """
    groups: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    order = {path: number for number, path in enumerate(dict.fromkeys(paths))}
    for path in order:
        groups[_shape(path) if patterns else (path,)].append(path)
    found: list[PathRule] = []
    single: list[str] = []
    for shape, members in groups.items():
        rules, rest = _patterns(members) if len(shape) > 1 and len(members) >= EVIDENCE else ([], members)
        found += rules
        single += rest
    found += _lists(single)
    return sorted(found, key=lambda rule: order[rule.paths[0]])


def exact(path: str) -> str:
    """The expression that matches a path in every way that origins read it, and nothing else. Raises NoRule."""
    try:
        ways = readings(path) if path != "*" else ("*",)
    except Ambiguous as exc:
        raise NoRule(str(exc)) from exc
    if len(ways) > MOST_READINGS:
        raise NoRule("the path can be read in too many ways")
    if len(ways) == 1:
        return quoted(path)
    if any(_TRICK.search(way) for way in ways):
        raise NoRule("the path is not in its plain form")
    head = ways[0][: _alike_until(ways)]
    tail = ways[0][len(ways[0]) - _alike_until([way[len(head) :][::-1] for way in ways]) :]
    inner = [way[len(head) : len(way) - len(tail)] for way in ways]
    return f"{quoted(head)}({'|'.join(map(quoted, inner))}){quoted(tail)}"


def _alike_until(texts: Sequence[str]) -> int:
    """How many characters all the texts begin with."""
    return sum(1 for _ in takewhile(lambda chars: len(set(chars)) == 1, zip(*texts, strict=False)))


def quoted(text: str) -> str:
    """`text` as an expression for just that. What is not ASCII, or does not print, is written by its number."""
    text = _META.sub(lambda found: "\\" + found[0], text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isascii() and char.isprintable() else f"\\x{{{ord(char):x}}}" for char in text)


def _shape(path: str) -> tuple[str, ...]:
    """The path without its values, and the kind of each: paths of one shape differ only in values."""
    if len(path) > 2048 or "%" in path or ";" in path:  # what is encoded is told apart reading by reading
        return (path,)
    kinds = [found.lastgroup or "" for found in _VALUE.finditer(path)]
    return (_VALUE.sub("\0", path), *kinds) if 0 < len(kinds) <= MOST_PLACES else (path,)


def _patterns(paths: Sequence[str]) -> tuple[list[PathRule], list[str]]:
    """Patterns for paths of one shape, and the paths that got none."""
    rows = {path: [found[0] for found in _VALUE.finditer(path)] for path in paths}
    width = len(rows[paths[0]])
    open_places = [n for n in range(width) if len({row[n] for row in rows.values()}) >= EVIDENCE]
    if not open_places:
        return [], list(paths)
    parts: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for path, row in rows.items():  # what was seen with few values stays as it is
        parts[tuple(value for n, value in enumerate(row) if n not in open_places)].append(path)
    found: list[PathRule] = []
    rest: list[str] = []
    for members in parts.values():
        counts = [len({rows[path][n] for path in members}) for n in open_places]
        if min(counts) >= EVIDENCE:
            found.append(_pattern(members, rows, open_places))
        elif len(parts) > 1 and len(members) >= EVIDENCE:  # fewer places may do for this part
            more, left = _patterns(members)
            found, rest = found + more, rest + left
        else:
            rest += members
    return found, rest


def _pattern(paths: Sequence[str], rows: dict[str, list[str]], open_places: Sequence[int]) -> PathRule:
    expression, end, places = "", 0, []
    for number, value in enumerate(_VALUE.finditer(paths[0])):
        expression += quoted(paths[0][end : value.start()])
        end = value.end()
        if number in open_places:
            values = {rows[path][number] for path in paths}
            expression += _of_kind(value.lastgroup or "", values)
            places.append((value.lastgroup or "", len(values)))
        else:
            expression += quoted(value[0])
    return PathRule(expression + quoted(paths[0][end:]), tuple(paths), tuple(places))


def _of_kind(kind: str, values: set[str]) -> str:
    if kind == "number":
        return "[0-9]+"
    if kind == "uuid":
        return _UUID
    if kind == "version":
        leading = {value[0] == "v" for value in values}
        dots = sorted({value.count(".") for value in values})
        times = f"{{{dots[0]}}}" if len(dots) == 1 else f"{{{dots[0]},{dots[-1]}}}"
        return ("v" if leading == {True} else "v?" if True in leading else "") + rf"[0-9]+(\.[0-9]+){times}"
    sizes = sorted({len(value) for value in values})
    return "[0-9a-f]" + (f"{{{sizes[0]}}}" if len(sizes) == 1 else f"{{{sizes[0]},{sizes[-1]}}}")


def _lists(paths: Sequence[str]) -> list[PathRule]:
    """Expressions for just these paths: those that differ in one segment only share one."""
    left = dict.fromkeys(paths)
    plain = [path for path in paths if not any(char in path for char in "%;\\") and "//" not in path]
    found: list[PathRule] = []
    if len(plain) > MOST_COMPARED:
        plain = []
    alone: set[str] = set()
    groups = _alike(plain)
    while groups := _left_of(groups, left.keys() - alone):
        (before, after), members = max(groups.items(), key=lambda item: len(item[1]))
        alternatives: list[str] = []
        taken: list[str] = []
        for path in members:
            inner = quoted(path[len(before) : len(path) - len(after)])
            if taken and sum(map(len, alternatives)) + len(alternatives) + len(inner) > LONGEST_LIST:
                break
            alternatives.append(inner)
            taken.append(path)
        for path in taken:
            del left[path]
        if len(taken) == 1:
            left[taken[0]] = None
            alone.add(taken[0])
            continue
        found.append(PathRule(f"{quoted(before)}({'|'.join(alternatives)}){quoted(after)}", tuple(taken)))
    return [*found, *(PathRule(exact(path), (path,)) for path in left)]


def _left_of(groups: dict[tuple[str, str], list[str]], left: Set[str]) -> dict[tuple[str, str], list[str]]:
    """The groups with those of their paths that are left, where these are several."""
    found = {place: [path for path in members if path in left] for place, members in groups.items()}
    return {place: members for place, members in found.items() if len(members) > 1}


def _alike(paths: Sequence[str]) -> dict[tuple[str, str], list[str]]:
    """The paths by what stands before and behind one of their segments, for each segment."""
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path in paths:
        segments = path.split("/")
        if len(segments) > 40:
            continue
        for number in range(1, len(segments)):
            if segments[number] and segments[number] not in (".", ".."):
                before = "/".join(segments[:number]) + "/"
                after = path[len(before) + len(segments[number]) :]
                groups[before, after].append(path)
    return groups
