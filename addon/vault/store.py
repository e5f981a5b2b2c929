"""The vault: the user's credentials in one file that only its owner reads, changed whole and under a lock.

`vault.json` is `{"version": 1, "credentials": {name: …}, "removed": [name…], "keyring": [name…]}`. The secrets of the
names in `keyring` are not in it but in the system's keyring (`osring.py`). `removed` has the names that the user took
out, so that nothing imports them again by itself. Nothing here knows what a credential is for, and no message shows
anything of one but its name.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import msgspec

from impyard.addon.errors import ImpyardError
from impyard.addon.vault import osring
from impyard.addon.vault.credential import NAME, Credential
from impyard.addon.vault.privatefolder import PrivateFolder, Stamp

FILE = "vault.json"
LOCK = "lock"
VERSION = 1
MAX_FILE_BYTES = 4 << 20
MAX_VALUE_CHARACTERS = 64 << 10  # an upstream's head has no room for more than that; the longest JWTs have some KB
LOCK_LIMIT_S = 10  # a change takes milliseconds, with a keyring that asks its user some seconds
# A file changed so recently may change again without its stamp doing so: clocks of file systems tick every few ms.
_SETTLED_NS = 100_000_000

_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class _Document(msgspec.Struct, omit_defaults=True):
    version: int
    credentials: dict[str, Credential] = {}
    removed: set[str] = set()
    keyring: set[str] = set()


class _Version(msgspec.Struct):
    version: int


@dataclass(frozen=True)
class Contents:
    """What the vault holds. credentials: by name. removed: names that the user took out and nothing imports by itself.
    in_keyring: names of those whose secrets the system's keyring keeps."""

    credentials: Mapping[str, Credential] = field(default_factory=lambda: MappingProxyType({}))
    removed: frozenset[str] = frozenset()
    in_keyring: frozenset[str] = frozenset()


def default_dir() -> Path:
    """Where the user's vault lies. It need not exist yet."""
    from impyard.certs.authority import data_dir

    return data_dir() / "vault"


def fault_of_value(value: str) -> str:
    """Why no credential can have this value, for people and without any of it; "" for one that can be used."""
    if not value:
        return "it is empty"
    if len(value) > MAX_VALUE_CHARACTERS:
        return f"it is longer than {MAX_VALUE_CHARACTERS >> 10} KiB, which no header carries"
    if "\n" in value or "\r" in value:
        return "it has more than one line"
    if any(ord(sign) < 0x20 or ord(sign) == 0x7F for sign in value):
        return "it has control characters, which no header carries"
    if not value.isascii():
        return "it has characters beyond ASCII, which no header carries"
    if not _VALUE.fullmatch(value):
        return "it has a space at its beginning or end"
    return ""


def check(credential: Credential) -> None:
    """Raises ImpyardError for a credential that the vault does not take: its name, or a value that is unfit."""
    if not NAME.fullmatch(credential.name):
        raise ImpyardError(
            f"{credential.name[:80]!r} is no name for a credential",
            hint="names are of a-z, 0-9, `.`, `_` and `-`, begin with a letter or digit, 64 characters at most",
        )
    for where, value in {**credential.secrets(), "account_id": credential.account}.items():
        if value and (fault := fault_of_value(value)):
            raise ImpyardError(
                f"credential {credential.name}: its {where[:80]} cannot be used: {fault}",
                hint=f"`impyard vault set {credential.name}` stores another value",
            )
    if not credential.secrets():
        raise ImpyardError(
            f"credential {credential.name} has no value", hint=f"`impyard vault set {credential.name}` stores one"
        )


