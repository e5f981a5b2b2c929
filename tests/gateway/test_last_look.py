"""What was allowed and has not gone yet, while vault and policy change: what holds when it would go counts.

A request is held back by its own body, by a connection that does not come up, by an origin that takes no more streams,
and by others before it. The control is a gateway that does not look again, by a planted fault.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from impyard.addon.vault.credential import Credential
from impyard.addon.vault.credential import TokenEndpoint as Where
from tests.gateway.test_protocols import Http2
from tests.support.gateway import Reply, read_reply
from tests.support.h2origin import H2Origin
from tests.support.keybed import A_KEY, A_LOGIN, ACCESS, KEY, KeyBed, entry, key_bed
from tests.support.listening import on_loopback
from tests.support.origin import Pki
from tests.support.tokenendpoint import TokenEndpoint, says
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway

OTHER_KEY = "sk-ant-api03-" + "W3another" * 6
NOTE = "a-note-that-becomes-a-secret"  # the last of CHANGES: a value is looked for ever after
BOUND = entry("bound.test", "{credential: key, template: anthropic}")
LOGIN = entry("login.test", "{credential: login, template: anthropic}")
FREE = entry("free.test")
ENTRIES = (BOUND, LOGIN, FREE)
HOSTS = ["bound.test", "login.test", "free.test"]
NO_LOOK = """
import sys
from impyard.addon import lastlook
lastlook.LastLook._looked = lambda *_: None
lastlook.LastLook.renewal = lambda *_: None
from impyard.addon.__main__ import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def looking(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[KeyBed]:
    with key_bed(tmp_path_factory.mktemp("looking"), pki, *ENTRIES, hosts=HOSTS) as bed:
        yield bed


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[KeyBed]:
    with key_bed(tmp_path_factory.mktemp("trusting"), pki, *ENTRIES, hosts=HOSTS, fault=NO_LOOK) as bed:
        yield bed


@pytest.fixture
def bed(looking: KeyBed) -> Iterator[KeyBed]:
    looking.clear()
    yield looking
    looking.vault.remove("note")
    assert looking.holds_none_of(KEY, OTHER_KEY, ACCESS, "access-1")


@pytest.fixture
def blind(trusting: KeyBed) -> KeyBed:
    trusting.clear()
    return trusting


def decided(bed: KeyBed, requests: int) -> None:
    """Wait until so many were decided on, and a little longer."""
    wait_until(lambda: len(bed.gateway.decisions()) == requests)
    time.sleep(0.05)


class Body:
    """A request that waits for the rest of its small body."""

    def __init__(self, bed: KeyBed, host: str, note: str = "") -> None:
        self._connection = bed.gateway.tls(host)
        head = f"POST /pub/x HTTP/1.1\r\nhost: {host}\r\ncontent-length: 5\r\nx-note: {note}\r\n\r\n12"
        self._connection.sendall(head.encode())
        decided(bed, 1)

    def goes_on(self) -> Reply:
        with self._connection:
            self._connection.sendall(b"345")
            return read_reply(self._connection)


def removed(bed: KeyBed) -> None:
    bed.vault.remove("key")


def denied(bed: KeyBed) -> None:
    bed.change_policy([BOUND.replace("/pub/.*", "/other/.*"), FREE])


def broken(bed: KeyBed) -> None:
    bed.gateway.policy_path.write_text("- nonsense")


def free(bed: KeyBed) -> None:
    bed.change_policy([entry("bound.test")])


def elsewhere(bed: KeyBed) -> None:
    bed.change_policy([BOUND.replace("{tls}", f"https://localhost:{bed.origin.port}")])


def a_secret(bed: KeyBed) -> None:
    bed.vault.put(Credential(name="note", kind="api_key", key=NOTE, source="set"))
    time.sleep(0.15)


CHANGES: dict[str, tuple[Callable[[KeyBed], None], int, str]] = {
    "the credential is removed": (removed, 403, "credential-unavailable"),
    "the policy denies it": (denied, 403, "no-rule"),
    "the policy breaks": (broken, 403, "policy-broken"),
    "the policy puts nothing on it": (free, 503, "busy"),
    "the policy leads elsewhere": (elsewhere, 503, "busy"),
    "a word in it becomes a secret": (a_secret, 403, "secret-in-request"),
}


@pytest.mark.parametrize("way", CHANGES)
def test_a_held_body_goes_under_what_holds_at_its_end(bed: KeyBed, blind: KeyBed, way: str) -> None:
    change, status, reason = CHANGES[way]
    held = Body(bed, "bound.test", NOTE)
    change(bed)
    reply = held.goes_on()
    assert (reply.status, reply.headers["x-impyard-reason"]) == (status, reason)
    assert bed.untouched()
    first, *more = bed.gateway.decisions()
    assert first["verdict"] == "allow"
    assert [(line["reason"], line["follows"]) for line in more] == [(reason, first["id"])] * (status == 403)
    (outcome,) = bed.gateway.outcomes(1)
    assert (outcome["id"], outcome["status"]) == (first["id"], None)
    assert outcome["error"]

    held = Body(blind, "bound.test", NOTE)
    change(blind)
    assert held.goes_on().status == 200
    assert blind.seen().header("x-api-key") == [KEY]
    blind.vault.remove("note")


def test_what_changes_nothing_for_it_lets_it_go(bed: KeyBed) -> None:
    for entries in (ENTRIES, ["# lines move\n", *ENTRIES[:1]]):
        bed.clear()
        held = Body(bed, "bound.test")
        bed.change_policy(entries)
        assert held.goes_on().status == 200
        assert bed.seen().header("x-api-key") == [KEY]
        assert bed.seen().body_start == b"12345"


def test_a_changed_value_goes_and_is_masked(bed: KeyBed) -> None:
    echo = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(OTHER_KEY), OTHER_KEY.encode())
    bed.origin.answers["/pub/x"] = lambda connection, seen: connection.sendall(echo)
    held = Body(bed, "bound.test")
    bed.vault.put(msgspec.structs.replace(A_KEY, key=OTHER_KEY))
    reply = held.goes_on()
    assert bed.seen().header("x-api-key") == [OTHER_KEY]
    assert (reply.status, reply.body) == (200, b"*" * len(OTHER_KEY))


