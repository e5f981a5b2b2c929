"""A folder of files that nobody but their owner may see: read, replaced whole and locked. Knows nothing of credentials.

Every file is reached through the open folder and never through a link, so that what is checked is what is used. No
message names content.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from impyard.addon.errors import ImpyardError

# What has to be the same for a file to be the one that was read.
Stamp = tuple[int, ...]

_POLL_S = 0.02
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # the last: a FIFO in place of a file must not stop us


class PrivateFolder:
    """Files in one folder, mode 0700 and 0600. `what` names it for people: "the vault".

    Its methods raise ImpyardError for all that is wrong with the folder or its files.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what

    def stamp(self, name: str) -> Stamp | None:
        """What tells one state of a file from another; None while there is no such file."""
        try:
            return stamp_of(os.lstat(f"{self.path}/{name}"))  # for each request: Path's own joining takes 10 us
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise self._unreadable(self.path / name, exc) from None

    def read(self, name: str, limit_bytes: int) -> tuple[bytes, Stamp] | None:
        """A file's content and the stamp that belongs to it; None while there is none."""
        path = self.path / name
        try:
            folder = os.open(self.path, _FOLDER)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise self._unreadable(self.path, exc) from None
        try:
            owner = self._checked(self.path, os.fstat(folder))
            handle = os.open(name, os.O_RDONLY | _FILE, dir_fd=folder)
            try:
                found = self._checked(path, os.fstat(handle), owner)
                with open(handle, "rb", closefd=False) as file:
                    content = file.read(limit_bytes + 1)
            finally:
                os.close(handle)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise self._unreadable(path, exc) from None
        finally:
            os.close(folder)
        if len(content) > limit_bytes:
            raise ImpyardError(
                f"{str(path)!r} is larger than {limit_bytes >> 20} MiB, which no such file of impyard's is",
                hint="look what it is, and move it away",
            )
        return content, stamp_of(found)

    def replace(self, name: str, content: bytes) -> None:
        """Put `content` in the place of a file: all of it or nothing, also when the machine stops. Under `lock`."""
        new = f"{name}.new"  # one name: what a killed process left is replaced, not added to
        with self._opened() as (folder, owner), self._writing(self.path / name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new, dir_fd=folder)
            try:
                handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=folder)
                with open(handle, "wb") as file:
                    os.fchmod(handle, 0o600)  # whatever the umask made of it
                    _give(handle, owner)
                    file.write(content)
                    file.flush()
                    os.fsync(handle)
                os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(new, dir_fd=folder)
                raise
            os.fsync(folder)

    @contextlib.contextmanager
    def lock(self, name: str, limit_s: float) -> Iterator[None]:
        """Hold a lock file alone, among all processes and threads, making the folder when there is none."""
        path = self.path / name
        with self._opened(make=True) as (folder, owner), self._writing(path):
            handle = os.open(name, os.O_RDWR | os.O_CREAT | _FILE, 0o600, dir_fd=folder)
        try:
            with self._writing(path):
                mode = os.fstat(handle).st_mode
                if not stat.S_ISREG(mode):
                    raise ImpyardError(f"{str(path)!r} is no ordinary file", hint="move it away")
                if stat.S_IMODE(mode) != 0o600:  # whatever the umask made of it
                    os.fchmod(handle, 0o600)
                _give(handle, owner)
                self._wait(handle, path, limit_s)
            yield
        finally:
            os.close(handle)  # lets go of the lock; the file stays, as another may wait with it open

    def _wait(self, handle: int, path: Path, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise ImpyardError(
                        f"{self.what} is in use: another process has held {str(path)!r} for {limit_s:.0f} s",
                        hint=f"see which one with `fuser -v {path}`, and end it if it hangs",
                    ) from None
                time.sleep(_POLL_S)

    @contextlib.contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[tuple[int, os.stat_result]]:
        """The open folder, checked, and what it is."""
        with self._writing(self.path):
            if make and not os.path.lexists(self.path):
                self._make()
            folder = os.open(self.path, _FOLDER)
        try:
            found = os.fstat(folder)
            self._checked(self.path, found)
            yield folder, found
        finally:
            os.close(folder)

    def _make(self) -> None:
        from impyard.certs.authority import refuse_missing_home

        refuse_missing_home(self.path)
        missing = [path for path in (self.path, *self.path.parents) if not os.path.lexists(path)]
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):  # of another process
                path.mkdir(mode=0o700)
                path.chmod(0o700)  # whatever the umask made of it
                above = path.parent.stat()
                if os.geteuid() == 0 and above.st_uid != 0:  # under sudo, in a user's home
                    os.chown(path, above.st_uid, above.st_gid, follow_symlinks=False)

    def _checked(self, path: Path, found: os.stat_result, folder: os.stat_result | None = None) -> os.stat_result:
        """What was opened, if nobody else may read or write it. `folder`: what a file lies in; None for the folder."""
        if folder is not None and not stat.S_ISREG(found.st_mode):
            raise ImpyardError(f"{str(path)!r} is no ordinary file", hint="move it away")
        us = os.geteuid()
        # Root may have the vault of the user who called sudo; nobody may have one that another has laid out for him.
        if found.st_uid != us and (us != 0 or (folder is not None and found.st_uid != folder.st_uid)):
            raise ImpyardError(
                f"{str(path)!r} belongs to another user (uid {found.st_uid})",
                hint=f"call impyard as that user, or take it over: sudo chown -R {us} {str(self.path)!r}",
            )
        if found.st_mode & 0o077:
            mode = "700" if folder is None else "600"
            raise ImpyardError(
                f"{self.what} is open to other users: {str(path)!r} has mode {stat.S_IMODE(found.st_mode):04o}",
                hint=f"chmod {mode} {str(path)!r}  (and change the keys in it, if others use this machine)",
            )
        return found

    def _unreadable(self, path: Path, exc: OSError) -> ImpyardError:
        if exc.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
            return _link(self.what, path)
        return ImpyardError(
            f"cannot read {self.what} at {str(path)!r}: {exc.strerror or type(exc).__name__}",
            hint=f"make it yours and readable: chown, chmod {'700' if path == self.path else '600'}",
        )

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Failures of the system in it as words for people."""
        try:
            yield
        except OSError as exc:
            if exc.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
                raise _link(self.what, path) from None
            raise ImpyardError(
                f"cannot write {self.what} at {str(path)!r}: {exc.strerror or type(exc).__name__}",
                hint="free space there"
                if exc.errno in (errno.ENOSPC, errno.EDQUOT)
                else "make that folder writable, or set IMPYARD_DATA_DIR to one that is",
            ) from None


def stamp_of(found: os.stat_result) -> Stamp:
    """What tells one state of a file from another."""
    return (
        found.st_dev,
        found.st_ino,
        found.st_mode,
        found.st_uid,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )


def _give(handle: int, folder: os.stat_result) -> None:
    """Under sudo, leave what root makes in a user's folder to that user."""
    if os.geteuid() == 0 and folder.st_uid != 0:
        os.fchown(handle, folder.st_uid, folder.st_gid)


def _link(what: str, path: Path) -> ImpyardError:
    return ImpyardError(
        f"{str(path)!r} is a link, and {what} is not read or written through one",
        hint="put the folder itself there, or set IMPYARD_DATA_DIR to where it is",
    )
