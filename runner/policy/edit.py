"""Putting a rule or an entry into the text of a policy file: new lines go in, all else stays byte for byte.

Pure: bytes in, bytes out. The YAML is read only to find the places; that the new text holds what the old one held, and
the addition, is proved by reading it again. Where a rule should stand so that it does what is meant, and no more, is
`policyallow`'s business.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import yaml

from impyard.addon.errors import ImpyardError
from impyard.runner.policy.text import (
    NewEntry,
    NewRule,
    Style,
    comment_lines,
    entry_lines,
    flow_text,
    rule_lines,
)
from impyard.runner.policy.yamlplaces import BREAK, NoPlaces, Place, line_end, line_start, places

__all__ = ["CannotEdit", "NewEntry", "NewRule", "count_entries", "insert_entry", "insert_rule", "insert_text"]

_BOM = b"\xef\xbb\xbf"
# All scalars are text, whatever they look like: nobody needs to look, which is a third of the time that loading takes.
_Base: Any = type(
    "Plain",
    (getattr(yaml, "CBaseLoader", yaml.BaseLoader),),
    {
        "resolve": lambda loader, kind, value, implicit: "",
        "descend_resolver": lambda loader, parent, index: None,
        "ascend_resolver": lambda loader: None,
    },
)
# What goes in: (start, end, text) for text in place of what stands there; only a `[]` ever stands there.
_Pieces = list[tuple[int, int, str]]


class CannotEdit(ImpyardError):
    """A file whose text gives no safe place for the addition; a person has to write it."""


def count_entries(data: bytes) -> int:
    """How many entries the file has. Raises CannotEdit for what is no policy."""
    return len(_file(data).entries.items)


def insert_rule(data: bytes, entry: int, rule: NewRule, at: int | None = None) -> bytes:
    """The file's bytes with `rule` as number `at` of the rules of entry number `entry`, both from 0; None is the end.

    Raises CannotEdit, above all for an entry whose rules stand elsewhere, behind an alias.
    """
    file = _file(data)
    found = file.entries.items[entry].get("policies") if entry < len(file.entries.items) else None
    if found is None or found[1].kind != "seq" or found[1].anchored or file.entries.items[entry].anchored:
        raise _elsewhere("the rules of the entry are written once for several entries (`&` and `*`)")
    name, rules = found
    at = len(rules.items) if at is None else min(at, len(rules.items))
    wanted = file.loaded()
    wanted[entry]["policies"].insert(at, rule.data())
    style = replace(file.style, flow_rules=_is_flow(rules, at))
    for comment in (rule.comment, ()) if not file.is_json else ((),):  # a comment cannot stand everywhere
        each = replace(rule, comment=comment)
        if rules.flow:
            pieces = _into_flow(file.text, rules, at, flow_text(each.data(), style), comment, style.newline)
        else:
            pieces = _into_block(file.text, name, rules, at, rule_lines(each, style), style.newline)
        if (new := file.proved(pieces, wanted)) is not None:
            return new
    raise _elsewhere("the rule would not stand where it should")


def insert_entry(data: bytes, entry: NewEntry, at: int | None = None) -> bytes:
    """The file's bytes with `entry` as number `at` of the entries, from 0; None is the end. Raises CannotEdit."""
    file = _file(data)
    comment = (*entry.comment, *(line for rule in entry.rules for line in rule.comment))
    return file.with_entries(
        [entry.data()], entry_lines(entry, file.style), [flow_text(entry.data(), file.style)], comment, at
    )


def insert_text(data: bytes, text: str, at: int | None = None) -> bytes:
    """The file's bytes with entries that are written already: `text` is a list in YAML's block style, whose dashes
    stand in the first column, with its comments. `at` as for `insert_entry`. Raises CannotEdit."""
    entries = yaml.load(text, Loader=_Base)
    assert isinstance(entries, list), "a list of entries"
    lines = text.strip("\n").split("\n")
    file = _file(data)
    comment = tuple(line.strip()[1:].strip() for line in lines if line.lstrip().startswith("#"))
    return file.with_entries(entries, lines, [flow_text(entry, file.style) for entry in entries], comment, at)


@lru_cache(maxsize=1)
def _file(data: bytes) -> _File:
    """The file, whose places several questions are about. Raises CannotEdit."""
    return _File(data)