def late(endpoint: TokenEndpoint) -> Credential:
    where = Where(url=endpoint.url, client_id="c")
    return msgspec.structs.replace(A_LOGIN, expires=1, refresh="refresh-0", token_endpoint=where)


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    endpoint = TokenEndpoint(None)
    yield endpoint
    endpoint.close()


def test_a_login_that_expires_meanwhile_is_renewed(bed: KeyBed, endpoint: TokenEndpoint) -> None:
    held = Body(bed, "login.test")
    bed.vault.put(late(endpoint))
    assert held.goes_on().status == 200
    assert bed.seen().header("authorization") == ["Bearer access-1"]
    assert len(bed.gateway.decisions()) == 1


def test_one_that_cannot_be_renewed_is_not_sent(bed: KeyBed, blind: KeyBed, endpoint: TokenEndpoint) -> None:
    endpoint.answer = says({"error": "invalid_grant"}, status=400)
    held = Body(bed, "login.test")
    bed.vault.put(late(endpoint))
    assert held.goes_on().json()["reason"] == "credential-unavailable"
    assert bed.untouched()

    held = Body(blind, "login.test")
    blind.vault.put(late(endpoint))
    assert held.goes_on().status == 200
    assert blind.seen().header("authorization") == [f"Bearer {ACCESS}"]


class Slow:
    """A way to a port that is taken at once, and on which nothing moves before `release`."""

    def __init__(self, port: int) -> None:
        self.taken, self.release = threading.Event(), threading.Event()
        self._target = port
        self._listening = on_loopback(self._serve)
        self.port = self._listening.port

    def _serve(self, client: socket.socket) -> None:
        self.taken.set()
        self.release.wait(10)
        other = socket.create_connection(("127.0.0.1", self._target))
        ways = {client: other, other: client}
        with client, other, contextlib.suppress(OSError):
            while True:
                for source in select.select(list(ways), [], [], 10)[0]:
                    if not (data := source.recv(1 << 16)):
                        return
                    ways[source].sendall(data)

    def close(self) -> None:
        self._listening.close()


