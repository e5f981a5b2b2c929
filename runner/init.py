"""`impyard init`: puts a commented policy into a project. It changes no file that was edited, unless told to."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.addon.newfile import make_folder, make_over, open_appended
from impyard.runner.text import all_beside, columns_of
from impyard.runner.typed import command_line

POLICY = Path("policies/gateway.yaml")
# Not gateway.yaml: in a checkout that is the policy in force, which its user edits.
SHIPPED = "default.yaml"
SCHEMA = Path("policies/gateway.schema.json")
IGNORED = "runs/"
# Lines that keep the folder `runs` beside a .gitignore out of git, as people write them (gitignore(5)).
_IGNORING = {"runs", "runs/", "/runs", "/runs/", "runs/*", "/runs/*", "runs/**", "/runs/**"}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done or left alone: `verb` says which (`wrote`, `updated`, `added`, `unchanged`, `kept`)."""

    verb: str
    what: str
    note: str = ""


@click.command()
@click.option(
    "--project",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder to write into. Default: the project that this folder is in, else git's top level, else here.",
)
@click.option("--force", is_flag=True, help="Replace an edited policy with the shipped one, and keep a copy.")
def init(project: Path | None, force: bool) -> int:
    """Write policies/gateway.yaml and its JSON Schema into a project, and keep runs/ out of git.

    Running it again changes nothing. An edited policy is kept, with exit status 1, unless --force is given.

    \b
    impyard init                  into the project that we are in
    impyard init --project work   into another
    """
    from impyard.certs.authority import default_dir
    from impyard.runner.project import check_root, find_root

    root = find_root(project)
    check_root(root, (default_dir(),))  # what no run would take gets no policy either
    steps = write_project(root, force=force)
    columns = columns_of(sys.stdout)
    click.echo(f"project {root}")
    for line in all_beside([(f"  {step.verb:<10}{step.what}", step.note) for step in steps], 2, columns):
        click.echo(line)
    if any(step.verb == "kept" for step in steps):
        raise ImpyardError(
            f"{POLICY} is there already and differs from the shipped policy, so it was kept",
            hint="`impyard init --force` replaces it by the shipped one, and keeps a copy",
        )
    click.echo("\nnext:")
    following = (
        (command_line("doctor"), "what this machine has and lacks"),
        (command_line("run", "--model", "demo", "write 4 to answer.txt"), "see it work, without a key"),
        (f"$EDITOR {POLICY}", "say what the agent may reach"),
    )
    for line in all_beside([(f"  {command}", why) for command, why in following], 2, columns):
        click.echo(line)
    return 0


def write_project(root: Path, *, force: bool) -> list[Step]:
    """Write what `root` lacks and say what became of each part.

    A policy that differs from the shipped one is replaced only with `force`, and then copied; the schema follows the
    installed version. Raises ImpyardError when a file cannot be written, or lies behind a link.
    """
    shipped = files("impyard") / "policies"
    try:
        return [
            _put(root, POLICY, (shipped / SHIPPED).read_bytes(), "the rules: edit this", replace=force, keep=True),
            _put(root, SCHEMA, (shipped / SCHEMA.name).read_bytes(), "for editors", replace=True),
            _ignore(root),
        ]
    except OSError as exc:
        raise ImpyardError(
            f"cannot write {exc.filename or root}: {exc.strerror or exc}", hint="check the folder's owner and mode"
        ) from exc


def _put(root: Path, name: Path, data: bytes, note: str, *, replace: bool, keep: bool = False) -> Step:
    path = root / name
    _refuse_link(path.parent)
    _refuse_link(path)
    present = _read(path)
    if present is not None and present.data == data:
        return Step("unchanged", str(name), note)
    if present is not None and not replace:
        return Step("kept", str(name), "it differs from the shipped policy")
    make_folder(path.parent)
    if present is not None and keep:
        note = f"the old one is {_backup(path, present).name}"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(temporary, data, present.status if present is not None else None, root)
        temporary.replace(path)  # a running gateway reads the old policy or the new one, never half of it
    finally:
        temporary.unlink(missing_ok=True)
    return Step("wrote" if present is None else "updated", str(name), note)


@dataclass(frozen=True, slots=True)
class _Present:
    """A file that is there already."""

    data: bytes
    status: os.stat_result


def _read(path: Path) -> _Present | None:
    """What is there; None for nothing. Raises OSError, also for a link: a copy must not show a user root's files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))
    with open(descriptor, "rb") as file:
        return _Present(file.read(), status)


def _write(path: Path, data: bytes, like: os.stat_result | None, root: Path) -> None:
    """Make a file, with mode and owner of another, else the owner of the project: what root writes there is not to be
    locked against its user. Raises OSError, FileExistsError where something has that name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "wb") as file:
        file.write(data)
        own, owner = os.fstat(file.fileno()), like or root.stat()
        if os.geteuid() != 0:
            owner = own
        mode = (like or own).st_mode & 0o777
        make_over(file.fileno(), owner.st_uid, owner.st_gid, mode)


def _backup(path: Path, present: _Present) -> Path:
    """A copy of the file beside it, which takes the place of nothing; the one that is there already, if it is alike."""
    for number in itertools.count():
        copy = path.with_name(f"{path.name}.bak" + (f".{number}" if number else ""))
        try:
            _write(copy, present.data, present.status, path.parent)
            return copy
        except FileExistsError:
            with contextlib.suppress(OSError):  # a link, a folder
                if (there := _read(copy)) is not None and there.data == present.data:
                    return copy
    raise AssertionError("endless")


def _ignore(root: Path) -> Step:
    """Have git leave the runs alone: they hold what the agent wrote, its sessions and the log."""
    what = f"{IGNORED} in .gitignore"
    if not any((folder / ".git").exists() for folder in (root, *root.parents)):
        return Step("skipped", what, "this is no git repository")
    path = root / ".gitignore"
    _refuse_link(path)
    present = _read(path)
    text = present.data if present is not None else b""
    if any(line.strip() in _IGNORING for line in text.decode("utf-8", "replace").splitlines()):
        return Step("unchanged", what)
    newline = b"\r\n" if b"\r\n" in text else b"\n"
    start = newline if text and not text.endswith(b"\n") else b""
    line = start + IGNORED.encode() + newline
    if present is None:
        _write(path, line, None, root)
    else:
        with open(open_appended(path), "ab") as file:
            file.write(line)
    return Step("added", what)


def _refuse_link(path: Path) -> None:
    # A cloned repository may hold a link to anywhere; writing through it would change a file of the user's.
    if path.is_symlink():
        raise ImpyardError(f"{path} is a link, and init writes through none", hint="put a file or folder there instead")
