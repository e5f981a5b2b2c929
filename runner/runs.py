"""The runs of a project: which there are, which still live, and what may be removed.

What a receipt or a folder says is checked against the engine and the process table; when in doubt a run lives.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner import engine
from impyard.runner.leftovers import BEGINNING_S, runner_lives
from impyard.runner.project import RUN_ID, RunPaths
from impyard.runner.receipt import mapping, read_receipt

LIST_HINT = "`impyard runs list` shows the runs"
END_CHARS = 4  # of an id, which the tables show
MOST_NAMED = 4
# What is kept of a stop's patience for killing the box when its runner does not end it.
KILL_TIME_S = 5.0


class UnknownRun(ImpyardError):
    """No run of the project is meant. The log may still know it: folders are pruned, and gateways have none."""


@dataclass(frozen=True, slots=True)
class Run:
    """One folder under runs/.

    `receipt` is empty when it is missing or damaged, and `fault` then says why; `unreadable` is set when it is there
    but may not be read, so that nothing is known but what the engine says. `boxes` are the containers that the engine
    has for this run. `runner` is the number of its runner's process while that lives. `doubt` says why it is not known
    whether the run lives (the engine does not answer), else it is empty.
    """

    paths: RunPaths
    receipt: Mapping[str, Any]
    fault: str = ""
    boxes: Sequence[engine.Container] = field(default=())
    runner: int | None = None
    beginning: bool = False
    doubt: str = ""
    unreadable: bool = False

    @property
    def id(self) -> str:
        return self.paths.id

    @property
    def lives(self) -> bool:
        """Whether something of the run is still at work."""
        return bool(self.boxes) or self.runner is not None or self.beginning

    @property
    def state(self) -> str:
        """`running`, else why it ended; `lost` when its runner went away without saying, `unreadable` for who may not
        read its receipt, `?` without one that makes sense."""
        if self.boxes or self.runner is not None:
            return "running"
        if self.unreadable:
            return "unreadable"
        if self.beginning:
            return "running"
        if not self.receipt:
            return "?"
        reason = str(self.receipt.get("exit_reason", "?"))
        return "lost" if reason == "running" else reason


def ids(root: Path) -> list[str]:
    """The ids of the runs that have a folder, newest first. A link is no run."""
    try:
        with os.scandir(root / "runs") as entries:
            found = [e.name for e in entries if RUN_ID.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        raise ImpyardError(f"cannot read {root / 'runs'}: {exc.strerror}", hint="check its owner and mode") from exc
    return sorted(found, reverse=True)


def resolve(root: Path, text: str) -> str:
    """The run that `text` means: an id, the beginning of exactly one or its last four characters, or `last` for the
    newest. What begins one id and ends another means neither.

    Raises UnknownRun when there is none, ImpyardError when it means more than one.
    """
    known = ids(root)
    if text == "last":
        if not known:
            raise UnknownRun(f"there are no runs in {root}", hint='`impyard run "…"` makes one')
        return known[0]
    if text in known:
        return text
    is_end = len(text) == END_CHARS
    matches = [run for run in known if text and (run.startswith(text) or (is_end and run.endswith(f"-{text}")))]
    if len(matches) > 1:
        more = " and more" if len(matches) > MOST_NAMED else ""
        raise ImpyardError(
            f"{text!r} means {len(matches)} runs", hint=f"give more of its id: {', '.join(matches[:MOST_NAMED])}{more}"
        )
    if not matches:
        raise UnknownRun(
            f"there is no run {text!r} in {root}",
            hint=f"{LIST_HINT}; an id, its beginning or its last four characters will do",
        )
    return matches[0]


def look(root: Path, wanted: Sequence[str]) -> list[Run]:
    """What is known of these runs. Asks the engine once, and only if a run has not certainly ended."""
    receipts = {run: _receipt(RunPaths(root, run)) for run in wanted}
    boxes: dict[str, list[engine.Container]] = {}
    doubt = ""
    if not all(_has_ended(receipt) for receipt, _ in receipts.values()):
        try:
            for box in engine.boxes():
                if Path(box.labels.get("impyard.project", root)) == root:
                    boxes.setdefault(box.run, []).append(box)
        except ImpyardError as exc:
            doubt = exc.message
    return [
        _known(RunPaths(root, run), receipt, error, boxes.get(run, ()), doubt)
        for run, (receipt, error) in receipts.items()
    ]


def needed_by(kept: Sequence[Run]) -> dict[str, str]:
    """The runs in whose folders others of `kept` worked, which went on with them; each with one of those."""
    found = {}
    for run in kept:
        workspace = Path(str(run.receipt.get("workspace") or ""))
        folder = workspace.parent.name
        if workspace.name == "workspace" and RUN_ID.fullmatch(folder) and folder != run.id:
            found[folder] = run.id
    return found


def has_unapplied(run: Run) -> bool:
    """Whether the run changed files in a clone of the project, or may have, and nothing of it was ever applied."""
    clone = mapping(run.receipt.get("clone"))
    changed = run.receipt.get("files") or run.receipt.get("files_complete") is False or run.state == "lost"
    return bool(clone and changed and not clone.get("applied"))


def stop(run: Run, *, patience_s: float = 15.0) -> None:
    """End a living run and wait until its box is gone.

    Its runner is asked first, since it writes the receipt; then every box of the run is killed by id. Raises
    ImpyardError when a box is still there after `patience_s`.
    """
    deadline = time.monotonic() + patience_s
    runner_ended = run.runner is None or _end_runner(run.runner, run.receipt, deadline)
    # Asked anew: a run that was still beginning may have a box by now.
    for box in engine.boxes(run.id):
        engine.kill(box.id)
        engine.remove(box.id)
        while not engine.is_gone(box.id):
            if time.monotonic() > deadline:
                raise ImpyardError(
                    f"the box {box.name} is still there after {patience_s:.0f} s", hint=f"docker rm -f {box.id[:12]}"
                )
            time.sleep(0.05)
    if not runner_ended:
        raise ImpyardError(f"the runner of {run.id} does not end", hint=f"kill -9 {run.runner}")


def started(run: Run) -> datetime:
    """When the run began, UTC, read from its id; of one that is no time, as of a folder that somebody renamed, when
    its folder was last changed."""
    try:
        return datetime.strptime(run.id[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromtimestamp(run.paths.folder.stat().st_mtime, UTC)


def _receipt(paths: RunPaths) -> tuple[Mapping[str, Any], ImpyardError | None]:
    try:
        return read_receipt(paths.receipt), None
    except ImpyardError as exc:
        return {}, exc


def _known(
    paths: RunPaths,
    receipt: Mapping[str, Any],
    error: ImpyardError | None,
    boxes: Sequence[engine.Container],
    doubt: str,
) -> Run:
    if _has_ended(receipt):
        return Run(paths, receipt)
    if error is not None:
        # Receipts are written as a whole: one that is there but damaged is none of a run that begins.
        is_missing = isinstance(error.__cause__, FileNotFoundError)
        unreadable = isinstance(error.__cause__, OSError) and not is_missing
        beginning = is_missing and time.time() - paths.folder.stat().st_mtime < BEGINNING_S
        return Run(paths, receipt, error.message, boxes, beginning=beginning, doubt=doubt, unreadable=unreadable)
    lives = runner_lives(receipt)
    if lives is None:
        doubt = doubt or "its runner belongs to another boot or container of this machine"
    return Run(paths, receipt, "", boxes, runner=int(receipt["runner_pid"]) if lives else None, doubt=doubt)


def _has_ended(receipt: Mapping[str, Any]) -> bool:
    return bool(receipt.get("exit_reason", "running") != "running")


def _end_runner(pid: int, receipt: Mapping[str, Any], deadline: float) -> bool:
    """Ask the runner to end, and wait. Whether it has, or belongs to another user and cannot be asked."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        if not runner_lives(receipt):  # the number went to another process before we held on to it
            return True
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        # Readable once the process has ended, also as a zombie (pidfd_open(2)).
        return bool(select.select([handle], [], [], max(0.0, deadline - time.monotonic() - KILL_TIME_S))[0])
    except OSError:
        return True
    finally:
        os.close(handle)
