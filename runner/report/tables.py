"""The parts of a report beside its timeline: denials, hosts, tokens, credentials, files, the receipt and its checks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from impyard.addon.reasons import REASONS
from impyard.runner.policy.mendable import is_mendable
from impyard.runner.receipt import bytes_text, file_text, mapping, sequence
from impyard.runner.report.agent import Usage
from impyard.runner.report.data import Report
from impyard.runner.report.markup import Element, Lines, Node, h
from impyard.runner.report.requests import MAX_DENIED, Fault, Group, Host
from impyard.runner.report.timeline import asked, clock, mark
from impyard.runner.spotted import record_text, secret_text
from impyard.runner.text import counted, duration_text, shortened, size_text, unstarred
from impyard.runner.typed import command_line

OPEN_DENIED = 12  # kinds of denials that are shown at once; more are a tap away
MAX_HOST_ROWS = 60
MAX_FILES = 60
RAW_CHARS = 48 * 1024


def denials(report: Report) -> Iterator[Node]:
    """Each kind of denied request: why, which rule came closest, and what would allow it."""
    requests = report.requests
    groups = sorted(requests.denials.values(), key=lambda group: (-group.times, group.at))
    shown, folded = groups[:OPEN_DENIED], groups[OPEN_DENIED:MAX_DENIED]
    yield [_denial(group, report) for group in shown]
    if folded:
        summary = h("summary", f"{counted(len(folded), 'other kind')} of denied requests")
        yield h("details", summary, [_denial(group, report) for group in folded], cls="raw")
    if (mendable := sum(map(_mendable, groups))) > 1:
        which = "all of them" if mendable == len(groups) else "those that a rule can allow"
        command = command_line("policy", "suggest", "--run", report.run.id, project=report.project)
        yield h("p", f"Rules for {which}, as small as they can be: ", h("code", command))
    rest = sum(group.times for group in groups[MAX_DENIED:]) + requests.denied_more
    if rest:
        are = "is" if rest == 1 else "are"
        command = command_line("decisions", "--run", report.run.id, "--denied", project=report.project)
        yield h("p", f"{counted(rest, 'other denied request')} {are} left out here. All of them: ", h("code", command))


def _denial(group: Group, report: Report) -> Element:
    return h(
        "article",
        h("h3", mark("deny"), " ", asked(group), " ", h("span", _when(group, report.start), cls="quiet")),
        h("p", h("b", group.entry.reason), f": {REASONS.get(group.entry.reason, 'a reason of another version')}"),
        _nearest(group),
        _secret(group),
        _command(group, report),
        cls="card",
    )


def _when(group: Group, start: float) -> Node:
    if group.times == 1:
        return "at ", clock(group.at, start)
    return f"{group.times:,} times, ", clock(group.at, start), " to ", clock(group.last_at, start)


def _nearest(group: Group) -> Node:
    entry = group.entry
    if group.mixed:
        return None
    if entry.at is not None:
        return h("p", "Decided by ", h("code", shortened(f"{entry.at} {entry.rule or ''}".strip(), 200)))
    if entry.nearest is not None:
        failed = entry.nearest.failed
        what = "; it denies" if failed == "action" else f"; the request differs in its {failed}"
        return h("p", "The closest rule is ", h("code", shortened(entry.nearest.at, 200)), what)
    return None


def _secret(group: Group) -> Node:
    secret = group.entry.secret
    if secret is None or group.mixed:
        return None
    told = {"credential": secret.credential, "kind": secret.kind, "where": secret.where}
    return h("p", h("span", f"It held {secret_text(told)}", cls="bad"))


def _command(group: Group, report: Report) -> Node:
    if not _mendable(group) or group.mixed:
        return None
    command = command_line("policy", "allow", group.entry.id, project=report.project)
    return h("p", h("code", command, cls="command"))


def _mendable(group: Group) -> bool:
    entry = group.entry
    return is_mendable(entry.reason, entry.method, entry.scheme, entry.host, entry.port)


def hosts(report: Report) -> Iterator[Node]:
    """What went to which host."""
    requests = report.requests
    ranked = sorted(requests.hosts.values(), key=lambda host: (-(host.allowed + host.denied), host.name))
    shown, rest = ranked[:MAX_HOST_ROWS], ranked[MAX_HOST_ROWS:]
    failures = any(host.failed for host in ranked)
    names = ["Allowed", *(["Failed"] if failures else []), "Denied", "Sent", "Received", "First", "Last"]
    rows = [_host_row(host, h("code", shortened(unstarred(host.name), 100)), report.start, failures) for host in shown]
    others = rest + ([requests.hosts_more] if requests.hosts_more else [])
    if others:
        total = Host("", min(host.first_at for host in others), max(host.last_at for host in others))
        for host in others:
            for name in ("allowed", "denied", "failed", "up", "down"):
                setattr(total, name, getattr(total, name) + getattr(host, name))
        count = f"{len(rest)} other hosts" if requests.hosts_more is None else f"more than {len(rest)} other hosts"
        rows.append(_host_row(total, count, report.start, failures))
    yield h(
        "table",
        h("thead", h("tr", (h("th", name, scope="col", role="columnheader") for name in ("Host", *names)), role="row")),
        h("tbody", rows, role="rowgroup"),
        role="table",
        aria_labelledby="hosts",
    )


def _host_row(host: Host, name: Node, start: float, failures: bool) -> Element:
    cells: list[tuple[str, Node]] = [("Allowed", host.allowed)]
    if failures:
        cells.append(("Failed", host.failed))
    cells += [
        ("Denied", h("span", host.denied, cls="bad") if host.denied else host.denied),
        ("Sent", size_text(host.up)),
        ("Received", size_text(host.down)),
        ("First", clock(host.first_at, start)),
        ("Last", clock(host.last_at, start)),
    ]
    return h(
        "tr",
        h("th", name, scope="row", role="rowheader"),
        (h("td", value, role="cell", data_label=label) for label, value in cells),
        role="row",
    )


def tokens(usage: Mapping[str, Usage]) -> Element:
    """Tokens and cost of each model."""
    names = ("Calls", "Input", "Output", "Cache read", "Cache written", "Cost")
    rows = []
    for model, used in usage.items():
        values = (used.calls, used.input, used.output, used.cache_read, used.cache_write)
        cells = [f"{value:,}" for value in values] + [cost_text(used.cost)]
        rows.append(
            h(
                "tr",
                h("th", model, scope="row", role="rowheader"),
                (h("td", cell, role="cell", data_label=name) for name, cell in zip(names, cells, strict=True)),
                role="row",
            )
        )
    return h(
        "table",
        h(
            "thead",
            h("tr", (h("th", name, scope="col", role="columnheader") for name in ("Model", *names)), role="row"),
        ),
        h("tbody", rows, role="rowgroup"),
        role="table",
        aria_labelledby="tokens",
    )


def cost_text(dollars: float) -> str:
    """US dollars, with as many places as say something."""
    return f"${dollars:,.2f}" if dollars >= 0.1 or dollars == 0 else f"${dollars:.4f}"


def chain(report: Report) -> Node:
    """Whether the decision log is as it was written, in words."""
    requests, receipt = report.requests, mapping(report.receipt.get("decisions"))
    command = command_line("decisions", "--verify", "--run", report.run.id, project=report.project)
    if requests.faults:
        more = requests.faults_more
        return (
            h("p", h("span", "✗ broken", cls="mark bad"), ": the log was changed, or lines of it were lost."),
            h("ul", (h("li", fault_text(fault)) for fault in requests.faults)),
            h("p", f"… and {counted(more, 'other fault')}") if more else None,
            h("p", h("code", command, cls="command")),
        )
    older = counted(requests.removed, "older line")
    if not requests.lines and requests.removed:
        text = f": the {older} of this run were removed because somebody asked for that"
        return h("p", h("span", "nothing left to check", cls="mark quiet"), f"{text}.")
    if not requests.lines:
        return h("p", h("span", "nothing to check", cls="mark quiet"), ": the log has no line of this run.")
    ends = report.receipt.get("ended") and isinstance(receipt.get("last"), str)
    end = (
        "and the last one is the one that the receipt names."
        if ends
        else "but no receipt says which is the last: lines at the end could be missing."
    )
    return (
        h(
            "p",
            h("span", "✓ verified", cls="mark good"),
            f": {counted(requests.lines, 'line')}, each of which names the one before it by its hash, {end}",
            f" Before them, {older} went because somebody asked for that." if requests.removed else None,
        ),
        h("p", "Anybody can check it again: ", h("code", command)),
    )


def fault_text(fault: Fault) -> str:
    """What is wrong with the log, and in which line of which file."""
    place = f"line {fault.line}" + (f" of {fault.file}" if fault.file else "")
    return f"{place}: {fault.what}" if fault.line else fault.what


def credentials(report: Report) -> Iterator[Node]:
    """Which credentials were put on, and what was found where it does not belong."""
    receipt = report.receipt
    used = mapping(receipt.get("credentials")) or report.requests.credentials
    if used:
        items = (
            h("li", h("code", shortened(str(name), 100)), f" on {counted(int(count), 'request')}")
            for name, count in list(used.items())[:MAX_FILES]
            if isinstance(count, int)
        )
        yield h("p", "The gateway put these on; the box held worthless stand-ins only:")
        yield h("ul", items)
    else:
        yield h("p", "No credential was put on a request.")
    records = [mapping(record) for record in sequence(receipt.get("secrets"))]
    if records:
        yield h("p", h("span", "✗ found where it does not belong", cls="mark bad"), ", and denied:")
        yield h("ul", (h("li", shortened(record_text(record), 300)) for record in records[:MAX_FILES]))
    elif report.requests.secrets:
        yield h(
            "p",
            f"{counted(report.requests.secrets, 'request')} held a secret where it does not belong, and was denied.",
        )
    else:
        yield h("p", "No secret was found in a request where it does not belong.")
    if receipt.get("refused_key"):
        yield h("p", h("span", shortened(str(receipt["refused_key"]), 400), cls="bad"))


def files(receipt: Mapping[str, Any]) -> Iterator[Node]:
    """What the workspace gained, and what of it wants a look."""
    found = [mapping(file) for file in sequence(receipt.get("files"))]
    if found:
        yield h("ul", (h("li", h("code", shortened(file_text(file), 200))) for file in found[:MAX_FILES]))
    else:
        yield h("p", "None new or changed.")
    more = receipt.get("files_more")
    rest = len(found[MAX_FILES:]) + (more if isinstance(more, int) else 0)
    if rest:
        yield h("p", f"… and {counted(rest, 'other file')}", cls="note")
    if receipt.get("files_complete") is False:
        yield h("p", "The workspace holds more than is looked at: some may be missing here.", cls="note")
    for name in sequence(receipt.get("links"))[:MAX_FILES]:
        yield h(
            "p", h("code", shortened(str(name), 200)), " is a link: remove it before git here writes where it leads."
        )
    for name in sequence(receipt.get("repositories"))[:MAX_FILES]:
        yield h(
            "p", h("code", shortened(str(name), 200)), " is a new git repository: look at it before you use git there."
        )


def facts(report: Report) -> Element:
    """What the run ran with."""
    receipt = report.receipt
    policy, image = mapping(receipt.get("policy")), mapping(receipt.get("image"))
    probes = [mapping(probe) for probe in sequence(receipt.get("probes"))]
    good = sum(probe.get("ok") is True for probe in probes)
    bad = [
        f"{probe.get('name')}: expected {probe.get('expected')}, found {probe.get('found')}"
        for probe in probes
        if not probe.get("ok")
    ]
    limits = mapping(receipt.get("limits"))
    ceiling = receipt.get("ceiling_s")
    pairs: list[tuple[str, Node]] = [
        ("Run", h("code", report.run.id)),
        ("Goes on with", _code(receipt.get("resumes"))),
        ("Model", _said(receipt.get("model"))),
        ("Started", _said(receipt.get("started"))),
        ("Ended", _said(receipt.get("ended"))),
        ("Ceiling", duration_text(ceiling) if isinstance(ceiling, int | float) and abs(ceiling) < 1e9 else None),
        ("Exit status", _said(receipt.get("exit_status"))),
        ("Policy", ", ".join(map(str, sequence(policy.get("files")))) or None),
        ("Policy hash", _code(policy.get("hash"))),
        ("Checks of the box", f"{good} of {len(probes)} as expected" if probes else None),
        *(("A check that failed", text) for text in bad[:MAX_FILES]),
        ("Kept from the box", len(sequence(receipt.get("kept"))) or None),
        ("Limits", ", ".join(_limits(limits)) or None),
        ("Workspace", _code(receipt.get("workspace"))),
        ("Image", _code(image.get("id"))),
        (
            "pi, impyard, engine",
            ", ".join(str(receipt.get(name) or "?") for name in ("pi", "impyard", "engine")) if receipt else None,
        ),
        ("Authority", _code(receipt.get("ca"))),
    ]
    return h("dl", ((h("dt", name), h("dd", _short(value))) for name, value in pairs if value is not None), cls="facts")


def _said(value: Any) -> str | None:
    """What a receipt says, of whatever type somebody made it; None for nothing."""
    return None if value is None or value == "" else shortened(str(value), 300)


def _code(value: Any) -> Node:
    said = _said(value)
    return None if said is None else h("code", said)


def raw(receipt: Mapping[str, Any]) -> Element:
    """The receipt as it is in its file."""
    text = json.dumps(receipt, indent=2, ensure_ascii=False)
    cut = "" if len(text) <= RAW_CHARS else f"\n… ({counted(len(text) - RAW_CHARS, 'more character')})"
    return h("details", h("summary", "run.json, as it is"), h("pre", Lines(text[:RAW_CHARS] + cut)), cls="raw json")


def _limits(limits: Mapping[str, Any]) -> Iterator[str]:
    if limits.get("cpus"):
        yield f"{limits['cpus']} processors"
    if limits.get("memory"):
        yield f"{bytes_text(limits['memory'])} of memory"
    if limits.get("pids"):
        yield f"{limits['pids']} processes"


def _short(value: Node) -> Node:
    return shortened(value, 300) if isinstance(value, str) else value
