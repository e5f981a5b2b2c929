"""The options of every command that starts a run, written once, and what they come to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from impyard.addon.errors import ImpyardError
from impyard.runner import defaults
from impyard.runner.amounts import Number, Whole
from impyard.runner.policy.place import policy_option

MAX_CEILING_MIN = 7 * 24 * 60
MAX_TYPED = 100 * 1024  # bytes: a prompt that is typed is an argument of pi's, and Linux takes 128 KiB in one
MIN_MEMORY = 64 * 1024**2
_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


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


_FILE = click.Path(path_type=Path)

WORKSPACE = click.option(
    "--workspace",
    type=_FILE,
    metavar="DIR",
    help="An existing folder for the agent to work in. Default: a new one in runs/.",
)
CLONE = (
    click.option(
        "--clone", is_flag=True, help="Let the agent work on a clone of the project, with the files that are committed."
    ),
    click.option(
        "--with-changes", is_flag=True, help="With --clone: put in what is not committed too, but no ignored files."
    ),
    click.option(
        "--with-history", is_flag=True, help="With --clone: put in the earlier commits too, and all that they hold."
    ),
)
LEARN = click.option(
    "--learn", is_flag=True, help="Suggest rules at the end for what was denied; this changes no decision of the run."
)
# Those of `run` and `runs resume`, in the order of the help.
_PLACES = (
    click.option(
        "-i",
        "--interactive",
        is_flag=True,
        help="Open pi's own terminal UI in the box; PROMPT, if there is one, is typed first.",
    ),
    click.option("--prompt-file", type=click.File("rb"), metavar="FILE", help="Read the prompt from a file."),
    click.option("--project", type=_FILE, metavar="DIR", help="The project that the box may read."),
    policy_option,
)
_REST = (
    click.option(
        "--allow-file",
        "allowed",
        type=_FILE,
        multiple=True,
        metavar="PATH",
        help="Show the agent this file or folder as it is, although it holds a secret. May be given again.",
    ),
    click.option(
        "--model",
        metavar="PROVIDER/MODEL",
        help="The model, or `demo`. Default: that of your pi settings; for a resumed run, the one it had.",
    ),
    click.option(
        "--ceiling",
        type=Number(MAX_CEILING_MIN),
        metavar="MINUTES",
        help="End the run after this time, whatever it does. "
        f"Default: {defaults.CEILING_MIN:g}, with -i {defaults.INTERACTIVE_CEILING_MIN:g}.",
    ),
    click.option("--cpus", type=Number(4096), metavar="N", help=f"Processors for the box. Default: {defaults.CPUS:g}."),
    click.option(
        "--memory",
        type=Memory(),
        metavar="SIZE",
        help=f"Memory for the box, swap included. Default: {defaults.MEMORY_GIB}g.",
    ),
    click.option(
        "--pids",
        type=Whole(32, 1_000_000),
        default=defaults.PIDS,
        metavar="N",
        help=f"Most processes in the box, 32 or more. Default: {defaults.PIDS}.",
    ),
    click.option("--image", metavar="NAME", help="Another image for the box; it must have impyard's relay in it."),
    click.option("--json", "as_json", is_flag=True, help="Print pi's events instead of a view for people."),
)


def run_options(*own: Option) -> Option:
    """The options that all runs have, as a decorator; `own` are the command's, after the places."""

    def put_on(function: Callable[..., Any]) -> Callable[..., Any]:
        every: tuple[Option, ...] = (*_PLACES, *own, *_REST)
        for option in reversed(every):
            function = option(function)
        return function

    return put_on


def carry_out(prompt: bytes, *, as_json: bool, ceiling: float | None, interactive: bool, **given: Any) -> int:
    """Run the agent with these options, `given` by their names in `run_plan.Options`; the exit status."""
    if interactive:
        _check_interactive(prompt, as_json)
    from impyard.runner.gateway import spawn

    with spawn() as spawned:  # first of all: it takes longest to come up
        from impyard.runner.cli import INTERRUPTED, version
        from impyard.runner.run import run
        from impyard.runner.run_plan import Options
        from impyard.runner.view import View, make_view

        view: View = make_view(as_json=as_json, environ=os.environ)
        size = None
        if interactive:
            from impyard.runner.terminal.interactive import make_interactive

            view = make_interactive(view)
            size = view.size()
        minutes = ceiling or (defaults.INTERACTIVE_CEILING_MIN if interactive else defaults.CEILING_MIN)
        options = Options(prompt=prompt, ceiling_s=minutes * 60, terminal=size, **given)
        try:
            return run(options, view, version(), spawned)
        except KeyboardInterrupt:
            return INTERRUPTED  # said already; click would add an empty line


def _check_interactive(prompt: bytes, as_json: bool) -> None:
    """Raises ImpyardError or UsageError for a run that cannot be interactive."""
    from impyard.runner.terminal.userterminal import check_terminal

    if as_json:
        raise click.UsageError("-i shows pi's own screen, --json its events: give one of them")
    check_terminal(os.environ)
    if len(prompt) > MAX_TYPED:
        raise ImpyardError(
            f"with -i a prompt may have {MAX_TYPED // 1024} KiB at most", hint="put it into a file that the agent reads"
        )
