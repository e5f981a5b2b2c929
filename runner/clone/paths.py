"""Which names an agent may not write, and which are shown to you first. Pure: names and git's modes, no files.

`.git` has many spellings: what HFS+, NTFS and shells on them take for it counts here too, as in git itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection

from impyard.runner.clone.git import Entry
from impyard.runner.secretfiles.kinds import Suspect, is_env, suspect

LINK, SUBMODULE = "120000", "160000"
MAX_PATH = 3000  # bytes: a checkout elsewhere has a longer beginning
# HFS+ does not see these (git's utf8.c, next_hfs_char).
_UNSEEN = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
_SHORT = re.compile(r"git~[0-9]+")
# git reads these, and they choose what it runs, converts, fetches from or leaves out.
_GITS_OWN = {".gitattributes", ".gitmodules", ".lfsconfig"}
# Programs read these as soon as the folder is opened, or the next command of their kind is called.
_RUN_SOON = {".vscode", ".idea", ".devcontainer", ".envrc", ".husky", ".pre-commit-config.yaml", "lefthook.yml"}

# What makes a folder a repository, and what git obeys in one.
_PARTS = {b"head", b"objects", b"refs", b"commondir"}
_OBEYED = {*_PARTS, b"config", b"config.worktree", b"hooks", b"info", b"modules", b"worktrees"}
REPOSITORY = "git takes its folder for a repository, and obeys that"
DRAFT = b".impyard-"  # the beginning of the names of files that `runs apply` is about to move to their places
_SLASH = ord("/")


def names_git(name: bytes) -> bool:
    """Whether this part of a path is `.git` for some file system."""
    text = name.decode("utf-8", "surrogateescape")
    for part in re.split(r"[\\/]", text):
        plain = _plain(part)
        if plain == ".git" or _SHORT.fullmatch(plain):
            return True
    return False


def why_never(path: bytes, entry: Entry | None) -> str:
    """Why this path of an agent's is not taken over at all; "" for one that may be."""
    parts = path.split(b"/")
    if any(part in (b"", b".", b"..") for part in parts):
        return "it is no path in a project"
    if any(names_git(part) for part in parts):
        return "git could take it for a repository of its own"
    if parts[0] == b"runs":
        return "runs/ is impyard's"
    if any(part.startswith(DRAFT) for part in parts):
        return "the name is that of a file which impyard removes"
    if len(path) > MAX_PATH:
        return "its path is too long"
    if entry is not None and entry.mode == SUBMODULE:
        return "it is a submodule"
    if entry is not None and entry.mode == LINK and _plain(_text(parts[-1])).startswith(".git"):
        return "git reads a file of this name, and this is a link"
    return ""


def why_held(path: bytes, entry: Entry | None, data: bytes | None = None) -> str:
    """Why a change of a path of this name is held back until it is asked for by name; "" for one that is not.

    `data` is what a file that `may_be_secret` holds."""
    text = _text(path)
    parts = text.split("/")
    name = _plain(parts[-1])
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        return "its name has control characters"
    if name in _GITS_OWN or name.startswith(("gitatt~", "gitmod~")):
        return "git obeys it"
    if parts[0] == "policies":
        return "it may be the policy that judges the agent"
    if entry is not None and is_env(parts[-1]):
        return "it has the name of a file with secrets"
    if data is not None and _is_secret(path, data):
        return "it is a file with secrets"
    return ""


def may_be_secret(path: bytes) -> bool:
    """Whether a file of this name may hold a secret, so that its content decides."""
    return _suspect(path) is not None


def repositories(
    new: Collection[bytes], kept: Collection[bytes], is_there: Callable[[bytes], bool] = lambda _: False
) -> set[bytes]:
    """The folders with something new in them that git takes for repositories, whatever their names are: it obeys the
    settings in them. `kept` are other files; `is_there` tells of still others.

    It wants HEAD, and `objects` and `refs` beside it or where `commondir` says; it does not mind what kind they are
    of, and follows links (git's setup.c, is_git_directory)."""
    found: dict[bytes, set[bytes]] = {}
    for path in (*new, *kept):
        folders = path.split(b"/")
        for depth, name in enumerate(folders):
            if (plain := name.lower()) in _PARTS:
                found.setdefault(b"/".join(folders[:depth]), set()).add(plain)
    there: dict[bytes, bool] = {b"": True}
    for path in new:
        parts = path.split(b"/")
        for depth in range(len(parts)):
            folder = b"/".join(parts[:depth])
            if folder not in there:
                there[folder] = there[b"/".join(parts[: depth - 1])] and is_there(folder)
    for folder, is_old in there.items():
        if is_old:
            place = folder + b"/" if folder else b""
            more = {part.lower() for part in (b"HEAD", b"objects", b"refs", b"commondir") if is_there(place + part)}
            found.setdefault(folder, set()).update(more)
    return {
        folder
        for folder, parts in found.items()
        if folder in there and b"head" in parts and (b"commondir" in parts or {b"objects", b"refs"} <= parts)
    }


def in_repository(path: bytes, folders: Collection[bytes]) -> bool:
    """Whether a path lies in one of these folders; of the top, "", only what git looks at there counts."""
    if b"" in folders and path.split(b"/")[0].lower() in _OBEYED:
        return True
    return any(path[:number] in folders for number, char in enumerate(path) if char == _SLASH)


def remark(path: bytes, entry: Entry | None, old: Entry | None, is_text: bool = True) -> str:
    """What to say of a change that is taken, "" for nothing."""
    parts = _text(path).split("/")
    if _RUN_SOON.intersection(parts) or path.startswith(b".github/workflows/"):
        return "read it: programs run what it says"
    if parts[-1].startswith("-"):
        return "its name looks like an option"
    if entry is None:
        return ""
    if entry.mode == LINK:
        return "a link"
    found = ["a program"] if entry.mode == "100755" and (old is None or old.mode != "100755") else []
    return "; ".join(found + ([] if is_text else ["no text: `runs diff` does not show it"]))


def _suspect(path: bytes) -> Suspect | None:
    parts = _text(path).split("/")
    return suspect(parts[-1], parts[-2] if len(parts) > 1 else "")


def _is_secret(path: bytes, data: bytes) -> bool:
    found = _suspect(path)
    if found is None:
        return False
    if found.look is None and found.clean is None:
        return True  # whatever it holds
    if found.look is not None and found.look(data[: found.head]):
        return True
    text = data.decode("utf-8", "surrogateescape")
    return found.clean is not None and found.clean(text) != text


def _plain(part: str) -> str:
    """As file systems that do not tell letters apart see it (git's path.c, is_ntfs_dot_generic)."""
    seen = unicodedata.normalize("NFC", part.translate(_UNSEEN)).casefold()
    return seen.partition(":")[0].rstrip(". ")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
