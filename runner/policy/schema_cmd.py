"""`impyard policy schema`: the JSON Schema of a policy file, for editors and other tools."""

from __future__ import annotations

from pathlib import Path

import click

import impyard.policies

SCHEMA = Path(impyard.policies.__path__[0]) / "gateway.schema.json"


@click.command()
@click.option("--path", "where", is_flag=True, help="Print where the file is instead.")
def schema(where: bool) -> None:
    """Print the JSON Schema that editors complete and check a policy with.

    `impyard init` puts it beside the policy, whose first line names it.

    \b
    impyard policy schema > gateway.schema.json   for a policy that lies elsewhere
    """
    click.echo(str(SCHEMA) if where else SCHEMA.read_text().rstrip("\n"))
