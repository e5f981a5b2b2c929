"""Asking a person before something is removed for good."""

from __future__ import annotations

import click


def agrees(question: str) -> bool:
    """Whether the person at the terminal says yes; a no is answered with "nothing removed", and so is Ctrl-C, which
    goes on as click.Abort."""
    try:
        if click.confirm(question):
            return True
    except click.Abort:
        click.echo("\nnothing removed", err=True)  # the terminal shows ^C or ^D and leaves the cursor behind it
        raise
    click.echo("nothing removed")
    return False
