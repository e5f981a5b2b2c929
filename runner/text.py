"""Text from a log or from the box, made safe to print, and numbers as people say them. Nothing here knows where they
came from."""

from __future__ import annotations

import os
import re
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TextIO

MIN_COLUMNS = 40
_QUOTED = re.compile(r"`[^`\n]+`")
_KEPT = "\0"  # a blank at which no line ends; no text that is visible has it
# Letters and marks without ink: fillers, an empty braille cell, variation selectors, which could carry hidden text.
_UNSEEN = frozenset(
    map(chr, [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, *range(0xFE00, 0xFE10)])
) | frozenset(map(chr, [0xFFA0, *range(0xE0100, 0xE01F0)]))
_EMOJI = "\ufe0f"  # the selector that makes the symbol before it a coloured one
_STARS = re.compile(r"\*{9,}")


def visible(text: str) -> str:
    r"""`text` with everything that nobody sees, or that is no printable character, written as an escape (`\x1b`,
    `\u202e`, `\n`).

    What the box sends ends up in logs, and a terminal obeys control codes, line breaks and marks that turn the
    reading direction. A backslash stays one backslash: this is for eyes, not for parsing back.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char.isprintable() and (char not in _UNSEEN or _is_emoji(before, char)) else _escaped(char)
        for before, char in zip(" " + text, text, strict=False)
    )


def _is_emoji(before: str, char: str) -> bool:
    return char == _EMOJI and before not in _UNSEEN and unicodedata.category(before) == "So"


def unstarred(text: str) -> str:
    """`text` with `***` for each longer row of stars: the gateway masks a value with as many as it has characters."""
    return _STARS.sub("***", text)


def shortened(text: str, limit: int) -> str:
    """`text` cut in the middle to at most `limit` characters, saying how many are missing."""
    return "".join(cut(text, limit))


def cut(text: str, limit: int) -> tuple[str, str, str]:
    """`shortened` in its parts: the beginning, the mark, the end. The last two are empty for a text that is kept."""
    if len(text) <= limit:
        return text, "", ""
    mark = f"…({len(text) - limit} more)…"
    kept = max(limit - len(mark), 2)
    head = kept - kept // 3
    return text[:head], mark, text[len(text) - kept // 3 :]


def size_text(count: int) -> str:
    """A number of bytes as people say it: `512 B`, `4.0 KB`, `1.3 GB` (thousands, as disks count)."""
    value = float(min(count, 10**18))  # an int may be larger than any float
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def duration_text(seconds: float) -> str:
    """A duration as people say it: `3.2 s`, `12 min 5 s`, `30 min`, `8 h`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def counted(count: int, one: str, several: str = "") -> str:
    """So many of something: `1 rule`, `3 rules`; `several` is for a word that does not just get an s."""
    return f"{count} {one if count == 1 else several or one + 's'}"


def wants_plain(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there are to be no colours, nor anything else that is no text: by NO_COLOR (https://no-color.org: set and
    not empty), or by a terminal that knows none."""
    return bool(environ.get("NO_COLOR")) or environ.get("TERM", "dumb") == "dumb"


def columns_of(stream: TextIO) -> int | None:
    """How wide the terminal behind `stream` is; None when it is no terminal, and lines may be as long as they are."""
    if not stream.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    try:
        columns = int(given) if given.isdigit() else os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    return max(columns or 80, MIN_COLUMNS)


def wrapped(text: str, columns: int | None, hanging: str = "", *, over: bool = True) -> str:
    """`text`, one line, as lines of at most `columns`, broken between words only; `hanging` goes before each line but
    the first. A word that is longer than a line stays whole, as does what is in backquotes (unless `over` is false, and
    it is longer than a line): it may be a path or a command, to be copied."""
    if columns is None or len(text) <= columns:
        return text
    start = text[: len(text) - len(text.lstrip())]
    filled = textwrap.fill(
        _QUOTED.sub(
            lambda found: found[0].replace(" ", _KEPT) if over or len(found[0]) < columns - len(hanging) else found[0],
            text,
        ),
        columns,
        subsequent_indent=hanging or start,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return filled.replace(_KEPT, " ")


def beside(left: str, right: str, width: int, columns: int | None) -> str:
    """`left`, padded to `width`, and `right`, at least two blanks apart; where `columns` cannot hold both, `right` goes
    below, indented."""
    line = f"{f'{left.rstrip()}  ':<{width}}{right}".rstrip()
    if columns is None or len(line) <= columns:
        return line
    return _below(left, right, columns)


def _below(left: str, right: str, columns: int) -> str:
    indent = " " * (len(left) - len(left.lstrip()) + 2)
    return left.rstrip() + "\n" + wrapped(indent + right, columns, indent)


def all_beside(rows: Sequence[tuple[str, str]], gap: int, columns: int | None) -> list[str]:
    """The rows in two columns so far apart; where `columns` cannot hold one of them, each right side goes below."""
    width = max(len(left) for left, _ in rows) + gap
    lines = [f"{left:<{width}}{right}".rstrip() for left, right in rows]
    if columns is None or all(len(line) <= columns for line in lines):
        return lines
    return [_below(left, right, columns) if right else left for left, right in rows]


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
