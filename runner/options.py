"""Options that several commands have, in the same words."""

from __future__ import annotations

from pathlib import Path

import click

project_option = click.option(
    "--project", type=click.Path(path_type=Path), help="The project's folder (default: found from here)."
)
run_option = click.option(
    "--run",
    "run",
    metavar="ID",
    help="Only this run; the beginning or the last four characters of its id will do, `last` is the newest.",
)
