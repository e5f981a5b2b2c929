"""The injector by itself: where a credential may go at all, and that its values show nowhere."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import http

from impyard.addon.destination import Destination
from impyard.addon.injectedheaders import Injection, put_on
from impyard.addon.injection import Injector
from impyard.addon.judge import Decision, Verdict
from impyard.addon.request import Request
from impyard.addon.routes import Routed
from impyard.addon.rules import Inject, Proxy, Upstream
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.refresh import Unavailable
from impyard.addon.vault.templates import Template, Variant

VALUE = "a-value-that-nobody-may-see"
REQUEST = Request("GET", "https", "a.test", 443, "/", "")
PROXY = Proxy("http", "proxy.test", 3128)


def inject(*, over_http: bool = False, text: str = "Bearer {key}", kind: str | None = None) -> Inject:
    return Inject("one", (Variant(kind, (("authorization", Template.parse(text)),)),), "policy:1", over_http)


class Stored:
    """A supply with one credential, or one that has to be waited for."""

    def __init__(self, credential: Credential | None, *, later: Credential | None = None) -> None:
        self.credential, self.later, self.proxies = credential, later, list[str | None]()

    def at_once(self, name: str, good_for_s: float = 60) -> Credential | None:
        return self.credential

    async def usable(self, name: str, proxy: str | None = None, proxy_ca: Path | None = None) -> Credential:
        self.proxies.append(proxy)
        await asyncio.sleep(0)
        if self.later is None:
            raise Unavailable("it cannot be renewed", hint="log in again")
        return self.later


def routed(wants: Inject | None = None, **changes: Any) -> Routed:
    place: dict[str, Any] = {"host": "a.test", "port": 443, "tls": True, "upstream": None, "authorization": ""}
    place |= changes
    decision = Decision(Verdict.ALLOW, "rule", inject=wants or inject(), upstream=changes.get("upstream"))
    return Routed(decision, Destination(addresses=(("198.51.100.1", 443),), **place))


KEY = Credential(name="one", kind="api_key", key=VALUE)


def at_once(where: Routed, credential: Credential = KEY) -> Routed:
    found = Injector(Stored(credential)).at_once(REQUEST, where)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "wrong",
    [{"host": "b.test"}, {"port": 8443}, {"host": "sub.a.test"}],
    ids=str,
)
def test_a_destination_that_is_not_the_judged_one_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError):
        at_once(routed(**wrong))
    assert at_once(routed()).injection is not None


def test_a_destination_that_the_decision_does_not_name_is_an_error() -> None:
    decision = routed().decision
    elsewhere = routed(upstream=Upstream("https", "b.test", 443)).destination
    with pytest.raises(RuntimeError):
        at_once(Routed(decision, elsewhere))


@pytest.mark.parametrize("over_http", [False, True])
def test_a_plain_connection_gets_it_only_where_the_entry_says_so(over_http: bool) -> None:
    found = at_once(routed(inject(over_http=over_http), tls=False))
    assert (found.injection is not None) is over_http
    assert found.decision.reason == ("rule" if over_http else "credential-unavailable")
    assert found.decision.injected == (("authorization",) if over_http else ())


def test_a_renewal_goes_through_the_proxy_of_the_entry_with_its_user() -> None:
    supply = Stored(None, later=KEY)
    authorization = "Basic dTpwOkA="  # u, p:@
    where = routed(upstream=PROXY, authorization=authorization)
    found = asyncio.run(Injector(supply).awaited(REQUEST, where))
    assert found.injection is not None
    assert supply.proxies == ["http://u:p%3A%40@proxy.test:3128"]


def test_what_cannot_be_renewed_is_a_denial_with_the_hint_for_the_agent() -> None:
    told: list[dict[str, Any]] = []
    injector = Injector(Stored(None), None, told.append)
    for _ in range(3):
        found = asyncio.run(injector.awaited(REQUEST, routed()))
        assert (found.destination, found.decision.reason, found.decision.hint) == (
            None,
            "credential-unavailable",
            "log in again",
        )
    assert told == [{"event": "credential", "name": "one", "what": "it cannot be renewed", "hint": ""}]  # the agent's


@pytest.mark.parametrize(
    ("text", "credential"),
    [
        ("Bearer {access}", KEY),
        ("{key}", Credential(name="one", kind="api_key", key=f"{VALUE}\r\nx: y")),
        ("{key}", Credential(name="one", kind="api_key", key=f"{VALUE} ")),
        ("{key}", Credential(name="one", kind="api_key", key=f"{VALUE}é")),
        ("{key}", Credential(name="one", kind="api_key", key=f"{VALUE}\x00")),
    ],
)
def test_a_header_that_cannot_be_made_is_a_denial_without_its_value(text: str, credential: Credential) -> None:
    told: list[dict[str, Any]] = []
    found = Injector(Stored(credential), None, told.append).at_once(REQUEST, routed(inject(text=text)))
    assert found is not None
    assert found.decision.reason == "credential-unavailable"
    assert VALUE not in str(told) + str(found)


def test_a_kind_that_the_policy_has_no_headers_for_is_a_denial() -> None:
    assert at_once(routed(inject(kind="oauth"))).decision.reason == "credential-unavailable"


def test_without_a_vault_it_is_a_denial() -> None:
    found = Injector().at_once(REQUEST, routed())
    assert found is not None and found.decision.reason == "credential-unavailable"


def test_what_injects_nothing_stays_as_it_is() -> None:
    where = Routed(Decision(Verdict.ALLOW, "rule"), routed().destination)
    assert Injector().at_once(REQUEST, where) is where


def test_values_show_in_no_repr() -> None:
    supply = Stored(KEY)
    found = Injector(supply).at_once(REQUEST, routed())
    assert found is not None and found.injection is not None
    assert dict(found.injection.headers) == {"authorization": f"Bearer {VALUE}"}
    for each in (found, found.injection, Injector(supply), found.decision, KEY, inject()):
        assert VALUE not in repr(each) + str(each)


def test_putting_on_twice_is_putting_on_once() -> None:
    request = http.Request.make("GET", "https://a.test/", headers=http.Headers(Authorization="Bearer mine", X="1"))
    injection = Injection([("authorization", "Bearer ours")], ["authorization", "x-api-key"], KEY)
    put_on(request, injection)
    once = copy.copy(request.headers.fields)
    put_on(request, injection)
    assert request.headers.fields == once
    assert request.headers.get_all("authorization") == ["Bearer ours"]
    assert VALUE not in repr(request)
