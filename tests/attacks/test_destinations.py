"""Where an allowed request goes: names asked for once, every answer checked, the checked address dialled.

The gateway runs in a network of its own (`Apart`), with the system's resolver, a name server that remembers every
question, one origin at a public address and one at several private ones.
"""

from __future__ import annotations

import os
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.apart import Apart
from tests.support.gateway import LiveGateway, read_reply
from tests.support.origin import Origin, Pki

pytestmark = [
    pytest.mark.gateway,
    pytest.mark.skipif(os.geteuid() != 0, reason="a network of one's own needs root"),
]

PUBLIC = "93.184.216.34"
DEAF = "93.184.216.35"  # public, and nobody listens there
PRIVATE = ("10.0.0.1", "169.254.169.254")
POLICY = """\
networkPolicies:
  - host: ok.test
    scheme: [https, http]
    policies:
      - {action: ALLOW, method: GET, path: /pub/.*}
      - {action: DENY, method: GET, path: /pub/secret.*}
  - host: "*.ok.test"
    scheme: [https, http]
    policies:
      - {action: ALLOW, method: GET, path: /pub/.*}
  - host: b\u00fccher.test
    scheme: http
    policies:
      - {action: ALLOW, method: GET, path: /pub/.*}
  - host: xn--mnchen-3ya.test
    scheme: http
    policies:
      - {action: ALLOW, method: GET, path: /pub/.*}
  - host: "*"
    scheme: http
    policies:
      - {action: ALLOW, method: GET, path: /any/.*}
  - host: local.test
    scheme: http
    upstream: http://127.0.0.1:80
    policies:
      - {action: ALLOW, method: GET, path: /pub/.*}
"""
# The gateway with one protection off: for controls.
ACCEPTS_ALL = "resolve.is_public = lambda text: True"
FORGETS = "resolve.TTL_S = 0.0"
FAULT = """
import sys
from impyard.addon import resolve
{plant}
from impyard.addon.__main__ import main
sys.exit(main())
"""


@dataclass
class Place:
    """A gateway in a network of its own. public, private: origins; private is at loopback and at PRIVATE."""

    apart: Apart
    gateway: LiveGateway
    public: Origin
    public_tls: Origin
    private: list[Origin]
    root: Path
    pki: Pki

    def untouched(self) -> bool:
        return not any(origin.connections for origin in (self.public, self.public_tls, *self.private))

    def only_decision(self) -> dict[str, object]:
        decisions = self.gateway.decisions()
        assert len(decisions) == 1, decisions
        return decisions[0]

    def other_gateway(self, name: str, plant: str = "", policy: str = POLICY) -> LiveGateway:
        """One more gateway in the same network, with a fault planted."""
        root = self.root / name
        root.mkdir()
        return self.apart.run(start, root, self.pki, FAULT.format(plant=plant) if plant else "", policy)


def start(root: Path, pki: Pki, fault: str, policy: str) -> LiveGateway:
    gateway = LiveGateway(root, policy, fault=textwrap.dedent(fault), env={"SSL_CERT_FILE": str(pki.ca_path)})
    assert gateway.first.get("event") == "ready", (gateway.first, gateway.stderr_path.read_text())
    return gateway


@pytest.fixture(scope="module")
def module_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("apart")
    pki = Pki(root)
    apart = Apart(root, PUBLIC, DEAF, *PRIVATE, resolv_conf="search corp.test\noptions ndots:5\n")
    public = apart.run(lambda: Origin(host=PUBLIC, port=80))
    public_tls = apart.run(lambda: Origin(pki.context("ok.test", "sub.ok.test"), host=PUBLIC, port=443))
    private = [apart.run(lambda host=host: Origin(host=host, port=80)) for host in ("127.0.0.1", *PRIVATE)]
    gateway = apart.run(start, root, pki, "", POLICY)
    try:
        yield Place(apart, gateway, public, public_tls, private, root, pki)
    finally:
        gateway.stop()
        for origin in (public, public_tls, *private):
            origin.close()
        apart.close()


