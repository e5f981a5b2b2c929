"""New rules and entries as text, in the style of the file that they go into. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import yaml

from impyard.addon.rules import DEFAULT_PORTS

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STR = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class NewRule:
    """A rule to be written. `methods` empty means any; `query` has keys and expressions; `comment` has lines that go
    above it, without `#`."""

    methods: tuple[str, ...]
    path: str
    allow: bool = True
    query: tuple[tuple[str, str], ...] = ()
    name: str | None = None
    websocket: bool = False
    max_body: str | None = None
    comment: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """The rule as YAML's values, each scalar as text."""
        methods = self.methods or ("*",)
        found: dict[str, Any] = {"action": "ALLOW" if self.allow else "DENY"}
        found["method"] = methods[0] if len(methods) == 1 else list(methods)
        found["path"] = self.path
        if self.name is not None:
            found["name"] = self.name
        if self.query:
            found["query"] = dict(self.query)
        if self.websocket:
            found["websocket"] = "true"
        if self.max_body is not None:
            found["max_body"] = self.max_body
        return found


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to be written; `scheme` and `port` are written where they are not the default."""

    host: str
    rules: tuple[NewRule, ...]
    scheme: str = "https"
    port: int = 443
    inject: str | None = None
    comment: tuple[str, ...] = ()

    def head(self) -> dict[str, Any]:
        """All keys but the rules, as YAML's values, each scalar as text."""
        found: dict[str, Any] = {"host": self.host}
        if self.scheme != "https":
            found["scheme"] = self.scheme
        if self.port != DEFAULT_PORTS[self.scheme]:
            found["port"] = str(self.port)
        if self.scheme == "https" and self.port == 80:
            found["scheme"] = self.scheme  # a port of 80 alone stands for http
        if self.inject is not None:
            found["inject"] = self.inject
        return found

    def data(self) -> dict[str, Any]:
        return {**self.head(), "policies": [rule.data() for rule in self.rules]}


@dataclass(frozen=True, slots=True)
class Style:
    """How a file is written. rules_in: how far the dash of a rule stands behind the keys of its entry. blank: that
    entries are set apart by empty lines. flow_rules, flow_entries: with brackets. quoted: with keys in quotes."""

    newline: str = "\n"
    rules_in: int = 2
    blank: bool = True
    flow_rules: bool = False
    flow_entries: bool = False
    quoted: bool = False


_AS_IS = ("websocket", "max_body", "port")  # written without quotes, though YAML takes them for more than text


def scalar(text: str, *, flow: bool, quoted: bool = False) -> str:
    """`text` as one YAML scalar that is text for YAML, in quotes only where it needs them (or `quoted`)."""
    if quoted or not text.isprintable() or not text.isascii():
        return json.dumps(text)  # YAML reads what JSON writes
    if _is_plain(f"[{text}]" if flow else f"k: {text}", text):
        return text
    if "\\" in text or '"' in text:  # which double quotes would want escaped
        return "'" + text.replace("'", "''") + "'"
    return f'"{text}"'


def _is_plain(document: str, text: str) -> bool:
    """Whether `text` stands in `document` as the only value, plain, and is text."""
    try:
        node = yaml.compose(document, Loader=_Loader)
    except yaml.YAMLError:
        return False
    if isinstance(node, yaml.MappingNode) and len(node.value) == 1:
        node = node.value[0][1]
    elif isinstance(node, yaml.SequenceNode) and len(node.value) == 1:
        node = node.value[0]
    return isinstance(node, yaml.ScalarNode) and node.tag == _STR and node.value == text


def flow_text(value: Any, style: Style, key: str = "") -> str:
    """`value`, made of dicts, lists and text, in one line with brackets."""
    if isinstance(value, dict):
        inner = (f"{scalar(k, flow=True, quoted=style.quoted)}: {flow_text(v, style, k)}" for k, v in value.items())
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow_text(item, style) for item in value) + "]"
    if key in _AS_IS and value.isalnum() and (value.isdigit() or value == "true"):
        return str(value)
    return scalar(str(value), flow=True, quoted=style.quoted)


def rule_lines(rule: NewRule, style: Style) -> list[str]:
    """The lines of a rule in a list of the block style, from the column of its dash on; comments first."""
    lines = comment_lines(rule.comment)
    data = rule.data()
    if style.flow_rules:
        return [*lines, f"- {flow_text(data, style)}"]
    dash = "- "
    for key, value in data.items():
        if isinstance(value, dict):
            lines.append(f"{dash}{key}:")
            lines += [f"    {scalar(k, flow=False)}: {scalar(v, flow=False)}" for k, v in value.items()]
        else:
            lines.append(f"{dash}{key}: {_value(key, value, style)}")
        dash = "  "
    return lines


def entry_lines(entry: NewEntry, style: Style) -> list[str]:
    """The lines of an entry in a list of the block style, from the column of its dash on; comments first."""
    lines = comment_lines(entry.comment)
    if style.flow_entries:
        lines += [line for rule in entry.rules for line in comment_lines(rule.comment)]
        return [*lines, f"- {flow_text(entry.data(), style)}"]
    dash = "- "
    for key, value in entry.head().items():
        lines.append(f"{dash}{key}: {_value(key, value, style)}")
        dash = "  "
    lines.append("  policies:")
    for rule in entry.rules:
        lines += [" " * (2 + style.rules_in) + line for line in rule_lines(rule, style)]
    return lines


def comment_lines(comment: tuple[str, ...]) -> list[str]:
    """Lines of a comment. Its text may come from a log, which must not end the line or turn the reading direction."""
    return [f"# {_plain(line)}".rstrip() for line in comment]


def _plain(line: str) -> str:
    """`line` without what a terminal, an editor or YAML would obey."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)


def _value(key: str, value: Any, style: Style) -> str:
    if key in _AS_IS or isinstance(value, list):
        return flow_text(value, style, key)
    return scalar(value, flow=False)
