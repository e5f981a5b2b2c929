"""A report in a real Chromium: nothing in it runs or is loaded, it fits a phone, and there is something to see."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from impyard.runner import cli
from tests.support.browser import Browser
from tests.support.recorded import ALLOW, DENY, UNLISTED, Recorded, call, request, said, usage
from tests.unit.test_markup import HOSTILE

# Each would mark the page or ask for something, if it were more than text.
ATTEMPTS = [
    "/<script>document.title='ran'</script>",
    '/"><img src=https://198.51.100.7/x onerror="document.title=\'ran\'">',
    "/'><svg onload=\"document.title='ran'\"><style>@import 'https://198.51.100.7/y';</style>",
    "/</title></style></head><body onload=\"document.title='ran'\"><meta http-equiv=refresh content='0;//a.test/'>",
    "/</pre><iframe src=\"javascript:parent.document.title='ran'\"></iframe><a href=javascript:alert(1)>x</a>",
]
# How many colours a picture has, the one in its corner, and the share of that one.
COLOURS = """
createImageBitmap(new Blob([Uint8Array.from(atob("PNG"), c => c.charCodeAt(0))])).then(image => {
  const canvas = new OffscreenCanvas(image.width, image.height), pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  const pixels = new Uint32Array(pen.getImageData(0, 0, image.width, image.height).data.buffer);
  const ground = pixels[0];
  return [new Set(pixels).size, [ground & 255, ground >> 8 & 255, ground >> 16 & 255],
    pixels.filter(pixel => pixel === ground).length / pixels.length];
})
"""
WORD = "a" * 400  # that no line holds
TEXTS = [*ATTEMPTS, *HOSTILE]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blank") / "blank.html"
    path.touch()
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    run = Recorded(folder.resolve() / "project")
    run.prompt("\n".join(["mend what is broken", *TEXTS, WORD]))
    for text in TEXTS:
        run.decide(UNLISTED, request("GET", "evil.test", text))
        run.decide(ALLOW, request("POST", "model.test", text), error=text if "img" in text else None)
    run.decide(DENY, request("M" * 60, WORD[:200] + ".test", f"/{WORD}"))
    everything = "\n".join([*TEXTS, WORD])
    run.events(
        said("user", everything),
        said("assistant", everything, blocks=[call("1", WORD, command=everything)], usage=usage((1, 2, 3, 4), 0.5)),
        said("toolResult", everything, toolCallId="1", isError=True),
    )
    run.end("agent-error", error=everything, files=[{"path": WORD, "bytes": 1}], credentials={WORD: 1}, model=WORD)
    target = folder / "report.html"
    assert cli.main(["report", "--project", str(run.root), "-o", str(target)]) == 0
    return target


def test_nothing_in_it_runs_and_nothing_is_asked_for(browser: Browser, page: Path) -> None:
    browser.load(page, 1280, 900)
    assert browser.ask("document.title").startswith("impyard, run ")
    assert browser.asked == [page.as_uri()] and browser.said == []
    assert browser.ask("document.querySelectorAll('script, img, iframe, object, link, form').length") == 0
    assert browser.ask("[...document.querySelectorAll('a')].every(a => a.getAttribute('href').startsWith('#'))")
    shown = browser.ask("document.body.innerText")
    assert "<script>document.title='ran'</script>" in shown and r"\u202egnp.exe" in shown


def test_its_policy_holds_for_what_slips_in(browser: Browser, page: Path, tmp_path: Path) -> None:
    evil = "<script>document.title='ran'</script><img src=https://198.51.100.7/z><b style='color:red'>x</b>"
    target = tmp_path / "slipped.html"
    target.write_text(page.read_text().replace("<body>", "<body>" + evil))
    browser.load(target, 1280, 900)
    assert browser.ask("document.title").startswith("impyard, run ")
    blocked = " ".join(browser.said)
    assert "script" in blocked and "img-src" in blocked and "style" in blocked, "the page's own policy stopped them"
    control = target.read_text().replace("Content-Security-Policy", "x-none").replace("https://198.51.100.7/z", "z.png")
    target.write_text(control)
    browser.load(target, 1280, 900)
    assert browser.ask("document.title") == "ran", "the control: without the policy it runs"
    assert len(browser.asked) == 2


@pytest.mark.parametrize("width", [320, 360, 640, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, page: Path, width: int) -> None:
    browser.load(page, width, 800)
    browser.ask("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.ask("document.documentElement.scrollWidth <= innerWidth")
    wide = "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
    assert browser.ask(f"{wide}.map(e => e.outerHTML.slice(0, 80))") == []
    assert browser.ask("innerWidth") == width


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(360, 800), (1280, 900)])
def test_there_is_something_to_see(
    browser: Browser, page: Path, blank: Path, width: int, height: int, dark: bool
) -> None:
    browser.load(page, width, height, dark=dark)
    png = browser.screenshot()
    assert struct.unpack(">II", png[16:24]) == (width, height)
    # In the page itself the policy forbids pictures.
    browser.load(blank, width, height)
    colours, ground, share = browser.ask(COLOURS.replace("PNG", base64.b64encode(png).decode()))
    assert colours > 30 and 0.5 < share < 0.99, "blank, or nearly"
    assert (sum(ground) < 3 * 64) is dark and (sum(ground) > 3 * 192) is not dark


def test_it_has_an_outline_and_tables_for_who_hears_it(browser: Browser, page: Path) -> None:
    browser.load(page, 360, 800)
    assert browser.ask("document.documentElement.lang") == "en"
    assert browser.ask("document.querySelectorAll('h1').length") == 1
    levels = browser.ask("[...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
    assert levels[:2] == [1, 2] and all(after <= before + 1 for before, after in pairwise(levels))
    assert browser.ask("[...document.querySelectorAll('th')].every(th => th.scope)")
    assert browser.ask("[...document.querySelectorAll('a')].every(a => document.querySelector(a.getAttribute('href')))")
