"""Whatever text goes into a page, it stays text."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impyard.runner.report.markup import Lines, Style, document, h
from impyard.runner.text import visible


class Parsed(HTMLParser):
    """What a page holds: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</code></pre></title><style>*{display:none}</style>",
    "<!--",
    "]]><![CDATA[",
    "&lt;b&gt; &#x3c;script&#x3e;",
    "\u202egnp.exe \u2066x\u2069 \x1b[31m \0 \x7f \ud800 \ufeff",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    page = "".join(document(h("p", text, h("code", text, title=text), h("pre", Lines(text)))))
    parsed = Parsed(page)
    assert [tag for tag, _ in parsed.elements] == ["p", "code", "pre"]
    assert parsed.elements[1][1] == {"title": visible(text)}
    assert parsed.text.replace("\n", "") == visible(text) * 3
    page.encode()


@settings(max_examples=60)
@given(st.text())
def test_any_text_comes_back_as_it_is_shown(text: str) -> None:
    parsed = Parsed("".join(document(h("p", h("b", text), title=text))))
    assert parsed.elements == [("p", {"title": visible(text)}), ("b", {})]
    assert parsed.text.strip("\n") == visible(text)


def test_lines_stay_lines_and_what_is_in_them_is_shown() -> None:
    assert (
        "".join(document(h("pre", Lines("a\tb\n\x1bc\r\nd")))) == "<!doctype html>\n<pre>\na   b\n\\x1bc\nd</pre>\n\n"
    )


def test_what_could_run_load_or_lead_away_cannot_be_made() -> None:
    for tag in ("script", "iframe", "img", "object", "form", "base", "link", "style"):
        with pytest.raises(ValueError, match="no element"):
            h(tag)
    for name in ("onclick", "style", "src", "srcset", "action", "formaction", "xlink:href", "ping"):
        with pytest.raises(ValueError, match="no attribute"):
            h("a", **{name: "x"})
    for link in ("javascript:alert(1)", "https://example.org/", "data:text/html,x", "//x", ""):
        with pytest.raises(ValueError, match="nowhere"):
            h("a", href=link)
    assert "".join(document(h("a", "x", href="#hosts"))).count('href="#hosts"') == 1


def test_a_style_sheet_cannot_end_itself() -> None:
    with pytest.raises(ValueError):
        list(document(h("head", Style("a{}</style><script>"))))
