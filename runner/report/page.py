"""A report as one HTML page, which loads nothing and runs nothing: its own policy forbids even what we could forget."""

from __future__ import annotations

from datetime import UTC, datetime

from impyard.runner.receipt import mapping
from impyard.runner.report import tables
from impyard.runner.report.data import Report
from impyard.runner.report.markup import Element, Lines, Node, h
from impyard.runner.report.style import STYLE
from impyard.runner.report.timeline import picture, timeline
from impyard.runner.run_summary import REASON_WORDS
from impyard.runner.text import counted, duration_text, shortened, size_text, unstarred
from impyard.runner.typed import as_typed

CSP = f"default-src 'none'; style-src {STYLE.source}; base-uri 'none'; form-action 'none'"
TITLE_CHARS = 90
STATES = {
    **REASON_WORDS,
    "running": "still running",
    "lost": "lost: impyard was killed during it",
    "runner-lost": "lost: impyard was killed during it",
    "unreadable": "unreadable",
    "?": "without a receipt",
}
WARNINGS = frozenset({"running", "lost", "runner-lost", "unreadable", "?"})


def page(report: Report) -> Element:
    """The whole page."""
    sections = _sections(report)
    requests = report.requests
    title = f"impyard, run {report.run.id}: {_state(report)}, {requests.denied} denied"
    return h(
        "html",
        h(
            "head",
            h("meta", charset="utf-8"),
            h("meta", http_equiv="Content-Security-Policy", content=CSP),
            h("meta", name="viewport", content="width=device-width, initial-scale=1"),
            h("meta", name="color-scheme", content="light dark"),
            h("meta", name="referrer", content="no-referrer"),
            h("title", title),
            STYLE,
        ),
        h(
            "body",
            h("header", _head(report), _nav(sections)),
            h("main", _figures(report), _alerts(report), (_section(*section) for section in sections)),
            h(
                "footer",
                h("p", f"Made by impyard from runs/{report.run.id} and the decision log, {_day(report.made)}. "),
                h("p", "This page is one file. It loads nothing, runs no script and leads nowhere."),
            ),
        ),
        lang="en",
    )


type Section = tuple[str, str, str, Node]  # id, heading, note, content


def _sections(report: Report) -> list[Section]:
    requests, agent = report.requests, report.agent
    sections: list[Section] = []
    if requests.denied:
        note = (
            "Requests that differ in a number or a hash only stand together. A command below a request shows the "
            "change of the policy that would allow it, and asks before it makes it."
        )
        sections.append(("denied", "Denied", note, list(tables.denials(report))))
    note = (
        "Times count from the run's start. What the judge decided stands beside ✓, ✗ and !. What stands behind a "
        "bar is the agent's own word: it comes out of the box, shortened, and nothing was decided by it."
    )
    shown = picture(requests.bars, report.end) if requests.bars is not None else None
    sections.append(("timeline", "Timeline", note, (shown, timeline(report))))
    if requests.hosts:
        note = "Bytes are those of bodies, without heads. First and last count from the run's start."
        sections.append(("hosts", "Hosts", note, list(tables.hosts(report))))
    if agent.usage:
        note = "As pi counted them, by the prices of its catalog."
        sections.append(("tokens", "Tokens and cost", note, tables.tokens(agent.usage)))
    sections.append(
        (
            "credentials",
            "Credentials and secrets",
            "Names only: no value is in this page.",
            list(tables.credentials(report)),
        )
    )
    if report.receipt.get("ended"):
        sections.append(("files", "Files", "", list(tables.files(report.receipt))))
    sections.append(("log", "Check of the log", "", tables.chain(report)))
    if report.receipt:
        sections.append(("receipt", "Receipt", "", (tables.facts(report), tables.raw(report.receipt))))
    return sections


def _section(name: str, heading: str, note: str, content: Node) -> Element:
    return h(
        "section", h("h2", heading, id=name), h("p", note, cls="note") if note else None, content, aria_labelledby=name
    )


def _nav(sections: list[Section]) -> Element:
    items = (h("li", h("a", heading, href=f"#{name}")) for name, heading, _, _ in sections)
    return h("nav", h("ul", items), aria_label="Parts of this page")


