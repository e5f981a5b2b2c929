"""Which folder is the project, which may be one, and where a run keeps its files.

Nothing here changes a file. Every path that will be mounted is resolved here, once, so that what was checked is what is
mounted.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from impyard.addon.errors import ImpyardError
from impyard.addon.newfile import make_folder
from impyard.runner.text import visible

POLICY = Path("policies/gateway.yaml")
RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")

# Folders that the box's own system uses: a project mounted over, or inside, one of them would break or hide it.
BOX_FOLDERS = tuple(
    Path(path)
    for path in (
        *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys"),
        *("/usr/bin", "/usr/include", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/sbin"),
        *(
            "/usr/share",
            "/usr/local/bin",
            "/usr/local/lib",
            "/run/impyard",
            "/opt/pi",
            "/opt/impyard",
            "/var/lib/docker",
        ),
    )
)


def find_root(project: Path | None = None, *, start: Path | None = None) -> Path:
    """The project root, links resolved: `project` if given, else the nearest folder from `start` (default: the working
    directory) upwards that holds policies/gateway.yaml, else git's top level, else `start` itself. Below a run's folder
    nothing is looked for: what lies there, a policy too, was written by an agent. A home folder or another that is no
    project is never found upwards: a policy left there must not speak for all that lies below.

    Raises ImpyardError when the folder does not exist. Whether a box may have it is `check_root`'s question.
    """
    if project is not None:
        return _real_folder(project, "project")
    try:
        here = (start or Path.cwd()).resolve(strict=True)
    except OSError as exc:
        raise ImpyardError("the working directory does not exist any more", hint="change to another folder") from exc
    above = (here, *here.parents)
    for depth in range(len(above) - 1, 0, -1):
        if RUN_ID.fullmatch(above[depth - 1].name) and above[depth].name == "runs":
            here, above = above[depth + 1], above[depth + 1 :]
            break
    for mark in (POLICY, Path(".git")):
        for folder in above:
            if _is_there(folder / mark) and not _no_project(folder):
                return folder
    return here


def _is_there(path: Path) -> bool:
    """Whether there is such a file or folder. In a folder that is closed to us there is: else that of a project further
    up would be taken for it."""
    try:
        return path.exists()
    except PermissionError:
        return True


def check_root(root: Path, secret_folders: Sequence[Path] = ()) -> None:
    """Refuse, by ImpyardError, a project root that a box must not see.

    `root` is resolved. `secret_folders` are the folders with impyard's private keys, which must not lie inside it.
    """
    _check_text(root, "project root")
    if reason := _no_project(root):
        raise ImpyardError(reason, hint="change to your project's folder, or name it with --project")
    for folder in secret_folders:
        _check_apart(root, folder, "project root")
    runs = root / "runs"
    if runs.is_symlink() or (runs.exists() and not runs.is_dir()):
        raise ImpyardError(
            f"{runs} is a link or no folder: a run would write somewhere else", hint=f"remove {runs}; runs make it anew"
        )


def _no_project(root: Path) -> str:
    """Why this place is no project whatever is in it (the system's, everybody's, a home as a whole), else nothing."""
    if root == Path("/"):
        return "the project root would be `/`: the box would see the whole machine"
    for home in _homes():
        if root == home:
            return f"the project root would be the home folder {home}"
        if root in home.parents:
            return f"the project root {root} contains the home folder {home}"
    if root == Path("/tmp"):
        return "the project root would be /tmp, which belongs to every program"
    for folder in BOX_FOLDERS:
        if folder.is_relative_to(root) or root.is_relative_to(folder):
            return f"the project root {root} collides with {folder}, which the box needs itself"
    return ""


def check_workspace(path: Path, root: Path, secret_folders: Sequence[Path] = ()) -> Path:
    """The folder for `--workspace`, resolved, which the box may write to. Raises ImpyardError for one it must not."""
    from impyard.runner.secretfiles.kinds import is_env  # it loads RE2, which commands that only look do without

    if path.is_symlink():
        raise ImpyardError(f"the workspace {path} is a link", hint=f"name the folder itself: {path.resolve()}")
    folder = _real_folder(path, "workspace")
    _check_text(folder, "workspace")
    other = "choose a folder of its own for the agent's work"
    if folder == root:
        hint = "--clone gives the agent a clone of it instead" if (root / ".git").exists() else other
        raise ImpyardError(f"the workspace {folder} is the project root", hint=hint)
    if folder in root.parents:
        raise ImpyardError(f"the workspace {folder} contains the project root {root}", hint=other)
    for name in ("policies", "runs", ".git"):
        if folder.is_relative_to(root / name):
            raise ImpyardError(f"the workspace {folder} lies in {name}/, which the box must not write", hint=other)
    inner = folder.relative_to(root).parts if folder.is_relative_to(root) else ()
    if hidden := next(filter(is_env, inner), None):
        raise ImpyardError(f"the workspace {folder} lies in {hidden}, which the box must not see", hint=other)
    for home in _homes():
        if folder == home or folder in home.parents:
            raise ImpyardError(f"the workspace {folder} is or contains the home folder {home}", hint=other)
    for system in BOX_FOLDERS:
        if system.is_relative_to(folder) or folder.is_relative_to(system):
            raise ImpyardError(f"the workspace {folder} collides with {system}, which the box needs itself", hint=other)
    for secret in secret_folders:
        _check_apart(folder, secret, "workspace")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ImpyardError(f"the workspace {folder} is not writable for you", hint="check its owner and mode")
    return folder


def policy_files(root: Path, named: Sequence[Path], workspace: Path | None) -> tuple[Path, ...]:
    """The policy files of a run, absolute: those of `--policy`, else the project's own.

    Whether they are any good is the gateway's to say. Raises ImpyardError when there is none, and for one in a folder
    that a box can write to: the box must not change its own rules.
    """
    files = tuple(Path(os.path.abspath(path)) for path in named) or (root / POLICY,)
    for file in files:
        if not os.path.lexists(file):
            hint = "`impyard init` writes a commented one" if not named else "check the path given to --policy"
            raise ImpyardError(f"there is no policy at {file}", hint=hint)
        for place in (file, file.resolve()):
            for folder in (root / "runs", *((workspace,) if workspace else ())):
                if place.is_relative_to(folder):
                    raise ImpyardError(
                        f"the policy {file} lies in {folder}, which the box writes to",
                        hint="keep it in policies/, out of the agent's reach",
                    )
    return files


def check_mountable(path: Path) -> None:
    """Raises ImpyardError for a name that the engine cannot be told: its JSON holds nothing but Unicode."""
    try:
        str(path).encode()
    except UnicodeEncodeError as exc:
        raise ImpyardError(
            f"{visible(str(path))} must be kept from the box, but its name is not valid UTF-8",
            hint="rename it, or remove it",
        ) from exc


def mounts_under(root: Path, table: Path = Path("/proc/self/mountinfo")) -> list[Path]:
    """The mount points inside `root`, but not in its runs/. The engine's read-only mark does not reach into them."""
    found = set()
    for line in table.read_bytes().splitlines():
        # Field 5 of proc_pid_mountinfo(5), where blanks and backslashes are written in octal.
        point = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), line.split(b" ")[4])
        path = Path(os.fsdecode(point))
        if path != root and path.is_relative_to(root) and not path.is_relative_to(root / "runs"):
            found.add(path)
    return sorted(found)


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where one run keeps its files. `id` is `<date>-<time>-<4 hex>`, in UTC."""

    root: Path
    id: str

    @property
    def runs(self) -> Path:
        """The folder of all runs, with the decision log."""
        return self.root / "runs"

    @property
    def folder(self) -> Path:
        return self.runs / self.id

    @property
    def workspace(self) -> Path:
        """The agent's working directory, unless `--workspace` names another."""
        return self.folder / "workspace"

    @property
    def session(self) -> Path:
        """pi's session files."""
        return self.folder / "session"

    @property
    def home(self) -> Path:
        """The throwaway HOME. It holds stand-ins for credentials, never a real one."""
        return self.folder / ".pihome"

    @property
    def door(self) -> Path:
        """The folder of the gateway's sockets; gone when the run is over."""
        return self.folder / "door"

    @property
    def control(self) -> Path:
        """What impyard hands to the box, read-only there; gone when the run is over."""
        return self.folder / ".box"

    @property
    def prompt(self) -> Path:
        return self.folder / "prompt.txt"

    @property
    def stdout(self) -> Path:
        """pi's events, raw."""
        return self.folder / "stdout.jsonl"

    @property
    def terminal_log(self) -> Path:
        """What the terminal UI of an interactive run showed, as far as it was let through."""
        return self.folder / "terminal.log"

    @property
    def stderr(self) -> Path:
        """What the box printed beside the events."""
        return self.folder / "stderr.log"

    @property
    def gateway_log(self) -> Path:
        """What the gateway printed; normally nothing."""
        return self.folder / "gateway.log"

    @property
    def receipt(self) -> Path:
        return self.folder / "run.json"


