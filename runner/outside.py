"""What a box and its run look like from this machine: the engine's own words, the log, and what is left at the end.

Nothing here rests on anything that the box says.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impyard.certs.authority import data_dir
from impyard.runner import engine
from impyard.runner.decisions import logread
from impyard.runner.decisions.logfiles import open_log
from impyard.runner.enclosure import Enclosure
from impyard.runner.gitsettings import text_of_file
from impyard.runner.secretfiles.kinds import is_env

GROUP = "outside"
DOCKER_SOCKETS = ("docker.sock", "containerd.sock", "podman.sock")
# Shorter values stand in too many places by chance.
SECRET_LENGTH = 8
_SENSITIVE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.I)


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: its group, what was expected and what was found."""

    group: str
    name: str
    expected: str
    found: str

    @property
    def ok(self) -> bool:
        return self.expected == self.found


def created(enclosure: Enclosure) -> list[Claim]:
    """What the engine says of the box that it has made."""
    stage = enclosure.stage
    assert stage is not None
    with engine.engine_errors("inspect the box"):
        box: Mapping[str, Any] = engine.client().api.inspect_container(stage.container)
    host, paths = box["HostConfig"], enclosure.paths
    mounts = [mount for mount in box["Mounts"] if mount.get("Type") == "bind"]
    sources = [Path(os.path.realpath(str(mount["Source"]))) for mount in mounts]
    secret = Path(os.path.realpath(data_dir()))
    home = Path(os.path.realpath(os.environ.get("HOME") or "/root"))
    writable = {Path(str(mount["Destination"])) for mount in mounts if mount.get("RW")}
    own = {enclosure.workplace.folder, paths.session, paths.home}
    limits = enclosure.box.limits
    return [
        Claim(GROUP, "network of the box", "none", _networks(box)),
        Claim(GROUP, "mounts of the private keys", "none", _named(sources, lambda path: _touches(path, secret))),
        Claim(GROUP, "mounts of an engine's socket", "none", _named(sources, _is_engine_socket)),
        Claim(GROUP, "mounts of the home folder", "none", _named(sources, home.is_relative_to)),
        Claim(
            GROUP, "writable mounts beside the run's own", "none", _named(sorted(writable - own), lambda _path: True)
        ),
        Claim(
            GROUP,
            "capabilities kept",
            "none",
            "none" if host["CapDrop"] == ["ALL"] and not host["CapAdd"] else "some",
        ),
        Claim(GROUP, "privileged, devices", "no, none", _privileges(host)),
        Claim(
            GROUP,
            "limits of the engine",
            f"{limits.memory >> 20} MiB, {limits.pids} processes, {limits.cpus:g} CPUs",
            f"{host['Memory'] >> 20} MiB, {host['PidsLimit']} processes, {host['NanoCpus'] / 1e9:g} CPUs",
        ),
        Claim(GROUP, "image", "the one asked for", _image(enclosure.box.image, str(box["Image"]))),
        Claim(GROUP, "secret files covered", *_covered(enclosure, mounts, host)),
        Claim(GROUP, "secrets in the engine's view", "none", _secrets(enclosure, json.dumps(box))),
    ]


def lines_of(enclosure: Enclosure) -> tuple[list[bytes], list[Mapping[str, Any]]]:
    """The lines of the decision log that are this run's, as they are and read."""
    from impyard.addon.decisions import is_of_run

    run, log = enclosure.paths.id, enclosure.paths.runs / "decisions.jsonl"
    found = open_log(log)
    lines: list[bytes] = []
    if found is not None:
        with found:
            lines = [line for line in logread.raw_lines(found) if is_of_run(line, run)]
    return lines, [entry for line in lines if (entry := as_object(line)).get("run") == run]


def recorded(enclosure: Enclosure) -> Iterator[Claim]:
    """What the decision log holds of the attempts: none of them is allowed, and each of curl's is there.

    A deep proof makes allowed requests too; what became of them is scored with its attempts.
    """
    from impyard.addon.decisions import verify

    run = enclosure.paths.id
    lines, entries = lines_of(enclosure)
    curls = [entry for entry in entries if str((entry.get("headers") or {}).get("user-agent", "")).startswith("curl/")]
    kinds = Counter(f"{entry.get('scheme')} {entry.get('verdict')}" for entry in curls)
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    yield Claim(GROUP, "curl's requests in the log", "2 http deny, 2 https deny", found)
    allowed = [str(entry.get("host")) for entry in entries if entry.get("verdict") != "deny"]
    if not enclosure.plan.deep:
        yield Claim(GROUP, "requests allowed in this run", "none", ", ".join(allowed) or "none")
    closed = enclosure.closed or {}
    receipts = {run: (int(closed.get("decisions") or 0), str(closed.get("last")))}
    faults = verify(lines, receipts=receipts)
    yield Claim(GROUP, "the log's chain", "whole", faults[0].what if faults else "whole")


