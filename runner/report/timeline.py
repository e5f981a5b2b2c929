"""A report's timeline: what the agent did, and between it what the judge decided; and a small picture of the run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime

from impyard.runner.report.agent import Step
from impyard.runner.report.data import Report
from impyard.runner.report.markup import Element, Lines, Node, h
from impyard.runner.report.requests import BARS, Bars, Gap, Group
from impyard.runner.spotted import secret_text
from impyard.runner.text import duration_text, shortened, size_text, unstarred

PATH_CHARS = 110
UP, DOWN = 26.0, 16.0  # of the picture, above and below its line
_DEGREE = 0.5  # one request beside thousands is still to be seen

MARKS = {"allow": ("✓", "allowed", "good"), "deny": ("✗", "denied", "bad"), "failed": ("!", "failed", "warn")}


def timeline(report: Report) -> Element:
    """The whole of it, in order of time."""
    rows: list[Node] = []
    for number in range(len(report.steps) + 1):
        if (gap := report.requests.gaps.get(number)) is not None:
            rows += _requests(gap, report.start)
        if number < len(report.steps):
            rows.append(_step(report.steps[number], report.start))
    return h("ol", rows, cls="timeline")


def mark(verdict: str) -> Element:
    """A verdict by sign, word and colour."""
    sign, word, colour = MARKS[verdict]
    return h("span", h("span", sign, aria_hidden="true"), f" {word}", cls=f"mark {colour}")


def asked(group: Group) -> Element:
    """What requests asked for: method, host and path; the scheme and port where they are not the usual ones."""
    entry = group.entry
    host = f"[{entry.host}]" if ":" in entry.host else entry.host
    port = "" if entry.port in (443, 80) else f":{entry.port}"
    scheme = "" if entry.scheme == "https" else f"{entry.scheme}://"
    if group.mixed:
        return h("code", shortened(unstarred(f"other requests to {scheme}{host}{port}"), PATH_CHARS))
    return h("code", shortened(unstarred(f"{entry.method} {scheme}{host}{port}{group.path}"), PATH_CHARS))


def clock(at: float, start: float) -> Element:
    """A time as it is counted from the run's start; the time of day stands behind it."""
    seconds = max(at - start, 0.0)
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    tenths = math.floor(rest * 10) / 10
    text = f"{hours:.0f}:{minutes:02.0f}:{math.floor(rest):02d}" if hours else f"{minutes:.0f}:{tenths:04.1f}"
    return h("time", text, datetime=iso(at), title=iso(at))


def iso(at: float) -> str:
    """A time in UTC, for machines: `2026-11-29T17:03:12.636Z`."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _requests(gap: Gap, start: float) -> Iterator[Element]:
    for group in sorted(gap.groups.values(), key=lambda group: group.at):
        yield h("li", clock(group.at, start), h("div", _request(group), cls="request"))
    if gap.more_allowed or gap.more_denied:
        counts = f"{gap.more_allowed} allowed, {gap.more_denied} denied"
        yield h("li", h("span"), h("div", f"… and other requests here: {counts}", cls="request more"))


def _request(group: Group) -> Node:
    entry = group.entry
    verdict = "deny" if entry.verdict != "allow" else "failed" if group.failed else "allow"
    parts = []
    if group.times > 1:
        parts.append(f"{group.times} times")
    if verdict == "deny":
        parts.append(entry.reason)
    if group.failed:
        parts.append(f"{group.failed} failed: {group.error}" if group.times > 1 else group.error)
    elif group.status is not None:
        parts.append(str(group.status))
    if group.up or group.down:
        parts.append(f"{size_text(group.up)} up, {size_text(group.down)} down")
    if entry.injected and verdict != "deny":
        parts.append(f"with {entry.credential}")
    if entry.secret is not None:
        parts.append(_secret(group))
    return (
        mark(verdict),
        " ",
        asked(group),
        (" ", h("span", shortened(" · ".join(parts), 200), cls="more")) if parts else None,
    )


def _secret(group: Group) -> str:
    secret = group.entry.secret
    assert secret is not None
    return secret_text({"credential": secret.credential, "kind": secret.kind, "where": secret.where})


def _step(step: Step, start: float) -> Element:
    if step.kind == "left-out":
        return h("li", h("span"), h("div", f"… {step.text} steps of the agent are left out here", cls="more"))
    show = {"prompt": _prompt, "says": _says, "call": _call, "error": _error, "retry": _retry, "summary": _summary}
    return h("li", clock(step.at, start), h("div", show[step.kind](step), cls="box"))


def _prompt(step: Step) -> Node:
    return h("span", "prompt", cls="who"), h("pre", Lines(step.text), cls="said", dir="auto")


def _says(step: Step) -> Node:
    return h("span", "agent", cls="who"), h("pre", Lines(step.text), cls="said", dir="auto")


def _call(step: Step) -> Node:
    name = h("span", step.name, cls="call")
    parts = [duration_text(step.duration_s)] if step.duration_s and step.duration_s >= 0.1 else []
    if step.is_error:
        parts.append("failed")
    if step.result is None:
        parts.append("no result")
    more = (" ", h("span", " · ".join(parts), cls="warn more" if step.is_error else "more")) if parts else None
    head = (name, " ", h("code", " ".join(step.text.split())), more)
    if not step.result:
        return h("span", "agent calls a tool", cls="who"), h("div", head)
    return (
        h("span", "agent calls a tool", cls="who"),
        h("details", h("summary", head), h("pre", Lines(step.result), dir="auto")),
    )


def _error(step: Step) -> Node:
    return h("span", "! the model call failed", cls="mark bad"), h("pre", Lines(unstarred(step.text)), cls="said")


def _retry(step: Step) -> Node:
    return h("span", f"pi tries again: {step.text}", cls="more")


def _summary(step: Step) -> Node:
    return h("span", "the conversation was long; pi summed it up", cls="who"), h("pre", Lines(step.text), cls="said")


def picture(bars: Bars, end: float) -> Element:
    """Requests over time as bars: allowed ones above the line, denied ones below."""
    used = [n for n in range(BARS) if bars.allowed[n] or bars.denied[n]]
    count = min(max(math.ceil((end - bars.start) / bars.span_s), used[-1] + 1, 12), BARS)
    most = max(*bars.allowed, *bars.denied)
    rects = []
    for n in used:
        for name, number, room in (("a", bars.allowed[n], UP), ("d", bars.denied[n], DOWN)):
            if number:
                height = max((number / most) ** _DEGREE * room, 2.0)
                y = UP - height if name == "a" else UP
                rects.append(h("rect", cls=name, x=f"{n + 0.1:.1f}", y=f"{y:.2f}", width="0.8", height=f"{height:.2f}"))
    line = h("line", x1="0", x2=str(count), y1=str(UP), y2=str(UP))
    label = f"Requests over time: {sum(bars.allowed)} allowed, above the line, {sum(bars.denied)} denied, below it."
    svg = h(
        "svg", rects, line, role="img", aria_label=label, viewBox=f"0 0 {count} {UP + DOWN}", preserveAspectRatio="none"
    )
    legend = h(
        "p",
        h("span", "0"),
        h("span", "▲ allowed · ▼ denied"),
        h("span", duration_text(count * bars.span_s)),
    )
    return h("div", svg, legend, cls="picture")
