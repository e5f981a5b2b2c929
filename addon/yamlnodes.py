"""Strict YAML: a document as nodes with their places, and checked access to them.

Every complaint is a `Fault` with line and column, collected, so that one reading of a file reports all of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from impyard.addon.errors import Fault

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is about 10 times faster

ADVISED_FAULTS = 50

_TAG = "tag:yaml.org,2002:"
_KINDS = {"str": "text", "int": "a number", "float": "a number", "bool": "true or false", "null": "an empty value"}
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INTEGER = re.compile(r"0|[1-9][0-9]*")

# Other threads get their turn between two of these only: what is searched, or let go of, at once.
_PIECE = 1 << 18

Node = yaml.nodes.Node
Mapping = yaml.nodes.MappingNode
Sequence_ = yaml.nodes.SequenceNode
Scalar = yaml.nodes.ScalarNode


class Nodes:
    """Access to the nodes of one file. `faults` holds what was found wrong so far, in the order of finding."""

    def __init__(self, file: str, rest: Callable[[], None] | None = None) -> None:
        """rest: called between small pieces of the work on a document."""
        self.file = file
        self.rest = rest
        self.faults: list[Fault] = []

    def parse(self, data: bytes) -> Node | None:
        """The root node of the only document in `data`; None after a fault, and for a file without content."""
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            before = data[: exc.start].decode("utf-8-sig", "replace")
            self._place(before, "is not UTF-8 here")
            return None
        for start in range(0, len(text), _PIECE):
            if found := _UNPRINTABLE.search(text, start, start + _PIECE):
                self._place(text[: found.start()], f"a control character (U+{ord(found[0]):04X}) is not allowed")
                return None
        try:
            root: Node | None = yaml.compose(text, Loader=_resting(self.rest) if self.rest else _Loader)
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
            self.faults.append(Fault(self.file, line, column, _explain(text, line, exc)))
            return None
        except (yaml.YAMLError, RecursionError) as exc:
            self.faults.append(Fault(self.file, 0, 0, f"is not YAML: {str(exc).splitlines()[0]}"))
            return None
        return root

    def let_go(self, root: Node) -> None:
        """Take a document apart, piece by piece: to free a big one at once would hold up other threads."""
        found = [] if isinstance(root, Scalar) else [root]
        while found:
            node = found.pop()
            inner, node.value = node.value, []
            if isinstance(node, Mapping):
                inner = [value for _, value in inner]
            found += [value for value in inner if not isinstance(value, Scalar)]
            if self.rest is not None:
                self.rest()

    def fault(self, node: Node, message: str) -> None:
        """Records a fault at the place of `node`."""
        mark = node.start_mark
        self.faults.append(Fault(self.file, mark.line + 1, mark.column + 1, message))

    def at(self, node: Node) -> str:
        """ "file:line" of `node`."""
        return f"{self.file}:{node.start_mark.line + 1}"

    def mapping(self, node: Node, what: str, keys: Sequence[str] | None) -> dict[str, Node]:
        """The values of a mapping by key. Unknown keys (unless `keys` is None) and repeated ones are faults."""
        if not isinstance(node, Mapping) or node.tag != _TAG + "map":
            self.fault(node, f"{what} must be a mapping of keys to values, not {kind(node)}")
            return {}
        values: dict[str, Node] = {}
        for key_node, value in node.value:
            key = key_node.value if isinstance(key_node, Scalar) else None
            if key is None or (key_node.tag != _TAG + "str" and (keys is None or key in keys)):
                self.fault(key_node, f"a key of {what} must be text, not {kind(key_node)}")
            elif keys is not None and key not in keys:
                self.fault(key_node, f'unknown key "{short(key)}" in {what}{self._advice(key, keys)}')
            elif key in values:
                self.fault(key_node, f'"{short(key)}" is given twice in {what}')
            else:
                values[key] = value
        return values

    def sequence(self, node: Node, what: str) -> list[Node]:
        """The items of a list."""
        if not isinstance(node, Sequence_) or node.tag != _TAG + "seq":
            self.fault(node, f"{what} must be a list, not {kind(node)}")
            return []
        return list(node.value)

    def text(self, node: Node, what: str) -> str | None:
        """A scalar that YAML takes for text; what it takes for something else has to be quoted."""
        if not isinstance(node, Scalar):
            self.fault(node, f"{what} must be text, not {kind(node)}")
        elif is_empty(node):
            self.fault(node, f"{what} must be text, not an empty value")
        elif node.tag != _TAG + "str":
            written = short(node.value)
            self.fault(
                node, f'{what} must be text, and YAML takes this for {kind(node)}; write it in quotes: "{written}"'
            )
        else:
            return str(node.value)
        return None

    def integer(self, node: Node, what: str) -> int | None:
        """A plain decimal number; YAML's octal, hexadecimal, base 60 and underscored numbers are faults."""
        if isinstance(node, Scalar) and node.tag == _TAG + "int" and _INTEGER.fullmatch(node.value):
            return int(node.value[:20])
        self.fault(node, f"{what} must be a whole number, not {kind(node)}")
        return None

    def boolean(self, node: Node, what: str) -> bool | None:
        """`true` or `false` and none of YAML's other words for them."""
        if isinstance(node, Scalar) and node.tag == _TAG + "bool" and node.value in ("true", "false"):
            return bool(node.value == "true")
        self.fault(node, f"{what} must be true or false, not {kind(node)}")
        return None

    def _advice(self, key: str, keys: Sequence[str]) -> str:
        # Looking for what was meant is slow, and nobody reads so many faults.
        return _suggest(key, keys) if len(self.faults) < ADVISED_FAULTS else ""

    def _place(self, before: str, message: str) -> None:
        line = before.count("\n") + 1
        self.faults.append(Fault(self.file, line, len(before) - (before.rfind("\n") + 1) + 1, message))


