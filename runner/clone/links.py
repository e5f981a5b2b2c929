"""Where links lead, over all others on the way: those that lie in a checkout, and those that a plan would put there.

A link that names a place in the project may leave it by another link, for the kernel reads `..` where a link has led.
Only reads links; follows none to a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from impyard.runner.clone.paths import names_git

MOST_LINKS = 40  # as the kernel: more is ELOOP
MOST_PARTS = 1000  # of one way
MOST_STEPS = 2_000_000  # of all ways: a link can be made that takes long
OUTSIDE = "it is a link to a place outside of the project"


class Links:
    """`planned` is what a plan writes or removes, by path from `root`: what a link says, None for all else."""

    def __init__(self, root: Path, planned: Mapping[bytes, bytes | None]) -> None:
        self.root = os.fsencode(os.path.realpath(root))
        self._planned = planned
        self._known: dict[bytes, bytes | None] = {}
        self._steps = 0

    def inner(self, place: bytes) -> bytes | None:
        """An absolute path as one from the root; None for what lies outside."""
        if place == self.root:
            return b""
        return place[len(self.root) + 1 :] if place.startswith(self.root + b"/") else None

    def text(self, place: bytes) -> bytes | None:
        """What the link at an absolute path says; None where none is."""
        inner = self.inner(place)
        if inner is not None and inner in self._planned:
            return self._planned[inner]
        if place not in self._known:
            try:
                self._known[place] = os.readlink(place)
            except (OSError, ValueError):
                self._known[place] = None
        return self._known[place]

    def follow(self, text: bytes, at: bytes = b"") -> tuple[list[bytes], bool]:
        """Each place on the way from the folder `at` along `text`, the end last; and whether it has an end."""
        places: list[bytes] = []
        if text.startswith(b"/"):
            at = b""
        rest = text.split(b"/")[::-1]
        links = 0
        while rest:
            part = rest.pop()
            if part in (b"", b"."):
                continue
            self._steps += 1
            if len(places) >= MOST_PARTS or self._steps > MOST_STEPS:
                return places, False
            if part == b"..":
                at = at.rpartition(b"/")[0]
                places.append(at)
                continue
            at += b"/" + part
            places.append(at)
            if (further := self.text(at)) is not None:
                links += 1
                if links > MOST_LINKS:
                    return places, False
                rest += further.split(b"/")[::-1]
                at = b"" if further.startswith(b"/") else at.rpartition(b"/")[0]
        return places, True

    def why_held(self, path: bytes, text: bytes) -> tuple[str, list[bytes]]:
        """Why a link at this path is held back, "" for no reason; and the way that it leads, from the root."""
        if text.startswith(b"/"):
            return OUTSIDE, []
        places, has_end = self.follow(text, (self.root + b"/" + path).rpartition(b"/")[0])
        way = [inner for place in places if (inner := self.inner(place)) is not None]
        if len(way) < len(places):
            return OUTSIDE, way
        if not has_end:
            return "it is a link that leads over too many others", way
        for inner in way:
            parts = inner.split(b"/")
            if any(names_git(part) for part in parts):
                return "it is a link into a repository", way
            if parts[0] in (b"runs", b"policies"):
                return f"it is a link into {parts[0].decode()}/", way
        return "", way
