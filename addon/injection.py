"""Which credential an allowed request gets. After the verdict and its destination, before the decision is recorded.

The credential goes only where the decision led: to the judged host, at the place that its entry names, over TLS unless
the entry says otherwise. What is missing, unreadable or cannot be renewed makes the decision a denial. Nothing in here
shows a value: not in a repr, an error or an event.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from mitmproxy import http

from impyard.addon.destination import Destination
from impyard.addon.errors import ImpyardError
from impyard.addon.injectedheaders import Injection, put_on, take_off
from impyard.addon.judge import Verdict, denial
from impyard.addon.request import Request
from impyard.addon.routes import Routed
from impyard.addon.rules import Inject
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.refresh import GOOD_FOR_S, Unavailable
from impyard.addon.vault.sentinels import Sentinels
from impyard.addon.vault.templates import Variant
from impyard.addon.vault.tripwire import Tripwire
from impyard.addon.yamlnodes import nearest

# How long a request waits for a new token, whatever the refresh does; it has limits of its own.
WAIT_S = 60.0
_TOLD = 100  # different causes that the runner hears of
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")

_KINDS = {"api_key": "a key", "oauth": "a login"}
_NO_VAULT_HINT = "this gateway puts no credentials on requests, and the policy wants one on this"
_PLAIN_HINT = "the policy wants a credential on this request, which must not go over a connection without encryption"


class Supply(Protocol):
    """Where usable credentials come from (addon/vault/refresh.py). Both raise ImpyardError where there is none."""

    def at_once(self, name: str, good_for_s: float = GOOD_FOR_S) -> Credential | None:
        """One that is good for so long, None when it has to be renewed first."""

    async def usable(self, name: str, proxy: str | None = None, proxy_ca: Path | None = None) -> Credential:
        """The same, renewed if need be; through a proxy, which may have an authority of its own."""


class Injector:
    """Finds the headers of one gateway's injected requests.

    supply: None for a gateway that has no vault. sentinels: of this run. tell: hears, once for each cause, why a
    credential cannot be used.
    """

    def __init__(
        self,
        supply: Supply | None = None,
        sentinels: Sentinels | None = None,
        tell: Callable[[dict[str, Any]], None] = lambda event: None,
    ) -> None:
        self.sentinels = sentinels
        self._wire = Tripwire(sentinels) if sentinels is not None else None
        self._supply = supply
        self._tell = tell
        self._told: set[tuple[str, str]] = set()
        self._last: tuple[Inject, Variant, Credential, Injection] | None = None

    def __repr__(self) -> str:
        return "<injector>"

    def apply(self, request: http.Request, injection: Injection | None, *, sentinels_pass: bool) -> None:
        """Make the headers of an allowed request those that may leave: without sentinels, and with the credential."""
        if injection is not None:
            put_on(request, injection)  # first: the sentinel in its place is then gone, and mostly there is no other
        if not sentinels_pass:
            take_off(request, self.holds_sentinel)

    def holds_sentinel(self, data: bytes) -> bool:
        """Whether a sentinel of this run stands in `data`, in any encoding that is looked for."""
        return self._wire is not None and self._wire.look(data, ()) is not None

    def at_once(self, request: Request, routed: Routed, good_for_s: float = GOOD_FOR_S) -> Routed | None:
        """An allowed request with its credential, or denied for want of it; None when that has to be waited for.

        What injects nothing, or goes nowhere, stays as it is. good_for_s: how long a login has to be good yet.
        """
        inject = routed.decision.inject
        if inject is None or routed.destination is None:
            return routed
        if self._supply is None:
            return _denied(routed, _NO_VAULT_HINT)
        try:
            _check(request, routed, inject)
            credential = self._supply.at_once(inject.credential, good_for_s)
        except ImpyardError as exc:
            return self._without(routed, inject, exc)
        return None if credential is None else self._with(request, routed, inject, credential)

    async def awaited(self, request: Request, routed: Routed) -> Routed:
        """The same for what `at_once` had no answer for. May be cancelled: a renewal that has begun goes on."""
        inject, destination = routed.decision.inject, routed.destination
        if inject is None or destination is None or self._supply is None:
            raise RuntimeError("nothing to wait for")
        try:
            async with asyncio.timeout(WAIT_S):
                ca = destination.proxy.ca if destination.proxy is not None else None
                credential = await self._supply.usable(inject.credential, _proxy(destination), ca)
        except TimeoutError:
            return self._without(routed, inject, ImpyardError("the renewal of the login does not come to an end"))
        except ImpyardError as exc:
            return self._without(routed, inject, exc)
        return self._with(request, routed, inject, credential)

    def _with(self, request: Request, routed: Routed, inject: Inject, credential: Credential) -> Routed:
        """Routed with the headers of the credential."""
        variant = inject.variant(credential.kind, {name.lower() for name, _ in request.headers})
        try:
            if variant is None:
                raise ImpyardError(f"the policy has no headers for a credential that is {_KINDS[credential.kind]}")
            injection = self._made(inject, variant, credential)
        except ImpyardError as exc:
            return self._without(routed, inject, exc)
        decision = dataclasses.replace(routed.decision, injected=injection.names)
        return dataclasses.replace(routed, decision=decision, injection=injection)

    def _made(self, inject: Inject, variant: Variant, credential: Credential) -> Injection:
        """The headers of a credential, made anew when it or the policy is another object. Raises as `_render` does."""
        last = self._last
        if last is None or last[0] is not inject or last[1] is not variant or last[2] is not credential:
            last = self._last = inject, variant, credential, _render(inject, variant, credential)
        return last[3]

    def _without(self, routed: Routed, inject: Inject, why: ImpyardError) -> Routed:
        """Denied; the person who runs it hears why."""
        cause = inject.credential, why.message
        if cause not in self._told and len(self._told) < _TOLD:
            self._told.add(cause)
            told = {"event": "credential", "name": inject.credential, "what": why.message}
            told["hint"] = "" if isinstance(why, Unavailable) else why.hint or ""  # the former's is the agent's
            self._tell(told)
        return _denied(routed, (why.hint or "") if isinstance(why, Unavailable) else "")


def _check(request: Request, routed: Routed, inject: Inject) -> None:
    """Raises Unavailable where the credential may not go, RuntimeError where no request may."""
    destination = routed.destination
    assert destination is not None
    if (destination.host, destination.port) != (request.host, request.port):
        raise RuntimeError("a destination that is not the judged one")
    if destination.upstream != routed.decision.upstream:
        raise RuntimeError("a destination that the policy does not name")
    if not destination.tls and not inject.over_http:
        raise Unavailable(
            f"credential {inject.credential} may not go to {request.host} over plain http: {inject.at} does not say "
            "`over_http: true`",
            hint=_PLAIN_HINT,
        )


def _render(inject: Inject, variant: Variant, credential: Credential) -> Injection:
    """The headers of a credential. Raises ImpyardError, without any value, when they cannot be made."""
    values = credential.values()
    headers: list[tuple[str, str]] = []
    taken: list[str] = []
    for name, template in variant.headers:
        try:
            text = template.render(values)
        except KeyError:
            missing = sorted(template.fields - values.keys())
            meant = nearest(missing[0], sorted(values))
            advice = f"; did you mean {{{meant}}}?" if meant else ""
            raise ImpyardError(
                f"credential {credential.name} has no {', '.join(missing)}{advice}", hint=f"see {inject.at}"
            ) from None
        except ValueError:
            text = ""
        if not _VALUE.fullmatch(text):
            raise ImpyardError(f"credential {credential.name} makes no legal {name} header") from None
        headers.append((name, text))
        taken += template.taken(values)
    return Injection(headers, inject.owned, credential, taken)


def _proxy(destination: Destination) -> str | None:
    """The URL of the proxy on the way there, with its user: a login is renewed through the same."""
    proxy = destination.proxy
    if proxy is None:
        return None
    scheme, _, rest = str(proxy).removeprefix("via ").partition("://")
    if destination.authorization:
        user, _, password = base64.b64decode(destination.authorization.removeprefix("Basic ")).partition(b":")
        rest = f"{quote(user, safe='')}:{quote(password, safe='')}@{rest}"
    return f"{scheme}://{rest}"


def _denied(routed: Routed, hint: str) -> Routed:
    refusal = denial("credential-unavailable", hint=hint or None)
    decision = dataclasses.replace(
        routed.decision, verdict=Verdict.DENY, reason=refusal.reason, hint=refusal.hint, injected=()
    )
    return Routed(decision)
