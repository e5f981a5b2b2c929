"""What a killed runner left behind: boxes, sockets, the copied credential. The next run takes it away.

A box ends itself when its gateway goes or its ceiling comes; this is for what even that leaves. A runner is told from
any other process by its number, the time it started, and the process numbering that both belong to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner import checkout, engine
from impyard.runner.project import RUN_ID, RunPaths
from impyard.runner.receipt import read_receipt, write_json
from impyard.runner.removal import remove_tree
from impyard.runner.user import box_user, give_back

# A box that outlives its ceiling by this much has lost its runner, whatever its labels say.
GRACE_S = 60.0


def this_process() -> dict[str, str]:
    """What tells this process from all others: `pid`, `start` (clock ticks since boot) and `space`, the boot and the
    namespace that process numbers are counted in."""
    return {"pid": str(os.getpid()), "start": _start_of(os.getpid()), "space": _space()}


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
    found = _start_of(int(pid))
    return not found or found == start


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
        with suppress(ImpyardError):
            receipt = read_receipt(paths.receipt)
            alive = lives(*(str(receipt.get(f"runner_{name}", "")) for name in ("pid", "start", "space")))
            if alive is False:
                _close_books(paths, receipt, on_note)


def clean_folder(paths: RunPaths) -> list[str]:
    """Remove what only a living run needs: sockets, control files, the home with the credential.

    Returns what could not be removed.
    """
    left = []
    for folder in (paths.home, paths.control, paths.door):
        try:
            if folder.is_symlink():
                folder.unlink()
            elif folder.exists():
                remove_tree(folder)
        except OSError as exc:
            left.append(f"{folder}: {exc.strerror or exc}")
    return left


def _close_books(paths: RunPaths, receipt: dict[str, Any], on_note: Callable[[str], None]) -> None:
    left = clean_folder(paths)
    user = box_user(os.geteuid(), os.getegid(), os.environ)
    for folder in (paths.workspace, paths.session):
        with suppress(OSError):
            give_back(folder, user)
    left += _unmake(receipt.get("made"))
    if receipt.get("exit_reason") == "running":
        with suppress(OSError):
            write_json(paths.receipt, {**receipt, "exit_reason": "runner-lost", "exit_status": 137, "made": []})
    on_note(f"cleaned up after run {paths.id}, whose runner was killed" + "".join(f"; {item}" for item in left))


def _unmake(records: Any) -> list[str]:
    """Remove what was put into a checkout for the run; what of it has changed."""
    made = []
    for record in records if isinstance(records, list) else []:
        with suppress(ValueError):
            made.append(checkout.from_record(record if isinstance(record, dict) else {}))
    return [f"{path} was changed" for path in checkout.unmake(made[::-1])]


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


def _start_of(pid: int) -> str:
    """Field 22 of /proc/<pid>/stat (proc(5)), "" when it cannot be read. The name in field 2 may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "unknown"
