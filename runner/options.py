"""Options that several commands have, in the same words."""

from __future__ import annotations

from pathlib import Path

import click

project_option = click.option(
    "--project", type=click.Path(path_type=Path), metavar="DIR", help="The project's folder. Default: found from here."
)
run_option = click.option(
    "--run",
    "run",
    metavar="ID",
    help="Only this run; the beginning or the last four characters of its id will do, `last` is the newest.",
)


def named_project(project: Path | None) -> Path | None:
    """The project that was named, behind the subcommand or before it: `impyard runs --project X list` means the same as
    `impyard runs list --project X`."""
    found: Path | None = project or click.get_current_context().obj
    return found