def new_run(root: Path) -> RunPaths:
    """Make the folder of a new run, open to its owner only. Raises ImpyardError when it cannot be made."""
    runs = root / "runs"
    try:
        make_folder(runs)
        while True:
            paths = RunPaths(root, f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}")
            try:
                paths.folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            paths.control.mkdir(mode=0o700)  # there until the run's books are closed
            return paths
    except OSError as exc:
        raise ImpyardError(
            f"cannot make a folder for the run in {runs}: {(exc.strerror or str(exc)).lower()}",
            hint="the project must be writable for you; the box sees it read-only all the same",
        ) from exc


def _real_folder(path: Path, what: str) -> Path:
    try:
        resolved = path.resolve(strict=True)
        mode = resolved.stat().st_mode
    except FileNotFoundError as exc:
        hint = f"check the path given to --{what}" + (", or make the folder first" if what == "workspace" else "")
        raise ImpyardError(f"the {what} {path} does not exist", hint=hint) from exc
    except (OSError, RuntimeError, ValueError) as exc:  # a loop of links; a name with a zero byte
        raise ImpyardError(f"cannot use the {what} {path}: {exc}", hint="name a folder that you can read") from exc
    if not stat.S_ISDIR(mode):
        raise ImpyardError(f"the {what} {path} is not a folder", hint="name a folder")
    return resolved


