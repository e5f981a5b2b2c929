"""Who the box runs as, and whose the files are afterwards.

A box never runs as root. An ordinary caller's box runs as the caller, so its files are the caller's at once. Under sudo
the caller is the user behind it: the box runs as that user, who gets all files of the run. Plain root's box runs as uid
1000, and what it wrote is root's in the end. In an ordinary user's project the run is that user's in the end, and what
is new in his `--workspace` too, also when root runs it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

DEFAULT_ID = 1000
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

Owner = tuple[int, int]
Inode = tuple[int, int]


@dataclass(frozen=True, slots=True)
class BoxUser:
    """The user of the box (`uid`, `gid`, `name`, never root); who gets its files in the end (`owner_uid`, `owner_gid`);
    and the user of this process (`our_uid`)."""

    uid: int
    gid: int
    name: str
    owner_uid: int
    owner_gid: int
    our_uid: int

    @property
    def is_ours(self) -> bool:
        """Whether box and runner have the same user, so that no file needs to change hands."""
        return self.uid == self.our_uid


def box_user(uid: int, gid: int, environ: Mapping[str, str]) -> BoxUser:
    """The user for the box of a process with these effective ids."""
    if uid != 0:
        return BoxUser(uid, gid, _name(uid), uid, gid, uid)
    if sudo_uid := _number(environ.get("SUDO_UID")):
        sudo_gid = _number(environ.get("SUDO_GID")) or sudo_uid
        return BoxUser(sudo_uid, sudo_gid, _name(sudo_uid), sudo_uid, sudo_gid, uid)
    return BoxUser(DEFAULT_ID, DEFAULT_ID, _name(DEFAULT_ID), uid, gid, uid)


def owned(user: BoxUser, root: Path) -> BoxUser:
    """The same user of the box for a project in `root`: an ordinary user whose folder that is gets the files of root's
    run in the end. Raises OSError."""
    found = os.stat(root)
    if user.our_uid != 0 or found.st_uid == 0:
        return user
    return replace(user, owner_uid=found.st_uid, owner_gid=found.st_gid)


def home_of(uid: int) -> str:
    """A user's home folder; "" for one whom the machine does not know."""
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return ""


def passwd(user: BoxUser, home: Path) -> str:
    """An /etc/passwd for the box in which `whoami` answers with the user's name."""
    folder = str(home) if not re.search(r"[:\n]", str(home)) else "/"  # the two signs that passwd(5) cannot hold
    return (
        "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        f"{user.name}:x:{user.uid}:{user.gid}::{folder}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )


def group(user: BoxUser) -> str:
    """An /etc/group to go with `passwd`."""
    return f"root:x:0:\n{user.name}:x:{user.gid}:\nnogroup:x:65534:\n"


def hand_over(folder: Path, user: BoxUser) -> dict[Inode, Owner]:
    """Give an existing folder and all in it to the box's user, and return what was whose, for `give_back`.

    Files with several names are left alone: a second name may lie outside the folder, where a new owner would be a
    gift to the box. Links are not followed. Nothing happens when the box's user is the runner's.
    """
    before: dict[Inode, Owner] = {}
    if user.is_ours:
        return before

    def change(name: str, parent: int, found: os.stat_result) -> None:
        several_names = not stat.S_ISDIR(found.st_mode) and found.st_nlink > 1
        if several_names and found.st_uid != user.uid:
            return
        before[found.st_dev, found.st_ino] = (found.st_uid, found.st_gid)
        if found.st_uid != user.uid:
            os.chown(name, user.uid, user.gid, dir_fd=parent, follow_symlinks=False)

    _each(folder, change)
    return before


