"""`impyard policy explain METHOD URL`: what the judge would say to a request, and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.amounts import Whole
from impyard.runner.options import project_option
from impyard.runner.policy.place import located, policy_option
from impyard.runner.text import beside, columns_of, size_text, visible, wrapped
from impyard.runner.typed import as_typed

if TYPE_CHECKING:
    from impyard.addon.judge import Decision
    from impyard.addon.rules import Inject
    from impyard.runner.policy.asked import Asked
    from impyard.runner.policy.explain import Considered, Explanation, Reading

MAX_SHOWN = 30  # rules whose path does not even match are left out beyond this
LABEL = 10  # the width of the words on the left


@click.command()
@click.argument("method")
@click.argument("url", required=False)
@project_option
@policy_option
@click.option("--body-bytes", type=Whole(0), default=0, metavar="N", help="Judge a request with so large a body.")
@click.option("--websocket", is_flag=True, help="Judge the handshake of a WebSocket.")
@click.option("--all", "show_all", is_flag=True, help="Show each rule of the host, however many.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain(
    method: str,
    url: str | None,
    project: Path | None,
    policies: tuple[Path, ...],
    body_bytes: int,
    websocket: bool,
    show_all: bool,
    as_json: bool,
) -> int:
    """Say what the judge would decide on METHOD URL now, and why: each rule, which matched, which won.

    \b
    impyard policy explain GET https://api.github.com/repos/ada/engine
    impyard policy explain POST api.openai.com/v1/files --body-bytes 1000000

    A URL without a scheme is https. Nothing is sent. Whether the vault has the credential that goes with it is looked
    at; addresses of a name, secrets in the request and the renewal of a login are not.

    Exit status: 0 it would be allowed, 1 denied, 2 wrong usage.
    """
    from impyard.addon.errors import PolicyError
    from impyard.addon.policy import Policy, read_policy
    from impyard.addon.yamlnodes import short
    from impyard.runner.policy.asked import asked, sent
    from impyard.runner.policy.explain import explain as explained
    from impyard.runner.policy.explain import routed, unsupplied
    from impyard.runner.policy.read import read_files

    if url is None:
        if "/" in method:
            raise click.UsageError(f"the method is missing: write it first, as in GET {short(method)}")
        raise click.UsageError("explain takes METHOD URL; `impyard decisions show ID` explains what was decided")
    try:
        request = asked(method, url, body_bytes=body_bytes, websocket=websocket)
    except ImpyardError as exc:
        raise click.UsageError(f"{exc.message}; {exc.hint}") from exc
    root, files = located(project, policies)
    policy: Policy | PolicyError
    try:
        policy = read_policy(read_files(files, root), root=root)
    except PolicyError as exc:
        policy = exc
    found = routed(sent(request), explained(sent(request), policy))
    if found.decision.allowed and found.decision.inject is not None and (why := _unusable(found.decision.inject)):
        found = unsupplied(found, why)
    if as_json:
        faults = [str(fault) for fault in policy.faults] if isinstance(policy, PolicyError) else []
        click.echo(json.dumps({**as_document(request, found), "faults": faults}, indent=2))
    else:
        _show(request, found, policy if isinstance(policy, PolicyError) else None, show_all)
    return 0 if found.decision.allowed else 1


def as_document(asked: Asked, found: Explanation) -> dict[str, Any]:
    """The explanation for programs."""
    from impyard.addon.reasons import REASONS

    decision = found.decision
    nearest = decision.nearest
    return {
        "method": asked.method,
        "url": asked.url,
        "websocket": asked.websocket,
        "body_bytes": asked.body_bytes,
        "verdict": decision.verdict.value,
        "reason": decision.reason,
        "meaning": REASONS[decision.reason],
        "rule": decision.rule,
        "at": decision.at,
        "nearest": {"at": nearest.at, "failed": nearest.failed} if nearest else None,
        "hint": decision.hint or None,
        "max_body": decision.max_body,
        "upstream": str(decision.upstream) if decision.upstream else None,
        "credential": decision.inject.credential if decision.inject else None,
        "readings": [
            {
                "method": reading.method,
                "path": reading.path,
                "query": reading.query,
                "verdict": "allow" if reading.allowed else "deny",
                "at": reading.rule.at if reading.rule else None,
                "decides": reading.decides,
            }
            for reading in found.readings
        ],
        "rules": [
            {
                "at": each.rule.at,
                "host": each.entry.host,
                "action": "ALLOW" if each.rule.allow else "DENY",
                "rule": each.rule.label,
                "failed": each.failed,
                "won": each.won,
            }
            for each in found.considered
        ],
    }


def _show(asked: Asked, found: Explanation, broken: ImpyardError | None, show_all: bool) -> None:
    from impyard.addon.reasons import REASONS
    from impyard.runner.policy.methods import remark

    decision, columns = found.decision, columns_of(sys.stdout)
    click.echo(click.style(visible(f"{asked.method} {asked.url}"), bold=True))
    word = click.style("allowed", fg="green") if decision.allowed else click.style("denied", fg="red")
    if about := remark(asked.method):
        _line("careful", about, columns)
    meaning = REASONS[decision.reason]
    if decision.reason == "rule":
        meaning = meaning.partition(";")[0]  # the rest is about the fields of a line of the log
    _line(word, f"{decision.reason}: {meaning}", columns)
    for line in broken.message.split("\n") if broken else ():
        _line("fault", line, columns)
    if decision.rule is not None:
        _line("rule", f'"{decision.rule}", {decision.at}', columns)
    if decision.nearest is not None:
        _line("nearest", f"{decision.nearest.at} ({decision.nearest.failed})", columns)
    if decision.hint and decision.reason in (
        "malformed",
        "ambiguous-path",
        "private-address",
        "credential-unavailable",
    ):
        _line("hint", decision.hint, columns)
    if decision.allowed:
        _show_way(asked, decision, columns)
    elif decision.reason == "body-limit":
        _line("body", f"{size_text(asked.body_bytes)}, and at most {size_text(decision.max_body or 0)} may go", columns)
    if len(found.readings) > 1:
        click.echo("\nways to read it, each of which must be allowed")
        _show_readings(found.readings, columns)
    if found.considered:
        click.echo(f"\nrules about {visible(asked.host)}; the last that matches wins")
        _show_rules(found.considered, columns, show_all)


def _line(word: str, text: str, columns: int | None) -> None:
    room = LABEL - len(click.unstyle(word))
    line = wrapped(" " * LABEL + visible(as_typed(text)), columns, " " * LABEL)
    click.echo(f"{word}{' ' * room}{line[LABEL:]}")


def _show_way(asked: Asked, decision: Decision, columns: int | None) -> None:
    """Where an allowed request goes, and what it gets on the way."""
    if decision.upstream is None:
        where = f"{asked.host}:{asked.port}, at its public addresses"
    elif str(decision.upstream).startswith("via "):
        where = f"{asked.host}:{asked.port} {decision.upstream}"
    else:
        where = f"{decision.upstream}, in place of the host"
    _line("goes to", where, columns)
    if decision.inject is not None:
        name = decision.inject.credential
        headers = ", ".join(sorted({header for variant in decision.inject.variants for header, _ in variant.headers}))
        _line("with", f'the credential "{name}" ({headers})', columns)
    if decision.max_body is not None:
        _line("body", f"at most {size_text(decision.max_body)}", columns)


def _unusable(inject: Inject) -> str:
    """Why a credential cannot be put on, as far as the vault tells without asking anybody; "" when it can."""
    from impyard.addon.vault.store import Vault, default_dir
    from impyard.runner.policy.mendable import store_words

    name = inject.credential
    try:
        kept = Vault(default_dir()).overview().credentials.get(name)
    except ImpyardError:
        return "the vault cannot be read: `impyard doctor` says why"
    store = f"`impyard {' '.join(store_words(name))}` stores it"
    if kept is None:
        return f'the credential "{name}" is not in the vault: {store}'
    if inject.variant(kept.kind, set()) is None:
        return f'the policy has no headers for a credential of the type of "{name}": see {inject.at}'
    return ""


def _show_readings(readings: Sequence[Reading], columns: int | None) -> None:
    targets = [f"{each.method} {each.path}" + (f"?{each.query}" if each.query else "") for each in readings]
    width = min(max(len(visible(target)) for target in targets) + 2, 60)
    for reading, target in zip(readings, targets, strict=True):
        by = reading.unread or (reading.rule.at if reading.rule else "no rule")
        decides = "; this decides" if reading.decides and not reading.allowed else ""
        word = "allow" if reading.allowed else "deny"
        line = beside(f"  {word:<8}{visible(target):<{width}}", visible(by) + decides, width + 10, columns)
        click.echo(line.replace(word, click.style(word, fg="green" if reading.allowed else "red"), 1))


def _show_rules(considered: Sequence[Considered], columns: int | None, show_all: bool) -> None:
    shown = list(considered)
    if len(shown) > MAX_SHOWN and not show_all:
        shown = [each for each in shown if each.failed not in ("path", "port", "scheme")] or shown[:MAX_SHOWN]
        shown = shown[-MAX_SHOWN:]
    texts = [visible(_text(each)) for each in shown]
    places = [visible(each.rule.at) for each in shown]
    width = min(max(map(len, texts), default=0) + 2, 72)
    at = max(map(len, places), default=0) + 2
    for each, text, place in zip(shown, texts, places, strict=True):
        outcome = "wins" if each.won else f"no: {each.failed}" if each.failed else "matches, a later one wins"
        color = ("green" if each.rule.allow else "red") if each.won else None
        line = beside(f"  {place:<{at}}{text:<{width}}".rstrip(), outcome, at + width + 2, columns)
        click.echo(click.style(line, fg=color) if color else line)
    if len(shown) < len(considered):
        click.echo(f"  {len(considered) - len(shown)} more, most of which have another path; --all shows them")


def _text(each: Considered) -> str:
    rule = each.rule
    methods = "*" if rule.methods is None else ",".join(sorted(rule.methods))
    text = f"{'ALLOW' if rule.allow else 'DENY'} {methods} {rule.path}"
    if rule.query:
        text += " ?" + "&".join(f"{key}={expression.pattern}" for key, expression in rule.query)
    if rule.websocket:
        text += " websocket"
    return f'{text} "{rule.name}"' if rule.name else text
