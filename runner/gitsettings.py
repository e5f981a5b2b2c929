"""What git's settings name that git would then obey: read as git reads them (git-config(1), "Syntax"), without git."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

MAX_SETTINGS_BYTES = 1024 * 1024
# `path` is that of an include; of other sections it does no harm. A value goes on after a backslash at a line's end,
# but not that of a comment: whatever one of the two readings finds counts.
_KEY = r'^[ \t]*(?:\[(?:"(?:\\.|[^"\\\n])*"|[^\]"\n])*\][ \t]*)?(hookspath|path)[ \t]*=[ \t]*'
_PATH_SETTINGS = [
    re.compile(_KEY + value, re.IGNORECASE | re.MULTILINE) for value in (r"([^\n]*)", r"((?:\\\r?\n|[^\n])*)")
]
_WORKTREE_CONFIG = re.compile(r"^[ \t]*(?:\[[^\]\n]*\][ \t]*)?worktreeconfig\b", re.IGNORECASE | re.MULTILINE)
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


def named_paths(text: str) -> list[tuple[bool, str]]:
    """The paths that settings name: whether of hooks, else of more settings, and the value."""
    found = {
        (key.lower() == "hookspath", plain_value(raw)): None for one in _PATH_SETTINGS for key, raw in one.findall(text)
    }
    return [(is_hooks, value) for is_hooks, value in found if value and "\0" not in value]


def has_worktree_settings(text: str) -> bool:
    """Whether each worktree may have settings of its own."""
    return _WORKTREE_CONFIG.search(text) is not None


def own_settings(homes: Iterable[str], environ: Mapping[str, str]) -> list[Path]:
    """Where git reads the machine's settings from, and those of a caller with these `homes` and variables
    (git-config(1), FILES and ENVIRONMENT)."""
    files = ["/etc/gitconfig", "/usr/local/etc/gitconfig"]
    for home in filter(None, homes):
        files += [f"{home}/.gitconfig", f"{home}/.config/git/config"]
    if config_home := environ.get("XDG_CONFIG_HOME"):
        files.append(f"{config_home}/git/config")
    files += [environ.get(name, "") for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")]
    return [Path(file) for file in files if file]


def first_line(file: Path) -> str:
    """The first line of a file, without blanks at its ends; "" for what cannot be read."""
    return text_of_file(file).partition("\n")[0].replace("\0", "").strip()


def text_of_file(file: Path) -> str:
    """A file's text, its beginning when it is long; "" for what cannot be read."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be a pipe that nobody writes to
        with open(descriptor, "rb") as opened:
            return opened.read(MAX_SETTINGS_BYTES).decode("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return ""


def plain_value(raw: str) -> str:
    """A value as git takes it: without quotes, comment, escapes, and blanks at its end."""
    value, end, is_quoted = "", 0, False
    chars = iter(raw)
    for char in chars:
        if char in "#;" and not is_quoted:
            break
        if char == '"':
            is_quoted = not is_quoted
            continue
        if char == "\\":
            char = next(chars, "")
            if char == "\r":
                char = next(chars, "")
            char = "" if char == "\n" else _ESCAPES.get(char, char)
        value += char
        if is_quoted or not char.isspace():
            end = len(value)
    return value[:end]
