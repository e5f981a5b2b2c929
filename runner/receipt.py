"""The receipt of a run, `runs/<id>/run.json`: what ran under which rules, what came of it, and how to check the log."""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner.text import duration_text, size_text

# What is listed in one is limited, so that none comes near.
MAX_BYTES = 16 * 1024**2

# Why a run ended, and the exit status of `impyard run` for it.
EXITS: dict[str, int] = {
    "finished": 0,  # the agent did its work
    "agent-error": 1,  # the model refused, credentials failed, pi stopped with an error
    "exposed": 1,  # what is covered, or read-only, was replaced on this machine: the box could have got at it
    "disk-full": 1,  # a disk that the box writes to was nearly full
    "ceiling": 124,  # the wall-clock limit
    "refused": 125,  # a probe in the box failed; the agent never started
    "gateway-lost": 126,  # the judge went away in mid-run
    "interrupted": 130,  # Ctrl-C, a signal, a closed terminal
    "out-of-memory": 137,  # the kernel killed the agent for memory
    "runner-lost": 137,  # the runner was killed; written by the next run
    "running": 0,  # not over yet, or its runner was killed
}


@dataclass(slots=True)
class Receipt:
    """One run. Times are ISO 8601 in UTC with milliseconds, durations seconds, sizes bytes.

    `exit_reason` is a key of EXITS. `prompt` is its first line, marked where it is cut; the whole is in prompt.txt.
    `runner_pid`, `runner_start` and `runner_space` tell its runner from any other process (see leftovers.py). `policy`
    has `files` (relative to the project where inside), `hash` and, for the demo model, `added`. `decisions` has `seq`
    and `last`, the number and the chain hash of the run's last line in decisions.jsonl, `allowed`, `denied` (impyard's
    own checks not counted), `denied_hosts` (host to count), `secrets` (how many of the denied held one where it does
    not belong) and `own_checks`; `secrets` says which (see spotted.py). `credentials` are the names of those that the
    gateway put on requests, with how often. `traffic` has `bytes_up`, `bytes_down`, `upstream_errors` (allowed requests
    that came to nothing, but for those whose client left), `failed` (how many of each host and error, the most
    frequent) and `outcomes` (lines of this run in outcomes.jsonl; all are null where the gateway ended without its
    last word). `files` are what the workspace gained (`files_more` are not listed; not `files_complete`: it holds more
    than is looked at), `repositories` the git repositories among it, `links` the links in git's own folders. `made` is
    what lies in the workspace while the run lasts only (see places.py). `kept` are the files with secrets that were
    kept from the box (`path`, `kind`, and `how`: "covered" or "cleaned"; `kept_more` are not listed), `shown` those
    that were shown on purpose. `clone` is there for a run with a clone of the project: what it was made from (`commit`,
    `branch`, `prefix`, `changes`, `history`), the commit and tree that the agent got (`base`, `tree`), the run in whose
    folder they are kept (`run`), and `left_out`, the files with secrets. `interactive`: pi's own terminal UI was at
    work (`-i`). `resumes` is the run whose session this one went on with. `refused_key` says, for a run that ended so,
    which credential the model's provider refused.
    """

    run: str
    project: str
    workspace: str
    model: str | None
    started: str
    impyard: str
    runner_pid: int
    runner_start: str
    runner_space: str
    ceiling_s: float
    ended: str | None = None
    duration_s: float | None = None
    exit_reason: str = "running"
    exit_status: int | None = None
    agent_exit: int | None = None
    agent_stop: str | None = None
    error: str | None = None
    prompt: str | None = None
    prompt_sha256: str | None = None
    image: dict[str, Any] = field(default_factory=dict)
    engine: str | None = None
    pi: str | None = None
    user: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    ca: str | None = None
    policy: dict[str, Any] = field(default_factory=dict)
    probes: list[dict[str, Any]] = field(default_factory=list)
    decisions: dict[str, Any] = field(default_factory=dict)
    secrets: list[dict[str, Any]] = field(default_factory=list)
    credentials: dict[str, int] = field(default_factory=dict)
    traffic: dict[str, Any] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)
    files_more: int = 0
    files_complete: bool = True
    repositories: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    made: list[dict[str, Any]] = field(default_factory=list)
    kept: list[dict[str, Any]] = field(default_factory=list)
    kept_more: int = 0
    shown: list[str] = field(default_factory=list)
    clone: dict[str, Any] = field(default_factory=dict)
    refused_key: str | None = None
    interactive: bool = False
    resumes: str | None = None

    def write(self, path: Path) -> None:
        """Write the receipt so that a reader sees the old one or the new one, never a half. Raises OSError."""
        write_json(path, asdict(self))