def _check_text(path: Path, what: str) -> None:
    try:
        text = str(path).encode("utf-8").decode()
    except UnicodeEncodeError as exc:
        raise ImpyardError(f"the path of the {what} is not valid UTF-8", hint="rename the folder") from exc
    if any(ord(char) < 32 for char in text):
        raise ImpyardError(f"the path of the {what} has control characters in it", hint="rename the folder")


def _check_apart(folder: Path, secret: Path, what: str) -> None:
    keys = Path(os.path.realpath(secret))
    if keys.is_relative_to(folder) or folder.is_relative_to(keys):
        raise ImpyardError(
            f"the {what} {folder} holds impyard's private keys ({keys})",
            hint="keep the keys out of every project: unset IMPYARD_DATA_DIR, or choose another folder",
        )


def _homes() -> list[Path]:
    """Home folders that must not be mounted whole: the caller's, the one behind sudo, root's, and all in /home."""
    names = [os.environ.get("HOME", ""), "/root"]
    for number in (os.getuid(), os.environ.get("SUDO_UID", "")):
        try:
            names.append(pwd.getpwuid(int(number)).pw_dir)
        except (ValueError, KeyError):
            continue
    try:
        names += [entry.path for entry in os.scandir("/home") if entry.is_dir()]
    except OSError:
        names.append("/home")
    homes = {Path(os.path.realpath(name)) for name in names if name.startswith("/")}
    return sorted(home for home in homes if home != Path("/"))
