"""Files and folders that are begun in a user's folder: they are that user's at once, also when root makes them.

A log that root left to itself would deny every request of the user's next gateway, which may not write to it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

MODE = 0o600
_TRIES = 5  # to open what somebody renames as soon as it is there


def open_appended(path: Path, how: int = os.O_WRONLY) -> int:
    """An ordinary file, opened for appending; made where there is none, for its owner only, who is that of the folder
    when root makes it. `how`: O_WRONLY or O_RDWR. Raises OSError, also for a link; nothing is waited for."""
    # Without O_NONBLOCK a pipe in its place would hold us up.
    flags = how | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = _open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))
    return descriptor


def _open(path: Path, flags: int) -> int:
    if os.geteuid() != 0:
        return os.open(path, flags | os.O_CREAT, MODE)
    # By one descriptor throughout: its owner may put a link to a folder of root's in its place.
    with opened(path.parent) as folder:
        owner = os.fstat(folder)
        if owner.st_uid == 0:
            return os.open(path.name, flags | os.O_CREAT, MODE, dir_fd=folder)
        for _ in range(_TRIES):
            try:
                return os.open(path.name, flags, dir_fd=folder)
            except FileNotFoundError:
                begin(folder, path.name, owner.st_uid, owner.st_gid, MODE)
        return os.open(path.name, flags, dir_fd=folder)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A folder's descriptor, for what must stay in that folder whatever has its name meanwhile. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def begin(folder: int, name: str, uid: int, gid: int, mode: int) -> None:
    """Make an empty file with this owner and mode in an open folder, unless something has that name already. Raises
    OSError.

    Nobody sees it before it is its owner's, where the file system has files without a name. An owner whom we cannot
    make it over to leaves it ours.
    """
    # Only ever what was made here changes hands: a second name of root's own files must not.
    try:
        descriptor = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, MODE, dir_fd=folder)
        is_named = False
    except OSError:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, MODE, dir_fd=folder)
        except FileExistsError:
            return
        is_named = True
    try:
        with contextlib.suppress(OSError):
            make_over(descriptor, uid, gid, mode)
        if not is_named:
            with contextlib.suppress(FileExistsError):
                os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder that all may look into, unless something has that name already; when root makes it, it is his whose
    folder it lies in. Raises OSError. An owner whom we cannot make it over to leaves it ours."""
    with opened(path.parent) as above:
        try:
            os.mkdir(path.name, 0o755, dir_fd=above)
        except FileExistsError:
            return
        owner = os.fstat(above)
        if os.geteuid() != 0 or owner.st_uid == 0:
            return
        folder = os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            status = os.fstat(folder)
            # The user can put another folder of root's into its place. One with nothing in it is no gift.
            if status.st_uid == 0 and not os.listdir(folder):
                with contextlib.suppress(OSError):
                    make_over(folder, owner.st_uid, owner.st_gid, stat.S_IMODE(status.st_mode))
        finally:
            os.close(folder)


def make_over(descriptor: int, uid: int, gid: int, mode: int) -> None:
    """Give what was made here its owner, and then its mode. Raises OSError."""
    status = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != (uid, gid):
        os.fchown(descriptor, uid, gid)
    if stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(descriptor, mode)
