"""What a gateway looks for in the heads of requests: its sentinels, and each credential's real values of late.

It names what is found and where, and makes of a request what may be written down. It must not know mitmproxy, nor
forward anything.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from impyard.addon.errors import ImpyardError, PolicyError
from impyard.addon.judge import Decision, Secret, denial
from impyard.addon.policy import Policy
from impyard.addon.redact import REDACTED
from impyard.addon.request import Request
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.masking import Mask
from impyard.addon.vault.sentinels import Sentinels
from impyard.addon.vault.tripwire import SHORTEST, Found, Tripwire

logger = logging.getLogger(__name__)

# What was decided before anybody looked for secrets stays the reason: nothing of the policy is known then.
_STRONGER = frozenset(("canary", "policy-broken", "judge-error"))
# Values that a credential has had: a login is renewed about once an hour, and its older tokens are worth nothing then.
_REMEMBERED = 8
# For each credential: few entries put it on in different headers.
_MASKS = 2
# How old what is known of the vault may be: a look at its file costs as much as a look through 100 kB. What is put on
# a request is known at once.
_LOOKED_EVERY_S = 0.1

Credentials = Mapping[str, Credential]


class SecretWatch:
    """The tripwire of one gateway, kept up to date.

    sentinels: of this run. vault: what it holds now; asked ten times a second, so it has to be quick, and to give the
    same object while nothing has changed. Values that are gone from it are still looked for.
    """

    def __init__(self, sentinels: Sentinels | None = None, vault: Callable[[], Credentials] = dict) -> None:
        self._sentinels = sentinels
        self._vault = vault
        self._held: Credentials | None = None
        self._looked = 0.0
        self._known: dict[str, list[Credential]] = {}
        self._clean: Request | None = None  # the last request, and
        self._names = b""  # the last names, in which nothing was found
        self._masks: dict[str, dict[tuple[str, ...], Mask]] = {}  # by credential
        self._last_mask: tuple[Credential, tuple[str, ...], Mask] | None = None
        self._build()
        self.tripwire()

    def __repr__(self) -> str:
        return "<watch for secrets>"

    def tripwire(self) -> Tripwire:
        """As of a moment ago; another object when there is more to look for."""
        now = time.monotonic()
        if now < self._looked + _LOOKED_EVERY_S:
            return self._tripwire
        self._looked = now
        try:
            held = self._vault()
        except ImpyardError:
            return self._tripwire  # what cannot be read is put on no request either
        if held is not self._held:
            self._held = held
            self._learn(held.values())
        return self._tripwire

    def learn(self, credential: Credential) -> None:
        """Look for the values of a credential that the vault may not hold yet."""
        if credential not in self._known.get(credential.name, ()):
            self._learn([credential])

    def judged(self, request: Request, decision: Decision, policy: Policy | PolicyError) -> Decision:
        """The decision on a request, made a denial where its head holds what must not go to its host."""
        tripwire = self.tripwire()
        if not tripwire:
            return decision
        bound, sentinels_pass = permitted(policy, request.host)
        text, names = _text(request), _names(request)
        for sentinel in self._own(bound):
            if sentinel in text:
                text = text.replace(sentinel, b"\0")
        if tripwire.look(text, ()) is None and (names == self._names or self._any_case.look(names, ()) is None):
            self._clean, self._names = request, names
            return decision
        if decision.reason in _STRONGER or (found := self._where(_parts(request), bound, sentinels_pass)) is None:
            return decision
        return dataclasses.replace(denial("secret-in-request"), secret=found)

    def clean(self, request: Request) -> Request:
        """A request as it may be written down: without any real value, and without sentinels."""
        if request is self._clean or not self.tripwire():
            return request
        try:
            masked = self._masked
            return dataclasses.replace(
                request,
                method=masked(request.method),
                host=_by_label(masked, request.host),
                path=masked(request.path),
                query=masked(request.query),
                headers=tuple((masked(name), masked(value)) for name, value in request.headers),
                host_header=request.host_header and _by_label(masked, request.host_header),
                sni=request.sni and _by_label(masked, request.sni),
                upgrade=masked(request.upgrade),
            )
        except Exception as exc:
            logger.error("a request could not be looked through for secrets", exc_info=exc)
            return Request(REDACTED, request.scheme, REDACTED, request.port, REDACTED, "", http=request.http)

    def clean_text(self, text: str | None) -> str | None:
        """The same for a line about a request."""
        return text and self._masked(text)

    def mask(self, credential: Credential, taken: Iterable[str]) -> Mask:
        """What hides in an answer what was put on its request: the credential's secrets, and what the headers took of
        it, which may be in base64."""
        taken = tuple(taken)
        last = self._last_mask
        if last is not None and last[0] is credential and last[1] == taken:
            return last[2]
        values = tuple(dict.fromkeys(_words([*credential.secrets().values(), *taken])))
        masks = self._masks.setdefault(credential.name, {})
        if (mask := masks.get(values)) is None:
            if len(masks) >= _MASKS:
                del masks[next(iter(masks))]
            # A key as short as `ollama` is a word that answers have of their own.
            mask = masks[values] = Mask(value.encode() for value in values if len(value) >= SHORTEST)
        self._last_mask = credential, taken, mask
        return mask

    # -- what is looked for -----------------------------------------------------------------------------------------

    def _learn(self, credentials: Iterable[Credential]) -> None:
        changed = False
        for credential in credentials:
            known = self._known.setdefault(credential.name, [])
            if all(credential.secrets() != other.secrets() for other in known):
                known.append(credential)
                del known[:-_REMEMBERED]
                changed = True
        if changed:
            self._build()

    def _build(self) -> None:
        real = [credential for known in self._known.values() for credential in known]
        stand_ins = self._sentinels.by_name.values() if self._sentinels is not None else ()
        tripwire, any_case = Tripwire(self._sentinels, real), Tripwire(None, real, any_case=True)
        self._secrets = [value for each in (*real, *stand_ins) for value in each.secrets().values()]
        self._everything: Mask | None = None  # made when something was found
        self._clean, self._names = None, b""
        self._tripwire, self._any_case = tripwire, any_case

    def _own(self, bound: Collection[str]) -> list[bytes]:
        """The sentinels that may be in a request with these bindings, as they stand."""
        if self._sentinels is None or not bound:
            return []
        held = [self._sentinels.by_name[name] for name in bound if name in self._sentinels.by_name]
        return [value.encode() for each in held for value in each.secrets().values()]

    # -- where it is ------------------------------------------------------------------------------------------------

    def _where(self, parts: list[tuple[str, str]], bound: Collection[str], sentinels_pass: bool) -> Secret | None:
        for where, text in parts:
            found: Found | None = self._tripwire.look(_bytes(text), bound, sentinels_pass=sentinels_pass)
            if found is None and (where == "host" or where.startswith("header ")):
                found = self._any_case.look(_bytes(text), bound)
            if found is not None:
                where, _, name = where.partition(" ")
                return Secret(found.credential, found.kind, f"{where} {self._masked(name)}" if name else where)
        return None

    def _masked(self, text: str) -> str:
        """`text` without what is found in it; redacted as a whole where that is encoded."""
        data = _bytes(text)
        if self._tripwire.look(data, ()) is None and self._any_case.look(data, ()) is None:
            return text
        if self._everything is None:
            self._everything = Mask(value.encode() for value in _words(self._secrets))
        data = self._everything.whole(data)
        if self._tripwire.look(data, ()) is None and self._any_case.look(data, ()) is None:
            return data.decode("latin-1")
        return REDACTED


def permitted(policy: Policy | PolicyError, host: str) -> tuple[frozenset[str], bool]:
    """What may go to a canonical host: the credentials that are bound to it, and whether every sentinel may."""
    if isinstance(policy, PolicyError):
        return frozenset(), False
    return policy.bound_to(host), policy.sentinels_pass(host)


def _parts(request: Request) -> list[tuple[str, str]]:
    """All that a request's head says, and where it says it."""
    parts = [
        ("host", request.host),
        ("path", request.path),
        ("query", request.query),
        ("method", request.method),
        ("host", request.host_header or ""),
        ("host", request.sni or ""),
    ]
    for name, value in request.headers:
        parts.append((f"header {name.lower()}", name))
        parts.append((f"header {name.lower()}", value))
    return parts


def _text(request: Request) -> bytes:
    """The same in one piece. Nothing that is found holds a NUL."""
    head = [request.host, request.path, request.query, request.method, request.host_header or "", request.sni or ""]
    for pair in request.headers:
        head += pair
    return _bytes("\0".join(head))


def _names(request: Request) -> bytes:
    """What loses its letters' case on the way."""
    names = [request.host, request.host_header or "", request.sni or ""]
    return _bytes("\0".join([*names, *[name for name, _ in request.headers]]))


def _bytes(text: str) -> bytes:
    return text.encode("latin-1", "replace")


def _by_label(masked: Callable[[str], str], host: str) -> str:
    """A host masked label by label, or as a whole where that is not enough."""
    labels = ".".join(masked(label) for label in host.split("."))
    return masked(labels)


def _words(values: Iterable[str]) -> list[str]:
    """The values, and what stands behind a scheme such as `Bearer`."""
    found = list(values)
    return found + [words[1] for value in found if len(words := value.split()) == 2]
