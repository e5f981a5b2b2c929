"""`impyard runs resume`: pi goes on with the session of an earlier run, in a fresh box."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.options import named_project
from impyard.runner.run_cmd import read_prompt
from impyard.runner.run_options import LEARN, PromptCommand, carry_out, run_options

EXAMPLE = '`impyard runs resume last "now add a test"`'


@click.command("resume", cls=PromptCommand)
@click.argument("run")
@click.argument("prompt", nargs=-1)
@run_options(LEARN)
def resume(
    run: str,
    prompt: tuple[str, ...],
    prompt_file: IO[bytes] | None,
    project: Path | None,
    model: str | None,
    image: str | None,
    interactive: bool,
    **given: Any,
) -> int:
    """Go on with the session of RUN, or of `last`, on PROMPT: in a fresh box, under the policy of now.

    The agent has the same workspace, in place: what it changes there is changed for RUN too. It has the same model,
    unless --model names another. The new run has an id of its own.

    \b
    impyard runs resume last "now add a test"
    impyard runs resume 20261130-101500-1a2b -i
    """
    from impyard.runner import runs as runs_
    from impyard.runner.project import find_root
    from impyard.runner.resumed import Resumed, find_workspace, model_of, read_session

    project = named_project(project)
    text = read_prompt(prompt, prompt_file, optional=interactive, example=EXAMPLE)
    root = find_root(project)
    [found] = runs_.look(root, [runs_.resolve(root, run)])
    _check(found)
    receipt = found.receipt
    workspace, is_own = find_workspace(root, receipt)
    session = read_session(found.paths.session, found.id, newest=receipt.get("interactive") is True)
    policy = receipt.get("policy")
    files = policy.get("files") if isinstance(policy, dict) else None
    before, clone = receipt.get("image"), receipt.get("clone")
    return carry_out(
        text,
        interactive=interactive,
        project=project,
        model=model or model_of(receipt),
        image=image or (str(before["name"]) if isinstance(before, dict) and before.get("name") else None),
        workspace=workspace,
        resumed=Resumed(
            run=found.id,
            workspace=workspace,
            is_own=is_own,
            session=session,
            clone=clone if is_own and isinstance(clone, dict) else {},
            policies=tuple(name for name in map(str, files if isinstance(files, list) else ()) if name[:5] != "runs/"),
        ),
        **given,
    )


def _check(run: Any) -> None:
    """Raises ImpyardError for a run that cannot be gone on with."""
    if run.lives:
        raise ImpyardError(f"run {run.id} is still running", hint=f"wait for its end, or `impyard runs stop {run.id}`")
    if run.doubt:
        raise ImpyardError(run.doubt, hint="without the engine it is not known whether this run is over")
    if run.unreadable:
        raise ImpyardError(run.fault, hint=f"who started {run.id} can resume it, or root")
    if not run.receipt:
        raise ImpyardError(
            run.fault, hint="without a receipt it is not known where the run worked: `impyard runs list`"
        )
