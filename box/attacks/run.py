"""Attempts one after another. After each an honest request, which must work, and which tells their traces apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from impyard.box.attacks.client import Client
from impyard.box.attacks.model import CLOSED, Attempt, Event, Line, Result, Seen, Tried

HONEST = "/public/after/"


def carry_out(client: Client, attempts: Iterable[tuple[int, Attempt]]) -> Iterator[Tried]:
    """Make each attempt, with the number that its honest request gets.

    Never raises for what the proxy does: a client that cannot go on says so in its note.
    """
    for number, attempt in attempts:
        try:
            result = attempt.send(client)
        except Exception as exc:  # noqa: BLE001 - one that cannot be made must not take the others with it
            result = Result((), f"{type(exc).__name__}: {exc}")
        try:
            after = client.get(f"{HONEST}{number}").status
        except Exception:  # noqa: BLE001 - as above
            after = CLOSED
        yield Tried(number, attempt.key, result, after)


def as_json(tried: Tried) -> dict[str, Any]:
    """For the way out of the box."""
    statuses, note = list(tried.result.statuses), tried.result.note
    return {"number": tried.number, "key": tried.key, "statuses": statuses, "note": note, "after": tried.after}


def from_json(item: Mapping[str, Any]) -> Tried:
    """What a box reported; nothing in it is believed. Raises ValueError, TypeError or KeyError."""
    statuses = tuple(int(status) for status in item["statuses"][:100])
    result = Result(statuses, str(item["note"])[:200])
    return Tried(int(item["number"]), str(item["key"]), result, int(item["after"]))


def by_attempt(events: Sequence[Event]) -> dict[int, Seen]:
    """What the origin saw of each attempt, by its number, without the honest requests and their connections."""
    found: dict[int, Seen] = {}
    since: list[Event] = []
    for event in events:
        number = _number(event.asked.target) if event.asked else None
        if number is None:
            since.append(event)
            continue
        mine = [each for each in since if each.connection != event.connection]
        found[number] = Seen(
            connections=sum(each.asked is None and not each.raw for each in mine),
            asked=tuple(each.asked for each in mine if each.asked),
            raw=b"".join(each.raw for each in mine),
        )
        since = []
    return found


def lines_by_attempt(lines: Iterable[Line]) -> dict[int, list[Line]]:
    """The lines of the decision log about each attempt, without those of the honest requests."""
    found: dict[int, list[Line]] = {}
    since: list[Line] = []
    for line in lines:
        number = _number(line.target)
        if number is None or line.verdict != "allow":
            since.append(line)
        else:
            found[number], since = since, []
    return found


def line_from(entry: Mapping[str, Any]) -> Line:
    """A line of decisions.jsonl."""
    query = f"?{entry['query']}" if entry.get("query") else ""
    return Line(
        verdict=str(entry.get("verdict")),
        reason=str(entry.get("reason")),
        method=str(entry.get("method")),
        host=str(entry.get("host")),
        target=f"{entry.get('path')}{query}",
    )


def _number(target: str) -> int | None:
    number = target.removeprefix(HONEST)
    return int(number) if number != target and number.isdigit() else None
