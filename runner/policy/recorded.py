"""Recorded requests for the commands that make rules of them: read from the log, or named by a person."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from impyard.runner.decisions.lines import Selection, parsed
from impyard.runner.decisions.read import lines
from impyard.runner.policy.asked import Asked
from impyard.runner.policy.replay import Recorded

_AS_THEY_ARE = "".join(map(chr, range(0x21, 0x7F)))
_DECODER = msgspec.json.Decoder(Recorded)


def recorded(line: bytes) -> Recorded | None:
    """What a log line says, or None when the line is damaged."""
    return parsed(line, _DECODER, Recorded)


def decisions(log: Path, selection: Selection) -> Iterator[Recorded]:
    """The decisions that are meant, with all that judging them again needs; `selection` counts damaged lines."""
    for line in lines(log, selection):
        if any(needle not in line.text for needle in selection.needles):
            continue
        found = recorded(line.text)
        if found is None:
            selection.entry(line)
        elif selection.wants(found):
            yield found


def of_asked(asked: Asked) -> Recorded:
    """A request that a person named, as one that was denied for want of a rule."""
    return Recorded(
        ts="",
        id="",
        run="",
        verdict="deny",
        reason="no-rule",
        method=asked.method,
        scheme=asked.scheme,
        host=asked.host,
        port=asked.port,
        path=asked.path,
        query=asked.query,
        headers={"upgrade": "websocket"} if asked.websocket else {},
        body_bytes=asked.body_bytes,
    )


def url_of(asked: Recorded) -> str:
    """The URL without its query."""
    return f"{asked.scheme}://{asked.authority}{asked.path}"


def key_of(asked: Recorded) -> tuple[str, str]:
    """What an exact rule tells apart: the method, and the URL without its query."""
    return asked.method, url_of(asked)


def encoded(asked: Recorded) -> str | None:
    """The URL without its query as it must be sent, with the path percent-encoded; None for one whose bytes are no
    UTF-8, which are ambiguous in that form too."""
    try:
        return f"{asked.scheme}://{asked.authority}{quote(asked.path, safe=_AS_THEY_ARE)}"
    except UnicodeEncodeError:  # a lone surrogate stands for such a byte
        return None


def upgrade_of(asked: Recorded) -> str:
    return (asked.headers or {}).get("upgrade", "").strip().lower()
