"""Every error that a person can mend says what to do next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import ROOT

FOLDERS = ("runner", "certs", "addon/vault")
ERRORS = {"ImpyardError", "UnknownRun"}


def without_hint(source: str) -> Iterator[int]:
    """The lines where an error is made without a hint, or with an empty one."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ERRORS:
            hints = [word.value for word in call.keywords if word.arg in ("hint", None)]
            if not hints or any(isinstance(hint, ast.Constant) and not hint.value for hint in hints):
                yield call.lineno


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_error_is_made_without_a_hint(folder: str) -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files(folder) for line in without_hint(path.read_text())]
    assert found == [], "give ImpyardError(…, hint=…): what to do, best as a command in backticks"


def files(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).glob("*.py"))
    assert found
    return found


def test_control_one_without_a_hint_is_found() -> None:
    source = "raise ImpyardError('a')\nraise ImpyardError('a', hint='b')\nraise ImpyardError('a', hint='')\n"
    assert list(without_hint(source)) == [1, 3]
