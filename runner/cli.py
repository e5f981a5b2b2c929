"""The command line: finds the command, prints errors, sets the exit status. No logic of its own.

Commands are loaded when they are called, so that `impyard --help` loads neither docker, mitmproxy nor rich. A command
is a click command in a module of its own; its function returns its exit status, or None for 0, and raises
`ImpyardError` for what the user can mend.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from impyard.addon.errors import ImpyardError

INTERRUPTED = 130
REFUSED = 125  # the status that `docker run` uses when nothing was started


class Entry(NamedTuple):
    """A command: `target` is `module:function`, `failed` the exit status when it raises `ImpyardError`."""

    target: str
    help: str
    failed: int = 1


COMMANDS: dict[str, Entry] = {
    "run": Entry("impyard.runner.run_cmd:run", "Run the agent in a locked box on a prompt.", REFUSED),
    "init": Entry("impyard.runner.init:init", "Write a commented policy into this project."),
    "decisions": Entry("impyard.runner.decisions_view:decisions", "Show what the judge decided, and check the log."),
    "runs": Entry("impyard.runner.runs_cmd:runs", "List, show, stop and prune runs."),
    "prove": Entry("impyard.runner.prove:prove", "Try to break out of a box without an agent, and show the result."),
    "doctor": Entry("impyard.runner.doctor:doctor", "Check what this machine has and lacks."),
    "gateway": Entry("impyard.runner.gateway_cmd:gateway", "Run the judge alone, as a proxy for other tools."),
    "image": Entry("impyard.runner.image_cmd:image", "Build the image of the box."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called; the list of commands needs no import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.target.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command), entry.target
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"impyard {version()}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def root() -> None:
    """Run a coding agent in a locked box whose every request is judged by rules you can read.

    \b
    impyard run --model demo "write 4 to answer.txt"    see it work, without a key
    impyard run "fix the failing test"                  with the model of your pi settings
    impyard decisions --denied                          what was refused, and by which rule
    """


def version() -> str:
    """The installed version, or "unknown" for a copy that was never installed."""
    from importlib import metadata

    try:
        return metadata.version("impyard")
    except metadata.PackageNotFoundError:
        return "unknown"


def print_error(message: str, hint: str | None = None) -> None:
    """Print `error:` and `hint:` lines on stderr. Every error that a person sees comes through here."""
    lines = [f"error: {line}" for line in message.splitlines()] + ([f"hint: {hint}"] if hint else [])
    try:
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
    except OSError:
        return  # the terminal is gone, and with it the one place to say so


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: the process's arguments) and return its exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    failed = next((COMMANDS[arg].failed for arg in args if arg in COMMANDS), 1)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a letter must not end a run
    try:
        result: Any = root.main(args, prog_name="impyard", standalone_mode=False)
        status = result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as exc:
        exc.show()
        return 2
    except click.UsageError as exc:
        message = exc.format_message().rstrip(".")
        command = exc.ctx.command_path if exc.ctx else "impyard"
        print_error(message[:1].lower() + message[1:], f"see `{command} --help`")
        return 2
    except click.ClickException as exc:
        print_error(exc.format_message())
        return failed
    except ImpyardError as exc:
        print_error(exc.message, exc.hint)
        return failed
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        status = 1  # the reader is gone: `impyard runs list | head`
    except Exception as exc:  # the last line before the user, who must not see a traceback
        if os.environ.get("IMPYARD_DEBUG"):
            raise
        print_error(
            f"internal error: {type(exc).__name__}: {exc}",
            "this is a bug in impyard; IMPYARD_DEBUG=1 shows where it happened",
        )
        return failed
    try:
        sys.stdout.flush()
    except OSError:
        # Python would complain once more while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = status or 1
    return status


if __name__ == "__main__":
    sys.exit(main())
