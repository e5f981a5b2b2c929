"""What a box must not see of the folders that it is given: each file that is there for a secret, sockets and pipes.

Looks at names, and into the few small files whose name says that there may be a key; it changes nothing. The box
covers what is found, or shows a cleaned copy of it (boxspec.py); coverwatch.py sees that the covers stay on. What a
file with a secret looks like is secretkinds.py's to say; secrets in ordinary files are for `impyard doctor --secrets`
to find.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impyard.addon.errors import ImpyardError
from impyard.runner.gitsettings import named_paths
from impyard.runner.project import check_mountable
from impyard.runner.secretfiles.clean import git_stores
from impyard.runner.secretfiles.kinds import ENVIRONMENT, GIT_SETTINGS, PACKAGES, Suspect, is_env, suspect
from impyard.runner.text import counted, visible

CHANNEL = "socket or pipe"
RECORDED = 1000  # in a receipt
NOTED = 5  # so many are named before a run; the receipt has all
MAX_INCLUDED = 32
MAX_CLEANED_BYTES = 256 * 1024  # of settings; longer ones are covered
MAX_INDEX_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Found:
    """One file to keep from the box, or a folder. `clean` is the content to show in its place; without one nothing is
    shown. `kind` says in words what it holds."""

    path: Path
    kind: str
    is_folder: bool = False
    clean: bytes | None = None

    @property
    def how(self) -> str:
        """ "covered" or "cleaned"."""
        return "covered" if self.clean is None else "cleaned"

    def record(self) -> dict[str, Any]:
        """For a receipt."""
        return {"path": str(self.path), "kind": self.kind, "how": self.how}


def scan(roots: Sequence[Path]) -> list[Found]:
    """What to keep from the box under these folders (resolved), but for the first one's runs/ and the like.

    Environment files, sockets and pipes everywhere: a read-only mount does not keep anybody from talking to the program
    behind one. Other secrets everywhere but in installed packages, whose files are public. The file that a link leads
    to is taken in the link's place, if it lies under one of the folders; elsewhere the box cannot see it. A link that
    leads to a folder, or into policies/, hides nothing: an agent may have left it, and later boxes would miss what it
    names.

    Raises ImpyardError for a folder that cannot be searched, and for a name that cannot be covered.
    """
    found: dict[Path, Found] = {}
    for item in _walk(roots):
        if item.path not in found:
            check_mountable(item.path)
            found[item.path] = item
    return sorted(found.values(), key=lambda item: item.path)


def without_allowed(found: Sequence[Found], allowed: Iterable[Path], root: Path) -> list[Found]:
    """What is left to keep from the box when these paths (relative to `root`, or absolute) are shown on purpose; one
    may be a folder, for all files in it. Raises ImpyardError for one that names nothing that can be shown."""
    shown: set[Path] = set()
    for path in allowed:
        places = {Path(os.path.normpath(root / path)), Path(os.path.realpath(root / path))}
        if any(root.is_relative_to(place) for place in places):  # an empty variable in a script is enough for it
            raise ImpyardError(f"--allow-file {visible(str(path))}: that is the project as a whole", hint=_ALLOW_HINT)
        meant = [
            item for item in found if item.kind != CHANNEL and not places.isdisjoint((item.path, *item.path.parents))
        ]
        if not meant:
            raise ImpyardError(f"--allow-file {visible(str(path))}: {_why_not(places, found)}", hint=_ALLOW_HINT)
        shown.update(item.path for item in meant)
    return [item for item in found if item.path not in shown]


def notes(found: Iterable[Found], root: Path) -> list[str]:
    """What to say before a run, line by line; nothing of sockets and pipes, which nobody expects in a box. Environment
    files share one line: a program that reads an empty one wonders."""
    found = list(found)
    lines = []
    if environments := [item for item in found if item.kind == ENVIRONMENT]:
        more = len(environments) - 1
        others = f" and {counted(more, 'more environment file')}" if more else ""
        lines.append(f"covered in the box: {shown(environments[0].path, root)}{others}")
    worth = [item for item in found if item.kind not in (ENVIRONMENT, CHANNEL)]
    named = worth if len(worth) <= NOTED + 1 else worth[:NOTED]
    lines += [f"{item.how} in the box: {shown(item.path, root)} ({item.kind})" for item in named]
    if worth:
        left = len(worth) - len(named)
        more_words = f"and {left} more, which `impyard doctor` lists; " if left else ""
        lines.append(f"{more_words}`--allow-file PATH` shows the agent one as it is")
    return lines


def shown_notes(items: Sequence[Found], root: Path, reader: int | None) -> list[str]:
    """What to say of files that are shown on purpose. reader: the user of a box that is not the caller's, who may not
    be able to read them."""
    if not items:
        return []
    names = [shown(item.path, root) for item in items[:NOTED]]
    more = f" and {len(items) - NOTED} more" if len(items) > NOTED else ""
    lines = [f"shown to the agent on purpose: {', '.join(names)}{more}"]
    for item in items[:NOTED] if reader is not None else ():
        try:
            status = item.path.stat()
        except OSError:
            continue
        if status.st_uid != reader and not status.st_mode & 0o004:
            lines.append(f"{shown(item.path, root)}: the box's user ({reader}) cannot read it; `chmod o+r` lets it")
    return lines


def tracked(found: Iterable[Found], workspace: Path) -> list[Path]:
    """Those of the files in a workspace that git tracks there: covered, they are a change that no commit can take, and
    their content can be read from git's objects. An index of version 4 is not understood."""
    indexes: dict[Path, bytes] = {}
    paths = []
    for item in found:
        top = next((folder for folder in item.path.parents if os.path.lexists(folder / ".git")), None)
        if top is None or item.clean is not None or not item.path.is_relative_to(workspace):
            continue
        if top not in indexes:
            try:
                indexes[top] = _head(f"{top}/.git/index", MAX_INDEX_BYTES)
            except OSError:
                indexes[top] = b""
        name = os.fsencode(item.path.relative_to(top))
        # An entry's length and name (gitformat-index(5)).
        if min(len(name), 0xFFF).to_bytes(2) + name + b"\0" in indexes[top]:
            paths.append(item.path)
    return paths


