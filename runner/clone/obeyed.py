"""What lies in a project and your git obeys: what your settings, hooks, and links in your repository name.

Which settings name a program or a file is not for us to list: each word of each value counts as a path, but for
settings that cannot name one. Asks git for the settings, in your own repository; the places are looked up by Links.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from impyard.runner.clone.batch import GitFailed
from impyard.runner.clone.git import Project
from impyard.runner.clone.links import Links
from impyard.runner.gitsettings import text_of_file

MAX_FILES = 64  # with settings
MAX_HOOKS = 200
HOOKS = "your git runs the hooks in it"
# No paths, but names, addresses and words for people; a word of these may well be the name of a folder.
_NO_PATHS = {
    "user",
    "author",
    "committer",
    "branch",
    "init",
    "color",
    "column",
    "i18n",
    "advice",
    "safe",
    "maintenance",
}
_NO_PATH = {"url", "pushurl", "fetch", "push", "insteadof", "pushinsteadof", "worktree", "active"}
_BETWEEN = re.compile(r"(?:[\s;|&()<>\"'`=!,:{}]|\$\w*)+")
_ARE_PATHS = ("path", "file", "dir", "directory")


@dataclass(frozen=True, slots=True)
class Named:
    """A path that git obeys, and why; `whole`: with all that lies below. `hooks`: what lies in it is run."""

    path: str
    why: str
    whole: bool = True
    hooks: bool = False


class Obeyed:
    """What is named, looked up in each of these states of the checkout."""

    def __init__(self, named: Sequence[Named], states: Sequence[Links]) -> None:
        self._found: dict[bytes, tuple[str, bool]] = {}
        self._above: dict[bytes, str] = {}
        self._top = ""
        for links in states:
            for one in named:
                self._add(links, one)

    def why(self, path: bytes, *, is_gone: bool) -> str:
        """Why a change of this path changes what git does; "" where it does not."""
        if path in self._found:
            return self._found[path][0]
        if self._top and b"/" not in path:
            return self._top
        if not is_gone and path in self._above:
            return self._above[path]
        while b"/" in path:
            path = path.rpartition(b"/")[0]
            why, whole = self._found.get(path, ("", False))
            if whole:
                return why
        return ""

    def _add(self, links: Links, one: Named) -> None:
        places, _ = links.follow(os.fsencode(one.path))
        for number, place in enumerate(places, 1):
            is_end = number == len(places)
            inner = links.inner(place)
            if inner is None or (not is_end and links.text(place) is None):
                continue
            if not inner:
                self._top = self._top or (one.why if one.hooks and is_end else "")
                continue
            whole = one.whole and is_end
            if inner not in self._found or whole:
                self._found[inner] = (one.why, whole)
            while b"/" in inner:
                inner = inner.rpartition(b"/")[0]
                self._above[inner] = one.why


def named_by_git(project: Project) -> list[Named]:
    """All that settings and links of your repository name. Raises ImpyardError when git does not tell."""
    found: dict[Named, None] = {}
    files: list[Path] = []  # with further settings, which git may not have read as things are
    seen: set[Path] = set()

    def take(settings: Iterator[tuple[Path | None, str, str]]) -> None:
        for file, key, value in settings:
            folders = [project.top, project.root]
            if file is not None:
                seen.add(file)
                folders.append(file.parent)
                found[Named(str(file), "your git reads its settings there")] = None
                if key == "core.worktree":
                    worktrees[file] = file.parent / value
                folders += [worktrees[file]] if file in worktrees else []
            for one in _words(key, value, folders):
                found[one] = None
            if key.startswith("include") and key.endswith(".path") and file is not None:
                files.append(_path(value, file.parent))

    worktrees: dict[Path, Path] = {}
    take(_settings(project))
    for folder in project.git_folders:
        for place in _looked_through(folder):
            if place.is_symlink():
                hooks = "hooks" in place.relative_to(folder).parts
                found[Named(str(place), HOOKS if hooks else "a link in your repository leads to it")] = None
            elif place.name in ("config", "config.worktree"):
                files.append(place)  # of a submodule
    folders = [folder / "hooks" for folder in project.git_folders]
    for folder in {*folders, *(Path(one.path) for one in found if one.hooks)}:
        for text in _hooks_in(folder):
            for word in set(_BETWEEN.split(text)) - {""}:  # "$TOP/x" is read as /x
                found[Named(str(project.top / word.lstrip("/")), "a hook of yours names it", False)] = None
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    found[Named(f"{home}/git/attributes", "your git obeys it")] = None
    for file in files:
        if file not in seen and file.is_file():
            if len(seen) > MAX_FILES:
                raise GitFailed("there are too many files with settings", "tell what it obeys")
            seen.add(file)
            take(_settings(project, "--file", str(file)))
    return list(found)


def _words(key: str, value: str, folders: Sequence[Path]) -> Iterator[Named]:
    """The paths that a setting may name."""
    name = key.rpartition(".")[2]
    if key.partition(".")[0] in _NO_PATHS or name in _NO_PATH or "\0" in value:
        return
    is_hooks = key == "core.hookspath"
    is_path = name.endswith(_ARE_PATHS)
    for word in dict.fromkeys([value, *_BETWEEN.split(value)]):
        if not word:
            continue
        for folder in folders:
            path = _path(word, folder)
            if is_hooks:
                yield Named(str(path), HOOKS, hooks=True)
                if path.name == "_":  # husky's hooks there run what lies beside them
                    yield Named(str(path.parent), HOOKS)
            else:
                # A word without a slash is a program elsewhere or a file here, and seldom a folder.
                yield Named(str(path), f"your git setting {key} names it", is_path or "/" in word)


def _path(text: str, folder: Path) -> Path:
    return folder / os.path.expanduser(text)


def _settings(project: Project, *words: str) -> Iterator[tuple[Path | None, str, str]]:
    """File (None: the environment), key and value of each setting."""
    own = {name: value for name, value in os.environ.items() if name.startswith("GIT_CONFIG_")}
    listing = ("config", *words, "--list", "--show-origin", "-z")
    out = project.plain(*listing, env=own, doing="tell its settings")
    fields = [os.fsdecode(field) for field in out.split(b"\0")]
    for origin, text in zip(fields[0::2], fields[1::2], strict=False):
        key, _, value = text.partition("\n")
        kind, _, name = origin.partition(":")
        yield (project.top / name if kind == "file" else None), key, value


def _hooks_in(folder: Path) -> Iterator[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if not name.endswith(".sample"))
    except OSError:
        return
    for name in names[:MAX_HOOKS]:
        if (folder / name).is_file():
            yield text_of_file(folder / name).replace("\0", " ")


def _looked_through(folder: Path) -> Iterator[Path]:
    """Each link and each file with settings in a repository, but for objects."""
    for at, folders, names in os.walk(folder):
        for name in (*folders, *names):
            place = Path(at, name)
            if place.is_symlink() or name in ("config", "config.worktree"):
                yield place
        folders[:] = [name for name in folders if name not in ("objects", "logs", "refs")]
