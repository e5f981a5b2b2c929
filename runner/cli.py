"""The command line: finds the command, prints errors, sets the exit status. No logic of its own.

Commands are loaded when they are called (`lazygroup`), so that `impyard --help` loads neither docker, mitmproxy nor
rich.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from impyard.addon.errors import ImpyardError, WrongUsage
from impyard.runner import helptext, streams
from impyard.runner.lazygroup import Entry, LazyGroup
from impyard.runner.streams import OutputError
from impyard.runner.text import columns_of, visible, wants_plain, wrapped
from impyard.runner.typed import as_typed

INTERRUPTED = 130
READER_GONE = 141  # what a shell shows for other tools whose reader has gone: 128 + SIGPIPE
INDENT = "  "  # before the second line of a long error
REFUSED = 125  # the status that `docker run` uses when nothing was started


click.Context.formatter_class = helptext.Formatter  # of every command, wherever it is defined

COMMANDS: dict[str, Entry] = {
    "run": Entry("impyard.runner.run_cmd:run", "Run the agent in a locked box on a prompt.", REFUSED),
    "init": Entry("impyard.runner.init:init", "Write a commented policy into this project."),
    "vault": Entry("impyard.runner.keys.vault_cmd:vault", "Keep the keys that the gateway puts on requests."),
    "decisions": Entry("impyard.runner.decisions.cmd:decisions", "Show what the judge decided, and check the log."),
    "runs": Entry(
        "impyard.runner.runs_cmd:runs", "List, show, resume, stop and prune runs.", inner={"resume": REFUSED}
    ),
    "report": Entry("impyard.runner.report.cmd:report", "Make one HTML file of a run: requests, denials, hosts, cost."),
    "policy": Entry("impyard.runner.policy.cmd:policy", "Check, explain, test and change the policy."),
    "prove": Entry("impyard.runner.prove:prove", "Try to break out of a box without an agent, and show the result."),
    "doctor": Entry("impyard.runner.doctor:doctor", "Check what this machine has and lacks."),
    "gateway": Entry("impyard.runner.gateway_cmd:gateway", "Run the judge alone, as a proxy for other tools."),
    "image": Entry("impyard.runner.image_cmd:image", "Build the image of the box."),
    "completion": Entry(
        "impyard.runner.completion:completion", "Print what makes bash, zsh or fish complete commands."
    ),
}


EXAMPLES = (
    ('impyard run --model demo "write 4 to answer.txt"', "see it work, without a key"),
    ('impyard run "fix the failing test"', "with the model of your pi settings"),
    ("impyard decisions --denied", "what was refused, and by which rule"),
)


class Root(LazyGroup):
    """The commands, with examples."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--version"] if args == ["version"] else args)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        formatter.write_paragraph()
        width = max(len(command) for command, _ in EXAMPLES) + 2
        with formatter.indentation():
            formatter.write_text("\b\n" + "\n".join(f"{command:<{width}}{what}" for command, what in EXAMPLES))


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"impyard {version()}")
        ctx.exit()


@click.group(
    cls=Root, entries=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
def root() -> None:
    """Run a coding agent in a locked box whose every request is judged by rules you can read."""


def version() -> str:
    """The installed version, or "unknown" for a copy that was never installed."""
    from importlib import metadata

    try:
        return metadata.version("impyard")
    except metadata.PackageNotFoundError:
        return "unknown"


def print_error(message: str, hint: str | None = None) -> None:
    """Print `error:` and `hint:` lines on stderr. Every error that a person sees comes through here.

    Names in them may be an agent's: what a terminal would obey is escaped.
    """
    columns = columns_of(sys.stderr)
    lines = [f"error: {visible(as_typed(line))}" for line in message.split("\n") if line]
    lines += [f"hint: {visible(as_typed(hint))}"] if hint else []
    sys.stderr.write("".join(f"{wrapped(line, columns, INDENT)}\n" for line in lines))
    sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: the process's arguments) and return its exit status."""
    if asked := os.environ.get("_IMPYARD_COMPLETE"):
        from impyard.runner import completing

        return completing.answer(root, asked)
    args = list(sys.argv[1:] if argv is None else argv)
    entry = next((COMMANDS[arg] for arg in args if arg in COMMANDS), Entry("", ""))
    failed = next((entry.inner[arg] for arg in args if arg in entry.inner), entry.failed)
    if not streams.prepare():
        print_error("standard output is closed", "`>/dev/null` discards what a command prints")
        return failed
    status = None
    try:
        status = _run(args, failed)
        sys.stdout.flush()
        return status
    except OutputError as exc:
        streams.give_up()
        if exc.is_reader_gone:
            return READER_GONE if status is None else status  # a gateway or run knows it already, and went on
        print_error(f"cannot write to standard output: {exc}", "part of the output is missing")
        return status or failed


def _run(args: list[str], failed: int) -> int:
    """The command's exit status, its errors printed. Raises OutputError only."""
    try:
        # What is printed with rich looks for itself.
        color = False if wants_plain() else None
        result: Any = root.main(args, prog_name="impyard", standalone_mode=False, color=color)
        return result if isinstance(result, int) else 0
    except OutputError:
        raise
    except click.exceptions.NoArgsIsHelpError as exc:
        exc.show()
        return 2
    except click.UsageError as exc:
        message = exc.format_message().rstrip(".").replace(". Did you mean", "; did you mean")
        if isinstance(exc, click.MissingParameter):  # click has each choice in a line of its own
            message = " ".join(message.split()).replace(". Choose from:", ": choose from")
        print_error(message[:1].lower() + message[1:], f"see `{_command_path(exc, args)} --help`")
        return 2
    except click.ClickException as exc:
        print_error(exc.format_message())
        return failed
    except ImpyardError as exc:
        print_error(exc.message, exc.hint)
        return 2 if isinstance(exc, WrongUsage) else failed
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (Exception, SystemExit) as exc:  # the last line before the user, who must not see a traceback
        if os.environ.get("IMPYARD_DEBUG"):
            raise
        if isinstance(exc, SystemExit):  # click's answer to any broken pipe, be it the engine's
            exc = BrokenPipeError("a pipe or socket was closed by its other side")
        print_error(
            f"internal error: {type(exc).__name__}: {exc}",
            "this is a bug in impyard; IMPYARD_DEBUG=1 shows where it happened",
        )
        return failed


def _command_path(error: click.UsageError, args: Sequence[str]) -> str:
    """The command that was called, as in `impyard runs stop`; an error that a command's own code raises names none."""
    if error.ctx is not None:
        return error.ctx.command_path
    path = ["impyard"]
    command: click.Group = root
    for arg in args:
        found = command.get_command(click.Context(command), arg)
        if found is not None:
            path.append(arg)
            if not isinstance(found, click.Group):
                break
            command = found
    return " ".join(path)


if __name__ == "__main__":
    sys.exit(main())
