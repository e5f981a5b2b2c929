"""Where an allowed request goes: to the checked addresses of its host, or to where the policy says instead."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from impyard.addon.destination import Destination
from impyard.addon.hostproxies import HostProxies, NoProxy
from impyard.addon.injectedheaders import Injection
from impyard.addon.judge import Decision, Verdict
from impyard.addon.policy import Proxy
from impyard.addon.publicaddresses import leads_inside
from impyard.addon.request import Request
from impyard.addon.resolve import PrivateAddress, Resolver, Unresolvable


@dataclass(frozen=True, slots=True)
class Routed:
    """A decision, now that it is known where the request would go.

    destination: None for a denial, and where there is nowhere to go, which `failure` then explains.
    injection: the headers that are put on the request.
    """

    decision: Decision
    destination: Destination | None = None
    failure: str = ""
    injection: Injection | None = None


class Router:
    """Finds the destinations of one gateway. Only allowed names may be asked about: a question carries data too."""

    def __init__(self, resolver: Resolver | None = None, proxies: HostProxies | None = None) -> None:
        self._resolver = resolver or Resolver()
        self._proxies = proxies or HostProxies()

    def at_once(self, request: Request, decision: Decision) -> Routed | None:
        """Where an allowed request goes; None where its name has to be looked up first."""
        upstream = decision.upstream
        if isinstance(upstream, Proxy):
            try:
                upstream = self._proxies.chosen(upstream, request.scheme, request.host, request.port)
            except NoProxy as exc:
                return Routed(decision, failure=str(exc))
            decision = dataclasses.replace(decision, upstream=upstream)
        if isinstance(upstream, Proxy):
            # The proxy looks the name up, not we: what is known without a question is refused here.
            if leads_inside(request.host):
                return _private(request, decision)
            address = upstream.host, upstream.port
            authorization = self._proxies.authorization(upstream)
            tls = request.scheme == "https"
            return Routed(decision, Destination(request.host, request.port, tls, upstream, (address,), authorization))
        if upstream is not None:
            address = upstream.host, upstream.port
            tls = upstream.scheme == "https"
            return Routed(decision, Destination(request.host, request.port, tls, upstream, (address,)))
        if addresses := self._resolver.remembered(request.host):
            return _direct(request, decision, addresses)
        return None

    async def look_up(self, request: Request, decision: Decision) -> Routed:
        """Where an allowed request goes for which `at_once` knew nothing."""
        decision = dataclasses.replace(decision, upstream=None)  # the environment's proxy, when it says "directly"
        try:
            return _direct(request, decision, await self._resolver.resolve(request.host))
        except PrivateAddress:
            return _private(request, decision)
        except Unresolvable as exc:
            return Routed(decision, failure=str(exc))


def _direct(request: Request, decision: Decision, addresses: tuple[str, ...]) -> Routed:
    dialled = tuple((address, request.port) for address in addresses)
    return Routed(decision, Destination(request.host, request.port, request.scheme == "https", None, dialled))


def _private(request: Request, decision: Decision) -> Routed:
    hint = f"{request.host} leads to an address that is not public; only an entry with an upstream reaches one"
    return Routed(dataclasses.replace(decision, verdict=Verdict.DENY, reason="private-address", hint=hint))
