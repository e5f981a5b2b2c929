"""A group of commands that are imported when they are called, so that help and completion load nothing else."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


SENTENCE = 200  # characters: the first sentence of a command's help, whole


# What people type for a command that is called otherwise here.
SYNONYMS = {"delete": ("rm", "remove"), "del": ("rm", "remove"), "remove": ("rm",), "rm": ("remove",), "ls": ("list",)}


class Entry(NamedTuple):
    """A command: `target` is `module:function`, `failed` the exit status when it raises `ImpyardError`, `inner` that of
    the commands of a group that have another."""

    target: str
    help: str
    failed: int = 1
    inner: Mapping[str, int] = {}


class LazyGroup(click.Group):
    """A group whose commands are those of `entries`, by name and in that order, and those that were added to it.

    A command is a click command in a module of its own; its function returns its exit status, or None for 0, and
    raises ImpyardError for what the user can mend.
    """

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.entries = entries

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:  # as many tools have it: `help`, and `help COMMAND`
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*(name for name in self.commands if name not in self.entries), *self.entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = entry.target.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command), entry.target
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        helps = {name: command.get_short_help_str() for name, command in self.commands.items()}
        helps |= {name: entry.help for name, entry in self.entries.items()}
        found = [CompletionItem(name, help=helps[name]) for name in helps if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            same = [each for each in known if sorted(each) == sorted(name)]  # two letters changed places
            close = (
                [each for each in SYNONYMS.get(name, ()) if each in known]
                or same
                or difflib.get_close_matches(name, known, 1)
            )
            proposal = f"; did you mean '{close[0]}'?" if close else ""
            if deeper := [f"`{ctx.command_path} {group} {name}`" for group in self._groups_with(ctx, name)]:
                proposal = f"; did you mean {' or '.join(deeper)}?"
            raise click.UsageError(f"no such command '{name}'{proposal}", ctx)
        return super().resolve_command(ctx, args)

    def _groups_with(self, ctx: click.Context, name: str) -> list[str]:
        """The groups in this one that have a command of a name."""
        groups = ((each, self.get_command(ctx, each)) for each in self.list_commands(ctx))
        return [each for each, group in groups if isinstance(group, click.Group) and name in group.list_commands(ctx)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = [(name, command.get_short_help_str(limit=SENTENCE)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*own, *((name, entry.help) for name, entry in self.entries.items())])
