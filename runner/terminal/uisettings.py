"""What pi's terminal UI in the box is told by files of its agent folder: `run -i`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from impyard.runner.keys.sources import agent_folder, read_object

# The box has no shell that would bring back a suspended pi.
FILES = {"agent/keybindings.json": '{"app.suspend": []}\n'}
# A copy by OSC 52 does not pass the filter: pi must not say that it copied.
SETTINGS: dict[str, Any] = {"fullscreenCopyOnSelect": False, "fullscreenExitOutput": "transcript"}
CARRIED: dict[str, tuple[str, ...]] = {"theme": ("dark", "light"), "tuiMode": ("regular", "fullscreen")}


def ui_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Settings for the box: the user's own choice of a few, where it is one of pi's words."""
    theirs = read_object(agent_folder(environ) / "settings.json")
    return {**SETTINGS, **{name: theirs[name] for name, words in CARRIED.items() if theirs.get(name) in words}}
