"""`impyard init`: puts a commented policy into a project. It changes no file that was edited, unless told to."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
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
    present = path.read_bytes() if path.exists() else None
    if present == data:
        return Step("unchanged", str(name), note)
    if present is not None and not replace:
        return Step("kept", str(name), "it differs from the shipped policy")
    path.parent.mkdir(exist_ok=True)
    if present is not None and keep:
        note = f"the old one is {_backup(path, present).name}"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        if present is not None:
            temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)  # a running gateway reads the old policy or the new one, never half of it
    finally:
        temporary.unlink(missing_ok=True)
    return Step("wrote" if present is None else "updated", str(name), note)


def _backup(path: Path, content: bytes) -> Path:
    """A copy of the file beside it, which takes the place of nothing; the one that is there already, if it is alike."""
    for number in itertools.count():
        copy = path.with_name(f"{path.name}.bak" + (f".{number}" if number else ""))
        try:
            with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, path.stat().st_mode & 0o777), "wb") as file:
                file.write(content)
            return copy
        except FileExistsError:
            if copy.is_file() and not copy.is_symlink() and copy.read_bytes() == content:
                return copy
    raise AssertionError("endless")


def _ignore(root: Path) -> Step:
    """Have git leave the runs alone: they hold what the agent wrote, its sessions and the log."""
    what = f"{IGNORED} in .gitignore"
    if not any((folder / ".git").exists() for folder in (root, *root.parents)):
        return Step("skipped", what, "this is no git repository")
    path = root / ".gitignore"
    _refuse_link(path)
    text = path.read_bytes() if path.exists() else b""
    if any(line.strip() in _IGNORING for line in text.decode("utf-8", "replace").splitlines()):
        return Step("unchanged", what)
    newline = b"\r\n" if b"\r\n" in text else b"\n"
    start = newline if text and not text.endswith(b"\n") else b""
    with path.open("ab") as file:
        file.write(start + IGNORED.encode() + newline)
    return Step("added", what)


def _refuse_link(path: Path) -> None:
    # A cloned repository may hold a link to anywhere; writing through it would change a file of the user's.
    if path.is_symlink():
        raise ImpyardError(f"{path} is a link, and init writes through none", hint="put a file or folder there instead")
