"""Which key the model's provider refused, where it came from, and what to do: for the end of a run.

Read from the logs, as what pi says comes from the box. No value is read but by the vault, and none is said.
"""

from __future__ import annotations

from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.store import Vault
from impyard.runner.decisions import logread, outcomes
from impyard.runner.decisions.lines import Entry, parse
from impyard.runner.decisions.logfiles import open_log
from impyard.runner.keys.sources import DEMO
from impyard.runner.keys.vault_words import origin

REFUSALS = (401, 403)


def refused_key(log: Path, run: str, provider: str, host: str | None, vault: Vault) -> str | None:
    """Words for people, where the last of the model's calls that carried a key ended with 401 or 403 from its provider;
    else None. host: the model's, where it is known. A log or vault that cannot be read says nothing."""
    try:
        call = _last_call(log, run, provider, host)
        if call is None or call.credential is None:
            return None
        [row] = outcomes.join(outcomes.path_beside(log), [outcomes.Row(b"", call)])
        if row.outcome is None or row.outcome.status not in REFUSALS:
            return None
        stored = vault.overview().credentials.get(call.credential)
    except ImpyardError:
        return None
    return None if stored is None else words(stored)


def words(credential: Credential) -> str:
    """`anthropic, from pi's auth.json; `impyard vault set anthropic` stores another`."""
    name, source = credential.name, credential.source
    place = origin(credential)
    where = place if source == "set" else f"from {'the ' if source.startswith('env:') else ''}{place}"
    if name == DEMO:
        return f"{name}, {where}; `impyard vault import {name}` brings the right one back"
    if credential.kind == "oauth" and credential.pi_file:
        return f"{name}, {where}; log in again with `pi`, or `impyard vault set {name}` stores another"
    return f"{name}, {where}; `impyard vault set {name}` stores another"


def _last_call(log: Path, run: str, provider: str, host: str | None) -> Entry | None:
    found = open_log(log)
    if found is None:
        return None
    with found:
        for line in logread.from_end(found, needles=(f'"run":"{run}"'.encode(),)):
            entry = parse(line.text)
            if entry is None or entry.run != run:
                continue
            if entry.injected and entry.verdict == "allow" and (entry.credential == provider or entry.host == host):
                return entry
            if entry.seq == 1:
                break
    return None
