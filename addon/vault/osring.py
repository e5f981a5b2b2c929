"""The secrets of a credential in the system's keyring, as one JSON value under the service `impyard`.

The package `keyring` is loaded when a credential lies there, and only then. It talks to whatever the desktop has; what
goes wrong there is told by its class alone, as a message could quote what was to be stored.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE = "impyard"
LIMIT_S = 60.0  # a locked keyring asks its user for the password


class _Secrets(msgspec.Struct, omit_defaults=True):
    key: str = ""
    access: str = ""
    refresh: str = ""
    fields: dict[str, str] = {}


def backend_name() -> str:
    """What the system's keyring is, for people. Raises ImpyardError where there is none."""
    return str(_keyring().name)


def emptied(credential: Credential) -> Credential:
    """A credential as the vault's file keeps it: without its secrets, with the names of its fields."""
    return msgspec.structs.replace(
        credential, key="", access="", refresh="", fields=dict.fromkeys(credential.fields, "")
    )


def store(ring_name: str, credential: Credential) -> None:
    """Put its secrets into the keyring. Raises ImpyardError when they are not there afterwards."""
    secrets = _Secrets(credential.key, credential.access, credential.refresh, dict(credential.fields))
    text = msgspec.json.encode(secrets).decode()
    ring = _keyring()
    _ask("write to", lambda: ring.set_password(SERVICE, ring_name, text))
    if _ask("read", lambda: ring.get_password(SERVICE, ring_name)) != text:  # there is one that forgets all
        raise ImpyardError(
            f"the keyring ({ring.name}) did not keep what was stored in it",
            hint="store it without --keyring, or choose a keyring: `python -m keyring diagnose`",
        )


def filled(ring_name: str, credential: Credential) -> Credential:
    """The credential with its secrets from the keyring. Raises ImpyardError when they are not there."""
    ring = _keyring()
    text = _ask("read", lambda: ring.get_password(SERVICE, ring_name))
    try:
        secrets = msgspec.json.decode(text or "", type=_Secrets)
    except (msgspec.MsgspecError, UnicodeError):
        raise ImpyardError(
            f"the keyring ({ring.name}) has no value for the credential {credential.name}",
            hint=f"store it anew: `impyard vault set {credential.name}`, or `impyard vault remove {credential.name}`",
        ) from None
    return msgspec.structs.replace(
        credential, key=secrets.key, access=secrets.access, refresh=secrets.refresh, fields=secrets.fields
    )


def delete(ring_name: str) -> None:
    """Take the secrets out of the keyring, if they are there. Raises ImpyardError when it cannot be asked."""
    ring = _keyring()
    if _ask("read", lambda: ring.get_password(SERVICE, ring_name)) is not None:
        _ask("write to", lambda: ring.delete_password(SERVICE, ring_name))


def _keyring() -> KeyringBackend:
    try:
        import keyring
    except ImportError:
        raise ImpyardError(
            "the Python package `keyring` is not installed, and a credential is to be in the system's keyring",
            hint=f"install it: {sys.executable} -m pip install keyring",
        ) from None
    ring = _ask("find", keyring.get_keyring)
    from keyring.backends import fail, null

    if isinstance(ring, fail.Keyring | null.Keyring):
        raise _out_of_reach("find", "there is none for this session")
    return ring


def _ask[T](what: str, call: Callable[[], T]) -> T:
    """What the keyring answers, in time. Its calls may wait for a person, and cannot be stopped."""
    answers: list[T] = []
    faults: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as exc:  # noqa: BLE001 - back-ends raise what they like
            faults.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    if answers:
        return answers[0]
    raise _out_of_reach(what, type(faults[0]).__name__ if faults else f"no answer within {LIMIT_S:.0f} s")


def _out_of_reach(what: str, reason: str) -> ImpyardError:
    return ImpyardError(
        f"cannot {what} the system's keyring: {reason}",
        hint="unlock it or log in to the desktop; `python -m keyring diagnose` shows which it is. Without --keyring a "
        "credential is kept in a file that only you can read",
    )