class _File:
    """The text of a policy file with its places."""

    def __init__(self, data: bytes) -> None:
        self.bom = _BOM if data.startswith(_BOM) else b""
        try:
            self.text = data.removeprefix(_BOM).decode()
            root = places(self.text)
        except (UnicodeDecodeError, NoPlaces) as exc:
            raise CannotEdit("the policy is not YAML", hint="`impyard policy check` says where") from exc
        found = root.get("networkPolicies")
        if found is None or found[1].kind != "seq":
            raise CannotEdit("the policy has no list `networkPolicies`", hint="`impyard policy check` says more")
        self.name, self.entries = found
        self.style = _style(self.text, self.entries)
        self.is_json = self.text.lstrip().startswith("{") and _is_json(self.text)

    def loaded(self) -> list[Any]:
        """The entries as plain values, made anew by each call."""
        with contextlib.suppress(_NamedElsewhere, TypeError, RecursionError):  # TypeError: keys that are no text
            return [_value(entry) for entry in self.entries.items]
        loaded: list[Any] = yaml.load(self.text, Loader=_Base)["networkPolicies"]
        return [_apart(entry) for entry in loaded]

    def with_entries(
        self, data: list[Any], lines: Sequence[str], flows: Sequence[str], comment: tuple[str, ...], at: int | None
    ) -> bytes:
        """The new bytes with these entries, given as values, as lines of the block style and in one line each."""
        count = len(self.entries.items)
        at = count if at is None else min(at, count)
        wanted = self.loaded()
        wanted[at:at] = data
        for pieces in self._ways(lines, flows, comment, at):
            if (new := self.proved(pieces, wanted)) is not None:
                return new
        raise _elsewhere("the entry would not stand where it should")

    def _ways(self, lines: Sequence[str], flows: Sequence[str], comment: tuple[str, ...], at: int) -> Iterator[_Pieces]:
        text, entries, newline = self.text, self.entries, self.style.newline
        if entries.flow:
            if text[entries.start : entries.end] == "[]" and not self.is_json:
                yield self._as_block(lines)
            joined = ", ".join(flows)
            yield _into_flow(text, entries, at, joined, () if self.is_json else comment, newline)
            yield _into_flow(text, entries, at, joined, (), newline)
            return
        apart = [""] if self.style.blank else []
        if at == len(entries.items):  # behind what follows the last entry too, such as examples in comments
            ends_blank = re.search(r"(\r\n|\n|\r)[ \t]*(\r\n|\n|\r)\Z", text)
            body = _indented(lines if ends_blank else [*apart, *lines], entries.column, newline)
            yield [(len(text), len(text), body if BREAK.search(text[-1:]) else newline + body)]
            yield _into_block(text, self.name, entries, at, [*apart, *lines], newline)
        else:
            yield _into_block(text, self.name, entries, at, [*apart, *lines] if at else [*lines, *apart], newline)

    def _as_block(self, lines: Sequence[str]) -> _Pieces:
        """The lines in place of an empty list in brackets."""
        text, entries, newline = self.text, self.entries, self.style.newline
        end = line_end(text, entries.end)
        body = _indented(lines, 2, newline)
        blanks = (
            0
            if text[entries.end : end].strip()
            else len(text[: entries.start]) - len(text[: entries.start].rstrip(" "))
        )
        broken = BREAK.search(text[end - 1 : end])
        return [(entries.start - blanks, entries.end, ""), (end, end, body if broken else newline + body)]

    def proved(self, pieces: _Pieces, wanted: list[Any]) -> bytes | None:
        """The bytes with the pieces put in; None when they do not hold what is wanted."""
        new = self.text
        for start, end, piece in reversed(pieces):
            new = new[:start] + piece + new[end:]
        try:
            loaded = yaml.load(new, Loader=_Base)
        except (yaml.YAMLError, RecursionError):
            return None
        if not isinstance(loaded, dict) or loaded != {"networkPolicies": wanted}:
            return None
        return self.bom + new.encode()