def left_behind(enclosure: Enclosure) -> Iterator[Claim]:
    """What is still there after the end."""
    paths = enclosure.paths
    boxes = [box.name for box in engine.boxes(paths.id)]
    yield Claim(GROUP, "boxes left", "none", ", ".join(boxes) or "none")
    yield Claim(GROUP, "gateway left", "none", "none" if _is_gone(enclosure.gateway.pid) else "still running")
    left = [path for path in (paths.door, paths.home, *paths.control.glob("*")) if os.path.lexists(path)]
    yield Claim(GROUP, "sockets, credentials left", "none", _named(left, lambda _path: True))
    yield Claim(GROUP, "trouble while closing", "none", "; ".join(enclosure.trouble) or "none")


def _networks(box: Mapping[str, Any]) -> str:
    settings = box.get("NetworkSettings") or {}
    names = sorted(settings.get("Networks") or {}) or [str(box["HostConfig"].get("NetworkMode"))]
    return ", ".join(names) + (" with open ports" if settings.get("Ports") else "")


def _image(asked: str, found: str) -> str:
    return "the one asked for" if found == asked else found


def _covered(enclosure: Enclosure, mounts: Sequence[Mapping[str, Any]], host: Mapping[str, Any]) -> tuple[str, str]:
    """How many files with secrets the project has, its .env files looked for once more, and of how many of them the box
    sees nothing, or a copy."""
    control = str(enclosure.paths.control)
    sources = ("/dev/null", *(str(copy) for _, copy in enclosure.box.cleaned if str(copy).startswith(control)))
    hidden = {str(mount["Destination"]) for mount in mounts if mount["Source"] in sources} | set(host["Tmpfs"] or ())
    root, runs = enclosure.paths.root, enclosure.paths.runs
    files = {path for path, _ in (*enclosure.box.covered, *enclosure.box.cleaned)} | {
        path.resolve()
        for pattern in (".env", ".env.*")
        for path in root.rglob(pattern)
        if is_env(path.name) and not path.is_relative_to(runs) and path.resolve().is_relative_to(root)
    }
    good = [path for path in files if any(str(place) in hidden for place in (path, *path.parents))]
    return f"{len(files)} of {len(files)}", f"{len(good)} of {len(files)}"


def _secrets(enclosure: Enclosure, view: str) -> str:
    """The names of secrets, of this process's environment and the project's covered files, that `view` holds."""
    named = [(name, value) for name, value in os.environ.items() if _SENSITIVE.search(name)]
    for path, _is_folder in enclosure.box.covered:
        with suppress(OSError):
            # Only files: covered are also named pipes, which would keep a reader waiting.
            lines = text_of_file(path).splitlines() if path.is_file() else ()
            pairs = (line.partition("=") for line in lines if not line.lstrip().startswith("#"))
            named += [(f"{path.name}: {name.strip()}", value.strip().strip("\"'")) for name, _, value in pairs]
    known = f"{enclosure.paths.root} {enclosure.user.name}"
    found = [name for name, value in named if len(value) >= SECRET_LENGTH and value in view and value not in known]
    return ", ".join(found) or "none"


def _privileges(host: Mapping[str, Any]) -> str:
    devices = [str(item) for key in ("Devices", "DeviceRequests", "DeviceCgroupRules") for item in host.get(key) or ()]
    return f"{'yes' if host.get('Privileged') else 'no'}, {', '.join(devices) or 'none'}"


def _touches(path: Path, secret: Path) -> bool:
    return path.is_relative_to(secret) or secret.is_relative_to(path)


def _is_engine_socket(path: Path) -> bool:
    return path.name in DOCKER_SOCKETS or any((path / name).exists() for name in DOCKER_SOCKETS)


def _named(paths: Sequence[Path], wanted: Callable[[Path], bool]) -> str:
    return ", ".join(str(path) for path in paths if wanted(path)) or "none"


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def as_object(data: bytes) -> Mapping[str, Any]:
    """The JSON object that `data` holds, empty when it holds none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
