"""`impyard run`: reads the options and the prompt, and runs."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import IO, Any

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.amounts import Number, Whole

MAX_PROMPT_BYTES = 32 * 1024 * 1024
MAX_CEILING_MIN = 7 * 24 * 60
MIN_MEMORY = 64 * 1024**2
_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


class Memory(click.ParamType[int]):
    """A size such as `512m` or `4g`, in bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmg]?)i?b?", str(value).strip().lower())
        if not match or (size := int(float(match[1]) * _UNITS[match[2]])) < MIN_MEMORY:
            self.fail(f"`{value}` is no size of at least 64m (for example 512m or 4g)", param, ctx)
        return size


class PromptCommand(click.Command):
    """Takes an argument such as `- fix this` for a prompt: no option has a space before its `=`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value = {name for param in self.params if not getattr(param, "is_flag", False) for name in param.opts}
        before, prompt = list[str](), list[str]()
        for number, arg in enumerate(args):
            if arg == "--":
                before += args[number:]
                break
            is_value = number > 0 and args[number - 1] in takes_value
            if arg.startswith("-") and re.search(r"\s", arg.partition("=")[0]) and not is_value:
                prompt.append(arg)
            else:
                before.append(arg)
        if prompt:
            before += prompt if "--" in before else ["--", *prompt]
        return super().parse_args(ctx, before)


@click.command(cls=PromptCommand)
@click.argument("prompt", nargs=-1)
@click.option("--prompt-file", type=click.File("rb"), help="Read the prompt from a file.")
@click.option("--project", type=click.Path(path_type=Path), metavar="DIR", help="The project that the box may read.")
@click.option(
    "--policy",
    "policies",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Judge by this file instead of policies/gateway.yaml; later files win. May be given again.",
)
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="An existing folder for the agent to work in. Default: a new one in runs/.",
)
@click.option(
    "--allow-file",
    "allowed",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="Show the agent this file of the project although it holds a secret. May be given again.",
)
@click.option("--model", metavar="PROVIDER/MODEL", help="The model, or `demo`. Default: that of your pi settings.")
@click.option(
    "--ceiling",
    type=Number(MAX_CEILING_MIN),
    default=30.0,
    show_default=True,
    metavar="MINUTES",
    help="End the run after this time, whatever it does.",
)
@click.option("--cpus", type=Number(4096), metavar="N", help="Processors for the box. Default: 2.")
@click.option("--memory", type=Memory(), metavar="SIZE", help="Memory for the box, swap included. Default: 4g.")
@click.option(
    "--pids",
    type=Whole(32, 1_000_000),
    default=512,
    show_default=True,
    metavar="N",
    help="Processes in the box, at least 32.",
)
@click.option("--image", metavar="NAME", help="Another image for the box, with impyard's relay in it.")
@click.option("--json", "as_json", is_flag=True, help="Print pi's events instead of a view for people.")
def run(
    prompt: tuple[str, ...],
    prompt_file: IO[bytes] | None,
    project: Path | None,
    policies: tuple[Path, ...],
    workspace: Path | None,
    allowed: tuple[Path, ...],
    model: str | None,
    ceiling: float,
    cpus: float | None,
    memory: int | None,
    pids: int,
    image: str | None,
    as_json: bool,
) -> int:
    """Run the agent in a locked box on PROMPT.

    The prompt may also come from standard input (a pipe, or `-`). Its files land in runs/<id>/workspace.

    Exit status: 0 the agent did its work, 1 it ended with an error, 2 wrong usage, 124 ceiling,
    125 refused to start, 126 lost its gateway, 130 interrupted, 137 out of memory.
    """
    from impyard.runner.gateway import spawn

    text = read_prompt(prompt, prompt_file)
    with spawn() as spawned:  # first of all: it takes longest to come up
        from impyard.runner.cli import INTERRUPTED, version
        from impyard.runner.run import Options
        from impyard.runner.run import run as run_box
        from impyard.runner.view import make_view

        options = Options(
            prompt=text,
            project=project,
            policies=policies,
            workspace=workspace,
            model=model,
            ceiling_s=ceiling * 60,
            cpus=cpus,
            memory=memory,
            pids=pids,
            image=image,
            allowed=allowed,
        )
        try:
            return run_box(options, make_view(as_json=as_json, environ=os.environ), version(), spawned)
        except KeyboardInterrupt:
            return INTERRUPTED  # said already; click would add an empty line


def read_prompt(words: tuple[str, ...], file: IO[bytes] | None) -> bytes:
    """The prompt from the one place that it was given in. Raises ImpyardError or UsageError when there is not one."""
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
        raise click.UsageError('there is no prompt; for example: `impyard run "write 4 to answer.txt"`')
    if not data.strip():
        raise click.UsageError('the prompt is empty; for example: `impyard run "write 4 to answer.txt"`')
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
