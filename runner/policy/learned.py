"""The end of `impyard run --learn`: the rules that would have allowed what the run was denied. It denied it all the
same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.policy import change as policychange
from impyard.runner.policy import suggest_show
from impyard.runner.policy.suggest import suggestion
from impyard.runner.policy.suggest_cmd import apply_words, denials
from impyard.runner.typed import command_line


def learned(
    root: Path, policies: Sequence[Path], run: str, named: Sequence[Path], project: Path | None, err: bool = False
) -> None:
    """Print the suggestion for one run, and the command that writes it; what cannot be suggested never fails the run.

    named, project: what the caller gave as --policy and --project. err: print the difference on stderr too.
    """
    try:
        contents, policy = policychange.read(policies, root)
        found, _ = denials(root, policy, run, None)
        made = suggestion(contents, root, found)
    except ImpyardError as exc:
        policychange.say(f"nothing can be suggested: {exc.message}")
        return
    suggest_show.show(made, root, err=err)
    suggest_show.say_beside(made)
    if made.rules:
        click.echo(f"apply it: {command_line(*apply_words(run, None, named), project=project)}", err=True)
    elif not made.apart and not made.allowed_now:
        policychange.say("nothing to learn: no request was denied")