def shown(path: Path, root: Path) -> str:
    """A path for people: below the project without it."""
    return visible(str(path.relative_to(root) if path.is_relative_to(root) else path))


_ALLOW_HINT = "name a file, relative to the project, that the run says is covered or cleaned"


def _why_not(places: Iterable[Path], found: Iterable[Found]) -> str:
    if not any(os.path.lexists(place) for place in places):
        return "there is no such file"
    for item in found:
        if item.kind == CHANNEL and item.path in places:
            return "a socket or pipe is never shown"
        if item.is_folder and any(place.is_relative_to(item.path) for place in places):
            return f"it lies in {visible(str(item.path))}, which is covered as a whole"
    return "it is not covered"


# -- looking -----------------------------------------------------------------------------------------------------------


def _walk(roots: Sequence[Path]) -> Iterator[Found]:
    for root in roots:
        runs = f"{root}/runs"
        pending = [(str(root), False)]
        while pending:
            folder, is_package = pending.pop()
            name = os.path.basename(folder)
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.name.startswith(".env") and is_env(entry.name):
                            if (path := _env_path(entry, roots)) is not None:
                                yield Found(path, ENVIRONMENT, path.is_dir())
                        elif entry.is_dir(follow_symlinks=False):
                            if entry.path != runs:
                                pending.append((entry.path, is_package or entry.name.lower() in PACKAGES))
                        elif entry.is_file(follow_symlinks=False):
                            if not is_package and (look := suspect(entry.name, name)):
                                yield from _look(entry.path, look, roots)
                        elif not entry.is_symlink():
                            yield Found(Path(entry.path), CHANNEL)
                        elif (
                            not is_package
                            and (look := suspect(entry.name, name))
                            and (target := _target(entry.path, roots)) is not None
                        ):
                            yield from _look(str(target), look, roots, is_link=True)
            except PermissionError as exc:
                # A box that root starts runs as another user. One that runs as the caller may open again what it owns,
                # in a workspace that it can write to.
                if os.geteuid() != 0 and folder != str(root):
                    yield Found(Path(folder), "unreadable folder", True)
                else:
                    raise ImpyardError(
                        f"cannot search {visible(str(exc.filename))} for files with secrets",
                        hint="the box might read what root cannot",
                    ) from exc
            except FileNotFoundError:
                continue
            except OSError as exc:
                if exc.errno != errno.ENAMETOOLONG:
                    raise
                raise ImpyardError(
                    f"folders in {root} are nested deeper than a path can be long, and the box might find a .env there",
                    hint="remove them, or choose another folder",
                ) from exc


