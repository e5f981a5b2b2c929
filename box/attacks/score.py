"""Whether an attempt was held: the one place that says so, for the tests and for `prove --deep`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from impyard.box.attacks.model import OK, WS, Attempt, Line, Result, Seen

Owed = Counter[tuple[str, str]]  # method and target of requests that may still reach the origin

_WORDS = {0: "closed", -1: "nothing in time"}


def faults(attempt: Attempt, result: Result, lines: Sequence[Line] | None, seen: Seen) -> list[str]:
    """What is wrong with how an attempt ended, in words; empty when it was held.

    lines: the decision log's lines about it; None for a proxy whose log is not known, of which only is asked that
    nothing got out, and that the client was refused in whatever way.
    """
    return [*_answers(attempt, result, lenient=lines is None), *_origin(attempt, seen), *_log(attempt, lines, seen)]


def settled(seen: Seen, lines: Sequence[Line], owed: Owed) -> tuple[Seen, Owed]:
    """`seen` without what is `owed` by the attempt before, and what this one owes.

    A client may be gone, and its next attempt begun, before the origin has read a request that was allowed. Still every
    arrival has an allowed line of its own: what is beyond this attempt's lines and not owed stays.
    """
    allowed, reached = _allowed(lines), reached_by(seen)
    late = (reached - allowed) & owed
    left, asked = Counter(late), []
    for each in seen.asked:
        key = (each.method, each.target.removesuffix("?"))
        if left[key]:
            left[key] -= 1
        else:
            asked.append(each)
    seen = replace(seen, asked=tuple(asked), connections=max(seen.connections - late.total(), 0))
    return seen, allowed - reached_by(seen)


def escaped(attempt: Attempt, seen: Seen) -> bool:
    """Whether something reached the origin that must not: the question to a proxy that judges nothing."""
    return bool(_origin(attempt, seen, dialled=False))


def _answers(attempt: Attempt, result: Result, *, lenient: bool) -> list[str]:
    right = [_said(each) for each in attempt.answers]
    found = [_WORDS.get(status, str(status)) for status in result.statuses]
    good = len(found) == len(right) and all(
        status in each or (lenient and _is_refusal(each) and (status == 0 or status >= 400))
        for status, each in zip(result.statuses, attempt.answers, strict=True)
    )
    note = f" ({result.note})" if result.note else ""
    return [] if good else [f"the client got {', '.join(found) or 'nothing'}{note}, not {', '.join(right)}"]


def _is_refusal(right: frozenset[int]) -> bool:
    return any(status == 0 or status >= 400 for status in right)


def _said(right: frozenset[int]) -> str:
    return " or ".join(_WORDS.get(status, str(status)) for status in sorted(right))


def _origin(attempt: Attempt, seen: Seen, *, dialled: bool = True) -> list[str]:
    found = [f"{asked.method} {asked.target}" for asked in seen.asked]
    wrong = []
    if found and found != list(attempt.sees):
        wrong.append(f"the origin got {_listed(found)}, and should get {_listed(attempt.sees)}")
    if attempt.must and not found:
        wrong.append(f"the origin did not get {_listed(attempt.sees)}")
    if seen.raw:
        wrong.append(f"the origin got bytes that are no request: {seen.raw[:40]!r}")
    if dialled and seen.connections and not found and not seen.raw and not attempt.sees:
        wrong.append("a connection to the origin was opened")
    for asked in seen.asked:
        hosts = [value.partition(":")[0] for value in asked.values("host")]
        if hosts not in ([OK], [WS]):
            wrong.append(f"the origin was asked as {_listed(hosts)}")
    if found and attempt.carries is not None and b"".join(asked.body for asked in seen.asked) != attempt.carries:
        wrong.append("the body at the origin is not the one that was sent")
    size = sum(asked.size for asked in seen.asked)
    if attempt.most is not None and size > attempt.most:
        wrong.append(f"the origin got {size} bytes of bodies, and should get at most {attempt.most}")
    everything = b"".join(asked.head + asked.body for asked in seen.asked) + seen.raw
    wrong += [f"the origin got {part!r}" for part in attempt.never if part.lower() in everything.lower()]
    return wrong


def _log(attempt: Attempt, lines: Sequence[Line] | None, seen: Seen) -> list[str]:
    if lines is None:
        return []
    wrong = []
    if len(lines) not in attempt.lines:
        wanted = " or ".join(str(count) for count in sorted(attempt.lines))
        wrong.append(f"the log has {len(lines)} lines about it, not {wanted}")
    allowed, reached = _allowed(lines), reached_by(seen)
    if reached - allowed:
        judged = _listed([" ".join(pair) for pair in allowed])
        got = _listed([" ".join(pair) for pair in reached])
        wrong.append(f"judged was {judged}, but the origin got {got}")
    if not attempt.sees and allowed:
        wrong.append("the log says that it was allowed")
    strange = {line.reason for line in lines if line.verdict != "allow"} - attempt.reasons
    if strange:
        wrong.append(
            f"denied as {_listed(sorted(strange))}, not as {' or '.join(sorted(attempt.reasons)) or 'anything'}"
        )
    return wrong


def _allowed(lines: Sequence[Line]) -> Owed:
    return Counter((line.method, line.target) for line in lines if line.verdict == "allow")


def reached_by(seen: Seen) -> Owed:
    """The requests that the origin read, counted."""
    # An empty query is none: the log does not tell "/x?" from "/x".
    return Counter((asked.method, asked.target.removesuffix("?")) for asked in seen.asked)


def _listed(items: Sequence[str]) -> str:
    return ", ".join(item if len(item) <= 60 else item[:57] + "..." for item in items) or "nothing"
