"""Nothing of the list is left out, and every group can fail."""

from __future__ import annotations

import re

import pytest

from tests.attacks.entries import GROUPS
from tests.attacks.scoreboard import Marks, collected, in_session, score
from tests.support.gateway import ROOT

BLOCK = re.compile(r"(<!-- attacks -->\n)(.*?)(<!-- /attacks -->)", re.DOTALL)


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> str:
    """What the whole suite attempts: collected once more only where this session is a part of it."""
    return in_session(request.session) or collected()


def _table(found: str) -> str:
    return found.partition("\nnot attempted")[0]


def test_every_entry_is_attempted(found: str) -> None:
    assert "\nnot attempted: none\n" in found


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_has_a_control(found: str, group: str) -> None:
    row = re.search(rf"^\| {re.escape(group)} \| (\d+) \| (\d+) \|$", _table(found), re.MULTILINE)
    assert row is not None
    assert int(row.group(1)) > 0
    assert int(row.group(2)) > 0


def test_the_readme_counts_what_there_is(found: str) -> None:
    """Mend with: python -m tests.attacks.test_entries"""
    block = BLOCK.search((ROOT / "README.md").read_text())
    assert block is not None
    assert block.group(2).strip() == _table(found).strip()


def test_a_failed_attempt_and_a_silent_control_show() -> None:
    found = {"a": Marks({"1", "2"}), "b": Marks({"1", "F01"}), "c": Marks(set(), {"4"})}
    scores = score(found, {"a"})
    around = scores["around the proxy"]
    assert (around.attempts, around.held, around.controls, around.fired) == (2, 1, 1, 0)
    assert scores["in the field: a verdict that does not hold"].attempts == 1


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(
        BLOCK.sub(lambda match: f"{match[1]}{_table(collected()).strip()}\n{match[3]}", readme.read_text())
    )
