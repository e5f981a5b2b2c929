"""Where the parts of a policy stand in its files: line and column of each value, and comments that silence lints.

Only for files that loaded: then the entries and rules in the file are those of the policy, one for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from impyard.addon.policy import Policy, shown
from impyard.addon.rules import Entry, Rule
from impyard.addon.yamlnodes import Mapping, Node, Nodes, Scalar, Sequence_

SILENCED = re.compile(r"#\s*impyard:\s*allow\s+([a-z0-9, -]+)")


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file; line and column count from 1. raw: the text of the value as it stands there, to the line's
    end."""

    file: str
    line: int
    column: int
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """A rule of the policy, or an entry where `rule` is None, with its node in the file."""

    source: Source
    entry: Entry
    rule: Rule | None
    node: Node
    number: int  # its place among all rules of the policy

    def place(self, key: str | None = None, item: int | None = None) -> Place:
        """Where the value of a key begins, or an item of its list; the whole, where it has no such key."""
        node = self.node
        if key is not None and isinstance(node, Mapping):
            node = next((value for name, value in node.value if name.value == key), node)
        if item is not None and isinstance(node, Sequence_):
            node = node.value[item]
        return self.place_of(node)

    def place_of(self, node: Node) -> Place:
        """Where a node of it begins."""
        mark = node.start_mark
        line = self.source.line(mark.line + 1)
        return Place(self.source.file, mark.line + 1, mark.column + 1, line[mark.column :])

    def texts(self, key: str) -> Iterator[Node]:
        """The nodes of all text in the value of a key, however deep."""
        queue = [value for name, value in self.node.value if name.value == key]
        for node in queue:
            if isinstance(node, Scalar):
                yield node
            elif isinstance(node, Mapping):
                queue += [value for _, value in node.value]
            elif isinstance(node, Sequence_):
                queue += node.value

    @property
    def lines(self) -> range:
        """The lines that it takes up, counted from 1."""
        start, end = self.node.start_mark, self.node.end_mark
        last = end.line + 1 if end.column else end.line  # a block ends where the next one begins
        return range(start.line + 1, max(last, start.line + 1) + 1)


class Source:
    """One file: its name for messages and its lines."""

    def __init__(self, file: str, data: bytes) -> None:
        self.file = file
        self.lines = data.decode("utf-8-sig", "replace").splitlines()

    def line(self, number: int) -> str:
        """The text of a line, which counts from 1; "" for one that there is not."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def silenced(self) -> Iterator[tuple[int, int, str]]:
        """Each code that a comment silences, with line and column of the comment."""
        for number, line in enumerate(self.lines, 1):
            if "impyard:" in line and (found := SILENCED.search(line)):
                for code in found[1].replace(",", " ").split():
                    yield number, found.start() + 1, code


def placed(
    policy: Policy, contents: Sequence[tuple[Path, bytes]], root: Path | None
) -> tuple[list[Source], list[Placed], list[Placed]]:
    """The files of a policy, its entries and its rules, each in order."""
    sources, entries, rules = [], [], []
    left = iter(policy.entries)
    number = 0
    for path, data in contents:
        source = Source(shown(path, root), data)
        sources.append(source)
        nodes = Nodes(source.file)
        parsed = nodes.parse(data)
        top = nodes.mapping(parsed, "the policy", None) if parsed is not None else {}
        for node in nodes.sequence(top["networkPolicies"], "networkPolicies"):
            entry = next(left)
            entries.append(Placed(source, entry, None, node, number))
            (list_,) = (value for key, value in node.value if key.value == "policies")
            for rule, item in zip(entry.rules, list_.value, strict=True):
                rules.append(Placed(source, entry, rule, item, number))
                number += 1
    return sources, entries, rules
