"""Text from a log or from the box, made safe to print. Nothing here knows where the text came from."""

from __future__ import annotations


def visible(text: str) -> str:
    r"""`text` with everything that is no printable character written as an escape (`\x1b`, `\u202e`, `\n`).

    What the box sends ends up in logs, and a terminal obeys control codes, line breaks and marks that turn the
    reading direction. A backslash stays one backslash: this is for eyes, not for parsing back.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def shortened(text: str, limit: int) -> str:
    """`text` cut in the middle to at most `limit` characters, saying how many are missing."""
    if len(text) <= limit:
        return text
    mark = f"…({len(text) - limit} more)…"
    kept = max(limit - len(mark), 2)
    head = kept - kept // 3
    return text[:head] + mark + text[len(text) - kept // 3 :]


def size_text(count: int) -> str:
    """A number of bytes as people say it: `512 B`, `4.0 KB`, `1.3 GB` (thousands, as disks count)."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
