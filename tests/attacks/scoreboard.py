"""What `make attacks` prints: attempts by group, how many ended as they should, and the controls that fired.

A test counts once in each group of which it makes an attempt. A control is an attempt that succeeds while the
protection is off: one that passes has fired.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.attacks.entries import ENTRIES, GROUPS, group_of

ALL = pytest.StashKey[list[pytest.Item]]()


@dataclass
class Score:
    """One group: the tests that attempt something, and the controls, each as found and as ended well."""

    attempts: int = 0
    held: int = 0
    controls: int = 0
    fired: int = 0


@dataclass
class Marks:
    """What a test attempts, and of what it is the control."""

    attempts: set[str] = field(default_factory=set)
    controls: set[str] = field(default_factory=set)


def marks_of(item: pytest.Item) -> Marks:
    """The entries in an item's marks. Raises UsageError for an entry that is not in the list."""
    marks = Marks()
    for mark in item.iter_markers("attack"):
        if unknown := set(mark.args) - ENTRIES:
            raise pytest.UsageError(f"{item.nodeid}: not in tests/attacks/entries.py: {', '.join(sorted(unknown))}")
        (marks.controls if mark.kwargs.get("control") else marks.attempts).update(mark.args)
    return marks


def score(found: Mapping[str, Marks], passed: set[str]) -> dict[str, Score]:
    """The score of every group, by the tests' marks and the names of those that passed."""
    scores = {group: Score() for group in GROUPS}
    for name, marks in found.items():
        for group in {group_of(entry) for entry in marks.attempts}:
            scores[group].attempts += 1
            scores[group].held += name in passed
        for group in {group_of(entry) for entry in marks.controls}:
            scores[group].controls += 1
            scores[group].fired += name in passed
    return scores


def table(scores: Mapping[str, Score]) -> str:
    """The scores in lines for a terminal."""
    width = max(len(group) for group in scores)
    lines = [f"{'group':<{width}}  attempts  as they should  controls  fired"]
    total = Score()
    for group, one in [*scores.items(), ("all", total)]:
        lines.append(f"{group:<{width}}  {one.attempts:>8}  {one.held:>14}  {one.controls:>8}  {one.fired:>5}")
        total.attempts += one.attempts
        total.held += one.held
        total.controls += one.controls
        total.fired += one.fired
    return "\n".join(lines)


def readme_table(scores: Mapping[str, Score]) -> str:
    """What the suite attempts, for the README."""
    rows = [f"| {group} | {one.attempts} | {one.controls} |" for group, one in scores.items()]
    attempts = sum(one.attempts for one in scores.values())
    controls = sum(one.controls for one in scores.values())
    return "\n".join(["| Group | Attempts | Controls |", "|---|---|---|", *rows, f"| all | {attempts} | {controls} |"])


class Scoreboard:
    """The plugin: prints the table after a run of `-m attack`, and the README's for `--attacks-readme`."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._found: dict[str, Marks] = {}
        self._passed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        session.stash[ALL] = list(items)  # before marks leave some out

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            marks = marks_of(item)
            if marks.attempts or marks.controls:
                self._found[item.nodeid] = marks

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        elif report.failed:
            self._passed.discard(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._config.getoption("--attacks-readme"):
            terminalreporter.write(summary(self._found))
        elif self._config.option.markexpr == "attack" and not self._config.option.collectonly:
            terminalreporter.write_line("")
            terminalreporter.write_line(table(score(self._found, self._passed)))


def summary(found: Mapping[str, Marks]) -> str:
    """The README's table, and the entries that nobody attempts."""
    attempted = {entry for marks in found.values() for entry in marks.attempts}
    return f"{readme_table(score(found, set()))}\nnot attempted: {' '.join(sorted(ENTRIES - attempted)) or 'none'}\n"


def in_session(session: pytest.Session) -> str | None:
    """The summary of what this session found, by its marks left out or not; None when it has not looked everywhere."""
    option = session.config.option
    narrowed = (option.keyword, option.deselect, option.ignore, option.ignore_glob, option.lf, option.stepwise)
    asked = [Path(name).resolve() for name in session.config.args]
    if asked != [session.config.rootpath / "tests"] or any(narrowed):
        return None
    return summary({item.nodeid: marks_of(item) for item in session.stash[ALL]})


def collected() -> str:
    """The summary, as pytest's own collection finds the tests."""
    import subprocess

    command = ["-q", "--collect-only", "-m", "attack", "--attacks-readme", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *command], capture_output=True, text=True, timeout=120, check=True
    )
    return result.stdout[result.stdout.index("| Group") :]