@pytest.fixture
def place(module_place: Place) -> Place:
    """The module's place with nothing remembered but the names that its gateway knows by now."""
    for origin in (module_place.public, module_place.public_tls, *module_place.private):
        origin.clear()
    module_place.apart.names.asked.clear()
    module_place.gateway.forget()
    return module_place


@pytest.mark.attack("98", "F32", control=True)
def test_an_allowed_name_is_asked_for_once_and_its_address_dialled(place: Place) -> None:
    place.apart.names.table["ok.test"] = [PUBLIC]
    assert [place.gateway.get("https://ok.test/pub/x").status for _ in range(3)] == [200] * 3
    assert place.gateway.get("http://ok.test/pub/x").status == 200
    assert place.apart.names.asked and set(place.apart.names.asked) == {("ok.test", "A"), ("ok.test", "AAAA")}
    assert place.apart.names.about("ok.test") == ["A", "AAAA"]
    assert (len(place.public_tls.seen), len(place.public.seen)) == (3, 1)
    assert "upstream" not in place.gateway.decisions()[0]


@pytest.mark.attack("F19", "20", "22")
@pytest.mark.parametrize(
    ("url", "method", "headers"),
    [
        ("https://evil.test/", "GET", ""),
        ("http://secret-data.evil.test/pub/x", "GET", ""),
        ("https://secret.ok.test/private", "GET", ""),
        ("https://named.ok.test/pub/x", "POST", ""),
        ("https://ported.ok.test:8443/pub/x", "GET", ""),
        ("https://fronted.ok.test/pub/x", "GET", "Host: evil.test\r\n"),
        ("https://socket.ok.test/pub/x", "GET", "Connection: upgrade\r\nUpgrade: websocket\r\n"),
        ("https://doh.test/dns-query?name=secret.canary.test", "GET", ""),
        ("https://198.51.100.1/dns-query?name=secret.canary.test", "GET", ""),
    ],
)
def test_a_denied_name_is_never_asked_for(place: Place, url: str, method: str, headers: str) -> None:
    reply = place.gateway.get(url, method, headers)
    assert reply.status in (400, 403)
    assert place.only_decision()["verdict"] == "deny"
    assert place.apart.names.asked == []
    assert place.untouched()


@pytest.mark.attack("F19")
def test_a_tunnel_alone_asks_for_nothing(place: Place) -> None:
    for host in ("ok.test", "secret-data.evil.test"):
        with place.gateway.tunnel(f"{host}:443"), place.gateway.tls(host):
            pass
    assert place.apart.names.asked == []
    assert place.untouched()
    assert place.gateway.decisions() == []


