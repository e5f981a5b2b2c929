"""Taking a rule that `impyard policy allow` wrote out of the text of a policy file again. Pure: bytes in, bytes out.

All else stays byte for byte, and nothing that a person wrote goes: not a comment, not a key of an entry. That the new
text holds what the old one held, without the rule, is proved by reading it again.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from impyard.runner.policy.yamlplaces import NoPlaces, Place, line_end, line_start, places

_Base: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_OURS = re.compile(r"# (?:for \S+\.\d+|careful: .*|asked once: \S+)")  # comments that come with a rule for one request
_PLAIN_KEYS = {"host", "scheme", "port", "policies"}  # of an entry that is nothing without its rules


def without_rule(data: bytes, entry: int, rule: int) -> bytes | None:
    """The file's bytes without rule number `rule` of entry number `entry`, both from 0, and without the entry where it
    has no other; None where a person has to do it."""
    try:
        text = data.decode()
        listed = places(text).get("networkPolicies")
        wanted = yaml.load(text, Loader=_Base)
        if listed is None or listed[1].flow or wanted.keys() != {"networkPolicies"}:
            return None
        entries, loaded = listed[1], wanted["networkPolicies"]
        rules = entries.items[entry].get("policies")
        if rules is None or rules[1].kind != "seq" or rules[1].flow or rules[1].anchored:
            return None
        is_entry = len(rules[1].items) == 1
        if is_entry and (len(loaded) == 1 or not loaded[entry].keys() <= _PLAIN_KEYS):
            return None
        part = _lines_of(text, entries.items[entry] if is_entry else rules[1].items[rule], is_entry=is_entry)
        if part is None:
            return None
        new = text[: part[0]] + text[part[1] :]
        del (loaded if is_entry else loaded[entry]["policies"])[entry if is_entry else rule]
        return new.encode() if yaml.load(new, Loader=_Base) == wanted else None
    except (UnicodeDecodeError, NoPlaces, yaml.YAMLError, RecursionError, AttributeError, IndexError):
        return None


def _lines_of(text: str, node: Place, *, is_entry: bool) -> tuple[int, int] | None:
    """From where to where the lines of an item of a list reach, with the comments that came with it and the blank line
    that sets an entry apart; None where it shares them, or has comments of a person."""
    start, end = line_start(text, node.start), node.end
    if line_start(text, end) != end:
        end = line_end(text, end)
    own = text[start:end].splitlines()
    if node.anchored or text[start : node.start].strip() != "-":
        return None
    if any("#" in line and not _OURS.fullmatch(line.strip()) for line in own):
        return None
    while (above := _line_above(text, start)) is not None and above.startswith("#"):
        if not _OURS.fullmatch(above):
            return None
        start = line_start(text, start - 1)
    if is_entry and _line_above(text, start) == "":
        start = line_start(text, start - 1)
    elif is_entry and not text[end : line_end(text, end)].strip():
        end = line_end(text, end)
    return start, end


def _line_above(text: str, start: int) -> str | None:
    return text[line_start(text, start - 1) : start].strip() if start else None
