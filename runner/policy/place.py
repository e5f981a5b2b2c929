"""Which policy the policy commands mean: the options that name it, and what a run of the project would be judged by."""

from __future__ import annotations

from pathlib import Path

import click

from impyard.runner.project import find_root, policy_files

policy_option = click.option(
    "--policy",
    "policies",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="This file instead of policies/gateway.yaml; later files win. May be given again.",
)


def located(project: Path | None, policies: tuple[Path, ...]) -> tuple[Path, tuple[Path, ...]]:
    """The project's root, and the files that a run there is judged by. Raises ImpyardError where there are none."""
    root = find_root(project)
    return root, policy_files(root, policies, None)
