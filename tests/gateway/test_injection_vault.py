"""What becomes of injected requests when the vault, the policy or a login changes: the newest counts, or it is denied.

Each denial ends with its control: the same request once the credential is there again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from impyard.addon.vault.credential import Credential
from impyard.addon.vault.credential import TokenEndpoint as Where
from impyard.runner.gateway import spawn
from tests.support.gateway import Reply, read_reply
from tests.support.keybed import A_KEY, ACCESS, KEY, KeyBed, entry, key_bed
from tests.support.origin import Pki
from tests.support.tokenendpoint import Asking, TokenEndpoint, given, says

pytestmark = pytest.mark.gateway

OTHER_KEY = "sk-ant-api03-" + "W3another" * 6
BOUND = entry("bound.test", "{credential: key, template: anthropic}")
FREE = entry("bound.test")
ENTRIES = (
    BOUND,
    entry("other.test"),
    entry("absent.test", "{credential: absent, template: npm}"),
    entry("plain.test", "{credential: key, template: anthropic, over_http: true}", upstream="{plain}"),
    entry("late.test", "{credential: late, template: anthropic}"),
    entry("late.test", "{credential: late, template: anthropic}", more="port: 8443"),
)
HOSTS = ["bound.test", "other.test", "absent.test", "late.test"]


@pytest.fixture(scope="module")
def module_bed(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[KeyBed]:
    with key_bed(tmp_path_factory.mktemp("vault"), pki, *ENTRIES, hosts=HOSTS) as bed:
        yield bed


@pytest.fixture
def bed(module_bed: KeyBed) -> Iterator[KeyBed]:
    module_bed.clear()
    yield module_bed
    assert module_bed.holds_none_of(KEY, OTHER_KEY, ACCESS, "an-expired-access-token", "refresh-0", "access-1")


@pytest.fixture
def endpoint(bed: KeyBed) -> Iterator[TokenEndpoint]:
    """A token endpoint, and an expired login in the vault that it would renew."""
    endpoint = TokenEndpoint(None)
    bed.vault.put(a_late_login(endpoint))
    yield endpoint
    endpoint.close()


def a_late_login(endpoint: TokenEndpoint) -> Credential:
    return Credential(
        name="late",
        kind="oauth",
        access="an-expired-access-token",
        refresh="refresh-0",
        expires=1,
        provider="anthropic",
        source="set",
        token_endpoint=Where(url=endpoint.url, client_id="c"),
    )


def changed(credential: Credential, **changes: Any) -> Credential:
    return msgspec.structs.replace(credential, **changes)


def denied(bed: KeyBed, host: str = "bound.test") -> Reply:
    """The answer to a request that is denied for want of its credential, as the agent sees it."""
    reply = bed.get(host)
    assert (reply.status, reply.headers.get("x-impyard-reason")) == (403, "credential-unavailable"), reply
    assert bed.untouched()
    assert "injected" not in bed.gateway.decisions()[-1]
    assert str(bed.root) not in reply.body.decode()
    return reply


def works(bed: KeyBed, key: str = KEY, host: str = "bound.test") -> None:
    assert bed.get(host).status == 200
    assert bed.seen().header("x-api-key") == [key]


def causes(bed: KeyBed) -> list[dict[str, Any]]:
    return [event for event in bed.gateway.events if event["event"] == "credential"]


def test_the_runner_hears_of_sentinels_and_bindings_and_of_no_value(bed: KeyBed) -> None:
    keys = bed.gateway.first["keys"]
    assert set(keys["sentinels"]) == {"key"}  # what the policy binds and the vault holds
    assert [(each["host"], each["credential"], each["missing"]) for each in keys["bindings"]] == [
        ("bound.test", "key", False),
        ("absent.test", "absent", True),
        ("plain.test", "key", False),
        ("late.test", "late", True),
        ("late.test:8443", "late", True),
    ]
    npm = keys["bindings"][1]
    assert npm["at"].startswith("policies/gateway.yaml:")
    assert (npm["env"], npm["files"]) == (["NPM_TOKEN"], [[".npmrc", "//{host}/:_authToken={key}"]])


def test_a_missing_credential_is_a_denial_that_is_told_once(bed: KeyBed) -> None:
    assert "vault" in denied(bed, "absent.test").json()["error"]
    denied(bed, "absent.test")
    assert [event["name"] for event in causes(bed)].count("absent") == 1
    bed.vault.put(msgspec.structs.replace(A_KEY, name="absent"))
    assert bed.get("absent.test").status == 200
    assert bed.seen().header("authorization") == [f"Bearer {KEY}"]
    bed.vault.remove("absent")


def test_a_credential_that_is_removed_while_running_is_used_no_more(bed: KeyBed) -> None:
    bed.vault.remove("key")
    denied(bed)
    bed.vault.put(A_KEY)
    works(bed)


def test_a_changed_value_is_used_at_once(bed: KeyBed) -> None:
    works(bed)
    for key in (OTHER_KEY, KEY, OTHER_KEY):
        bed.origin.clear()
        bed.vault.put(changed(A_KEY, key=key))
        works(bed, key)


def open_to_others(vault: Path) -> None:
    vault.chmod(0o644)


def garbage(vault: Path) -> None:
    vault.write_text('{"version": 1, "credentials": {"key": {"name": "key", "key": "' + KEY)


def a_link(vault: Path) -> None:
    vault.rename(vault.with_name("elsewhere.json"))
    vault.symlink_to("elsewhere.json")


@pytest.mark.parametrize("harm", [open_to_others, garbage, a_link, Path.unlink])
def test_a_vault_that_cannot_be_trusted_is_a_denial(bed: KeyBed, harm: Callable[[Path], None]) -> None:
    works(bed)
    bed.origin.clear()
    vault = bed.vault.folder / "vault.json"
    content = vault.read_bytes()
    harm(vault)
    try:
        reply = denied(bed)
        assert KEY not in reply.body.decode()
        assert bed.get("other.test").status == 200, "what needs no credential goes on"
        bed.origin.clear()
    finally:
        vault.unlink(missing_ok=True)
        vault.with_name("elsewhere.json").unlink(missing_ok=True)
        with open(os.open(vault, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(content)
    works(bed)


def test_a_policy_that_begins_or_ceases_to_inject_takes_effect_with_the_next_request(bed: KeyBed) -> None:
    for entries, expected in ((ENTRIES, [KEY]), ((FREE,), []), (ENTRIES, [KEY])):
        bed.change_policy(entries)
        bed.origin.clear()
        assert bed.get("bound.test").status == 200
        assert bed.seen().header("x-api-key") == expected
        assert bed.gateway.decisions()[-1].get("credential") == ("key" if expected else None)


def test_over_a_plain_connection_it_goes_only_where_the_policy_says_so(bed: KeyBed) -> None:
    assert bed.get("plain.test").status == 200
    assert bed.seen().header("x-api-key") == [KEY]
    bed.plain.clear()
    bed.change_policy([entry("plain.test", "{credential: key, template: anthropic}", upstream="{plain}")])
    reply = bed.get("plain.test")
    assert (reply.status, reply.headers["x-impyard-reason"]) == (403, "policy-broken")
    assert bed.untouched()


def test_an_upstream_that_turns_out_to_be_another_place_gets_nothing(bed: KeyBed, pki: Pki) -> None:
    """The certificate must be that of the judged host: the request, and so the key, is sent to nobody else."""
    bed.change_policy([BOUND.replace("bound.test", "not-in-the-certificate.test")])
    reply = bed.get("not-in-the-certificate.test")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert bed.untouched()


# -- logins -------------------------------------------------------------------------------------------------------


def test_an_expired_login_is_renewed_before_its_request_goes(bed: KeyBed, endpoint: TokenEndpoint) -> None:
    assert bed.get("late.test").status == 200
    assert bed.seen().header("authorization") == ["Bearer access-1"]
    assert [asking.fields["refresh_token"] for asking in endpoint.asked] == ["refresh-0"]
    assert bed.get("late.test").status == 200
    assert [seen.header("authorization") for seen in bed.origin.seen] == [["Bearer access-1"]] * 2
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [says({"error": "invalid_grant"}, status=400), says(b"no JSON"), says({"access_token": "a b\r\nc"})],
    ids=["refused", "garbage", "no token"],
)
def test_while_a_renewal_fails_neither_the_old_token_nor_the_sentinel_goes(
    bed: KeyBed, endpoint: TokenEndpoint, answer: Callable[[Any, Asking], None]
) -> None:
    endpoint.answer = answer
    told = len(causes(bed))
    denied(bed, "late.test")
    denied(bed, "late.test")
    assert len(endpoint.asked) == 1, "it is not asked again and again"
    assert len(causes(bed)) == told + 1
    bed.vault.put(changed(a_late_login(endpoint), access="a-token-of-a-new-login", expires=0))
    assert bed.get("late.test").status == 200
    assert bed.seen().header("authorization") == ["Bearer a-token-of-a-new-login"]


class Held:
    """An endpoint that answers when it is told to, and a request that waits for it."""

    def __init__(self, bed: KeyBed, endpoint: TokenEndpoint) -> None:
        self.go = threading.Event()
        self._asked = threading.Event()
        endpoint.answer = self._answer
        self.connection = bed.gateway.tls("late.test")
        self.connection.sendall(b"GET /pub/x HTTP/1.1\r\nhost: late.test\r\n\r\n")
        assert self._asked.wait(10)

    def _answer(self, client: Any, _asking: Asking) -> None:
        self._asked.set()
        self.go.wait(20)
        tokens = {"access_token": "access-1", "refresh_token": "refresh-1", "expires_in": 3600}
        client.sendall(given({**tokens, "token_type": "Bearer"}))


def test_a_renewal_makes_no_other_request_wait(bed: KeyBed, endpoint: TokenEndpoint) -> None:
    held = Held(bed, endpoint)
    with held.connection:
        assert bed.get("bound.test").status == 200
        assert bed.get("other.test").status == 200
        assert len(bed.gateway.decisions()) == 2
        held.go.set()
        assert read_reply(held.connection).status == 200
    assert bed.origin.seen[-1].header("authorization") == ["Bearer access-1"]


def test_who_leaves_while_a_login_is_renewed_is_done_with_and_the_login_is_kept(
    bed: KeyBed, endpoint: TokenEndpoint
) -> None:
    held = Held(bed, endpoint)
    held.connection.close()
    wait_for(lambda: len(bed.gateway.decisions()) == 1)
    assert not held.go.is_set()
    assert "injected" not in bed.decision()
    assert bed.gateway.outcomes(1)[0]["error"] == "the client left"
    held.go.set()
    wait_for(lambda: bed.vault.read().credentials["late"].refresh == "refresh-1")
    assert bed.untouched()


def test_a_request_is_judged_again_when_the_policy_changed_meanwhile(bed: KeyBed, endpoint: TokenEndpoint) -> None:
    held = Held(bed, endpoint)
    bed.change_policy([BOUND])
    held.go.set()
    with held.connection:
        reply = read_reply(held.connection)
    assert (reply.status, reply.headers["x-impyard-reason"]) == (403, "unlisted-host")
    assert bed.untouched()


def test_it_is_judged_again_too_when_the_renewal_failed(bed: KeyBed, endpoint: TokenEndpoint) -> None:
    """The entry does not inject any more: what failed is no reason now."""
    held = Held(bed, endpoint)
    endpoint.close()
    bed.change_policy([entry("late.test")])
    bed.vault.remove("late")
    held.go.set()
    with held.connection:
        assert read_reply(held.connection).status == 200
    assert bed.seen().header("authorization") == []


# -- controls -----------------------------------------------------------------------------------------------------

PLANTED = """
import sys
from impyard.addon import injection
from impyard.addon.vault import refresh
def put_on(request, injection):
    for name, value in injection.headers:
        request.headers.add(name, value)
