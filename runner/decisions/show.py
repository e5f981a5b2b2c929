"""`impyard decisions show`: all that is known of one decision, the rule in its file, and what came of the request."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from impyard.addon.errors import ImpyardError
from impyard.addon.reasons import REASONS
from impyard.runner import proofs
from impyard.runner.decisions import outcomes
from impyard.runner.decisions.lines import Entry
from impyard.runner.decisions.outcomes import Outcome, Row
from impyard.runner.decisions.read import Read, find, short_id
from impyard.runner.options import project_option
from impyard.runner.project import RUN_ID, RunPaths, find_root
from impyard.runner.receipt import bytes_text, read_receipt
from impyard.runner.text import columns_of, shortened, size_text, unstarred, visible, wrapped
from impyard.runner.typed import command_line

CONTEXT = 2  # lines of the policy before and after a rule
MAX_POLICY = 4 << 20  # bytes; a larger file is none that a person wrote
MAX_LINE = 160  # columns of a policy's line
MAX_HEADER = 240
MAX_DIGITS = 300  # of a number
COLOURS = {"allow": "green", "deny": "red", "failed": "yellow"}
FAILED = {
    "host": "its entry is for another host",
    "scheme": "its entry is for another scheme",
    "port": "its entry is for another port",
    "method": "it is for another method",
    "path": "its path does not match",
    "query": "its query does not match",
}


class Excerpt(NamedTuple):
    """A place in a policy file: its lines by number, with those around; `fault` says why there are none."""

    at: str
    line: int
    lines: dict[int, str]
    fault: str = ""


@click.command("show")
@click.argument("id")
@project_option
@click.option("--json", "as_json", is_flag=True, help="All of it as one JSON object.")
@click.pass_context
def show_command(ctx: click.Context, id: str, project: Path | None, as_json: bool) -> int:
    """Show all that is known of one decision.

    \b
    impyard decisions show 09c6.12
    impyard decisions show 20261129-201824-09c6.12 --json

    ID is a decision's id, its beginning, or its short form as the table shows it. The rule that decided, and for a
    denial the one that came closest, are shown in the policy as it is now; whether that has changed since is said.
    """
    root = find_root(project or ctx.obj)
    log = root / "runs" / "decisions.jsonl"
    found = find(log, id)
    entry = found.entry
    try:
        [row] = outcomes.join(outcomes.path_beside(log), [Row(found.line, entry)])
    except ImpyardError as exc:
        click.echo(f"warning: what became of the request is not shown: {exc.message}", err=True)
        row = Row(found.line, entry)
    changed = _has_changed(root, entry)
    rule = _excerpt(root, entry.at) if entry.at else None
    nearest = _excerpt(root, entry.nearest.at) if entry.nearest else None
    if as_json:
        click.echo(json.dumps(_document(found, row.outcome, rule, nearest, changed), indent=2))
        return 0
    _print(_facts(root, found, row, rule, nearest, changed))
    return 0


def _document(
    found: Read, outcome: Outcome | None, rule: Excerpt | None, nearest: Excerpt | None, changed: bool | None
) -> dict[str, Any]:
    def told(excerpt: Excerpt | None) -> dict[str, Any] | None:
        if excerpt is None:
            return None
        known = {"fault": excerpt.fault} if excerpt.fault else {"text": excerpt.lines.get(excerpt.line)}
        return {"at": excerpt.at, "line": excerpt.line, **known}

    came = {name: getattr(outcome, name) for name in outcome.__struct_fields__} if outcome else None
    return {
        "decision": _whole(found),
        "outcome": came,
        "rule": told(rule),
        "nearest": told(nearest),
        "policy_changed": changed,
    }


def _whole(found: Read) -> dict[str, Any]:
    """All fields of the line, also those that only other versions know; odd numbers as text. They may be nested deeper
    than this reads: then the fields that every decision has."""
    try:
        whole = json.loads(
            found.line.decode("utf-8", "replace"), parse_int=_number, parse_float=_number, parse_constant=str
        )
    except (ValueError, RecursionError):
        whole = msgspec.to_builtins(found.entry)
    return whole if isinstance(whole, dict) else {}


def _number(text: str) -> int | float | str:
    """A number that any program can read, else the text."""
    if len(text) > MAX_DIGITS:
        return text
    number = float(text)
    return text if math.isinf(number) else int(text) if text.lstrip("-").isdecimal() else number


def _facts(
    root: Path, found: Read, row: Row, rule: Excerpt | None, nearest: Excerpt | None, changed: bool | None
) -> list[tuple[str, list[str]]]:
    """What is printed: a name, and its lines."""
    entry, raw = found.entry, _whole(found)
    meaning = REASONS.get(entry.reason, "this version of impyard does not know this reason").partition(";")[0]
    verdict = f"{entry.verdict}, but it failed" if row.failed else entry.verdict
    facts = [
        ("decision", [entry.id]),
        ("time", [f"{entry.ts[:10]} {entry.ts[11:].removesuffix('Z')} UTC"]),
        ("verdict", [verdict]),
        ("reason", [f"{entry.reason}: {meaning}"]),
        ("request", [f"{entry.method} {unstarred(entry.url)}", *_details(raw)]),
    ]
    if entry.more:
        facts.append(("also", [entry.more]))
    if rule is not None:
        facts.append(("rule", [entry.rule or "", *_shown(rule)]))
    if nearest is not None and entry.nearest is not None:
        why = FAILED.get(entry.nearest.failed, f"failed by its {entry.nearest.failed}")
        facts.append(("closest", [why, *_shown(nearest)]))
    if entry.policy:
        now = "the policy has changed since" if changed else "the policy is still that one"
        if changed is None:
            now = "whether the policy has changed since is not known"
        facts.append(("policy", [f"{entry.policy[:19]}…, {now}"]))
    facts.append(("outcome", _came(entry, row)))
    headers = raw.get("headers")
    if isinstance(headers, dict) and headers:
        facts.append(
            ("headers", [shortened(f"{name}: {unstarred(str(headers[name]))}", MAX_HEADER) for name in headers])
        )
    if commands := _next(found, root):
        facts.append(("next", commands))
    return facts


def _details(raw: dict[str, Any]) -> list[str]:
    body = raw.get("body_bytes")
    parts = [f"HTTP/{raw['http']}" if str(raw.get("http", ""))[:1].isdigit() else str(raw.get("http") or "")]
    parts.append("a body of unknown length" if body is None else bytes_text(body) + " of body" if body else "no body")
    if raw.get("upstream"):
        parts.append(f"sent to {raw['upstream']}")
    return [", ".join(part for part in parts if part)]


def _shown(excerpt: Excerpt) -> list[str]:
    if excerpt.fault:
        return [f"{excerpt.at}: {excerpt.fault}"]
    width = len(str(max(excerpt.lines)))
    return [
        excerpt.at,
        *(
            f"{'>' if number == excerpt.line else ' '} {number:>{width}} | {shortened(text, MAX_LINE)}".rstrip()
            for number, text in excerpt.lines.items()
        ),
    ]


def _came(entry: Entry, row: Row) -> list[str]:
    outcome = row.outcome
    if outcome is None:
        return ["nothing was sent" if entry.verdict != "allow" else "not known (yet)"]
    took = f" after {outcome.ms:.0f} ms" if outcome.ms is not None else ""
    lines = [
        f"{outcome.text or 'no answer'}{took}; {size_text(outcome.bytes_up)} up, {size_text(outcome.bytes_down)} down"
    ]
    if outcome.redirect:
        lines.append(f"the answer led to {outcome.redirect}")
    return lines


def _print(facts: list[tuple[str, list[str]]]) -> None:
    width = max(len(name) for name, _ in facts)
    columns = columns_of(sys.stdout)
    start = " " * (width + 2)
    for name, lines in facts:
        shown = [visible(line) for line in lines if line]
        if columns and name in ("reason", "also", "outcome"):
            shown = [wrapped(line, columns - len(start)) for line in shown]
        text = "\n".join(shown).replace("\n", f"\n{start}")
        if name == "verdict":
            text = click.style(text, fg=COLOURS["failed" if "," in text else text] if text in COLOURS else "yellow")
        click.echo(f"{name:<{width}}  {text}")


def _next(found: Read, root: Path) -> list[str]:
    """What helps with this decision: commands, as far as there are any."""
    entry = found.entry
    if entry.is_own_check or entry.run in proofs.known() or entry.verdict == "allow":  # it is there to be denied
        return []
    from impyard.runner.policy.mendable import store_words
    from impyard.runner.policy.remedy import Remedies, Remedy

    explain = command_line("policy", "explain", entry.method, entry.url)
    match Remedies(root).of(found.line):
        case Remedy.ALLOW:
            return [explain, command_line("policy", "allow", short_id(entry.id))]
        case Remedy.OVER_DENY:
            return [explain, command_line("policy", "allow", short_id(entry.id), "--over-deny")]
        case Remedy.ALLOWED:
            return ["the policy of now allows it", explain]
        case Remedy.CHECK:
            return [command_line("policy", "check")]
        case Remedy.STORE:
            return [command_line(*store_words(entry.credential or "")), explain]
        case Remedy.NOTHING:
            return [explain]


def _has_changed(root: Path, entry: Entry) -> bool | None:
    """Whether the policy differs from that of the decision; None when it is not known which files it was."""
    names = ["policies/gateway.yaml"]
    if RUN_ID.fullmatch(entry.run):
        try:
            policy = read_receipt(RunPaths(root, entry.run).receipt).get("policy")
        except ImpyardError:
            policy = None
        if isinstance(policy, dict) and isinstance(policy.get("files"), list):
            names = [name for name in policy["files"] if isinstance(name, str)]
    digest = hashlib.sha256()
    for name in names:
        data = _contents(root / name)
        if data is None:
            return None
        digest.update(data)
    return f"sha256:{digest.hexdigest()}" != entry.policy


def _excerpt(root: Path, at: str) -> Excerpt:
    """The place `file:line`, in the policy as it is now."""
    name, _, number = at.rpartition(":")
    if not number.isdecimal() or len(number) > 9 or not name.endswith((".yaml", ".yml")):
        return Excerpt(at, 0, {}, "it is not known where that is")
    line = int(number)
    data = _contents(root / name)
    if data is None:
        return Excerpt(at, line, {}, "the file is not there any more, or cannot be read")
    every = data.decode("utf-8", "replace").splitlines()
    if not 0 < line <= len(every):
        return Excerpt(at, line, {}, f"the file has {len(every)} lines now")
    first, last = max(1, line - CONTEXT), min(len(every), line + CONTEXT)
    return Excerpt(at, line, {number: every[number - 1] for number in range(first, last + 1)})


def _contents(path: Path) -> bytes | None:
    """A file's content; None for what is no ordinary file of a policy's size, or cannot be read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_POLICY:
                return None
            return file.read(MAX_POLICY + 1)
    except (OSError, ValueError):
        return None
