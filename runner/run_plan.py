"""What a caller asks of a run, and the plan that is made of it; or why it must not be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from impyard.addon.errors import WrongUsage
from impyard.addon.vault.store import Vault, default_dir
from impyard.certs.authority import data_dir
from impyard.runner import defaults
from impyard.runner.agent import choose_agent
from impyard.runner.plan import Plan
from impyard.runner.project import check_root, check_workspace, find_root, policy_files
from impyard.runner.resumed import Resumed
from impyard.runner.terminal.uisettings import ui_settings

if TYPE_CHECKING:
    from impyard.runner.clone.make import Clone


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asked for. `None` leaves a choice to impyard; `ceiling_s` in seconds, `memory` in bytes.

    `learn` suggests rules for what was denied, at the end. `terminal` (rows and columns) is for pi's own UI; then the
    view is an InteractiveView. `resumed` is what an earlier run left to go on with, its `workspace` among it.
    """

    prompt: bytes
    project: Path | None = None
    policies: Sequence[Path] = ()
    workspace: Path | None = None
    clone: bool = False
    with_changes: bool = False
    with_history: bool = False
    model: str | None = None
    ceiling_s: float = defaults.CEILING_MIN * 60
    cpus: float | None = None
    memory: int | None = None
    pids: int = defaults.PIDS
    image: str | None = None
    allowed: Sequence[Path] = ()
    learn: bool = False
    terminal: tuple[int, int] | None = None
    resumed: Resumed | None = None


def make_plan(options: Options) -> Plan:
    """What to open for these options.

    Raises ImpyardError for a project, workspace, policy or model that must not be used.
    """
    secret_folders = (data_dir(),)
    root = find_root(options.project)
    check_root(root, secret_folders)
    workspace, resumed = options.workspace, options.resumed
    if workspace is not None and not (resumed is not None and resumed.is_own):
        workspace = check_workspace(workspace, root, secret_folders)
    agent = choose_agent(options.model, os.environ, lambda: Vault(default_dir()).overview().credentials)
    if options.terminal is not None:
        agent = replace(agent, settings={**agent.settings, **ui_settings(os.environ)})
    return Plan(
        root=root,
        policies=policy_files(root, options.policies, workspace),
        ceiling_s=options.ceiling_s,
        agent=agent,
        prompt=options.prompt,
        workspace=workspace,
        clone=_clone(options),
        cpus=options.cpus,
        memory=options.memory,
        pids=options.pids,
        image=options.image,
        allowed=tuple(options.allowed),
        terminal=options.terminal,
        resumed=resumed,
    )


def _clone(options: Options) -> Clone | None:
    """The clone that is asked for. Raises WrongUsage for options that do not go together."""
    if not options.clone:
        if options.with_changes or options.with_history:
            raise WrongUsage("--with-changes and --with-history say what is in a clone", hint="add --clone")
        return None
    if options.workspace is not None:
        raise WrongUsage("--clone and --workspace both say where the agent works", hint="leave one of them away")
    from impyard.runner.clone.make import Clone

    return Clone(options.with_changes, options.with_history)
