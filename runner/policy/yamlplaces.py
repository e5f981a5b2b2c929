"""Where the parts of a policy's text stand: the YAML as places in the text, aliases and anchors as they are written.

Pure. What the places say is the judge's business (`addon/policyfile.py`); here is only where they begin and end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")  # what YAML 1.1 takes for the end of a line


class NoPlaces(ValueError):
    """A text that is no YAML."""


@dataclass(slots=True)
class Place:
    """A node of the text from character `start` to `end`, which is behind its last character.

    kind: "scalar", "alias", "map" or "seq". column: of `start`, from 0. items: a seq's, or a map's keys and values in
    turn. flow: written with brackets. anchored: that aliases may name it.
    """

    kind: str
    start: int
    end: int
    column: int
    value: str = ""
    flow: bool = False
    anchored: bool = False
    items: list[Place] = field(default_factory=list)

    def get(self, key: str) -> tuple[Place, Place] | None:
        """The key and its value in a map, where both are written out here."""
        for name, value in zip(self.items[::2], self.items[1::2], strict=False):
            if self.kind == "map" and name.kind == "scalar" and name.value == key:
                return name, value
        return None


def places(text: str) -> Place:
    """The root of the only document in `text`. Raises NoPlaces."""
    try:
        events = iter(yaml.parse(text, Loader=_Loader))
        for event in events:
            if isinstance(event, yaml.NodeEvent):
                return _place(event, events)
    except (yaml.YAMLError, RecursionError) as exc:
        raise NoPlaces(str(exc)) from exc
    raise NoPlaces("there is nothing in it")


def _place(event: Any, events: Iterator[Any]) -> Place:
    start, end = event.start_mark, event.end_mark
    anchored = not isinstance(event, yaml.AliasEvent) and event.anchor is not None
    if isinstance(event, yaml.AliasEvent):
        return Place("alias", start.index, end.index, start.column)
    if isinstance(event, yaml.ScalarEvent):
        return Place("scalar", start.index, end.index, start.column, event.value, anchored=anchored)
    is_map = isinstance(event, yaml.MappingStartEvent)
    place = Place("map" if is_map else "seq", start.index, end.index, start.column, "", event.flow_style, anchored)
    for inner in events:
        if isinstance(inner, yaml.CollectionEndEvent):
            # The end of a block is only found at what follows it, behind blank lines and comments.
            mark: Any = inner.end_mark
            place.end = mark.index if place.flow else place.items[-1].end
            break
        place.items.append(_place(inner, events))
    return place


def line_start(text: str, offset: int) -> int:
    """Where the line of `offset` begins."""
    return max(text.rfind(mark, 0, offset) for mark in "\n\r\x85\u2028\u2029") + 1


def line_end(text: str, offset: int) -> int:
    """Behind the line of `offset`, its break included; the end of the text for a last line without one."""
    found = BREAK.search(text, offset)
    return found.end() if found else len(text)