def _into_block(text: str, name: Place, items: Place, at: int, lines: Sequence[str], newline: str) -> _Pieces:
    """The lines as item number `at` of a list in block style, behind the item before: what stands above the next one
    as a comment stays with that. `name` is the list's key."""
    body = _indented(lines, items.column, newline)
    offset = items.items[at - 1].end if at else name.end
    if at and BREAK.search(text[offset - 1 : offset]):
        return [(offset, offset, body)]  # a text block, which ends with its line
    end = line_end(text, offset)
    return [(end, end, body if BREAK.search(text[end - 1 : end]) else newline + body)]


def _into_flow(text: str, items: Place, at: int, new: str, comment: tuple[str, ...], newline: str) -> _Pieces:
    """`new` as item number `at` of a list in brackets; on a line of its own where the others are."""
    near = items.items[min(at, len(items.items) - 1)] if items.items else None
    start = line_start(text, near.start if near else items.end - 1)
    indent = start
    while text[indent : indent + 1] == " ":
        indent += 1
    margin = text[start:indent]
    above = "".join(margin + line + newline for line in comment_lines(comment))
    before = [(start, start, above)] if above else []
    if near is None:
        return [*before, _piece(items.end - 1, new)]
    alone = indent == near.start
    if at < len(items.items):
        if alone:
            return [_piece(start, f"{above}{margin}{new},{newline}")]
        return [*before, _piece(near.start, f"{new}, ")]
    end = line_end(text, near.end)
    rest = text[near.end : end].strip()
    if not alone or (rest and rest[0] not in ",]#"):
        return [*before, _piece(near.end, f", {new}")]
    if rest.startswith("]"):
        return [_piece(near.end, f",{newline}{above}{margin}{new}")]
    if rest.startswith(","):
        return [_piece(end, f"{above}{margin}{new},{newline}")]
    return [_piece(near.end, ","), _piece(end, f"{above}{margin}{new}{newline}")]


def _piece(offset: int, text: str) -> tuple[int, int, str]:
    return offset, offset, text


def _style(text: str, entries: Place) -> Style:
    """The style of the file, by what stands in it."""
    found = BREAK.search(text)
    newline = found[0] if found and found[0] in ("\n", "\r\n", "\r") else "\n"
    quoted = any(text[key.start] == '"' for entry in entries.items[-1:] for key in entry.items[:1])
    gaps = [text[a.end : b.start] for a, b in zip(entries.items, entries.items[1:], strict=False)]
    blank = (not gaps and not all(entry.flow for entry in entries.items)) or any(
        len([line for line in BREAK.split(gap)[1:-1] if not line.strip()]) for gap in gaps
    )
    rules_in, flow_rules = 2, False
    for entry in entries.items:
        rules = entry.get("policies")
        if rules is None or rules[1].kind != "seq":
            continue
        if not rules[1].flow and entry.kind == "map" and not entry.flow:
            rules_in = max(rules[1].column - entry.column, 0)
        flow_rules = rules[1].flow or _is_flow(rules[1], len(rules[1].items))
    flow_entries = not entries.flow and bool(entries.items) and all(entry.flow for entry in entries.items)
    return Style(newline, rules_in, blank, flow_rules, flow_entries, quoted)


def _is_flow(rules: Place, at: int) -> bool:
    """Whether the rule beside place `at` is written with brackets."""
    return bool(rules.items) and rules.items[max(at - 1, 0)].flow


def _indented(lines: Sequence[str], column: int, newline: str) -> str:
    return "".join((" " * column + line if line else "") + newline for line in lines)


class _NamedElsewhere(Exception):
    """A part of the text is, or may be, what an alias stands for."""


def _value(place: Place) -> Any:
    """What stands at a place: text, lists and maps. Raises _NamedElsewhere."""
    if place.anchored or place.kind == "alias":
        raise _NamedElsewhere
    if place.kind == "scalar":
        return place.value
    items = [_value(item) for item in place.items]
    return dict(zip(items[::2], items[1::2], strict=True)) if place.kind == "map" else items


def _apart(value: Any) -> Any:
    """A copy in which nothing is one object twice, as what aliases name is."""
    if isinstance(value, dict):
        return {key: _apart(item) for key, item in value.items()}
    return [_apart(item) for item in value] if isinstance(value, list) else value


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _elsewhere(why: str) -> CannotEdit:
    return CannotEdit(f"the policy cannot be edited safely: {why}", hint="write the rule into the file yourself")
