"""What a killed runner left behind: boxes, sockets, the copied credential. The next run takes it away.

A box ends itself when its gateway goes or its ceiling comes; this is for what even that leaves. A runner is told from
any other process by its number, the time it started, and the process numbering that both belong to.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner import engine, places
from impyard.runner.project import RUN_ID, RunPaths
from impyard.runner.receipt import read_receipt, write_json
from impyard.runner.removal import empty_tree, remove_tree
from impyard.runner.user import Inode, Owner, box_user, give_back, owned, share_run

# A box that outlives its ceiling by this much has lost its runner, whatever its labels say.
GRACE_S = 60.0
# The same for a run's folder, by its receipt: machines that share a folder may differ in their clocks.
FOLDER_GRACE_S = 3600.0
# A runner writes its receipt within moments; a folder without one is taken for a run that begins, this long.
BEGINNING_S = 60.0


def this_process() -> dict[str, str]:
    """What tells this process from all others: `pid`, `start` (clock ticks since boot) and `space`, the boot and the
    namespace that process numbers are counted in."""
    return {"pid": str(os.getpid()), "start": _state_and_start(os.getpid())[1], "space": _space()}


def lives(pid: str, start: str, space: str) -> bool | None:
    """Whether that process still runs; None when it is counted in another namespace, so that nobody here can say."""
    if space != _space():
        return None
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        pass  # somebody else's, so it is there
    except (OSError, ValueError, OverflowError):
        return False
    state, found = _state_and_start(int(pid))
    return state not in ("Z", "X") and (not found or found == start)  # a zombie has ended, it was only not asked for


def runner_lives(receipt: Mapping[str, Any]) -> bool | None:
    """Whether the very process that wrote the receipt still runs; None when that cannot be known from here.

    A run of another boot, or of another machine that shares the folder, is over when its ceiling has long passed.
    """
    alive = lives(*(str(receipt.get(f"runner_{name}", "")) for name in ("pid", "start", "space")))
    if alive is None:
        with suppress(TypeError, ValueError, OverflowError):
            began = datetime.fromisoformat(str(receipt.get("started"))).timestamp()
            if time.time() > began + float(receipt.get("ceiling_s", math.inf)) + FOLDER_GRACE_S:
                return False
    return alive


def sweep(root: Path, on_note: Callable[[str], None]) -> None:
    """Take away what dead runners left on this engine and in this project, and say what was found.

    Raises EngineError when the engine does not do its part; files that cannot be removed are named and left.
    """
    for box in engine.boxes():
        labels = box.labels
        alive = lives(*(labels.get(f"impyard.{name}", "") for name in ("pid", "start", "space")))
        if alive is False or (not alive and _is_over(labels.get("impyard.deadline", ""))):
            engine.remove(box.id)
            on_note(f"removed the box of run {box.run}, whose runner is gone")
    sweep_folders(root, on_note)


def sweep_folders(root: Path, on_note: Callable[[str], None]) -> None:
    """The part of `sweep` that needs no engine."""
    for paths in _with_remains(root):
        if not os.path.lexists(paths.receipt):
            _remove_half_made(paths, on_note)
            continue
        with suppress(ImpyardError):
            receipt = read_receipt(paths.receipt)
            if runner_lives(receipt) is False:
                with closing(places.Holds()) as holds:
                    holds.hold(Path(str(receipt.get("workspace"))), False)  # else another run works there: later
                    _close_books(paths, receipt, on_note)


def clean_folder(paths: RunPaths) -> list[str]:
    """Remove what only a living run needs: sockets, control files, the home with the credential.

    The folder of the control files stays, empty, until the run's books are closed: see `close_folder`. Returns what
    could not be removed.
    """
    left = _remove(paths.home, paths.door)
    try:
        if paths.control.is_symlink():
            paths.control.unlink()
        elif paths.control.exists():
            empty_tree(paths.control)
    except OSError as exc:
        left.append(f"{paths.control}: {exc.strerror or exc}")
    return left


def note_owners(paths: RunPaths, workspace: Path, owners: Mapping[Inode, Owner]) -> None:
    """Note whose the files of a workspace were that were handed to the box's user, should nobody be there to give them
    back. Raises OSError."""
    if owners:
        note = {"workspace": str(workspace), "owners": [[*inode, *owner] for inode, owner in owners.items()]}
        _owners_file(paths).write_text(json.dumps(note), "utf-8")


def close_folder(paths: RunPaths) -> list[str]:
    """Remove the folder that marks a run without its final receipt. Returns what could not be removed."""
    return _remove(paths.control)


def _remove(*folders: Path) -> list[str]:
    left = []
    for folder in folders:
        try:
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                remove_tree(folder)
        except OSError as exc:
            left.append(f"{folder}: {exc.strerror or exc}")
    return left


def _close_books(paths: RunPaths, receipt: dict[str, Any], on_note: Callable[[str], None]) -> None:
    user = box_user(os.geteuid(), os.getegid(), os.environ)
    # A note from this boot is impyard's own; another may have come with the project, and name any folder.
    if receipt.get("runner_space") == _space():
        with suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(_owners_file(paths).read_bytes())
            owners = {(dev, inode): (uid, gid) for dev, inode, uid, gid in note["owners"]}
            give_back(Path(note["workspace"]), user, owners)
    left = clean_folder(paths)
    for folder in (paths.workspace, paths.session):
        with suppress(OSError):
            give_back(folder, owned(user, paths.root))
    left += _unmake(receipt.get("made"))
    with suppress(OSError):
        for draft in paths.folder.glob(f".{paths.receipt.name}.*"):
            draft.unlink()
    try:
        if receipt.get("exit_reason") == "running":
            write_json(paths.receipt, {**receipt, "exit_reason": "runner-lost", "exit_status": 137, "made": []})
        left += close_folder(paths)
    except OSError as exc:
        left.append(f"{paths.receipt}: {exc.strerror or exc}")
    with suppress(OSError):
        share_run(paths.runs, paths.folder, user)
    on_note(f"cleaned up after run {paths.id}, whose runner was killed" + "".join(f"; {item}" for item in left))


def _owners_file(paths: RunPaths) -> Path:
    return paths.control / "owners.json"


def _unmake(records: Any) -> list[str]:
    """Remove what was put into a checkout for the run; what of it has changed."""
    made = []
    for record in records if isinstance(records, list) else []:
        with suppress(ValueError):
            made.append(places.from_record(record if isinstance(record, dict) else {}))
    return [f"{path} was changed" for path in places.unmake(made[::-1])]


def _remove_half_made(paths: RunPaths, on_note: Callable[[str], None]) -> None:
    """Its runner was killed before it could write a receipt, hence before there was a gateway or a box."""
    with suppress(OSError):
        if time.time() - paths.folder.stat().st_mtime > BEGINNING_S:
            remove_tree(paths.folder)
            on_note(f"removed the empty folder of run {paths.id}, whose runner was killed as it began")


def _with_remains(root: Path) -> list[RunPaths]:
    found = []
    with suppress(OSError), os.scandir(root / "runs") as entries:
        for entry in entries:
            if RUN_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                paths = RunPaths(root, entry.name)
                if any(os.path.lexists(folder) for folder in (paths.door, paths.control, paths.home)):
                    found.append(paths)
    return found


def _is_over(deadline: str) -> bool:
    try:
        return time.time() > float(deadline) + GRACE_S
    except ValueError:
        return False


def _state_and_start(pid: int) -> tuple[str, str]:
    """Fields 3 and 22 of /proc/<pid>/stat (proc(5)), "" for what cannot be read. The name in field 2 may hold
    anything."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""


def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "unknown"