def _env_path(entry: os.DirEntry[str], roots: Sequence[Path]) -> Path | None:
    """What to cover for an entry with the name of an environment file."""
    return _target(entry.path, roots) if entry.is_symlink() else Path(entry.path)


def _target(link: str, roots: Sequence[Path]) -> Path | None:
    """The file that a link leads to, if a box could see it there."""
    try:
        path = Path(link).resolve(strict=True)
        is_file = path.is_file()
    except (OSError, RuntimeError):  # it leads nowhere, or in a circle
        return None
    inside = any(path.is_relative_to(root) and not path.is_relative_to(root / "policies") for root in roots)
    return path if is_file and inside else None


def _look(
    path: str, look: Suspect, roots: Sequence[Path], *, is_link: bool = False, seen: set[Path] | None = None
) -> Iterator[Found]:
    """What is in a file whose name makes it suspect. A link's name alone hides nothing: an agent may have left it."""
    if look.look is None and look.clean is None:
        if not is_link:
            yield Found(Path(path), look.kind)
        return
    limit = MAX_CLEANED_BYTES + 1 if look.clean else look.head
    try:
        data = _head(path, limit)
    except FileNotFoundError:
        return
    except OSError:
        yield Found(Path(path), look.kind)  # see above
        return
    if look.look is not None and (kind := look.look(data)):
        yield Found(Path(path), kind)
    elif look.clean is not None and data:
        yield from _cleaned(Path(path), data, look, roots, set() if seen is None else seen)


def _cleaned(path: Path, data: bytes, look: Suspect, roots: Sequence[Path], seen: set[Path]) -> Iterator[Found]:
    text = data.decode("utf-8", "surrogateescape")
    clean = _without(text, look) if len(data) <= MAX_CLEANED_BYTES else None
    if clean is None:
        yield Found(path, look.kind)
    elif clean != text:
        yield Found(path, look.kind, clean=clean.encode("utf-8", "surrogateescape"))
    if look.kind == GIT_SETTINGS and len(seen) < MAX_INCLUDED:
        yield from _named_by_git(path, text, look, roots, seen)


def _without(text: str, look: Suspect) -> str | None:
    """The file's text without its secrets; None where they cannot be taken out, or text of 16 bits has some."""
    if look.clean is None or "\0" not in text:
        return look.clean(text) if look.clean is not None else None
    # As a Windows shell writes it.
    bare = text.encode("utf-8", "surrogateescape").removeprefix(b"\xff\xfe").removeprefix(b"\xfe\xff")
    plain = bare.replace(b"\0", b"").decode("utf-8", "surrogateescape")
    return text if look.clean(plain) == plain else None


def _named_by_git(path: Path, text: str, look: Suspect, roots: Sequence[Path], seen: set[Path]) -> Iterator[Found]:
    """The files with passwords that git's settings name, and those with more settings."""
    lower = text.lower()
    if "include" not in lower and "store" not in lower:
        return
    seen.add(path)
    top = path.parent.parent  # of the checkout, where git runs
    for name in list(dict.fromkeys(git_stores(text)))[:MAX_INCLUDED]:
        for place in {top / os.path.expanduser(name), path.parent / os.path.expanduser(name)}:
            if (target := _target(str(place), roots)) is not None:
                yield Found(target, "login")
    for is_hooks, name in named_paths(text)[:MAX_INCLUDED]:
        target = None if is_hooks else _target(str(path.parent / os.path.expanduser(name)), roots)
        if target is not None and target not in seen:
            yield from _look(str(target), look, roots, seen=seen)


def _head(path: str, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)
