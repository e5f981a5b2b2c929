"""Before a gateway starts: the vault gets what this run uses and the machine has, so that there is something to put on.

Of the model's provider, and of the tools whose tokens the policy binds. Whether the policy really does is the gateway's
to say; its files are only looked at for names here, as reading them whole would cost more than all the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

from impyard.addon.vault.store import Vault, default_dir
from impyard.runner.agent import Agent
from impyard.runner.keys.sources import DEMO, TOOL_VARIABLES, follow

State = Literal["there", "none", "removed"]

_MAX_POLICY_BYTES = 1 << 20
# In a comment it binds nothing. What else this takes for a binding is there to be bound: a token in the environment.
_NAMED = re.compile(rb"^[^#\n]*?\b(?:inject|credential)[ \t]*:[ \t]*[\"']?([a-z0-9][a-z0-9._-]{0,63})", re.MULTILINE)
_INJECTS = b"inject"


def bring(agent: Agent, policies: Iterable[Path], environ: Mapping[str, str], note: Callable[[str], None]) -> State:
    """Import what is new, telling `note`. Returns whether the vault has a credential named like the model's provider,
    or the user removed it, which nothing undoes by itself.

    Raises ImpyardError for a vault or a source of the model's that cannot be read.
    """
    vault = Vault(default_dir())
    for name in (agent.provider, *_of_tools(policies, environ)):
        change = follow(vault, name, environ)
        if change and name != DEMO:  # its account was made for this, and that was said
            note(change.text)
    kept = vault.read()
    if agent.provider in kept.credentials:
        return "there"
    return "removed" if agent.provider in kept.removed else "none"


def _of_tools(policies: Iterable[Path], environ: Mapping[str, str]) -> list[str]:
    """The credentials that the policy names and whose variables are set."""
    wanted = [name for name, variables in TOOL_VARIABLES.items() if any(environ.get(each) for each in variables)]
    if not wanted:
        return []
    named: set[str] = set()
    for file in policies:
        try:
            with file.open("rb") as opened:
                text = opened.read(_MAX_POLICY_BYTES)
        except OSError:
            continue  # the gateway says what is wrong with it
        if _INJECTS in text:
            named |= {found.decode() for found in _NAMED.findall(text)}
    return [name for name in wanted if name in named]
