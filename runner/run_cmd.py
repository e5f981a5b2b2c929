"""`impyard run`: reads the options and the prompt, and runs."""

from __future__ import annotations

import os
import sys
from typing import IO, Any

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.run_options import CLONE, LEARN, WORKSPACE, PromptCommand, carry_out, run_options

MAX_PROMPT_BYTES = 32 * 1024 * 1024
EXAMPLE = '`impyard run "write 4 to answer.txt"`'


@click.command(cls=PromptCommand)
@click.argument("prompt", nargs=-1)
@run_options(WORKSPACE, *CLONE, LEARN)
def run(prompt: tuple[str, ...], prompt_file: IO[bytes] | None, interactive: bool, **given: Any) -> int:
    """Run the agent in a locked box on PROMPT.

    The prompt may also come from standard input (a pipe, or `-`). The agent writes into
    runs/<id>/workspace, unless --workspace names another folder.

    \b
    impyard run --model demo "write 4 to answer.txt"   without a key
    impyard run --prompt-file task.md --ceiling 10     at most ten minutes

    Exit status: 0 the agent did its work, 1 it ended with an error, 2 wrong usage, 124 ceiling,
    125 refused to start, 126 lost its gateway, 130 interrupted, 137 out of memory.
    """
    return carry_out(read_prompt(prompt, prompt_file, optional=interactive), interactive=interactive, **given)


def read_prompt(
    words: tuple[str, ...], file: IO[bytes] | None, *, optional: bool = False, example: str = EXAMPLE
) -> bytes:
    """The prompt from the one place that it was given in; empty where it is `optional` and none was given. Raises
    ImpyardError or UsageError when there is not one."""
    if optional and file is None and not words:
        return b""
    if file is not None and words:
        raise click.UsageError("give the prompt as an argument or with --prompt-file, not both")
    if file is not None:
        data = _read(file, "the prompt file")
    elif words and words != ("-",):
        data = os.fsencode(" ".join(words))
    elif words or not sys.stdin.isatty():
        if sys.stdin.isatty():
            click.echo("type the prompt; end it with Ctrl-D on a line of its own", err=True)
        data = _read(sys.stdin.buffer, "standard input")
    else:
        raise click.UsageError(f"there is no prompt; for example: {example}")
    if not data.strip():
        raise click.UsageError(f"the prompt is empty; for example: {example}")
    if b"\0" in data:
        raise ImpyardError("the prompt has a zero byte in it", hint="a prompt is text")
    return data


def _read(file: IO[bytes], what: str) -> bytes:
    try:
        data = file.read(MAX_PROMPT_BYTES + 1)
    except OSError as exc:
        raise ImpyardError(
            f"cannot read {what}: {(exc.strerror or str(exc)).lower()}", hint="name a text file"
        ) from exc
    if len(data) > MAX_PROMPT_BYTES:
        raise ImpyardError(
            f"{what} is longer than {MAX_PROMPT_BYTES // 1024**2} MiB", hint="give the agent a file to read"
        )
    return data
