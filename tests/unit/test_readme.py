"""The README says what the program says. `python -m tests.unit.test_readme` writes the blocks anew."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from impyard.addon.reasons import REASONS
from impyard.box.attacks.bed import ATTEMPTS
from impyard.runner.cli import root
from impyard.runner.deep import Verdict, show
from impyard.runner.receipt import EXITS

README = Path(__file__).resolve().parents[2] / "README.md"
DOCUMENTS = [README, *(README.with_name(f"{name}.md") for name in ("CONTRIBUTING", "SECURITY", "CHANGELOG"))]
DOCUMENTS += sorted(README.parent.glob("docs/*.md"))


def blocks() -> dict[str, str]:
    """What stands between `<!-- name -->` and `<!-- /name -->`, by name."""
    helps = ["", "run"]
    settings: dict[str, Any] = {"prog_name": "impyard", "terminal_width": 100}
    texts = [CliRunner().invoke(root, [*name.split(), "--help"], **settings).output for name in helps]
    assert all(text.startswith("Usage: impyard") for text in texts)
    reasons = ["| Reason | Meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in REASONS.items())]
    with contextlib.redirect_stdout(io.StringIO()) as scoreboard:
        show([Verdict(attempt, ()) for attempt in ATTEMPTS])
    return {
        "scoreboard": f"```text\n{scoreboard.getvalue().rstrip()}\n```",
        "help": "\n".join(f"```text\n{text.rstrip()}\n```" for text in texts),
        "reasons": "\n".join(reasons),
    }


def rendered(readme: str) -> str:
    for name, text in blocks().items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
        assert pattern.search(readme), f"the README has no block {name}"
        readme = pattern.sub(lambda match, text=text: match[1] + text + "\n" + match[2], readme)  # type: ignore[misc]
    return readme


def test_its_blocks_are_what_the_program_prints() -> None:
    readme = README.read_text()
    assert rendered(readme) == readme


def test_its_exit_statuses_are_the_runners() -> None:
    table = set(map(int, re.findall(r"^\| (\d+) \| ", README.read_text(), re.M)))
    assert table == {2, *EXITS.values()}


def anchors(path: Path) -> set[str]:
    """The names that a document's headings have as targets, as GitHub makes them."""
    titles = (
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    )
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_its_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for name, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
            target = path.parent / name if name else path
            assert target.exists(), f"{path.name}: {name}"
            assert not anchor or anchor in anchors(target), f"{path.name}: {name}#{anchor}"


def test_each_document_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+)", README.read_text()))
    assert linked == {str(path.relative_to(README.parent)) for path in README.parent.glob("docs/*.md")}


def test_the_files_that_the_documents_name_exist() -> None:
    for path in DOCUMENTS:
        for name in re.findall(r"`((?:addon|runner|certs|box|tests|policies|docs)/[\w./-]+\.\w+)`", path.read_text()):
            assert (README.parent / name).exists(), f"{path.name}: {name}"


def test_the_commands_that_the_documents_name_exist_with_their_options() -> None:
    seen = 0
    for path in DOCUMENTS:
        text = path.read_text()
        for line in (*re.findall(r"`impyard ([^`\n]*)`", text), *re.findall(r"^\$ (?:bin/)?impyard (.*)", text, re.M)):
            words = re.split(r" [|<#] ", line)[0].split()
            command: click.Command = root
            while words and isinstance(command, click.Group) and re.fullmatch("[a-z]+", words[0]):
                found = command.get_command(click.Context(command), words.pop(0))
                assert found is not None, f"{path.name}: impyard {line}"
                command = found
            options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {
                "--help"
            }
            given = {word.partition("=")[0] for word in words if re.match("--[a-z]", word)}
            assert given <= options, f"{path.name}: impyard {line}"
            seen += 1
    assert seen > 100


if __name__ == "__main__":
    README.write_text(rendered(README.read_text()))