def _resting(rest: Callable[[], None]) -> Any:
    """A loader that calls `rest` at each node: before one is resolved by the way to it, which nothing here asks for."""
    return type("Resting", (_Loader,), {"descend_resolver": lambda loader, parent, index: rest()})


def is_empty(node: Node) -> bool:
    """Whether a node is YAML's null, as after a key with nothing behind it."""
    return isinstance(node, Scalar) and bool(node.tag == _TAG + "null")


def kind(node: Node) -> str:
    """What a node is, for people."""
    tag = node.tag.removeprefix(_TAG)
    if tag in ("map", "seq"):
        return "a mapping" if tag == "map" else "a list"
    name = _KINDS.get(tag, f"something of type {short(tag)}")
    return f"{name} ({short(node.value)})" if isinstance(node, Scalar) and node.value and not is_empty(node) else name


def short(text: str) -> str:
    """`text` for a message: one line, at most 60 characters, and those that do not print as escapes."""
    line = " ".join(str(text[:1000]).split())
    line = line if len(line) <= 60 else line[:57] + "..."
    return line if line.isprintable() else "".join(map(_printable, line))


def _printable(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def nearest(word: str, words: Sequence[str]) -> str | None:
    """The word that was probably meant."""
    for candidate in words:
        if word.lower() == candidate.lower():
            return candidate
    close = difflib.get_close_matches(word[:60], words, n=1, cutoff=0.6)
    return close[0] if close else None


def _suggest(key: str, keys: Sequence[str]) -> str:
    close = nearest(key, keys)
    return f'; did you mean "{close}"?' if close else f"; known are {', '.join(keys)}"


def _explain(text: str, line: int, exc: yaml.MarkedYAMLError) -> str:
    problem = str(exc.problem or exc.context or "cannot be read")
    lines = text.splitlines()
    here = lines[line - 1] if 0 < line <= len(lines) else ""
    if "alias" in problem or "anchor" in problem or "alias" in str(exc.context):
        return 'is not YAML: a value that begins with "*" or "&" must be in quotes'
    if "\t" in here[: len(here) - len(here.lstrip())] or "'\\t'" in problem:
        return "is not YAML: indent with spaces, not with tabs"
    if "document" in problem:
        return "must hold one YAML document only"
    return f"is not YAML: {problem}"
