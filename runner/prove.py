"""`impyard prove`: a gateway and a box without an agent, the attempts to break out, and what this machine saw of them.

Three groups of claims: the box's own probes, which every run makes; the attempts from inside, made by the relay with an
agent's standing; and what is seen from outside, which does not rest on anything that the box says.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from impyard.addon.errors import ImpyardError
from impyard.box.attacks.model import GROUPS
from impyard.runner import boxspec, outside, proofs
from impyard.runner.canaries import Canaries
from impyard.runner.enclosure import Enclosure
from impyard.runner.options import project_option
from impyard.runner.outside import Claim, as_object
from impyard.runner.plan import Plan
from impyard.runner.policy.place import policy_option
from impyard.runner.project import find_root, policy_files
from impyard.runner.receipt_parts import add_closed
from impyard.runner.removal import remove_tree
from impyard.runner.signals import Interrupted, Signals
from impyard.runner.stage import Line, Over
from impyard.runner.text import visible
from impyard.runner.times import now
from impyard.runner.typed import command_line

if TYPE_CHECKING:
    from impyard.runner.deep import Bench, Verdict

CEILING_S = 180.0
LANES = 4  # of attempts against another proxy, which may let clients hang
PROBES, ATTEMPTS, DEEP = "probes", "attempts", "deep"
TITLES = {
    PROBES: "in the box, before an agent would start",
    ATTEMPTS: "attempts from inside the box",
    outside.GROUP: "seen from this machine",
}
NAMED = ", ".join(f"{key} ({name})" for key, name in GROUPS.items())


@click.command()
@project_option
@policy_option
@click.option("--image", metavar="NAME", help="Prove this image instead of impyard's own.")
@click.option("--json", "as_json", is_flag=True, help="The claims as one JSON document.")
@click.option("--deep", is_flag=True, help="Also make hundreds of attempts to get past the judge.")
@click.option(
    "--group",
    type=click.Choice(list(GROUPS)),
    multiple=True,
    help=f"With --deep: only these, of {NAMED}. May be given again.",
)
@click.option("--proxy", metavar="URL", help="With --deep: make them against this proxy instead, without a box.")
@click.option(
    "--ca",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    help="The certificate of the authority that --proxy signs with.",
)
def prove(
    project: Path | None,
    policies: tuple[Path, ...],
    image: str | None,
    as_json: bool,
    deep: bool,
    group: tuple[str, ...],
    proxy: str | None,
    ca: Path | None,
) -> int:
    """Try to break out of a box on this machine, without an agent, and show what happened.

    Exit status 1 when a claim does not hold, or the box could not be made.

    \b
    impyard prove          each claim, in some seconds
    impyard prove --deep   hundreds of attempts to get past the judge
    """
    from impyard.runner.cli import INTERRUPTED, version

    if ((proxy or group) and not deep) or (ca and not proxy):
        raise click.UsageError("--proxy and --group go with --deep, and --ca with --proxy")
    if deep and policies:
        raise click.UsageError("--deep brings a policy of its own: leave --policy away")
    began = time.monotonic()
    try:
        with Signals() as signals, ExitStack() as stack:
            bench = None
            if deep:
                from impyard.runner.deep import Bench

                with signals.shielded():
                    bench = stack.enter_context(Bench(group, origins=LANES if proxy else 1))
                    stack.callback(signals.note_only)  # what the bench holds goes whole
                if proxy:
                    from impyard.runner.deepproxy import against

                    return against(proxy, ca, bench, as_json=as_json)
            root = find_root(project)
            plan = Plan(
                root=root,
                policies=(bench.policy,) if bench else policy_files(root, policies, None),
                ceiling_s=CEILING_S,
                mode="prove",
                image=image,
                deep=(group or tuple(GROUPS)) if deep else (),
            )
            if bench:
                click.echo(f"making {len(bench.attempts)} attempts from a box, which takes up to a minute", err=True)
            run, claims, verdicts = examine(plan, version(), bench)
    except (KeyboardInterrupt, Interrupted):
        if sys.stderr.isatty():
            click.echo(err=True)  # after the terminal's ^C
        click.echo("interrupted: nothing was proved", err=True)
        return INTERRUPTED
    folder = root / "runs" / run
    missed = [verdict for verdict in verdicts if verdict.faults]
    failed = bool(missed) or not all(claim.ok for claim in claims)
    if as_json:
        document = {"ok": not failed, "run": run, "claims": [{**asdict(claim), "ok": claim.ok} for claim in claims]}
        if deep:
            from impyard.runner.deep import document as scoreboard

            document["attempts"] = scoreboard(verdicts)
        click.echo(json.dumps(document, indent=2))
    else:
        _print(claims)
        if deep:
            from impyard.runner.deep import show

            click.echo()
            show(verdicts)
        held = f"{sum(claim.ok for claim in claims)} of {len(claims)} claims hold"
        if deep:
            held += f", {len(verdicts) - len(missed)} of {len(verdicts)} attempts were held"
        click.echo(f"\n{held} ({time.monotonic() - began:.1f} s)")
        look = command_line("decisions", "--run", run)
        click.echo(f"its requests: {look}" + (f"; its files: {folder}" if failed else ""))
    return 1 if failed else 0


def examine(plan: Plan, version: str, bench: Bench | None = None) -> tuple[str, list[Claim], list[Verdict]]:
    """Open a gateway and a box by `plan`, have the box tried, and return the run's id with every claim.

    bench: for the attempts of a deep plan, whose verdicts come third.

    Raises ImpyardError when the box cannot be made or does not report, and KeyboardInterrupt after a signal. Only a
    box that started and then failed leaves its run's folder.
    """
    with Canaries() as canaries, Signals() as signals:
        plan = replace(plan, listeners=canaries.addresses)
        controls = canaries.control()
        enclosure = Enclosure(plan, version, signals, lambda text: click.echo(text, err=True))
        try:
            enclosure.open()
            proofs.note(enclosure.paths.id)
            claims = outside.created(enclosure)
            reports = _reports(enclosure, signals)
        except BaseException as exc:
            signals.note_only()
            enclosure.close()
            _end_folder(enclosure, keep=isinstance(exc, Exception))
            if isinstance(exc, Interrupted):
                raise KeyboardInterrupt from None
            raise
        signals.note_only()  # to the end of the block: what is left of the run is removed in one go
        enclosure.close()
        visits = canaries.hits - controls
        claims = [
            *_inside(reports, enclosure),
            *claims,
            _listeners("reached by this machine", 2 * len(plan.listeners), controls),
            _listeners("reached by the box", 0, visits),
            *outside.recorded(enclosure),
            *outside.left_behind(enclosure),
        ]
        verdicts = []
        if bench is not None:
            from impyard.runner.deep import reported

            verdicts = bench.judged(reported(*reports[DEEP]), outside.lines_of(enclosure)[1])
        good = all(claim.ok for claim in claims) and not any(verdict.faults for verdict in verdicts)
        _end_folder(enclosure, keep=not good)
    return enclosure.paths.id, claims, verdicts


def _inside(reports: Mapping[str, Sequence[Mapping[str, Any]]], enclosure: Enclosure) -> Iterator[Claim]:
    """What the box reported, against what our own code wants: a relay of another image could want less."""
    from impyard.box.probes import probes
    from impyard.box.prove import claims

    config = boxspec.relay_config(enclosure.box, (), {}, prompt=False, mode="prove")
    for group, wanted in ((PROBES, probes(config["probes"])), (ATTEMPTS, claims(config["probes"]))):
        found = {str(item.get("name")): str(item.get("found")) for item in reports[group]}
        for name, expected, _find in wanted:
            yield Claim(group, name, expected, found.get(name, "not reported"))


def _listeners(what: str, expected: int, found: int) -> Claim:
    return Claim(outside.GROUP, f"listeners {what}", f"{expected} times", f"{found} times")


def _end_folder(enclosure: Enclosure, *, keep: bool) -> None:
    """Remove what a box that has started left; or `keep` it for people to look at, with its books closed."""
    if not enclosure.started:
        return  # the enclosure has removed it
    if not keep:
        remove_tree(enclosure.paths.folder)
        return
    closed, receipt = enclosure.closed or {}, enclosure.receipt
    receipt.ended, receipt.exit_reason, receipt.exit_status = now(), "refused", 1
    add_closed(receipt, closed)
    receipt.write(enclosure.paths.receipt)
    enclosure.seal()


def _reports(enclosure: Enclosure, signals: Signals) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Run the box to its end and return what its relay reported, by group."""
    stage = enclosure.stage
    assert stage is not None

    def interrupted(_number: int) -> None:
        threading.Thread(target=stage.end, args=("interrupted",), daemon=True).start()

    signals.deliver_to(interrupted)
    reports: dict[str, Sequence[Mapping[str, Any]]] = {PROBES: (), ATTEMPTS: (), DEEP: ({},)}
    status = None
    for item in enclosure.start().items():
        if isinstance(item, Over):
            status = item.status
        elif isinstance(item, Line):
            event = as_object(item.data)
            if event.get("impyard") == "probes":
                reports[PROBES] = [probe for probe in event.get("probes") or () if isinstance(probe, dict)]
            elif event.get("impyard") == "prove":
                reports[ATTEMPTS] = [claim for claim in event.get("claims") or () if isinstance(claim, dict)]
            elif event.get("impyard") == "deep":
                reports[DEEP] = (event,)
    if stage.ended_by == "interrupted":
        raise KeyboardInterrupt
    if not reports[PROBES] or (not reports[ATTEMPTS] and all(probe.get("ok") is True for probe in reports[PROBES])):
        words = visible(stage.last_words.decode("utf-8", "replace").strip().rpartition("\n")[2])
        reason = stage.ended_by or f"status {status}"
        raise ImpyardError(
            f"the box ended without its report ({reason}){': ' + words if words else ''}",
            hint=f"what it left is in {enclosure.paths.folder}",
        )
    return reports


def _print(claims: Sequence[Claim]) -> None:
    width = max(len(claim.name) for claim in claims)
    for group, title in TITLES.items():
        members = [claim for claim in claims if claim.group == group]
        if members:
            click.echo(("\n" if group != PROBES else "") + click.style(title, bold=True))
        for claim in members:
            mark = click.style("ok  ", fg="green") if claim.ok else click.style("FAIL", fg="red", bold=True)
            wanted = "" if claim.ok else f"  (expected: {visible(claim.expected)})"
            click.echo(f"  {mark}  {visible(claim.name):<{width}}  {visible(claim.found)}{wanted}")