injection.put_on = put_on
injection.take_off = lambda *args: None
refresh.Refresher.at_once = lambda self, name, *_: self._vault.read().credentials[name]
from impyard.addon.__main__ import main
sys.exit(main())
"""


def test_control_without_protection_all_of_that_would_arrive(tmp_path: Path, pki: Pki) -> None:
    """What the box says, a sentinel, and a login that has expired."""
    endpoint = TokenEndpoint(None)
    with key_bed(
        tmp_path, pki, *ENTRIES, hosts=HOSTS, credentials=(A_KEY, a_late_login(endpoint)), fault=PLANTED
    ) as bed:
        stand_in = bed.gateway.sentinel("key").key
        assert bed.get("bound.test", headers=f"x-api-key: mine\r\nx-else: {stand_in}\r\n").status == 200
        assert bed.get("late.test").status == 200
        first, second = [seen.head for seen in bed.origin.seen]
        assert b"mine" in first and stand_in.encode() in first
        assert b"an-expired-access-token" in second
    endpoint.close()


# -- the process --------------------------------------------------------------------------------------------------


def test_the_gateway_leaves_no_memory_and_gets_no_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "GEMINI_API_KEY", "GH_TOKEN", "NPM_TOKEN"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")
    with spawn() as spawned:
        proc = Path(f"/proc/{spawned.process.pid}")
        wait_for(lambda: "Max core file size        0                    0 " in (proc / "limits").read_text())
        wait_for(lambda: proc.stat().st_uid == 0)  # not dumpable: nobody else may look into it
        environment = (proc / "environ").read_text()
    assert KEY not in environment
    assert "HTTPS_PROXY=http://proxy.test:3128" in environment


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