class Vault:
    """The vault in `folder`. Safe to use from several threads and processes.

    Every method raises ImpyardError: for a vault that is damaged, open to others, of a later impyard or out of reach,
    and for a keyring that cannot be asked. Nothing is changed then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = PrivateFolder(folder, "the vault")
        self._cache: tuple[Stamp, Contents] | None = None

    def read(self) -> Contents:
        """What it holds, with all secrets; kept as long as the file is the same."""
        cache = self._cache
        if cache is not None and cache[0] == self._files.stamp(FILE):
            return cache[1]
        document, stamp = self._load()
        contents = self._contents(document, {name: self._whole(document, name) for name in document.credentials})
        if stamp is not None and time.time_ns() - stamp[-1] > _SETTLED_NS:
            self._cache = (stamp, contents)
        return contents

    def overview(self) -> Contents:
        """What it holds, without asking the keyring: credentials that lie there come without their secrets."""
        document, _ = self._load()
        return self._contents(document, document.credentials)

    def put(self, credential: Credential, *, keyring: bool | None = None) -> None:
        """Store a credential in place of the one of its name, also of a removed one. `keyring`: whether its secrets go
        to the system's keyring; None: where they are now."""
        check(credential)
        with self._changing() as document:
            self._store(document, credential, keyring)

    def update(
        self,
        name: str,
        change: Callable[[Credential | None], Credential | None],
        *,
        revive: bool = False,
        keyring: bool | None = None,
    ) -> Credential | None:
        """Store what `change` makes of the newest state of a credential, and return what is stored in the end.

        `change` gets None where there is none and returns None to leave things as they are; nothing else changes the
        vault meanwhile. A removed credential stays removed, and `change` is not asked: only `put` and `revive` bring
        it back.
        """
        with self._changing() as document:
            if name in document.removed and not revive:
                return None
            current = self._whole(document, name) if name in document.credentials else None
            changed = change(current)
            if changed is None:
                return current
            check(changed)
            if changed.name != name:
                raise ValueError("a credential keeps its name")
            if changed != current or keyring not in (None, name in document.keyring):
                self._store(document, changed, keyring)
            return changed

    def remove(self, name: str) -> bool:
        """Take a credential out, and keep in mind that it was. Returns whether there was one."""
        with self._changing() as document:
            was_there = document.credentials.pop(name, None) is not None
            in_keyring = name in document.keyring
            document.keyring.discard(name)
            document.removed.add(name)
            self._save(document)
            if in_keyring:
                osring.delete(self._ring_name(name))
        return was_there

    @contextlib.contextmanager
    def refreshing(self, name: str, limit_s: float) -> Iterator[None]:
        """Refresh one credential alone among all processes and threads; waits up to `limit_s` for another's refresh."""
        if not NAME.fullmatch(name):
            raise ValueError("no name for a credential")
        with self._files.lock(f"{name}.refresh", limit_s):
            yield

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_Document]:
        with self._files.lock(LOCK, LOCK_LIMIT_S):
            document, _ = self._load()
            self._cache = None
            yield document

    def _store(self, document: _Document, credential: Credential, keyring: bool | None) -> None:
        name = credential.name
        was_in_keyring = name in document.keyring
        document.removed.discard(name)
        if was_in_keyring if keyring is None else keyring:
            osring.store(self._ring_name(name), credential)
            document.credentials[name] = osring.emptied(credential)
            document.keyring.add(name)
            self._save(document)
            return
        document.credentials[name] = credential
        document.keyring.discard(name)
        self._save(document)
        if was_in_keyring:
            osring.delete(self._ring_name(name))

    def _whole(self, document: _Document, name: str) -> Credential:
        credential = document.credentials[name]
        return osring.filled(self._ring_name(name), credential) if name in document.keyring else credential

    def _contents(self, document: _Document, credentials: Mapping[str, Credential]) -> Contents:
        return Contents(MappingProxyType(dict(credentials)), frozenset(document.removed), frozenset(document.keyring))

    def _ring_name(self, name: str) -> str:
        """The keyring's user name of a credential: two vaults of one user must not share one."""
        return f"{name} of {self.folder}"

    def _load(self) -> tuple[_Document, Stamp | None]:
        found = self._files.read(FILE, MAX_FILE_BYTES)
        if found is None:
            return _Document(VERSION), None
        content, stamp = found
        # `from None`, here and below: what the decoder says may quote a value.
        try:
            version = msgspec.json.decode(content, type=_Version).version
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise self._damaged() from None
        if version != VERSION:
            raise ImpyardError(
                f"the vault {str(self.folder / FILE)!r} has version {version}; this impyard reads version {VERSION}",
                hint="use the impyard that wrote it",
            )
        try:
            document = msgspec.json.decode(content, type=_Document)
            for name, credential in document.credentials.items():
                if credential.name != name:
                    raise self._damaged("an entry has the name of another")
                if name not in document.keyring:
                    self._check_stored(credential)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise self._damaged() from None
        document.keyring &= document.credentials.keys()
        return document, stamp

    def _save(self, document: _Document) -> None:
        content = msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"
        if len(content) > MAX_FILE_BYTES:
            raise ImpyardError(
                f"the vault would be larger than {MAX_FILE_BYTES >> 20} MiB", hint="`impyard vault remove` makes room"
            )
        self._files.replace(FILE, content)

    def _check_stored(self, credential: Credential) -> None:
        try:
            check(credential)
        except ImpyardError as exc:
            raise self._damaged(exc.message) from None

    def _damaged(self, how: str = "it is no JSON of impyard's") -> ImpyardError:
        path = self.folder / FILE
        return ImpyardError(
            f"the vault {str(path)!r} is damaged: {how}",
            hint=f"put back a copy of it; or `mv {path} {path}.damaged`, then `impyard vault import` and "
            "`impyard vault set NAME` for keys that were set by hand",
        )