@pytest.mark.parametrize("body", ["", "content-length: 100000\r\n"], ids=["no body", "a streamed body"])
def test_the_same_while_a_connection_comes_up(bed: KeyBed, blind: KeyBed, body: str) -> None:
    answered = []
    for each in (bed, blind):
        slow = Slow(each.origin.port)
        each.change_policy([BOUND.replace("{tls}", f"https://127.0.0.1:{slow.port}")])
        with each.gateway.tls("bound.test") as connection:
            connection.sendall(f"POST /pub/x HTTP/1.1\r\nhost: bound.test\r\n{body}\r\n".encode())
            if body:
                connection.sendall(bytes(100_000))
            assert slow.taken.wait(10)
            time.sleep(0.05)
            each.vault.remove("key")
            slow.release.set()
            answered.append(read_reply(connection))
        slow.close()
    assert [reply.status for reply in answered] == [403, 200]
    assert answered[0].json()["reason"] == "credential-unavailable"
    assert bed.untouched()
    first, second = bed.gateway.decisions()
    assert second["follows"] == first["id"]
    assert "credential-unavailable" in bed.gateway.outcomes(1)[0]["error"]
    assert blind.seen().header("x-api-key") == [KEY]


def test_what_is_bound_to_the_host_no_more_is_found_in_a_body_that_waits_for_a_connection(bed: KeyBed) -> None:
    slow = Slow(bed.origin.port)
    plain = entry("bound.test").replace("{tls}", f"https://127.0.0.1:{slow.port}")
    binding = BOUND.replace("bound.test", "bound.test\n    port: 8443")
    bed.change_policy([plain, binding])
    sentinel = bed.gateway.sentinel("key").key
    with bed.gateway.tls("bound.test") as connection:
        head = f"POST /pub/x HTTP/1.1\r\nhost: bound.test\r\ncontent-length: {len(sentinel)}\r\n\r\n"
        connection.sendall(head.encode() + sentinel.encode())
        assert slow.taken.wait(10)
        time.sleep(0.05)
        bed.change_policy([plain])
        slow.release.set()
        assert read_reply(connection).json()["reason"] == "secret-in-request"
    slow.close()
    assert bed.untouched()
    assert bed.gateway.decisions()[-1]["secret"] == {"credential": "key", "kind": "sentinel", "where": "body"}


def test_the_same_while_an_origin_takes_no_more_streams(bed: KeyBed, blind: KeyBed, pki: Pki) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    pki.context("bound.test")
    statuses = []
    for each in (bed, blind):
        origin = H2Origin(node, pki.ca_path.with_name("bound.test.pem"), streams=1)
        each.change_policy([BOUND.replace("{tls}", f"https://127.0.0.1:{origin.port}")])
        client = Http2(each.gateway, "bound.test")
        first = client.send("/pub/trickle", authority="bound.test")
        client.wait_for_data(first, b"data: one\n\n")
        length = (("content-length", "1"),)  # without it, it would not wait but have a connection of its own
        waiting = [client.send(f"/pub/{n}", "POST", authority="bound.test", extra=length, body=b"x") for n in range(3)]
        decided(each, 4)
        each.vault.remove("key")
        client.reset_stream(first)
        client.wait(*waiting)
        statuses.append({client.answers[stream][0] for stream in waiting})
        each.vault.put(A_KEY)
        after = client.send("/pub/after", authority="bound.test")
        client.wait(after)
        assert client.answers[after] == (200, b"/pub/after")
        client.close()
        origin.close()
    assert statuses == [{403}, {200}]
    assert [line["reason"] for line in bed.gateway.decisions()[4:]] == ["credential-unavailable"] * 3 + ["rule"]


def test_who_waits_for_room_does_not_go_with_a_login_of_before(
    tmp_path_factory: pytest.TempPathFactory, pki: Pki, endpoint: TokenEndpoint
) -> None:
    limits: dict[str, Any] = {"requests": 1, "turn_s": 8}
    root = tmp_path_factory.mktemp("room")
    with key_bed(root, pki, *ENTRIES, hosts=HOSTS, limits=limits) as bed:
        before = threading.Thread(target=lambda: bed.get("free.test", "/pub/silent"))
        before.start()
        wait_until(lambda: len(bed.origin.seen) == 1)
        replies: list[Reply] = []
        waits = threading.Thread(target=lambda: replies.append(bed.get("login.test")))
        waits.start()
        time.sleep(0.3)
        bed.vault.put(late(endpoint))
        bed.origin.release.set()
        before.join(10)
        waits.join(10)
        assert replies[0].status == 200
        assert bed.origin.seen[-1].header("authorization") == ["Bearer access-1"]
