"""Every command's help, at every width: an example, no line that is too long, no word that is broken, no colour."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from impyard.runner.cli import main, root


def commands(command: click.Command = root, path: str = "impyard") -> Iterator[tuple[str, click.Command]]:
    """Every command of the tree, with what is typed for it."""
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None, name
            yield from commands(found, f"{path} {name}")


EVERY = dict(commands())


def help_of(path: str, capsys: pytest.CaptureFixture[str], columns: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        assert main([*path.split()[1:], "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("path", EVERY)
def test_it_has_an_example(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(path, capsys, 160).partition("Options:")[0].splitlines()[1:]
    name = path if path != "impyard" and not isinstance(EVERY[path], click.Group) else path.split()[0]
    assert any(re.match(rf"\s+(.+ [|<] )?(source <\()?{name}( |$)", line) for line in shown), (
        f"`{path} --help` has no example. In the command's docstring, a paragraph whose first line is \\b and whose "
        f"others are like `{path} …   what it does`"
    )


@pytest.mark.parametrize("path", EVERY)
def test_it_fits_any_terminal_and_breaks_no_word(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = help_of(path, capsys, 160).split()
    for columns in (40, 80, 120):
        text = help_of(path, capsys, columns)
        assert text.split() == words
        long = [
            line for line in text.splitlines() if len(line) > columns and max(map(len, line.split())) < columns - 12
        ]
        assert long == []
        assert "\x1b" not in text


def test_a_value_has_a_name_of_ours_and_the_same_one_in_every_command() -> None:
    names: dict[str, set[str]] = {}
    for path, command in EVERY.items():
        for param in command.params:
            if isinstance(param, click.Option) and not param.is_flag and not isinstance(param.type, click.Choice):
                assert param.metavar, f"{path} {param.opts[0]}: metavar="
                names.setdefault(max(param.opts, key=len), set()).add(param.metavar)
    differing = {option for option, found in names.items() if len(found) > 1}
    assert differing == {"--host"}, "a host or its URL"


MOST_OPTION = 24  # columns of an option and its value: what it means begins behind the widest


def test_no_option_pushes_what_the_others_mean_aside() -> None:
    for path, command in EVERY.items():
        context = click.Context(command)
        records = [found for param in command.params if (found := param.get_help_record(context))]
        assert [(path, option) for option, _ in records if len(option) > MOST_OPTION] == []
        assert [(path, words) for _, words in records if "<=" in words or ">=" in words] == [], "click's own marks"


@pytest.mark.parametrize("path", EVERY)
def test_each_option_says_what_it_does_in_a_sentence(path: str) -> None:
    for param in EVERY[path].params:
        if isinstance(param, click.Option):
            assert re.fullmatch(r"[A-Z`].*[.](  \[default: .*\])?", param.help or ""), (
                f"{path} {param.opts[0]}: {param.help}"
            )


def test_control_clicks_own_layout_does_not_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click.Context, "formatter_class", click.HelpFormatter)
    assert any(len(line) > 40 for line in help_of("impyard runs prune", capsys, 40).splitlines())