def _head(report: Report) -> Node:
    first, _, rest = report.prompt.partition("\n")
    whole = bool(rest.strip()) or len(first) > TITLE_CHARS
    state, words = report.run.state, _state(report)
    colour, sign = ("good", "✓") if state == "finished" else ("warn", "!") if state in WARNINGS else ("bad", "✗")
    more = [_day(report.start)]
    if report.receipt.get("model"):
        more.append(shortened(str(report.receipt["model"]), 100))
    error = report.receipt.get("error")
    return (
        h("p", "impyard, run ", h("code", report.run.id), cls="eyebrow"),
        h("h1", shortened(first, TITLE_CHARS) + (" …" if rest.strip() else "") or f"Run {report.run.id}", dir="auto"),
        h(
            "p",
            h("span", h("span", sign, aria_hidden="true"), f" {words}", cls=f"mark {colour}"),
            f" in {duration_text(report.end - report.start)} · " if report.receipt.get("ended") else " · ",
            h("span", " · ".join(more), cls="quiet"),
            cls="outcome",
        ),
        h("p", shortened(unstarred(str(error)), 600), cls="bad") if error else None,
        h("details", h("summary", "The whole prompt"), h("pre", Lines(report.prompt), dir="auto"), cls="prompt")
        if whole
        else None,
    )


def _state(report: Report) -> str:
    return STATES.get(report.run.state) or shortened(report.run.state, 60)


def _figures(report: Report) -> Element:
    requests, agent = report.requests, report.agent
    allowed, denied = _counts(report)
    by = "by the receipt" if (allowed, denied) != (requests.allowed, requests.denied) else ""
    failed = f"{requests.failed:,} of them failed" if requests.failed else ""
    figures: list[tuple[str, Node, str]] = [
        ("Time", duration_text(max(report.end - report.start, 0.0)), ""),
        ("Allowed", f"{allowed:,}", by or failed),
        ("Denied", h("span", f"{denied:,}", cls="bad" if denied else None), by),
        ("Sent", size_text(requests.up), ""),
        ("Received", size_text(requests.down), ""),
    ]
    if agent.usage:
        used = agent.usage.values()
        calls, inputs = (
            sum(one.calls for one in used),
            sum(one.input + one.cache_read + one.cache_write for one in used),
        )
        figures += [
            ("Model calls", f"{calls:,}", f"{counted(agent.calls, 'tool call')}"),
            (
                "Tokens",
                f"{inputs + sum(one.output for one in used):,}",
                f"{sum(one.output for one in used):,} of them output",
            ),
            ("Cost", tables.cost_text(sum(one.cost for one in used)), ""),
        ]
    return h(
        "dl",
        (h("div", h("dt", name), h("dd", value, h("small", more) if more else None)) for name, value, more in figures),
        cls="figures" if len(figures) > 5 else "figures five",
    )


def _counts(report: Report) -> tuple[int, int]:
    """How many requests were allowed and denied: by the log, or by the receipt where lines of the log were removed."""
    requests, written = report.requests, mapping(report.receipt.get("decisions"))
    allowed, denied = written.get("allowed"), written.get("denied")
    lacks = requests.removed and report.receipt.get("ended")
    if lacks and isinstance(allowed, int) and isinstance(denied, int) and max(abs(allowed), abs(denied)) < 10**12:
        return allowed, denied
    return requests.allowed, requests.denied


def _alerts(report: Report) -> Element | None:
    requests = report.requests
    alerts: list[tuple[str, str]] = []
    if requests.faults:
        alerts.append(
            ("is-bad", f"✗ The decision log is not as it was written: {tables.fault_text(requests.faults[0])}.")
        )
    written = mapping(report.receipt.get("decisions"))
    said, found = (written.get("allowed"), written.get("denied")), (requests.allowed, requests.denied)
    explained = requests.faults or requests.removed
    if report.receipt.get("ended") and None not in said and said != found and not explained:
        words = "The receipt counts {} allowed and {} denied requests, the log has {} and {}."
        alerts.append(("is-bad", "✗ " + words.format(*said, *found)))
    if requests.secrets:
        alerts.append(
            ("is-bad", f"✗ {counted(requests.secrets, 'denied request')} held a secret where it does not belong.")
        )
    if report.receipt.get("refused_key"):
        alerts.append(("is-bad", "✗ " + as_typed(shortened(str(report.receipt["refused_key"]), 400))))
    alerts += [("", f"! {text}") for text in report.missing]
    if not alerts:
        return None
    return h("ul", (h("li", text, cls=kind or None) for kind, text in alerts), cls="alerts", aria_label="What to know")


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
