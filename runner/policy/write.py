"""Changing a policy file: the difference for people, their yes, and the new content in place all at once or not at all.

Whoever else edits the file loses nothing: it is replaced only while it holds what the difference was made from, and
impyard's own commands wait for each other.
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import click

from impyard.addon.errors import ImpyardError
from impyard.addon.policy import shown
from impyard.runner.text import visible

LOCK_WAIT_S = 10.0
_POLL_S = 0.05
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def diff(old: bytes, new: bytes, name: str) -> list[str]:
    """The unified difference, as lines without their ends; a carriage return that they have stays. Empty for none."""
    made = difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}")
    out: list[str] = []
    for line in made:
        out.append(line.removesuffix("\n"))
        if not line.endswith("\n"):
            out.append("\\ No newline at end of file")
    return out


def show_diff(lines: Sequence[str], *, err: bool = False) -> None:
    """Print a difference: as it is where it goes to a file or a program, coloured and safe in a terminal."""
    on_terminal = (sys.stderr if err else sys.stdout).isatty()
    for line in lines:
        if not on_terminal:
            click.echo(line, err=err)
            continue
        bold = line.startswith(("--- ", "+++ "))
        colour = None if bold else _COLOURS.get(line[:1])
        click.secho(visible(line.removesuffix("\r")), err=err, fg=colour, bold=bold or None)


def check_changeable(path: Path, root: Path | None = None) -> None:
    """Raises ImpyardError for a file that cannot, or should not, be replaced; before anybody is asked anything."""
    name = shown(path, root)
    target = Path(os.path.realpath(path))
    try:
        found = target.stat()
    except OSError as exc:
        raise ImpyardError(f"{name} cannot be read: {_why(exc)}", hint="check its owner and mode") from exc
    if not stat.S_ISREG(found.st_mode):
        raise ImpyardError(f"{name} is not a regular file", hint="name the policy's file")
    if not found.st_mode & 0o222 or not os.access(target, os.W_OK):
        raise ImpyardError(f"{name} is read-only for you", hint=f"`chmod u+w {path}`, if you want it changed")
    if found.st_nlink > 1:
        raise ImpyardError(
            f"{name} has other names (hard links), which would keep the old policy", hint="edit the file yourself"
        )
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise ImpyardError(f"the folder of {name} is read-only for you", hint="edit the file yourself")


def ask_and_replace(path: Path, root: Path | None, old: bytes, new: bytes, *, yes: bool) -> bool:
    """Show the difference, ask unless `yes`, replace the file; whether it was done. Raises ImpyardError.

    Whether `new` is any good is the caller's to know.
    """
    check_changeable(path, root)
    show_diff(diff(old, new, shown(path, root)))
    if not sure(path, root, yes=yes):
        return False
    replace(path, root, old, new)
    return True


def sure(path: Path, root: Path | None, *, yes: bool) -> bool:
    """Whether the person wants the file changed. Raises ImpyardError where there is nobody to ask."""
    if yes:
        return True
    sys.stdout.flush()
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ImpyardError("there is no terminal to ask on, so nothing was changed", hint="--yes changes it unasked")
    name = shown(path, root)
    target = Path(os.path.realpath(path))
    through = f" (a link to {target})" if target != Path(os.path.abspath(path)) else ""
    try:
        if click.confirm(visible(f"change {name}{through}?"), err=True):
            return True
    except click.Abort:
        click.echo("\nnothing was changed", err=True)  # the terminal shows ^C or ^D and leaves the cursor behind it
        raise
    click.echo("nothing was changed", err=True)
    return False


def replace(path: Path, root: Path | None, old: bytes, new: bytes, *, is_locked: bool = False) -> None:
    """Put `new` in the file's place, with its mode and owner; a link stays one.

    is_locked: that the caller holds the lock, from before `old` was read. Raises ImpyardError, and leaves the file as
    it is, when it does not hold `old` any more.
    """
    target = Path(os.path.realpath(path))
    name = shown(path, root)
    with nullcontext() if is_locked else locked(target):
        check_changeable(path, root)
        try:
            _check_same(target, name, old)
            temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
            try:
                _write(temporary, new, target)
                _check_same(target, name, old)  # as near to the replacement as can be: editors know no lock
                os.replace(temporary, target)
            except BaseException:
                with suppress(FileNotFoundError):
                    temporary.unlink()
                raise
            _sync_folder(target.parent)
        except OSError as exc:
            raise ImpyardError(
                f"{name} cannot be changed: {_why(exc)}", hint="it is as it was; make room, or check its folder's mode"
            ) from exc


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep impyard's other commands from changing the policies in the folder of `path` meanwhile. Raises ImpyardError
    when another holds them for too long."""
    folder = Path(os.path.realpath(path)).parent
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise ImpyardError(f"cannot open {folder}: {_why(exc)}", hint="check its owner and mode") from exc
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as exc:
            if exc.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                return  # a file system without locks: what the file holds is compared all the same
        if time.monotonic() > deadline:
            raise ImpyardError(
                f"another command is changing the policies in {folder}", hint="try again when it is done"
            )
        time.sleep(_POLL_S)


def _check_same(target: Path, name: str, old: bytes) -> None:
    if target.read_bytes() != old:
        raise ImpyardError(
            f"{name} was changed meanwhile, so it was left as it is", hint="do it again: the difference is made anew"
        )


def check_same(contents: Sequence[tuple[Path, bytes]], root: Path | None, *, but: Path) -> None:
    """Raises ImpyardError when another file than `but`, which is looked at when it is replaced, is not as it was: they
    are one policy."""
    for path, data in contents:
        if path != but:
            try:
                _check_same(Path(os.path.realpath(path)), shown(path, root), data)
            except OSError as exc:
                raise ImpyardError(f"{shown(path, root)} cannot be read: {_why(exc)}", hint="do it again") from exc


def _write(temporary: Path, data: bytes, like: Path) -> None:
    """A new file with this content, on the disk, with owner, mode and attributes of the other."""
    found = like.stat()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        own = os.fstat(descriptor)
        if (own.st_uid, own.st_gid) != (found.st_uid, found.st_gid):
            os.fchown(descriptor, found.st_uid, found.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
        for key in os.listxattr(like):  # access lists among them
            with suppress(OSError):
                os.setxattr(descriptor, key, os.getxattr(like, key))
        os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(data: bytes) -> list[str]:
    """The lines with their ends, cut at line feeds only, as other tools for differences do."""
    text = data.decode("utf-8", "replace")
    return [line + "\n" for line in text.split("\n")[:-1]] + (
        [text.rpartition("\n")[2]] if text[-1:] not in "\n" else []
    )


def _why(exc: OSError) -> str:
    return (exc.strerror or str(exc)).lower()
