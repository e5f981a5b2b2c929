"""`impyard policy suggest`: from denied requests to the smallest rules that would allow them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from impyard.runner.decisions.when import When
from impyard.runner.options import project_option, run_option
from impyard.runner.policy.place import located, policy_option
from impyard.runner.typed import command_line

if TYPE_CHECKING:
    from impyard.addon.policy import Policy
    from impyard.runner.policy.suggest import Collector


@click.command()
@project_option
@policy_option
@run_option
@click.option("--since", type=When(), metavar="TIME", help="Only denials since then: 2h, 7d, 2026-11-30.")
@click.option("--apply", "applying", is_flag=True, help="Write the rules into the policy, after a question.")
@click.option("--yes", is_flag=True, help="With --apply: do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def suggest(
    project: Path | None,
    policies: tuple[Path, ...],
    run: str | None,
    since: str | None,
    applying: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Suggest the smallest rules that would allow what was denied.

    Each is for the method and path that were asked for. Numbers, hashes and the like become a pattern when at
    least 3 different ones were asked for in the same place; a host as a whole, or with a star, never. What is
    allowed by now is left out. Prints a difference to the policy; what no rule should mend is said on stderr.

    \b
    Examples:
      impyard policy suggest --run last
      impyard policy suggest --since 1d --apply
    """
    from impyard.runner.policy import change as policychange
    from impyard.runner.policy import suggest_show
    from impyard.runner.policy.loaded import policy_of
    from impyard.runner.policy.suggest import suggestion

    if yes and not applying:
        raise click.UsageError("--yes goes with --apply")
    if as_json and applying:
        raise click.UsageError("--json prints; it does not go with --apply")
    root, paths = located(project, policies)
    log = root / "runs" / "decisions.jsonl"
    run = _run(root, log, run)
    with ExitStack() as held:
        if yes:
            policychange.lock(paths, held)
        contents, policy = policychange.read(paths, root)
        found, damaged = denials(root, policy, run, since)
        made = suggestion(contents, root, found)
        if as_json:
            click.echo(json.dumps(suggest_show.document(made, root), indent=2))
            return 0
        if not applying:
            suggest_show.show(made, root)
        suggest_show.say_beside(made)
        if damaged:
            policychange.say(
                f"{damaged} damaged lines of the log were left out: `impyard decisions --verify` names them"
            )
        if not made.rules:
            if not made.apart and not made.allowed_now:
                policychange.say("nothing was denied")
            return 0
        if not applying:
            words = apply_words(run, since, policies)
            click.echo(f"apply it: {command_line(*words, project=project)}", err=True)
            return 0
        wanted = [asked for each in made.rules for asked in each.evidence.samples]
        after = policy_of(made.contents, root)
        hosts = [each.where.host for each in made.rules]
        others = policychange.flips(log, hosts, policy, after, wanted)
        return 0 if policychange.carry_out(contents, made.contents, root, others, yes=yes) else 1


def _run(root: Path, log: Path, run: str | None) -> str | None:
    """The whole id of the run that is meant; or the beginning of one of which only the log is left."""
    from impyard.runner import runs
    from impyard.runner.decisions.cmd import knows

    try:
        return run if run is None else runs.resolve(root, run)
    except runs.UnknownRun:
        if not run or not knows(log, run):
            raise
        return run


def denials(root: Path, policy: Policy, run: str | None, since: str | None) -> tuple[Collector, int]:
    """What was denied and still is, and the number of damaged lines."""
    from impyard.runner import proofs
    from impyard.runner.decisions.lines import Selection
    from impyard.runner.policy.recorded import decisions
    from impyard.runner.policy.suggest import collect

    selection = Selection(run, denied=True, since=since, own_checks=False, proofs=proofs.known())
    found = collect(policy, decisions(root / "runs" / "decisions.jsonl", selection))
    return found, selection.damaged


def apply_words(run: str | None, since: str | None, policies: Sequence[Path]) -> list[str]:
    """The words of the command that writes what was suggested for this."""
    words = ["policy", "suggest"]
    words += ["--run", run] if run is not None else []
    words += ["--since", since] if since is not None else []
    for path in policies:
        words += ["--policy", str(path)]
    return [*words, "--apply"]
