"""The README says what the program says. `python -m tests.unit.test_readme` writes the blocks anew."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from impyard.addon.reasons import REASONS
from impyard.box.attacks.bed import ATTEMPTS
from impyard.runner.cli import root
from impyard.runner.deep import Verdict, show
from impyard.runner.receipt import EXITS

README = Path(__file__).resolve().parents[2] / "README.md"


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


def test_its_links_lead_somewhere() -> None:
    for path in (README, *README.parent.glob("docs/*.md"), README.parent / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_files_that_the_documents_name_exist() -> None:
    root = README.parent
    for path in (README, *root.glob("docs/*.md"), root / "CONTRIBUTING.md", root / "SECURITY.md"):
        for name in re.findall(r"`((?:addon|runner|certs|box|tests|policies|docs)/[\w./-]+\.\w+)`", path.read_text()):
            assert (root / name).exists(), f"{path.name}: {name}"


if __name__ == "__main__":
    README.write_text(rendered(README.read_text()))
