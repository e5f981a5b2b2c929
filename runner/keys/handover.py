"""What a run hands to its box as files: folders in the hands of its user, and what it reads but cannot change.

Called by enclosure.py, in its order; nothing here knows the engine or the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from impyard.addon.vault.credential import Credential
from impyard.certs import authority
from impyard.runner.agent import Agent, write_agent_folder
from impyard.runner.keys import standins
from impyard.runner.project import RunPaths
from impyard.runner.receipt import Receipt
from impyard.runner.resumed import Resumed, write_session
from impyard.runner.secretfiles import scan as secretscan
from impyard.runner.user import BoxUser, group, hand_over, passwd

# Kept on disk while the box lives, and given up before the receipt is written: a box may have filled the rest.
RESERVE_BYTES = 256 * 1024


def kept_back(
    folders: Sequence[Path],
    allowed: Sequence[Path],
    root: Path,
    workspace: Path | None,
    reader: int | None,
    receipt: Receipt,
    note: Callable[[str], None],
    whole: Sequence[secretscan.Found] = (),
) -> list[secretscan.Found]:
    """What of `folders` the box must not see, told to `note` and put into the receipt. reader: the box's user, where it
    is not the caller. whole: folders that are covered as such, with all that is in them."""
    apart = [item.path for item in whole]
    found = [item for item in secretscan.scan(folders) if not any(item.path.is_relative_to(path) for path in apart)]
    secret = secretscan.without_allowed(found, allowed, root)
    hidden = {item.path for item in secret}
    on_purpose = [item for item in found if item.path not in hidden]
    for line in (*secretscan.notes(secret, root), *secretscan.shown_notes(on_purpose, root, reader)):
        note(line)
    if workspace is not None and (known := secretscan.tracked(secret, workspace)):
        names = secretscan.shown(known[0], workspace) + (f" and {len(known) - 1} more" if known[1:] else "")
        note(f"git tracks {names}: its history shows that to the agent, and `git add -A` fails while covered")
    receipt.kept = [item.record() for item in (*whole, *secret)[: secretscan.RECORDED]]
    receipt.kept_more = max(0, len(secret) - secretscan.RECORDED)
    receipt.shown = sorted(str(item.path) for item in on_purpose)
    return [*secret, *whole]


def write_clean_copies(secret: Sequence[secretscan.Found], folder: Path) -> list[tuple[Path, Path]]:
    """Write into `folder` what the box sees in the place of files with a secret in them; (file, copy) of each."""
    copies = []
    for number, found in enumerate(item for item in secret if item.clean is not None):
        copy = folder / f"clean-{number}"
        _write_shared(copy, found.clean or b"")
        copies.append((found.path, copy))
    return copies


def write_files(
    paths: RunPaths, user: BoxUser, prompt: bytes, *, own_workspace: bool, resumed: Resumed | None = None
) -> None:
    """Make the folders of the box's user, and what the box reads that does not wait for the gateway. `resumed` gives
    the session to go on with."""
    for folder in [paths.session] + ([paths.workspace] if own_workspace else []):
        folder.mkdir(mode=0o700)
        if folder == paths.session and resumed is not None:
            write_session(resumed.session, paths.id, resumed.workspace, folder)
        hand_over(folder, user)
    # Whether the authority is any good is the gateway's to say; to look at it here would cost a tenth of a second.
    certificate = (authority.default_dir() / authority.CERT_FILE).read_bytes()
    for file, data in (
        (paths.prompt, prompt),
        (paths.control / "ca.pem", certificate),
        (paths.control / "trust.pem", authority.box_bundle(certificate)),
        (paths.control / "reserve", bytes(RESERVE_BYTES)),
        (paths.control / "passwd", passwd(user, paths.home).encode()),
        (paths.control / "group", group(user).encode()),
    ):
        _write_shared(file, data)


def write_home(
    home: Path, user: BoxUser, agent: Agent | None, model_key: Credential | None, files: Mapping[str, str]
) -> None:
    """Make the throwaway HOME: pi's agent folder, and `files` by their path in it. `model_key` is a sentinel."""
    home.mkdir(mode=0o700)
    if agent is not None:
        write_agent_folder(agent, model_key, home)
    standins.write_files(files, home)
    hand_over(home, user)


def write_config(paths: RunPaths, relay: Mapping[str, Any]) -> None:
    """Write what the relay reads at its start."""
    _write_shared(paths.control / "box.json", json.dumps(relay).encode())


def _write_shared(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    file.chmod(0o444)  # the run's own folder is closed to others, and the box's user may be another than ours
