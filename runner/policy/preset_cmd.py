"""`impyard policy preset`: ready entries for services and registries: list them, show them, add them to a policy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.lazygroup import Entry, LazyGroup
from impyard.runner.options import project_option
from impyard.runner.policy.place import located, policy_option
from impyard.runner.text import columns_of, visible, wrapped
from impyard.runner.typed import as_typed

COMMANDS: dict[str, Entry] = {
    "list": Entry("impyard.runner.policy.preset_cmd:list_presets", "List the presets."),
    "show": Entry("impyard.runner.policy.preset_cmd:show", "Print what a preset would write."),
    "add": Entry("impyard.runner.policy.preset_cmd:add", "Add presets to the project's policy."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def preset() -> None:
    """Ready entries for what agents often need: GitHub, registries of packages, models.

    \b
    Example:
      impyard policy preset add github-clone --repo octo/hello
    """


@click.command("list")
def list_presets() -> None:
    """List the presets, with the hosts that each is about.

    \b
    Example:
      impyard policy preset list
    """
    from impyard.runner.policy import presets
    from impyard.runner.policy.preset_places import HINTS

    width, columns = max(map(len, presets.NAMES)) + 2, columns_of(sys.stdout)
    for name in presets.NAMES:
        found = presets.preset(name)
        hosts = [f"({HINTS[name]})"] if name in HINTS else list(found.hosts)
        told = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
        line = wrapped(name.ljust(width) + found.summary, columns, " " * width)
        click.echo(click.style(name, bold=True) + line.removeprefix(name))
        click.secho(wrapped(" " * width + told, columns), dim=True)


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options by which a preset is filled."""
    for option in reversed(
        [
            click.option(
                "--host",
                "hosts",
                multiple=True,
                metavar="URL",
                help="The registry or server, instead of the configured one. May be given again.",
            ),
            click.option(
                "--files", "files", multiple=True, metavar="URL", help="Where a registry's files are (pip, cargo)."
            ),
            click.option("--look", is_flag=True, help="Ask the registry for one page to see that (pip, cargo)."),
            click.option(
                "--repo", "repos", multiple=True, metavar="OWNER/NAME", help="Only this repository (github-clone)."
            ),
            click.option("--inject", is_flag=True, help="Put your credential on (github, gitlab, npm, huggingface)."),
        ]
    ):
        command = option(command)
    return command


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@project_option
@_options
def show(
    names: tuple[str, ...],
    project: Path | None,
    hosts: tuple[str, ...],
    files: tuple[str, ...],
    look: bool,
    repos: tuple[str, ...],
    inject: bool,
) -> None:
    """Print a preset as it would be written, a policy of its own.

    Where registries were found is said on stderr.

    \b
    Example:
      impyard policy preset show npm
    """
    from impyard.runner.policy import presets
    from impyard.runner.project import find_root

    root = find_root(project)
    for name, (wanted, texts, notes, _) in zip(
        names, _filled(names, root, hosts, files, look, repos, inject), strict=True
    ):
        presets.as_policy(wanted, texts)
        for note in notes:
            _note(f"{name}: {note}")
        click.echo(presets.document(wanted, texts), nl=False)


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@project_option
@policy_option
@_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def add(
    names: tuple[str, ...],
    project: Path | None,
    policies: tuple[Path, ...],
    hosts: tuple[str, ...],
    files: tuple[str, ...],
    look: bool,
    repos: tuple[str, ...],
    inject: bool,
    yes: bool,
) -> int:
    """Add presets to the project's policy, after a look at the difference.

    What the policy says already goes on to win: an entry of a preset about the same host goes above yours.
    Registries are those that npm, pip, cargo, go and apt are configured for here.

    \b
    Examples:
      impyard policy preset add github npm
      impyard policy preset add pip --host https://registry.example.org/simple/
      impyard policy preset add github-clone --repo octo/hello --inject
    """
    from impyard.addon.policy import read_policy, shown
    from impyard.runner.policy import preset_add
    from impyard.runner.policy import write as policywrite
    from impyard.runner.policy.read import read_files

    root, paths = located(project, policies)
    if len(paths) > 1:
        raise ImpyardError("presets are added to one file", hint="give --policy once")
    path = paths[0]
    policywrite.check_changeable(path, root)
    ((_, old),) = read_files(paths, root)
    data = old
    notes: list[str] = []
    tests: list[Any] = []
    for wanted, texts, found, expected in _filled(names, root, hosts, files, look, repos, inject):
        done = preset_add.add(data, path, root, texts, wanted.name)
        data = done.data
        notes += [f"{wanted.name}: {note}" for note in (*found, *done.notes)]
        if not done.added:
            click.echo(f"{wanted.name}: all of it is in the policy already")
        tests += expected if done.added else []
    notes += preset_add.held_back(old, data, path, root, tests)
    if data != old:
        notes += preset_add.without_effect(old, data, path, root)
    for note in notes:
        _note(note)
    if data == old:
        click.echo("nothing to add: the policy stays as it is")
        return 0
    read_policy([(path, data)], root=root)
    if not policywrite.ask_and_replace(path, root, old, data, yes=yes):
        return 1
    click.echo(f"changed {visible(shown(path, root))}; it counts from the next request on", err=True)
    return 0


def _note(text: str) -> None:
    """Print what a person should know; it may hold an address from somebody's configuration."""
    click.echo(wrapped(f"note: {visible(as_typed(text))}", columns_of(sys.stderr), "  "), err=True)


def _filled(
    names: Sequence[str],
    root: Path,
    hosts: Sequence[str],
    files: Sequence[str],
    look: bool,
    repos: Sequence[str],
    inject: bool,
) -> list[tuple[Any, list[str], list[str], list[Any]]]:
    """(preset, its entries' texts, notes, its expectations) of each name. Raises ImpyardError."""
    from impyard.addon.publicaddresses import leads_inside
    from impyard.runner.policy import preset_places, presets

    wanted = [presets.preset(name) for name in dict.fromkeys(names)]
    if (hosts or files) and len(wanted) > 1:
        raise click.UsageError("--host and --files go with one preset")
    done = []
    for each in wanted:
        if repos and not each.takes_repos:
            raise click.UsageError(f"--repo goes with github-clone, not with {each.name}")
        if inject and not each.may_inject:
            why = "has its credential anyway" if "    inject: " in each.body else "knows no credential"
            raise click.UsageError(f"--inject does not go with {each.name}, which {why}")
        found = preset_places.find(each, root, hosts=hosts, files=files, look=look)
        for host in dict.fromkeys(place.host for places in found.places.values() for place in places):
            if leads_inside(host):
                found.notes.append(f"{host} is not public: its entry is denied until you write `upstream` into it")
        texts = presets.entries_text(each, found.places, repos=repos, inject=inject)
        tests = [] if repos else list(presets.expectations(each, found.places))
        done.append((each, texts, found.notes, tests))
    return done