def give_back(folder: Path, user: BoxUser, before: Mapping[Inode, Owner] | None = None) -> int:
    """Give what the box's user owns in `folder` to whom it belonged `before`, and what is new to its owner in the end:
    to the user whose folder it was, if that was not root.

    Links are not followed. Returns how many entries could not be given back (folders nested deeper than this process
    may hold open files).
    """
    if user.is_ours:
        return 0
    owners = before or {}
    new = (user.owner_uid, user.owner_gid)
    with contextlib.suppress(OSError):
        top = os.stat(folder, follow_symlinks=False)
        was = owners.get((top.st_dev, top.st_ino), new)
        new = was if was[0] != 0 else new

    def change(name: str, parent: int, found: os.stat_result) -> None:
        if found.st_uid == user.uid:
            uid, gid = owners.get((found.st_dev, found.st_ino), new)
            if (uid, gid) != (found.st_uid, found.st_gid):
                os.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False)

    return _each(folder, change)


def share_run(runs: Path, run: Path, user: BoxUser) -> None:
    """Give the run's own files that root made to the user whose project it is, else to the one behind sudo; and under
    sudo, the folder and logs of all runs too.

    Nothing happens for others. Raises OSError.
    """
    if user.our_uid != 0:
        return
    if (theirs := owned(user, runs.parent)).owner_uid != 0:
        _share_folder(run, theirs)
    if user.owner_uid == 0:
        return

    def change(name: str, parent: int, found: os.stat_result) -> None:
        if found.st_uid == user.our_uid:
            os.chown(name, user.owner_uid, user.owner_gid, dir_fd=parent, follow_symlinks=False)

    folder = os.open(runs, _OPEN_FOLDER)
    try:
        for name in (".", "decisions.jsonl", "outcomes.jsonl"):
            with contextlib.suppress(FileNotFoundError):
                change(name, folder, os.stat(name, dir_fd=folder, follow_symlinks=False))
    finally:
        os.close(folder)


def _share_folder(run: Path, user: BoxUser) -> None:
    """Give what root made in its run's folder to the owner in the end, and then the folder itself: as long as it is
    closed to that owner, he cannot put other files of root's into it. One that he put in its place is left alone."""
    above = os.stat(run.parent)

    def change(name: str, parent: int, found: os.stat_result) -> None:
        if os.path.samestat(os.fstat(parent), above):
            if found.st_uid != user.our_uid:
                raise PermissionError
        elif found.st_uid == user.our_uid and (stat.S_ISDIR(found.st_mode) or found.st_nlink == 1):
            os.chown(name, user.owner_uid, user.owner_gid, dir_fd=parent, follow_symlinks=False)

    _each(run, change)
    with contextlib.suppress(FileNotFoundError):
        folder = os.open(run, _OPEN_FOLDER)
        try:
            if os.fstat(folder).st_uid == user.our_uid:
                os.fchown(folder, user.owner_uid, user.owner_gid)
        finally:
            os.close(folder)


def _each(folder: Path, change: Callable[[str, int, os.stat_result], None]) -> int:
    """Call `change` on `folder` and all in it, by descriptor, so that no link put there leads anywhere. Returns how
    many entries could not be reached."""
    missed = 0
    parent = os.open(folder.parent, _OPEN_FOLDER)
    stack: list[tuple[int, list[str]]] = [(parent, [folder.name])]
    try:
        while stack:
            handle, names = stack[-1]
            if not names:
                os.close(handle)
                stack.pop()
                continue
            name = names.pop()
            try:
                found = os.stat(name, dir_fd=handle, follow_symlinks=False)
                change(name, handle, found)
                if stat.S_ISDIR(found.st_mode):
                    inner = os.open(name, _OPEN_FOLDER, dir_fd=handle)
                    stack.append((inner, []))
                    if not os.path.samestat(os.fstat(inner), found):  # another one took its place meanwhile
                        raise FileNotFoundError
                    stack[-1][1].extend(os.listdir(inner))
            except FileNotFoundError:
                continue
            except OSError:
                missed += 1
    finally:
        for handle, _ in stack:
            with contextlib.suppress(OSError):
                os.close(handle)
    return missed


def _name(uid: int) -> str:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return "agent"
    return name if re.fullmatch(r"[A-Za-z0-9_.@\\$-]{1,64}", name) and name != "root" else "agent"


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and int(text) < 2**32 - 1 else 0
