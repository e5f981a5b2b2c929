"""HTML as values. What is written is escaped, so that nobody can forget it; knows nothing of any page.

Text is escaped twice: what a person could not see (controls, marks that turn the reading direction) becomes visible as
in a terminal, then what a browser would obey becomes text. Elements and attributes are those of two lists: nothing
here can load, run, submit or lead out of the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from impyard.runner.text import visible

_ELEMENTS = (
    "article b body caption code dd details div dl dt footer h1 h2 h3 head header html li main nav ol p pre section "
    "small span strong summary table tbody td th thead time title tr ul svg rect line a"
)
_NAMES = (
    "aria-hidden aria-label aria-labelledby charset class content data-label datetime dir height href http-equiv id "
    "lang name preserveAspectRatio role scope title viewBox width x x1 x2 y y1 y2"
)
_BROKEN = "article div dl footer h1 h2 h3 head header li main nav ol p pre section table tr ul"
_EMPTY = frozenset({"meta", "br", "wbr"})
_TAGS = frozenset(_ELEMENTS.split()) | _EMPTY
_ATTRIBUTES = frozenset(_NAMES.split())
_BLOCKS = frozenset(_BROKEN.split())  # a line ends behind them, for who reads the source


@dataclass(frozen=True, slots=True)
class Element:
    """A tag with its attributes, in order, and what is in it."""

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Text whose line breaks stay line breaks, for `pre`; tabs become blanks."""

    text: str


@dataclass(frozen=True, slots=True)
class Style:
    """The page's own style sheet. Never made of anything that was read."""

    css: str

    @property
    def source(self) -> str:
        """What a Content-Security-Policy allows it by: `'sha256-…'`."""
        return f"'sha256-{base64.b64encode(hashlib.sha256(self.css.encode()).digest()).decode()}'"


type Node = Element | Lines | Style | str | int | Iterable[Node] | None


def h(tag: str, *children: Node, **attributes: str | int | bool | None) -> Element:
    """The element `tag`. `cls` is its class, `data_label` its data-label; an attribute of None or False is left out.

    Raises ValueError for an element or attribute that no page of ours has, and for a link that leads out of it.
    """
    if tag not in _TAGS:
        raise ValueError(f"no element of ours: {tag}")
    pairs = []
    for key, value in attributes.items():
        name = "class" if key == "cls" else key.replace("_", "-")
        if name not in _ATTRIBUTES:
            raise ValueError(f"no attribute of ours: {name}")
        if name == "href" and not str(value).startswith("#"):
            raise ValueError("a link leads nowhere but to a place in the page")
        if value is not None and value is not False:
            pairs.append((name, "" if value is True else str(value)))
    return Element(tag, tuple(pairs), children)


def document(root: Element) -> Iterator[str]:
    """The text of a page whose outermost element is `root`, in pieces."""
    yield "<!doctype html>\n"
    yield from _written(root)
    yield "\n"


def _written(node: Node) -> Iterator[str]:
    if node is None:
        return
    if isinstance(node, str | int):
        yield html.escape(visible(str(node)))
    elif isinstance(node, Lines):
        yield html.escape("\n".join(visible(line) for line in node.text.expandtabs(4).splitlines()))
    elif isinstance(node, Style):
        if "<" in node.css:
            raise ValueError("a style sheet has no tags in it")
        yield f"<style>{node.css}</style>"
    elif isinstance(node, Element):
        attributes = "".join(f' {name}="{html.escape(visible(value))}"' for name, value in node.attributes)
        yield f"<{node.tag}{attributes}>"
        if node.tag in _EMPTY:
            return
        # A line break right after <pre> would be lost.
        yield "\n" if node.tag == "pre" else ""
        for child in node.children:
            yield from _written(child)
        yield f"</{node.tag}>"
        if node.tag in _BLOCKS:
            yield "\n"
    else:
        for child in node:
            yield from _written(child)
