"""What `impyard runs show` says of a run: all that its receipt and its folder hold, by name."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from impyard.runner import runs as runs_
from impyard.runner.failures import failure_text, failures_of
from impyard.runner.receipt import bytes_text, counts_text, file_text, mapping, seconds_text, sequence
from impyard.runner.spotted import record_text
from impyard.runner.text import columns_of, unstarred, visible, wrapped
from impyard.runner.typed import as_typed

# Broken to a terminal's width; a path is to be copied.
WORDS = ("receipt", "engine", "prompt", "error", "key", "policy", "  secrets", "  failed", "credentials", "authority")
HASHES = ("policy", "image", "authority")  # a terminal shows their beginning; --json and a pipe all of it
_HASH = re.compile(r"\b((?:sha256:)?[0-9a-f]{12})[0-9a-f]{52}\b")


def print_facts(run: runs_.Run, commands: Sequence[tuple[str, str]]) -> None:
    """Print what is known of the run, and below it `commands`, by name too."""
    pairs = [*_facts(run), *commands]
    width = max(len(name) for name, _ in pairs)
    columns, start = columns_of(sys.stdout), " " * (width + 2)
    for name, value in pairs:
        if columns and name in HASHES:
            value = _HASH.sub(r"\1…", value)
        lines = wrapped(visible(value), columns - len(start) if columns and name in WORDS else None)
        click.echo(f"{name:<{width}}  " + lines.replace("\n", f"\n{start}"))


def _facts(run: runs_.Run) -> list[tuple[str, str]]:
    """What `show` says, as (name, value); what the receipt does not hold is left out."""
    receipt = run.receipt
    pairs = [("run", run.id), ("state", run.state)]
    if run.fault:
        pairs.append(("receipt", run.fault))
    if run.doubt:
        pairs.append(("engine", run.doubt))
    if receipt.get("prompt"):
        pairs.append(("prompt", str(receipt["prompt"])))
    for name in ("error", "model", "started", "ended"):
        if receipt.get(name):
            pairs.append((name, unstarred(str(receipt[name]))))
    if receipt.get("refused_key"):
        pairs.append(("key", as_typed(str(receipt["refused_key"]))))
    if receipt.get("duration_s") is not None:
        pairs.append(("duration", f"{seconds_text(receipt['duration_s'])} of {seconds_text(receipt.get('ceiling_s'))}"))
    if receipt.get("exit_status") is not None:
        pairs.append(("exit status", str(receipt["exit_status"])))
    pairs.append(("workspace", str(receipt.get("workspace") or run.paths.workspace)))
    pairs += [("  file", file_text(mapping(file))) for file in sequence(receipt.get("files"))]
    pairs += [("  git", f"{name} is new") for name in sequence(receipt.get("repositories"))]
    pairs += [("  git", f"{name} is a link") for name in sequence(receipt.get("links"))]
    pairs += _of_clone(mapping(receipt.get("clone")))
    for name in ("resumes", "interactive"):
        if value := receipt.get(name):
            pairs.append((name, "yes" if value is True else str(value)))
    transcript = run.paths.terminal_log if receipt.get("interactive") is True else run.paths.stdout
    for name, path in (("transcript", transcript), ("session", run.paths.session)):
        if os.path.exists(path):  # False for what lies in a closed folder
            pairs.append((name, str(path)))
    kept = [mapping(item) for item in sequence(receipt.get("kept"))]
    pairs += [("kept back", f"{item.get('path')} ({item.get('kind')}, {item.get('how')})") for item in kept]
    if receipt.get("kept_more"):
        pairs.append(("kept back", f"{receipt['kept_more']} more"))
    pairs += [("shown", f"{path} on purpose") for path in sequence(receipt.get("shown"))]
    policy = mapping(receipt.get("policy"))
    if policy:
        names = ", ".join(str(name) for name in sequence(policy.get("files")))
        pairs.append(("policy", f"{names} {policy.get('hash', '')}".strip()))
    probes = sequence(receipt.get("probes"))
    if probes:
        good = sum(1 for probe in probes if mapping(probe).get("ok") is True)
        pairs.append(("probes", f"{good} of {len(probes)} as expected"))
    decisions = mapping(receipt.get("decisions"))
    if decisions:
        pairs.append(("decisions", counts_text(decisions, mapping(receipt.get("traffic")))))
        for failure in failures_of(mapping(receipt.get("traffic"))):
            pairs.append(("  failed", unstarred(failure_text(failure))))
        for host, count in mapping(decisions.get("denied_hosts")).items():
            pairs.append(("  denied", f"{unstarred(str(host))} ({count})"))
    pairs += [("  secrets", record_text(mapping(record))) for record in sequence(receipt.get("secrets"))]
    if used := mapping(receipt.get("credentials")):
        pairs.append(("credentials", ", ".join(f"{name} ({count})" for name, count in used.items())))
    traffic = mapping(receipt.get("traffic"))
    if traffic:
        up, down = (bytes_text(traffic.get(key)) for key in ("bytes_up", "bytes_down"))
        pairs.append(("traffic", f"{up} up, {down} down"))
    for name, value in (
        ("image", mapping(receipt.get("image")).get("id")),
        ("pi", receipt.get("pi")),
        ("authority", receipt.get("ca")),
    ):
        if value:
            pairs.append((name, str(value)))
    return pairs


def _of_clone(clone: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not clone:
        return []
    commit, branch = clone.get("commit"), clone.get("branch")
    what = f"commit {str(commit)[:12]}" if commit else "no commit"
    what += f" of {branch}" if branch else ""
    what += " with uncommitted changes" if clone.get("changes") else ""
    what += ", with its history" if clone.get("history") else ""
    what += f"; its changes were applied at {clone['applied']}" if clone.get("applied") else ""
    return [("clone", what), *(("  without", f"{name}") for name in sequence(clone.get("left_out")))]