@pytest.mark.attack("F32")
def test_a_name_is_not_looked_for_below_other_names(place: Place) -> None:
    """The search list of resolv.conf makes other names of one that does not exist; no rule allows them."""
    place.apart.names.table["below.ok.test.corp.test"] = [PUBLIC]
    reply = place.gateway.get("http://below.ok.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert {name for name, _ in place.apart.names.asked} == {"below.ok.test"}
    assert place.untouched()


@pytest.mark.attack("F32", control=True)
def test_control_as_other_programs_ask_the_name_below_is_found(place: Place) -> None:
    place.apart.names.table["under.ok.test.corp.test"] = [PUBLIC]
    gateway = place.other_gateway("searches", "resolve._in_hosts_file = lambda host: True  # so: no final dot")
    try:
        assert gateway.get("http://under.ok.test/pub/x").status == 200
    finally:
        gateway.stop()


ANSWERS = {
    "loopback": ["127.0.0.1"],
    "private": ["10.0.0.1"],
    "metadata": ["169.254.169.254"],
    "public-then-loopback": [PUBLIC, "127.0.0.1"],
    "loopback-then-public": ["127.0.0.1", PUBLIC],
    "loopback6": ["::1"],
    "public-and-loopback6": [PUBLIC, "::1"],
    "mapped": ["::ffff:127.0.0.1"],
    "nat64": [PUBLIC, "64:ff9b::7f00:1"],
    "nothing": ["0.0.0.0"],
    "broadcast": ["255.255.255.255"],
}


@pytest.mark.attack("98", "100", "14", "16")
@pytest.mark.parametrize("answers", ANSWERS.values(), ids=ANSWERS.keys())
def test_a_name_with_a_private_answer_is_denied(place: Place, answers: list[str]) -> None:
    host = f"a{list(ANSWERS.values()).index(answers)}.ok.test"
    place.apart.names.table[host] = answers
    reply = place.gateway.get(f"http://{host}/pub/x")
    assert (reply.status, reply.json()["reason"]) == (403, "private-address")
    assert not any(answer in reply.body.decode() for answer in answers)
    decision = place.only_decision()
    assert (decision["verdict"], decision["reason"], decision["host"]) == ("deny", "private-address", host)
    assert place.untouched()
    place.apart.names.table["ok.test"] = [PUBLIC]
    assert place.gateway.get("http://ok.test/pub/x").status == 200


@pytest.mark.attack("98", "100", control=True)
def test_control_without_the_check_the_private_addresses_are_reached(place: Place) -> None:
    gateway = place.other_gateway("accepts-all", ACCEPTS_ALL)
    try:
        for name in ("loopback", "private", "metadata"):
            host = f"c-{name}.ok.test"
            place.apart.names.table[host] = ANSWERS[name]
            assert gateway.get(f"http://{host}/pub/x").status == 200
        assert [len(origin.seen) for origin in place.private] == [1, 1, 1]
    finally:
        gateway.stop()


@pytest.mark.attack("98")
def test_upstream_is_the_only_way_to_a_private_address_and_named(place: Place) -> None:
    assert place.gateway.get("http://local.test/pub/x").status == 200
    assert place.only_decision()["upstream"] == "http://127.0.0.1:80"
    assert len(place.private[0].seen) == 1
    assert place.apart.names.asked == []


@pytest.mark.attack("F32")
def test_a_name_that_turns_private_is_denied_on_the_open_tunnel(place: Place) -> None:
    """The memory of names is off here, so that each request asks; the origin ends its connection after each."""
    answers = iter([[PUBLIC], ["127.0.0.1"], [PUBLIC]])
    current = [PUBLIC]
    place.apart.names.table["turn.ok.test"] = lambda: current
    gateway = place.other_gateway("forgets", FORGETS)
    seen = []
    try:
        with gateway.tunnel("turn.ok.test:80") as connection:
            for answer in answers:
                current[:] = answer
                connection.sendall(b"GET /pub/last HTTP/1.1\r\nHost: turn.ok.test\r\n\r\n")
                seen.append(read_reply(connection).status)
            # The rules still see the name, whatever was dialled.
            connection.sendall(b"GET /pub/last HTTP/1.1\r\nHost: %s\r\n\r\n" % PUBLIC.encode())
            assert read_reply(connection).status == 403
            connection.sendall(b"GET /private HTTP/1.1\r\nHost: turn.ok.test\r\n\r\n")
            assert read_reply(connection).status == 403
    finally:
        gateway.stop()
    assert seen == [200, 403, 200]
    assert place.public.connections == 2
    assert not any(origin.connections for origin in place.private)
    assert {line["host"] for line in place.gateway.decisions()} <= {"turn.ok.test"}


@pytest.mark.attack("F32", control=True)
def test_control_without_the_check_the_turned_name_leads_inside(place: Place) -> None:
    current = [PUBLIC]
    place.apart.names.table["turned.ok.test"] = lambda: current
    gateway = place.other_gateway("forgets-and-accepts", f"{FORGETS}; {ACCEPTS_ALL}")
    try:
        with gateway.tunnel("turned.ok.test:80") as connection:
            for answer in (PUBLIC, "127.0.0.1"):
                current[:] = [answer]
                connection.sendall(b"GET /pub/last HTTP/1.1\r\nHost: turned.ok.test\r\n\r\n")
                assert read_reply(connection).status == 200
    finally:
        gateway.stop()
    assert place.private[0].connections == 1


@pytest.mark.attack("98", "F32")
def test_what_was_checked_is_dialled_while_the_name_turns(place: Place) -> None:
    """Within its time a name is not asked for again, so that no later answer counts."""
    current = [PUBLIC]
    place.apart.names.table["kept.ok.test"] = lambda: current
    with place.gateway.tunnel("kept.ok.test:80") as connection:
        for _ in range(3):
            connection.sendall(b"GET /pub/last HTTP/1.1\r\nHost: kept.ok.test\r\n\r\n")
            assert read_reply(connection).status == 200
            current[:] = ["127.0.0.1"]
    assert place.apart.names.about("kept.ok.test") == ["A", "AAAA"]
    assert place.public.connections == 3
    assert not any(origin.connections for origin in place.private)


@pytest.mark.attack("98", "100")
def test_only_checked_addresses_are_dialled_one_after_the_other(place: Place) -> None:
    """Nobody listens at the first. Control: alone, it is no answer."""
    place.apart.names.table |= {"second.ok.test": [DEAF, PUBLIC], "deaf.ok.test": [DEAF]}
    replies = [place.gateway.get(f"http://{host}.ok.test/pub/x") for host in ("second", "deaf")]
    assert [reply.status for reply in replies] == [200, 502]
    assert DEAF not in replies[1].body.decode()
    assert place.public.connections == 1
    assert [line["verdict"] for line in place.gateway.decisions()] == ["allow", "allow"]


@pytest.mark.attack("F27")
def test_names_that_are_slow_to_resolve_hold_up_no_other(place: Place) -> None:
    def slowly() -> list[str]:
        released.wait(10)
        return [PUBLIC]

    released = threading.Event()
    for number in range(20):
        place.apart.names.table[f"slow{number}.ok.test"] = slowly
    place.apart.names.table["quick.ok.test"] = [PUBLIC]
    with ThreadPoolExecutor(20) as boxes:
        waiting = [boxes.submit(place.gateway.get, f"http://slow{number}.ok.test/pub/x") for number in range(20)]
        deadline = time.monotonic() + 10
        while len({name for name, _ in place.apart.names.asked}) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert place.gateway.get("http://quick.ok.test/pub/x").status == 200
        assert not any(reply.done() for reply in waiting)
        released.set()
        assert [reply.result().status for reply in waiting] == [200] * 20


# Ways to write 127.0.0.1, 169.254.169.254 and 10.0.0.1, with and without an entry that names them in full.
SPELLINGS = [
    "2130706433", "0x7f000001", "0x7f.1", "127.1", "127.0.1", "0177.0.0.1", "127.0.0.01", "017700000001", "0",
    "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "169.254.43518", "0xa9.254.0251.254",
    "127.0.0.1", "127.0.0.1.", "127.127.127.127", "10.0.0.1", "0.0.0.0", "1.2.3.4.5", "127.0.0.256", "0x",
    "0x7f.0.0.1.", "%31%32%37.0.0.1", "127%2e0.0.1", "localhost.%00", "[::1]", "[::]", "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]", "[::127.0.0.1]", "[0:0:0:0:0:0:0:1]", "[64:ff9b::7f00:1]", "[fe80::1%25eth0]", "[fe80::1%lo]",
    "[::1%25lo]", "[2002:7f00:1::]", "[fd00:ec2::254]", "[127.0.0.1]", "[v1.fe]",
    "\uff11\uff12\uff17.0.0.1", "\u2460\u2461\u2466.0.0.1", "127\u30020\u30020\u30021", "127\uff0e0\uff0e0\uff0e1",
]  # fmt: skip


@pytest.mark.attack("53", "F29", "16")
@pytest.mark.parametrize("host", SPELLINGS)
def test_no_spelling_of_an_address_passes(place: Place, host: str) -> None:
    """`/any/` is allowed on every name: an address is not covered by it, however it is written."""
    raw = host.encode()
    statuses = []
    for head in (
        b"GET http://%s/any/x HTTP/1.1\r\nHost: %s\r\n\r\n" % (raw, raw),
        b"CONNECT %s:80 HTTP/1.1\r\nHost: %s:80\r\n\r\n" % (raw, raw),
    ):
        with place.gateway.connect() as connection:
            connection.sendall(head)
            reply = read_reply(connection, head_only=head.startswith(b"CONNECT"))
            if head.startswith(b"CONNECT") and reply.status == 200:  # a legal target: judged inside
                connection.sendall(b"GET /any/x HTTP/1.1\r\nHost: %s\r\n\r\n" % raw)
                reply = read_reply(connection)
            statuses.append(reply.status)
    assert all(status in (400, 403) for status in statuses), statuses
    decisions = place.gateway.decisions()
    assert [line["verdict"] for line in decisions] == ["deny", "deny"], decisions
    assert place.apart.names.asked == []
    assert place.untouched()


@pytest.mark.attack("53", control=True)
def test_control_any_name_passes_by_the_same_rule(place: Place) -> None:
    place.apart.names.table["whatever.example"] = [PUBLIC]
    assert place.gateway.get("http://whatever.example/any/x").status == 200


@pytest.mark.attack("F29")
@pytest.mark.parametrize("host", ["xn--bcher-kva.test", "XN--BCHER-KVA.test", "xn--mnchen-3ya.test"])
def test_an_international_name_matches_a_rule_in_either_form(place: Place, host: str) -> None:
    place.apart.names.table[host.lower()] = [PUBLIC]
    assert place.gateway.get(f"http://{host}/pub/x").status == 200
    assert place.only_decision()["host"] == host.lower()
    assert place.public.seen[0].header("host") == [host.lower()]


@pytest.mark.attack("F29", "55")
@pytest.mark.parametrize(
    "host",
    [
        "b\u00fccher.test",
        "\U0001f600.test",
        "l" * 70 + ".test",
        "ok..test",
        "a" * 300,
        "user@ok.test",
        "stra\u00dfe.test",
    ],
)
def test_a_malformed_or_raw_name_is_refused_with_a_line(place: Place, host: str) -> None:
    for head in (
        f"CONNECT {host}:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        f"GET http://{host}/pub/x HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        with place.gateway.connect() as connection:
            connection.sendall(head.encode())
            assert read_reply(connection).status in (400, 403)
    assert [line["verdict"] for line in place.gateway.decisions()] == ["deny", "deny"]
    assert place.apart.names.asked == []
    assert place.untouched()


@pytest.mark.attack("47", "49", "46")
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("ok.test.", 200), ("OK.Test", 200), ("sub.ok.test", 200), ("sub.ok.test.", 200), ("a.b.ok.test", 200),
        ("evil.test.", 403), ("okay.test", 403), ("ok.test.evil.test", 403), ("xok.test", 403), ("test", 403),
        ("ok.test..", 400), (".ok.test", 400),
    ],
)  # fmt: skip
def test_dots_case_and_the_apex(place: Place, host: str, status: int) -> None:
    canonical = host.removesuffix(".").lower()
    place.apart.names.table[canonical] = [PUBLIC]
    assert place.gateway.get(f"http://{host}/pub/x").status == status
    decision = place.only_decision()
    assert decision["verdict"] == ("allow" if status == 200 else "deny")
    if status != 400:
        assert decision["host"] == canonical
    if status == 200:
        assert place.public.seen[0].header("host") == [canonical]
    else:
        assert place.untouched() and place.apart.names.asked == []


@pytest.mark.attack("F31", "25")
@pytest.mark.parametrize("port", [22, 25, 53, 80, 5353, 5432, 8443])
def test_the_port_is_part_of_the_rule(place: Place, port: int) -> None:
    reply = place.gateway.get(f"https://ok.test:{port}/pub/x")
    assert reply.json()["nearest"]["failed"] == "port"
    assert place.only_decision()["port"] == port
    assert place.untouched()
