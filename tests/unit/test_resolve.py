"""Names lead only to public addresses, are asked for once, and one bad answer spoils all."""

from __future__ import annotations

import asyncio

import pytest

from impyard.addon.publicaddresses import is_public
from impyard.addon.resolve import MAX_ADDRESSES, MAX_NAMES, TTL_S, PrivateAddress, Resolver, Unresolvable

PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "1.1.1.1"]
# The neighbours of what is refused.
AT_THE_EDGE = [
    "100.63.255.255",
    "100.128.0.0",
    "172.32.0.1",
    "198.17.255.255",
    "2001:200::1",
    "2a00::1",
    "223.255.255.254",
]


@pytest.mark.parametrize("address", PUBLIC + AT_THE_EDGE)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.attack("98")
@pytest.mark.parametrize(
    "address",
    [
        # IPv4: this host and network, private, carriers' NAT, link-local
        "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "172.16.0.1",
        "172.31.255.255", "192.168.1.1", "169.254.0.1", "100.64.0.1", "100.127.255.255",
        # metadata and host services of the clouds
        "169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192",
        "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fe80::a9fe:a9fe",
        # benchmarking, documentation, protocol assignments, relays, multicast, reserved, broadcast
        "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "192.0.2.1", "192.0.0.9", "192.0.0.170",
        "192.88.99.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.254", "255.255.255.255",
        # IPv6: none, this host, link-local, site-local, unique local, multicast, discard, segment routing
        "::", "::1", "::2", "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1", "fc00::1", "fdff::1", "ff02::1",
        "ff0e::1", "100::1", "5f00::1", "4000::1", "2606:2800:220:1::1%1",
        # documentation, benchmarking, ORCHID, the former 6bone
        "2001:db8::1", "3fff::1", "2001:2::1", "2001:10::1", "2001:20::1", "3ffe::1",
        # IPv4 inside of IPv6, public or not: mapped, translated, compatible, NAT64, 6to4, Teredo, ISATAP
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:93.184.216.34", "::ffff:7f00:1", "::ffff:0:127.0.0.1",
        "::ffff:0:5db8:d822", "::127.0.0.1", "::93.184.216.34", "64:ff9b::7f00:1", "64:ff9b::5db8:d822",
        "64:ff9b:1::1", "64:ff9b:1:ffff::10.0.0.1", "2002:7f00:1::", "2002:5db8:d822::",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2606:2800:220:1:0:5efe:7f00:1", "2606:2800:220:1:200:5efe:5db8:d822",
        # no plain literals
        "2130706433", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.1.", "\uff11\uff12\uff17.0.0.1",
        "\u2460\u2461\u2466.0.0.1", "%31.1.1.1", "1.1.1.1%1", "localhost", "",
    ],
)  # fmt: skip
def test_everything_else_is_not(address: str) -> None:
    assert not is_public(address)


class Names:
    """A table of names that counts the questions."""

    def __init__(self, table: dict[str, list[str]]) -> None:
        self.table = table
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if host not in self.table:
            raise OSError("no such name")
        return self.table[host]


def resolve(resolver: Resolver, host: str) -> str:
    """The first address to dial."""
    return asyncio.run(resolver.resolve(host))[0]


def test_the_first_answer_is_dialled_and_asked_for_once() -> None:
    names = Names({"a.test": PUBLIC})
    resolver = Resolver(names)
    assert [resolve(resolver, "a.test"), resolve(resolver, "a.test")] == [PUBLIC[0], PUBLIC[0]]
    assert names.asked == ["a.test"]


def test_many_who_ask_at_once_share_one_question_and_its_end() -> None:
    names = Names({"a.test": PUBLIC})

    async def ask(table: Names) -> list[tuple[str, ...] | BaseException]:
        waiting = asyncio.Event()

        async def slow(host: str) -> list[str]:
            await waiting.wait()
            return await table(host)

        resolver = Resolver(slow)
        asking = [asyncio.create_task(resolver.resolve("a.test")) for _ in range(5)]
        await asyncio.sleep(0)
        asking[0].cancel()  # who gives up takes nobody's answer along
        await asyncio.sleep(0)
        waiting.set()
        return await asyncio.gather(*asking[1:], return_exceptions=True)

    assert asyncio.run(ask(names)) == [tuple(PUBLIC[:MAX_ADDRESSES])] * 4
    assert names.asked == ["a.test"]
    none = Names({})
    assert [type(end) for end in asyncio.run(ask(none))] == [Unresolvable] * 4
    assert none.asked == ["a.test"]


def test_a_name_is_asked_for_again_after_its_time() -> None:
    names = Names({"a.test": [PUBLIC[0]]})
    now = [0.0]
    resolver = Resolver(names, clock=lambda: now[0])
    resolve(resolver, "a.test")
    names.table["a.test"] = ["127.0.0.1"]
    assert resolver.remembered("a.test") == (PUBLIC[0],)
    now[0] = TTL_S + 1
    assert resolver.remembered("a.test") == ()
    with pytest.raises(PrivateAddress):
        resolve(resolver, "a.test")


@pytest.mark.attack("100")
@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_private_answer_refuses_the_name(position: int) -> None:
    answers = [*PUBLIC[:2]]
    answers.insert(position, "10.0.0.1")
    with pytest.raises(PrivateAddress):
        resolve(Resolver(Names({"a.test": answers})), "a.test")


def test_an_address_literal_is_checked_without_a_question() -> None:
    names = Names({})
    assert resolve(Resolver(names), PUBLIC[0]) == PUBLIC[0]
    with pytest.raises(PrivateAddress):
        resolve(Resolver(names), "[::1]")
    assert names.asked == []


def test_no_answer_is_not_a_private_one() -> None:
    with pytest.raises(Unresolvable):
        resolve(Resolver(Names({})), "a.test")
    with pytest.raises(Unresolvable):
        resolve(Resolver(Names({"a.test": []})), "a.test")


def test_the_memory_of_names_is_bounded() -> None:
    names = Names({f"h{n}.test": [PUBLIC[0]] for n in range(MAX_NAMES + 10)})
    resolver = Resolver(names)
    for host in names.table:
        resolve(resolver, host)
    assert resolver.remembered("h0.test") == ()
    assert resolver.remembered(f"h{MAX_NAMES}.test") == (PUBLIC[0],)
