"""Credentials that may be used now, and the renewal of logins that may not: one at a time across all runs of the user.

The order of locks is fixed: the vault's lock of this refresh, pi's lock of its file, the vault's lock of a change. pi
takes only its own, so nobody waits for the other in a circle. New tokens are in the vault before anyone gets them; what
has expired is given to nobody. Nothing that is said or stored of a failure holds a value.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential, Failure
from impyard.addon.vault.oauth import SKEW_MS, CannotRenew, Refused, is_usable, read_answer, request_for
from impyard.addon.vault.pilogin import STALE_S, PiFile, PiLogin, PiUnusable
from impyard.addon.vault.store import Vault
from impyard.addon.vault.tokenclient import LIMIT_S, ask
from impyard.addon.vault.tokenlines import NoAnswer

GOOD_FOR_S = SKEW_MS / 1000
HOLD_OFF_MS = 30_000  # so long a refresh that failed is not tried again, by any process
PI_LIMIT_S = STALE_S + 2  # a lock that a dead process left behind is then known to be abandoned
FINISH_S = LIMIT_S + 3  # for what the endpoint may take, and for storing what it says

# For the agent: without numbers and words of outages, which would have it ask again and again.
NO_CREDENTIAL = "the policy puts a credential on this request that the vault does not have; only the user can store it"
LOG_IN_AGAIN = "the login for this host has to be renewed, which only the user can do by logging in again"
NOT_NOW = "the login for this host could not be renewed; the user can see why with `impyard vault list`"
VAULT_FAULT = "the vault with the credential for this host cannot be read; only the user can mend that"

logger = logging.getLogger(__name__)


class Unavailable(ImpyardError):
    """There is no credential to put on a request. The message is for people; the hint for the agent."""


@dataclass(frozen=True, slots=True)
class _Way:
    """To the token endpoint."""

    proxy: str | None = field(repr=False)
    proxy_ca: Path | None


class Refresher:
    """Usable credentials of one vault, for one event loop.

    now: seconds since 1970. note: gets a line for people when a login that pi shares could not be kept in step.
    limit_s: for everything that one token endpoint does. pi_limit_s: how long to wait for pi.
    """

    def __init__(
        self,
        vault: Vault,
        *,
        now: Callable[[], float] = time.time,
        note: Callable[[str], None] = logger.warning,
        limit_s: float = LIMIT_S,
        pi_limit_s: float = PI_LIMIT_S,
    ) -> None:
        self._vault = vault
        self._now = now
        self._note = note
        self._limit_s = limit_s
        self._pi_limit_s = pi_limit_s
        self._going_on: dict[str, asyncio.Future[Credential | Unavailable]] = {}
        self._threads: set[threading.Thread] = set()
        # What the vault could not take, with the refresh token that was asked with: there is no other copy.
        self._unsaved: dict[str, tuple[str, Credential]] = {}
        atexit.register(self.finish)

    def at_once(self, name: str, good_for_s: float = GOOD_FOR_S) -> Credential | None:
        """The credential if it is good for so long yet; None: it has to be awaited with `usable`.

        Raises Unavailable when it is missing, cannot be renewed, or could not be a short while ago.
        """
        credential = self._stored(name)
        if is_usable(credential, self._now_ms(), good_for_s * 1000):
            return credential
        if credential.kind == "api_key":
            raise Unavailable(f"credential {name} has no key", hint=NO_CREDENTIAL)
        self._hold_off(credential)
        return None

    async def usable(self, name: str, proxy: str | None = None, proxy_ca: Path | None = None) -> Credential:
        """The credential, renewed first where it has to be; requests that wait for the same share one attempt.

        proxy: the URL of an HTTP proxy through which the token endpoint is asked. proxy_ca: further roots to verify the
        endpoint with, for a proxy that looks into TLS. Raises Unavailable.
        """
        ready = self.at_once(name)
        if ready is not None:
            return ready
        going_on = self._going_on.get(name)
        if going_on is None:
            going_on = self._going_on[name] = self._start(name, _Way(proxy, proxy_ca))
            going_on.add_done_callback(lambda _: self._going_on.pop(name, None))
        outcome = await asyncio.shield(going_on)  # who gives up waiting does not stop it for the others
        if isinstance(outcome, Unavailable):
            raise Unavailable(outcome.message, hint=outcome.hint)
        return outcome

    @property
    def is_busy(self) -> bool:
        """Whether a refresh is going on."""
        return bool(self._threads)

    def finish(self, limit_s: float = FINISH_S) -> None:
        """Wait for what is going on: a refresh token that was spent would be lost without the answer."""
        end = time.monotonic() + limit_s
        for thread in list(self._threads):
            thread.join(max(0.0, end - time.monotonic()))

    def _start(self, name: str, way: _Way) -> asyncio.Future[Credential | Unavailable]:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Credential | Unavailable] = loop.create_future()

        def settle(found: Credential | Unavailable) -> None:
            if not outcome.done():
                outcome.set_result(found)

        def renew() -> None:
            try:
                found: Credential | Unavailable = self._renewed(name, way)
            except Unavailable as exc:
                found = exc
            except ImpyardError as exc:
                found = Unavailable(exc.message, hint=NOT_NOW)
            except Exception as exc:  # noqa: BLE001  # its text may hold a value
                found = Unavailable(f"renewing credential {name} failed: {type(exc).__name__}", hint=NOT_NOW)
            finally:
                self._threads.discard(threading.current_thread())
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, found)

        thread = threading.Thread(target=renew, name=f"refresh {name}", daemon=True)
        self._threads.add(thread)
        thread.start()
        return outcome

    def _renewed(self, name: str, way: _Way) -> Credential:
        """The credential, renewed here or by somebody else meanwhile."""
        with self._vault.refreshing(name, self._limit_s + self._pi_limit_s + 10), contextlib.ExitStack() as locks:
            credential = self._stored(name)
            if name in self._unsaved:
                credential = self._store(*self._unsaved[name])
            if is_usable(credential, self._now_ms()):
                return credential
            self._hold_off(credential)
            if not credential.pi_file:
                return self._checked(self._store(credential.refresh, self._asked(credential, way)))
            pi, login = PiFile(credential.pi_file), None
            try:
                locks.enter_context(pi.locked(self._pi_limit_s))
                login = pi.login(credential.family)
                why = "" if login is not None else f"pi's {pi.path} has no login of {credential.family} any more"
            except PiUnusable as exc:
                if exc.busy:
                    return self._checked(self._store(credential.refresh, self._failed(credential, Refused(str(exc)))))
                why = str(exc)
            if why:
                self._note(f"{why}: credential {name} is renewed without pi, which may have to log in again")
            return self._renewed_with_pi(credential, way, pi, login)

    def _renewed_with_pi(self, credential: Credential, way: _Way, pi: PiFile, login: PiLogin | None) -> Credential:
        """What pi has got meanwhile, or what the endpoint gives, written back. login: None where pi has none."""
        failure = self._failure(credential)
        if login is not None and login.is_newer(credential):
            credential = self._store(credential.refresh, login.taken_by(credential))
            if is_usable(credential, self._now_ms()):
                return credential
        elif failure is not None and self._is_recent(failure):  # something else in pi's file changed
            again = self._failed(credential, Refused(failure.what, failure.final))
            return self._checked(self._store(credential.refresh, again))
        after = self._asked(credential, way)
        try:
            stored = self._store(credential.refresh, after)
        finally:
            # Whatever became of the vault: pi must not be left with a refresh token that is spent.
            if login is not None and (after.access, after.refresh) != (credential.access, credential.refresh):
                try:
                    pi.write(credential.family, after, login)
                except PiUnusable as exc:
                    self._note(f"{exc}: credential {after.name} was renewed without pi, which may have to log in again")
        return self._checked(stored)

    def _asked(self, credential: Credential, way: _Way) -> Credential:
        """The credential after the endpoint was asked: with new tokens, or with a failure."""
        sent_ms = self._now_ms()
        try:
            answer = ask(request_for(credential), way.proxy, way.proxy_ca, limit_s=self._limit_s)
            outcome = read_answer(credential, answer.status, answer.body, now_ms=sent_ms, server_ms=answer.date_ms)
        except CannotRenew as exc:
            outcome = Refused(str(exc), final=True)
        except NoAnswer as exc:
            outcome = Refused(str(exc))
        if isinstance(outcome, Refused):
            return self._failed(credential, outcome)
        return msgspec.structs.replace(
            credential,
            access=outcome.access,
            refresh=outcome.refresh or credential.refresh,
            expires=outcome.expires,
            account=outcome.account,
            extra={**credential.extra, **outcome.extra},
            failure=None,
        )

    def _failed(self, credential: Credential, refused: Refused) -> Credential:
        return msgspec.structs.replace(
            credential,
            refresh=refused.refresh or credential.refresh,
            failure=Failure(int(self._now_ms()), refused.what, refused.final),
        )

    def _store(self, used: str, after: Credential) -> Credential:
        """Store what a refresh made of a credential, and return what is stored then: another login, if the user has
        put one there meanwhile. used: the refresh token that was asked with."""

        def change(current: Credential | None) -> Credential | None:
            if current is None or current.refresh != used:
                return None
            return msgspec.structs.replace(
                current,
                access=after.access,
                refresh=after.refresh,
                expires=after.expires,
                account=after.account,
                extra=after.extra,
                failure=after.failure,
            )

        try:
            stored = self._vault.update(after.name, change)
        except ImpyardError:
            self._unsaved[after.name] = used, after
            raise
        self._unsaved.pop(after.name, None)
        if stored is None:
            raise Unavailable(f"the vault has no credential {after.name}", hint=NO_CREDENTIAL)
        return stored

    def _stored(self, name: str) -> Credential:
        try:
            found = self._vault.read().credentials.get(name)
        except ImpyardError as exc:
            raise Unavailable(exc.message, hint=VAULT_FAULT) from None
        if found is None:
            raise Unavailable(f"the vault has no credential {name}", hint=NO_CREDENTIAL)
        return found

    def _checked(self, credential: Credential) -> Credential:
        """The credential if it may be used. Raises Unavailable."""
        if is_usable(credential, self._now_ms()):
            return credential
        what = credential.failure.what if credential.failure else "it is not good for long enough"
        final = credential.failure is not None and credential.failure.final
        raise self._unavailable(credential.name, what, final)

    def _hold_off(self, credential: Credential) -> None:
        """Raises Unavailable where there is no use in another refresh yet."""
        failure = self._failure(credential)
        if failure is None or not self._is_recent(failure):
            return
        if credential.pi_file and PiFile(credential.pi_file).changed_ms() > failure.at:
            return  # perhaps its user has logged in again
        raise self._unavailable(credential.name, failure.what, failure.final)

    def _failure(self, credential: Credential) -> Failure | None:
        used, after = self._unsaved.get(credential.name, ("", credential))
        return after.failure if used == credential.refresh else credential.failure

    def _is_recent(self, failure: Failure) -> bool:
        return failure.final or 0 <= self._now_ms() - failure.at < HOLD_OFF_MS

    def _unavailable(self, name: str, what: str, final: bool) -> Unavailable:
        return Unavailable(
            f"credential {name} has expired and could not be renewed ({what})", hint=LOG_IN_AGAIN if final else NOT_NOW
        )

    def _now_ms(self) -> float:
        return self._now() * 1000
