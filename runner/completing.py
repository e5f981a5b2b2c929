"""Answers a shell that asks how a command line goes on. Says nothing else: no error, no warning.

Nothing is offered for the line itself but what every shell takes for one plain word, since bash puts it there as it is.
Where the values of a parameter come from is `completed_values.py`'s.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys

import click
from click.shell_completion import (
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    _resolve_context,
    _resolve_incomplete,
    split_arg_string,
)

from impyard.runner import completed_values as values
from impyard.runner.completed_values import Item, Source

VARIABLE = "_IMPYARD_COMPLETE"
_WORD = re.compile(r"[\w@][\w.:/@+-]*")  # what every shell takes for one plain word


class BashComplete(ShellComplete):
    """Gets the line as it was typed: bash cuts words at colons, and models have them."""

    name = "bash"
    source_template = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get("IMPYARD_LINE", "")
        words = split_arg_string(line)
        incomplete = words.pop() if len(words) > 1 and not line[-1:].isspace() else ""
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[str]) -> str:
        return f"{item.type},{item.value}"


class OurZshComplete(ZshComplete):
    """zsh's `_describe` takes a backslash in what it shows for an escape of its own."""

    def format_completion(self, item: CompletionItem[str]) -> str:
        about = item.help.replace("\\", "\\\\") if item.help else None
        return super().format_completion(CompletionItem(item.value, item.type, about))


SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": OurZshComplete, "fish": FishComplete}


def answer(root: click.Group, instruction: str) -> int:
    """Print what the shell may offer, by `instruction` (as in `bash_complete`); always 0."""
    shell, _, what = instruction.partition("_")
    if what == "complete" and shell in SHELLS:
        with contextlib.suppress(Exception, SystemExit), contextlib.redirect_stderr(io.StringIO()):
            said = _Answering.of(SHELLS[shell], root).complete()
            sys.stdout.write(f"{said}\n" if said else "")
            sys.stdout.flush()
    return 0


class _Answering(ShellComplete):
    """What is offered for a parameter is found by its name, so that a command needs no words about it."""

    @classmethod
    def of(cls, shell: type[ShellComplete], root: click.Group) -> ShellComplete:
        kind: type[ShellComplete] = type(f"Our{shell.__name__}", (cls, shell), {"name": shell.name})
        return kind(root, {}, "impyard", VARIABLE)

    def get_completions(self, args: list[str], incomplete: str) -> list[Item]:
        context = _resolve_context(self.cli, self.ctx_args, self.prog_name, args)
        what, incomplete = _resolve_incomplete(context, args, incomplete)
        if isinstance(what, click.Parameter) and (source := _source(context, what)):
            found = [item for item in source(context) if item.value.startswith(incomplete)]
            if not found and source is values.decisions:  # not the short form, then
                found = [item for item in values.whole_decisions(context) if item.value.startswith(incomplete)]
            return [item for item in found if _WORD.fullmatch(item.value)]
        if isinstance(what, click.Option) and what.name == "take":  # a path in the project, as a file's mostly is
            return [CompletionItem(incomplete, type="file")]
        return what.shell_complete(context, incomplete)


def _source(context: click.Context, param: click.Parameter) -> Source | None:
    """Where the values of a parameter come from; None: click knows, as for a file or a choice."""
    if isinstance(param.type, click.Choice | click.Path | click.File):
        return None
    name, path = param.name or "", context.command_path.split()
    if isinstance(param, click.Argument) and "vault" in path:
        return values.vault_names if name in ("name", "names") else None
    if isinstance(param, click.Argument) and "preset" in path:
        return values.presets if name in ("name", "names") else None
    if name in ("run", "runs", "run_id", "first", "second"):
        return values.cloned_runs if path[-1] in ("diff", "apply") else values.runs
    if name in ("id", "ids", "decision", "wanted") and not {"vault", "preset"} & set(path):
        return values.decisions
    if name in ("since", "until"):
        return values.times
    if name == "before" and path[-1] in ("rotate", "prune"):
        return values.ages
    if "decisions" in path and name in ("hosts", "rules"):
        return values.hosts if name == "hosts" else values.rules
    by_name = {"model": values.models, "method": values.methods, "reason": values.reasons}
    return by_name.get(name.removesuffix("s"))
