"""Which names an agent may not write, and which are shown to you first. Pure: names and git's modes, no files.

`.git` has many spellings: what HFS+, NTFS and shells on them take for it counts here too, as in git itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

from impyard.runner.clone.git import Entry
from impyard.runner.secretfiles.kinds import HEAD_BYTES, Suspect, is_env, suspect

LINK, SUBMODULE = "120000", "160000"
MAX_PATH = 3000  # bytes: a checkout elsewhere has a longer beginning
# HFS+ does not see these (git's utf8.c, next_hfs_char).
_UNSEEN = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
_SHORT = re.compile(r"git~[0-9]+")
# git reads these, and they choose what it runs, converts, fetches from or leaves out.
_GITS_OWN = {".gitattributes", ".gitmodules", ".lfsconfig"}
# Programs read these as soon as the folder is opened, or the next command of their kind is called.
_RUN_SOON = {".vscode", ".idea", ".devcontainer", ".envrc", ".husky", ".pre-commit-config.yaml", "lefthook.yml"}


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
    if len(path) > MAX_PATH:
        return "its path is too long"
    if entry is not None and entry.mode == SUBMODULE:
        return "it is a submodule"
    if entry is not None and entry.mode == LINK and _plain(_text(parts[-1])).startswith(".git"):
        return "git reads a file of this name, and this is a link"
    return ""


def why_held(path: bytes, entry: Entry | None, data: bytes | None = None, hooks: Collection[bytes] = ()) -> str:
    """Why a change of this path is held back until it is asked for by name; "" for one that is not.

    `data` is what a link says, or a file that `may_be_secret` holds. `hooks` are the folders that your git settings
    take hooks from, relative to the project.
    """
    text = _text(path)
    parts = text.split("/")
    name = _plain(parts[-1])
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        return "its name has control characters"
    if name in _GITS_OWN or name.startswith(("gitatt~", "gitmod~")):
        return "git obeys it"
    if parts[0] == "policies":
        return "it may be the policy that judges the agent"
    if any(path == folder or path.startswith(folder + b"/") for folder in hooks):
        return "your git runs the hooks in it"
    if entry is not None and is_env(parts[-1]):
        return "it has the name of a file with secrets"
    if entry is not None and entry.mode == LINK:
        return _why_link(path, data or b"")
    if data is not None and _is_secret(path, data):
        return "it is a file with secrets"
    return ""


def may_be_secret(path: bytes) -> bool:
    """Whether a file of this name may hold a secret, so that its content decides."""
    return _suspect(path) is not None


def bare_repositories(paths: Collection[bytes]) -> set[bytes]:
    """The folders that git takes for repositories, whatever their names are: it obeys the settings in them."""
    found: dict[bytes, set[bytes]] = {}
    for path in paths:
        folders = path.split(b"/")
        for depth, name in enumerate(folders):
            plain = name.lower()
            if (plain in (b"objects", b"refs") and depth < len(folders) - 1) or (plain == b"head" and depth):
                found.setdefault(b"/".join(folders[:depth]), set()).add(plain)
    return {folder for folder, parts in found.items() if folder and parts == {b"head", b"objects", b"refs"}}


def remark(path: bytes, entry: Entry | None, old: Entry | None) -> str:
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
    if entry.mode == "100755" and (old is None or old.mode != "100755"):
        return "a program"
    return ""


def _why_link(path: bytes, link: bytes) -> str:
    """Why a link is held back: it leads out of the project, or to what git obeys."""
    if link.startswith(b"/"):
        return "it is a link to a place outside of the project"
    place = path.split(b"/")[:-1]
    for part in link.split(b"/"):
        if part == b"..":
            if not place:
                return "it is a link to a place outside of the project"
            place.pop()
        elif part not in (b"", b"."):
            place.append(part)
    if any(names_git(part) for part in place):
        return "it is a link into a repository"
    if place and place[0] in (b"runs", b"policies"):
        return f"it is a link into {place[0].decode()}/"
    return ""


def _suspect(path: bytes) -> Suspect | None:
    parts = _text(path).split("/")
    return suspect(parts[-1], parts[-2] if len(parts) > 1 else "")


def _is_secret(path: bytes, data: bytes) -> bool:
    found = _suspect(path)
    if found is None:
        return False
    if found.look is None and found.clean is None:
        return True  # whatever it holds
    if found.look is not None and found.look(data[:HEAD_BYTES]):
        return True
    text = data.decode("utf-8", "surrogateescape")
    return found.clean is not None and found.clean(text) != text


def _plain(part: str) -> str:
    """As file systems that do not tell letters apart see it (git's path.c, is_ntfs_dot_generic)."""
    seen = unicodedata.normalize("NFC", part.translate(_UNSEEN)).casefold()
    return seen.partition(":")[0].rstrip(". ")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