def failed_of(traffic: Mapping[str, Any]) -> int:
    """How many allowed requests came to nothing, by a receipt's `traffic`; 0 where it does not say."""
    count = traffic.get("upstream_errors")
    return count if isinstance(count, int) else 0


def file_text(file: Mapping[str, Any]) -> str:
    """A receipt's file for people: `answer.txt (4 B)`, and `name -> target` for a link."""
    if file.get("target") is not None:
        return f"{file.get('path')} -> {file['target']}"
    return f"{file.get('path')} ({bytes_text(file.get('bytes'))})"


def bytes_text(value: Any) -> str:
    """`size_text` of what a receipt gives as a number of bytes, be it none."""
    return size_text(value) if isinstance(value, int) and abs(value) < 2**63 else "? B"


def seconds_text(value: Any) -> str:
    """`duration_text` of what a receipt gives as a number of seconds; `-` for what is no number."""
    return duration_text(value) if isinstance(value, int | float) else "-"


def mapping(value: Any) -> Mapping[str, Any]:
    """A part of a receipt that holds names and values; empty where there is something else."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> Sequence[Any]:
    """A part of a receipt that is a list; empty where there is something else."""
    return value if isinstance(value, list) else ()


def counts_text(decisions: Mapping[str, Any], traffic: Mapping[str, Any]) -> str:
    """`3 allowed (1 failed), 0 denied`, of a receipt's two parts."""
    failed = failed_of(traffic)
    note = f" ({failed} failed)" if failed else ""
    return f"{decisions.get('allowed', 0)} allowed{note}, {decisions.get('denied', 0)} denied"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a receipt's data to `path`, whole or not at all, readable for its owner only: that of the old receipt, if
    there is one. Raises OSError."""
    data = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data.encode("utf-8", "backslashreplace"))
            with suppress(FileNotFoundError):
                old = os.stat(path, follow_symlinks=False)
                if old.st_uid != os.geteuid():
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read_receipt(path: Path) -> dict[str, Any]:
    """The receipt as plain data. Raises ImpyardError when it is missing or no receipt."""
    try:
        data = json.loads(_content(path), parse_float=_finite, parse_constant=_finite)
    except FileNotFoundError as exc:
        raise ImpyardError(f"there is no receipt at {path}", hint="`impyard runs` lists the runs") from exc
    except (OSError, ValueError, RecursionError) as exc:
        why = exc.strerror.lower() if isinstance(exc, OSError) and exc.strerror else exc
        raise ImpyardError(f"cannot read the receipt {path}: {why}", hint="`impyard runs` lists the runs") from exc
    if not isinstance(data, dict) or "run" not in data:
        raise ImpyardError(f"{path} is not a receipt", hint="`impyard runs` lists the runs")
    return data


def _content(path: Path) -> bytes:
    """All of a receipt's file. Raises OSError, and ValueError for what none of impyard's runs has written: a pipe would
    keep the reader forever, a device fill its memory."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no file")
        if status.st_size > MAX_BYTES:
            raise ValueError(f"it is longer than {size_text(MAX_BYTES)}")
        return file.read(MAX_BYTES)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number
