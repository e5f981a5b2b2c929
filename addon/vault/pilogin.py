"""pi's auth.json, where a login is shared with pi: its lock, the login in it, and new tokens written back.

Refresh tokens are spent by use, so whoever renews a login without the other knowing logs the other out. pi holds the
directory `auth.json.lock` meanwhile (npm's proper-lockfile): made by whoever has it, touched while held, taken for
abandoned when that was too long ago. No message shows anything of the file but its path.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from impyard.addon.vault.credential import Credential
from impyard.addon.vault.oauth import codex_account, is_token

STALE_S = 30.0  # pi's own, for the lock that it holds while it renews
TOUCH_S = 2.0  # pi's short readers take a lock for abandoned after 10 s
RETAKE_S = 2.0
_POLL_S = 0.05
# A file that is a mount of its own, has other names or another owner, or lies in a folder that is not ours.
_IN_PLACE = (errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS)
_MAX_BYTES = 4 << 20
# What pi keeps with tokens and is no secret; anything else in an entry may be one.
_PLAIN_FIELDS = ("clientId", "scopes", "enterpriseUrl", "availableModelIds")


class PiUnusable(Exception):
    """pi's file cannot be used now. The message says why, for people and without any value.

    busy: another process holds it.
    """

    def __init__(self, message: str, *, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy


@dataclass(frozen=True, slots=True)
class PiLogin:
    """A login as pi keeps it. expires: ms since 1970. extra: what is known to be no secret in it."""

    access: str = field(repr=False)
    refresh: str = field(repr=False)
    expires: int
    account: str
    extra: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, entry: object) -> PiLogin | None:
        """The login that an entry of auth.json is; None for a key, and for what pi would not take either."""
        if not isinstance(entry, dict) or entry.get("type") != "oauth":
            return None
        access, refresh, expires = entry.get("access"), entry.get("refresh"), entry.get("expires")
        if not is_token(access) or not (refresh == "" or is_token(refresh)):
            return None
        if isinstance(expires, bool) or not isinstance(expires, int | float) or not math.isfinite(expires):
            return None
        account = entry.get("accountId")
        account = account if is_token(account) else codex_account(access)
        extra = {name: entry[name] for name in _PLAIN_FIELDS if name in entry}
        return cls(access, refresh, int(expires), account, extra)

    def is_newer(self, than: Credential) -> bool:
        """Whether pi has renewed the login since, or its user logged in again. Told by the expiry, as refresh tokens
        have no date; what was refused for good is older than anything else."""
        refused = than.failure is not None and than.failure.final and self.refresh != than.refresh
        return self.access != than.access and (self.expires > than.expires or refused)

    def taken_by(self, credential: Credential) -> Credential:
        """The credential with these tokens in place of its own."""
        return msgspec.structs.replace(
            credential,
            access=self.access,
            refresh=self.refresh,
            expires=self.expires,
            account=self.account or credential.account,
            extra={**credential.extra, **self.extra},
            failure=None,
        )


class PiFile:
    """One auth.json. Links are followed once, here: pi locks what they lead to."""

    def __init__(self, path: str) -> None:
        self.path = Path(os.path.realpath(path))
        self._lock = self.path.with_name(f"{self.path.name}.lock")
        self._mine: tuple[int, int] | None = None  # what the lock is while it is ours: its inode and time

    def changed_ms(self) -> float:
        """When it was changed last, in ms since 1970; 0 when it is not there."""
        try:
            return self.path.stat().st_mtime_ns / 1e6
        except OSError:
            return 0.0

    @contextlib.contextmanager
    def locked(self, limit_s: float) -> Iterator[None]:
        """Keep pi from changing it. Raises PiUnusable when pi has it for longer than `limit_s`, or it has no place."""
        if not self.path.is_file():
            raise PiUnusable(f"pi's {self.path} is gone")
        self._take(limit_s)
        over = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(over,), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join()
            if self._is_mine():
                with contextlib.suppress(OSError):
                    self._lock.rmdir()

    def login(self, provider: str) -> PiLogin | None:
        """The login of a provider, None where there is none. Raises PiUnusable for a file that is broken."""
        return PiLogin.of(self._read().get(provider))

    def write(self, provider: str, credential: Credential, instead: PiLogin | None) -> None:
        """Put a credential's tokens into the login of a provider; what it does not know of stays. Within `locked`.

        instead: the login that was there when they were asked for. Raises PiUnusable when the file has no login any
        more, or another one, or cannot be written.
        """
        if not self._is_mine():  # it stood still so long that somebody took the lock for abandoned
            self._take(RETAKE_S)
        content = self._read()
        entry = content.get(provider)
        login = PiLogin.of(entry)
        if login is None or instead is None or not isinstance(entry, dict):
            raise PiUnusable(f"pi's {self.path} has no login of {provider} any more")
        if (login.access, login.refresh) != (instead.access, instead.refresh):
            # Somebody logged in, or renewed it, while the lock was lost or without it.
            raise PiUnusable(f"pi's {self.path} has another login of {provider} by now")
        tokens: dict[str, Any] = {
            "type": "oauth",
            "access": credential.access,
            "refresh": credential.refresh,
            "expires": credential.expires,
        }
        if credential.account:
            tokens["accountId"] = credential.account
        content[provider] = {**entry, **tokens}
        if "scopes" in credential.extra:
            content[provider]["scopes"] = credential.extra["scopes"]
        try:
            _replace(self.path, _as_pi_writes(content))
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "it holds what is no JSON"
            raise PiUnusable(f"pi's {self.path} cannot be written: {why}") from None

    def _read(self) -> dict[str, Any]:
        try:
            with self.path.open("rb") as file:
                text = file.read(_MAX_BYTES + 1)
            content = json.loads(text.decode("utf-8-sig")) if len(text) <= _MAX_BYTES else None
        except OSError as exc:
            raise PiUnusable(f"pi's {self.path} cannot be read: {exc.strerror}") from None
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise PiUnusable(f"pi's {self.path} is no JSON object")
        return content

    def _take(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while True:
            try:
                self._lock.mkdir()
                self._note_mine()
                return
            except FileExistsError:
                if self._is_abandoned():
                    continue
            except OSError as exc:
                raise PiUnusable(f"pi's {self.path} cannot be locked: {exc.strerror}") from None
            if time.monotonic() >= end:
                raise PiUnusable(f"pi's {self.path} is in use: {self._lock.name} is held", busy=True)
            time.sleep(_POLL_S)

    def _is_abandoned(self) -> bool:
        """Whether the lock was left behind, and is gone now."""
        try:
            if self._lock.stat().st_mtime >= time.time() - STALE_S:
                return False
            self._lock.rmdir()
        except OSError:
            return False
        return True

    def _note_mine(self) -> None:
        found = self._lock.stat()
        self._mine = found.st_ino, found.st_mtime_ns

    def _is_mine(self) -> bool:
        try:
            found = self._lock.stat()
        except OSError:
            return False
        return self._mine == (found.st_ino, found.st_mtime_ns)

    def _keep(self, over: threading.Event) -> None:
        """Show that the lock is not abandoned."""
        while not over.wait(TOUCH_S) and self._is_mine():
            with contextlib.suppress(OSError):
                os.utime(self._lock)
                self._note_mine()


def _as_pi_writes(content: Mapping[str, Any]) -> bytes:
    """As JSON.stringify(content, null, 2). Raises ValueError for numbers that JSON does not have."""
    try:
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can have and UTF-8 cannot
        return json.dumps(content, indent=2, allow_nan=False).encode()


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole, with the mode and owner that it has; where it cannot be replaced, in place as pi does."""
    found = path.stat()
    new = path.with_name(f"{path.name}.impyard")  # one name: what a killed process left is replaced, not added to
    try:
        if found.st_nlink > 1:
            raise OSError(errno.EXDEV, "replacing it would cut it off its other names")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            if os.geteuid() != found.st_uid or os.getegid() != found.st_gid:
                os.fchown(handle, found.st_uid, found.st_gid)
            os.fchmod(handle, stat.S_IMODE(found.st_mode))
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.rename(new, path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            new.unlink()
        if exc.errno not in _IN_PLACE:
            raise
        with open(path, "r+b") as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
