"""`run --learn`: all is denied as ever, and at the end stands what would have allowed it."""

from __future__ import annotations

import pytest

from tests.support.project import Project

pytestmark = pytest.mark.box

ASK = "run: for n in 1 2 3; do curl -sS https://docs.example/i/$n; done; curl -sS https://docs.example/x.y"


def test_a_run_learns_what_it_was_denied_and_denies_it(project: Project) -> None:
    before = project.policy.read_text()
    first = project.demo(ASK, args=["--learn"])
    assert first.code == 0 and first.run is not None
    assert first.receipt["decisions"]["denied"] == 4 and project.policy.read_text() == before
    assert 'path: "/i/[0-9]+"}\n' in first.out and "path: /x\\.y}\n" in first.out
    assert f"apply it: impyard policy suggest --run {first.run.name} --apply" in first.err
    assert "suggest    impyard" not in first.out
    assert project.impyard("policy", "suggest", "--run", first.run.name, "--apply", "--yes").code == 0
    again = project.impyard("policy", "suggest", "--run", first.run.name)
    assert "4 denied requests would be allowed by now" in again.err and not again.out
