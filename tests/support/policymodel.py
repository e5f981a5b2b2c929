"""The policy as the documents put it, in the slowest and plainest way: loops over lists, and Python's `re`.

Written from the README, the comments of the shipped policy and the threat model, not from `addon/`. A policy is plain
data here: a list of entries, each a dict as in the YAML file.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

Entry = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A request in the model's words. websocket: whether it asks for one. override: a method in a header, or ""."""

    method: str
    scheme: str
    host: str
    port: int
    path: str
    query: str
    websocket: bool = False
    body: int | None = 0
    override: str = ""


@dataclass(frozen=True)
class Ruled:
    """What the model says. rule: (entry, rule) that decided on the request as sent, counted from 0. entries: those of
    which a rule decided on some reading."""

    allowed: bool
    rule: tuple[int, int] | None
    too_large: bool = False
    entries: frozenset[int] = frozenset()


class Unreadable(Exception):
    """No origin may be asked to read this."""


def rule_on(policy: list[Entry], asked: Asked) -> Ruled:
    """Allowed only if each reading is; every reading by the last rule that matches; no rule, no way."""
    try:
        paths = ["*"] if asked.path == "*" else sorted(every_reading(asked.path) - {asked.path})
    except Unreadable:
        return Ruled(False, None)
    paths = [asked.path, *paths] if asked.path != "*" else paths
    methods = [asked.method] + ([asked.override.strip().upper()] if asked.override else [])
    first: tuple[int, int] | None = None
    allowed, limits, entries = True, [], set()
    for path in paths:
        for method in methods:
            for query in query_readings(asked.query):
                found = _last(policy, asked, method, path, query)
                if (path, method) == (asked.path, asked.method) and first is None:
                    first = found
                if found:
                    entries.add(found[0])
                rule = policy[found[0]]["policies"][found[1]] if found else None
                if rule is None or rule["action"] == "DENY":
                    allowed = False
                elif "max_body" in rule:
                    limits.append(_bytes(rule["max_body"]))
    too_large = asked.body is not None and any(asked.body > limit for limit in limits)
    return Ruled(allowed and not too_large, first, allowed and too_large, frozenset(entries))


def _last(
    policy: list[Entry], asked: Asked, method: str, path: str, query: list[tuple[str, str]]
) -> tuple[int, int] | None:
    found = None
    for number, entry in enumerate(policy):
        if not _names(entry["host"], asked.host) or asked.port != _ports(entry).get(asked.scheme):
            continue
        for place, rule in enumerate(entry["policies"]):
            if _matches(rule, asked, method, path, query):
                found = number, place
    return found


def _names(pattern: str, host: str) -> bool:
    """Exact; `*.x` for names below x; `*` for any name. An address is covered only where it is written out."""
    if pattern == host:
        return True
    try:
        ipaddress.ip_address(host)
        return False
    except ValueError:
        return pattern == "*" or (pattern.startswith("*.") and host.endswith(pattern[1:]))


def _ports(entry: Entry) -> dict[str, int]:
    port = entry.get("port")
    schemes = entry.get("scheme", "http" if port == 80 else "https")
    usual = {"https": 443, "http": 80}
    return {name: port or usual[name] for name in ([schemes] if isinstance(schemes, str) else schemes)}


def _matches(rule: dict[str, Any], asked: Asked, method: str, path: str, query: list[tuple[str, str]]) -> bool:
    allow = rule["action"] == "ALLOW"
    methods = rule["method"] if isinstance(rule["method"], list) else [rule["method"]]
    if "*" not in methods and method not in methods:
        return False
    if not re.fullmatch(rule["path"], path):
        return False
    if allow and asked.websocket and not rule.get("websocket"):
        return False
    if not allow and rule.get("websocket") and not asked.websocket:
        return False
    for key, expression in rule.get("query", {}).items():
        hits = [bool(re.fullmatch(expression, value)) for name, value in query if name == key]
        if (not hits or not all(hits)) if allow else not any(hits):
            return False
    return True


def _bytes(size: int | str) -> int:
    text = str(size).lower()
    unit = {"k": 1024, "m": 1024**2, "g": 1024**3}.get(text[-1])
    return int(text[:-1]) * unit if unit else int(text)


# --- readings ------------------------------------------------------------------------------------------------------


def every_reading(path: str) -> set[str]:
    """The path as sent and all that decoding (at most twice), resolving dot segments, taking a backslash for a slash,
    leaving out empty segments and parameters make of it, in any order. Raises Unreadable."""
    if re.search("%(?![0-9a-fA-F]{2})", path):
        raise Unreadable
    found = {(path, 0)}
    todo = [(path, 0)]
    while todo:
        reading, decoded = todo.pop()
        steps = [(_without_dots(reading), decoded), (reading.replace("\\", "/"), decoded)]
        steps += [(re.sub("/+", "/", reading), decoded), (re.sub(";[^/]*", "", reading), decoded)]
        if decoded < 2 and re.search("%[0-9a-fA-F]{2}", reading):
            steps += [(_decode(reading), decoded + 1), (_decode(reading, but="/"), decoded + 1)]
        for step in steps:
            if step not in found:
                found.add(step)
                todo.append(step)
        if len(found) > 5000:
            raise Unreadable
    return {reading for reading, _ in found}


def _decode(path: str, but: str = "") -> str:
    if but:
        path = re.sub("%2[fF]", lambda code: "%25" + code[0][1:], path)  # decodes to itself
    try:
        text = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise Unreadable from None
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text):
        raise Unreadable
    return text


def _without_dots(path: str) -> str:
    kept: list[str] = []
    parts = path.split("/")[1:]
    for part in parts:
        if part == "..":
            if not kept:
                raise Unreadable  # above the root
            kept.pop()
        elif part != ".":
            kept.append(part)
    return "/" + "/".join(kept) + ("/" if kept and parts[-1] in (".", "..") else "")


def query_readings(query: str) -> list[list[tuple[str, str]]]:
    """The fields of a query as servers read it: fields end at "&", or at ";" too; "+" is a space, or not."""
    found = []
    for ends in ("&", "[&;]"):
        for plus in (" ", "+"):
            fields = []
            for field in re.split(ends, query):
                name, _, value = field.partition("=")
                fields.append((_loose(name, plus), _loose(value, plus)))
            if fields not in found:
                found.append(fields)
    return found


def _loose(text: str, plus: str) -> str:
    return unquote_to_bytes(text.replace("+", plus)).decode("utf-8", "replace")
