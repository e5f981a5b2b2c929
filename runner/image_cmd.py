"""`impyard image`: build the box's image, and show which one a run would use."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from impyard.runner.lazygroup import LazyGroup
from impyard.runner.text import size_text
from impyard.runner.typed import command_line


@click.group(cls=LazyGroup, entries={})
def image() -> None:
    """Build and show the image of the box. A run builds it by itself when it is missing.

    \b
    impyard image build --fresh   with the newest packages
    impyard image show            what a run would use
    """


@image.command("build")
@click.option("--fresh", is_flag=True, help="Build every step anew, with the newest packages.")
def build_command(fresh: bool) -> int:
    """Build the image, unless it is there already. Prints its id; progress goes to stderr.

    \b
    impyard image build           when it is missing or its parts have changed
    impyard image build --fresh   in any case, with the newest packages
    """
    from impyard.runner.image import ensure_image

    click.echo(ensure_image(lambda line: click.echo(line, err=True), fresh=fresh))
    return 0


@image.command("show")
@click.option("--json", "as_json", is_flag=True, help="As one JSON document.")
def show_command(as_json: bool) -> int:
    """Show the image that a run would use. Exit status 1 when it is not built yet.

    \b
    impyard image show --json   its name, id, date and size, for a script
    """
    about = describe()
    if as_json:
        click.echo(json.dumps(about, indent=2))
    elif about["id"] is None:
        click.echo(f"{about['image']} is not built yet: {command_line('image', 'build')}")
    else:
        click.echo(f"image    {about['image']}")
        click.echo(f"id       {about['id']}")
        click.echo(f"created  {about['created']}")
        click.echo(f"size     {size_text(about['bytes'])}")
    return 0 if about["id"] is not None else 1


def describe() -> dict[str, Any]:
    """The image's name and the base asked for, with `id`, `created` and `bytes`: None while it is not built."""
    from impyard.runner import engine
    from impyard.runner.engine_image import image_id
    from impyard.runner.image import BASE_VARIABLE, DEFAULT_BASE, box_dir, image_ref

    base = os.environ.get(BASE_VARIABLE) or DEFAULT_BASE
    reference = image_ref(box_dir(), base)
    about: dict[str, Any] = {
        "image": reference,
        "wanted_base": base,
        "id": image_id(reference),
        "created": None,
        "bytes": None,
    }
    if about["id"] is not None:
        with engine.engine_errors(f"look at the image {reference}"):
            api: Any = engine.client().api  # the stubs leave this call untyped
            found = api.inspect_image(about["id"])
        about["created"], about["bytes"] = found.get("Created"), found.get("Size")
    return about
