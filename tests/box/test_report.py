"""A report of a real run, as a real browser shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.boxes import MakeProject
from tests.support.browser import Browser
from tests.support.project import Caller

pytestmark = pytest.mark.box

PROMPT = (
    "write 4 to answer.txt",
    "run: curl -sS -g 'https://example.com/<script>document.title=1</script>'",
    "run: for i in 1 2 3; do curl -sS https://example.org/item/$i; done",
)


def test_a_real_run_is_told_from_its_prompt_to_the_check_of_its_log(
    make_project: MakeProject, this_user: Caller, tmp_path: Path
) -> None:
    project = make_project(caller=this_user)
    result = project.demo("\n".join(PROMPT))
    assert result.code == 0 and result.run is not None, result
    made = project.impyard("report")
    assert made.code == 0, made
    page = result.run / "report.html"
    assert made.out.startswith(str(page))
    browser = Browser(tmp_path / "chromium")
    try:
        browser.load(page, 360, 800)
        assert browser.asked == [page.as_uri()] and browser.said == []
        assert browser.ask("document.title") == f"impyard, run {result.run.name}: finished, 4 denied"
        text = browser.ask("document.body.innerText")
        assert browser.ask("document.documentElement.scrollWidth") == 360
        browser.screenshot(tmp_path / "report.png")
    finally:
        browser.close()
    for words in (
        "✗ denied GET example.com/<script>document.title=1</script>",
        "✗ denied GET example.org/item/{n} 3 times",
        "✓ allowed POST demo-model.impyard.internal/v1/messages 200",
        "Done: 3 of 3 steps worked.",
        "demo on 4 requests",
        "answer.txt (1 B)",
        "✓ verified: ",
        "and the last one is the one that the receipt names",
    ):
        assert words in text, words
    assert "!" not in browser.said and "is not known" not in text and "cannot be read" not in text
