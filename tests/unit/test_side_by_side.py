"""`make test` runs the suite in parts: their counts are added up, and none of them can fail unseen."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.side_by_side import BESIDE, FOLDERS, ROOT, closing_line, counts


@pytest.mark.parametrize(
    ("output", "status", "found"),
    [
        ("...\n4 passed, 2 deselected in 0.10s\n", 0, {"passed": 4}),
        ("==== 1 failed, 4 passed, 2 errors in 61.10s (0:01:01) ====", 1, {"failed": 1, "passed": 4, "error": 2}),
        ("no tests ran in 0.01s", 5, {}),
        ("3 passed in 1.00s\nKilled", 0, {"passed": 3}),
        ("..", -9, {"error": 1}),
        ("", 2, {"error": 1}),
        ("3 passed in 1.00s", 1, {"passed": 3, "error": 1}),
    ],
)
def test_a_part_says_how_its_tests_ended_or_counts_as_an_error(output: str, status: int, found: dict[str, int]) -> None:
    assert counts(output, status) == found


def matches(expression: str, marks: Sequence[str]) -> bool:
    def has(name: str, /, **_kwargs: object) -> bool:
        return name in marks

    return Expression.compile(expression).evaluate(has)


def test_every_test_is_in_just_one_part() -> None:
    """Whatever its marks are; and none lies where its part does not look."""
    expressions = [*(marks for marks, _ in BESIDE.values()), "alone"]
    for marks in itertools.product(("box", ""), ("waits", ""), ("alone", ""), ("gateway", "")):
        assert len([each for each in expressions if matches(each, marks)]) == 1, marks
    for mark, folders in FOLDERS.items():
        others = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
        files = [path for path in others if re.search(rf"mark\.{mark}\b", path.read_text())]
        assert {path.parent.relative_to(ROOT).as_posix() for path in files} == set(folders)


def test_the_closing_line_is_one_that_ci_finds() -> None:
    line = closing_line(Counter(passed=4000, skipped=2, failed=1), 754.3)
    assert line == "1 failed, 4000 passed, 2 skipped in 754.30s (12 min 34 s)"
    pattern = re.search(r"grep -aE '(.+?)' ", (ROOT / ".ci" / "run").read_text())
    assert pattern is not None and re.search(pattern[1], line)


def test_a_failure_in_a_part_is_the_status_of_all_and_is_shown(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.box\ndef test_a(): assert 0, 'this'\n"
        "def test_b(): pass\n@pytest.mark.alone\ndef test_c(): pass\n"
    )
    words = ["-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)]
    command = [sys.executable, "-m", "tests.side_by_side", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1].split(" in ")[0]) == (1, "1 failed, 2 passed"), done
    assert "AssertionError: this" in done.stdout
