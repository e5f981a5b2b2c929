"""One spelling of each host, and nothing that is no host."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impyard.addon.request import canonical_host, is_address, split_authority


@pytest.mark.parametrize(
    ("raw", "host"),
    [
        ("ok.test", "ok.test"),
        ("OK.Test", "ok.test"),
        ("ok.test.", "ok.test"),
        ("localhost", "localhost"),
        ("_dmarc.ok_1.test", "_dmarc.ok_1.test"),
        ("r3---sn-4g5e.test", "r3---sn-4g5e.test"),
        ("1e100.test", "1e100.test"),
        ("123.test", "123.test"),
        ("bücher.test", "xn--bcher-kva.test"),
        ("BÜCHER.test", "xn--bcher-kva.test"),
        ("xn--bcher-kva.test", "xn--bcher-kva.test"),
        ("a" * 63 + ".test", "a" * 63 + ".test"),
        ("203.0.113.5", "203.0.113.5"),
        ("203.0.113.5.", "203.0.113.5"),
        ("2001:DB8:0:0::5", "2001:db8::5"),
        ("[2001:db8::5]", "2001:db8::5"),
        ("[::1]", "::1"),
    ],
)
def test_hosts_have_one_spelling(raw: str, host: str) -> None:
    assert canonical_host(raw) == host


@pytest.mark.parametrize(
    "raw",
    [
        "",
        ".",
        "..",
        "ok..test",
        ".ok.test",
        "ok.test..",
        "-ok.test",
        "ok-.test",
        "ok.test\0",
        "ok.test\n",
        "ok.test\r\nx",
        " ok.test",
        "ok test",
        "ok.test/",
        "user@ok.test",
        "ok.test:443",
        "*.ok.test",
        "*",
        "ok%2etest",
        "a" * 64 + ".test",
        ".".join(["a" * 60] * 5),
        "x" * 100_000,
        "é" * 100_000,
        "2852039166",
        "0xa9fea9fe",
        "0XA9FEA9FE",
        "0x7f.1",
        "127.1",
        "0",
        "0251.0376.0251.0376",
        "127.0.0.01",
        "127.0.0.256",
        "127.0.0.1.5",
        "127.0.0.0x1",
        "name.0x",
        "name.7",
        "[127.0.0.1]",
        "[2001:db8::5",
        "2001:db8::5]",
        "[fe80::1%eth0]",
        "fe80::1%25eth0",
        "[]",
        "1:2",
        "straße.test",
        "\uff4f\uff4b.test",
        "ok。test",
        "a\u200db.test",
        "\udc80.test",
    ],
)
def test_what_is_no_host_is_refused(raw: str) -> None:
    with pytest.raises(ValueError):
        canonical_host(raw)


@pytest.mark.parametrize(
    ("raw", "authority"),
    [
        ("ok.test", ("ok.test", None)),
        ("OK.test:8443", ("ok.test", 8443)),
        ("ok.test.:1", ("ok.test", 1)),
        ("[2001:db8::5]", ("2001:db8::5", None)),
        ("[2001:db8::5]:65535", ("2001:db8::5", 65535)),
    ],
)
def test_authorities_are_split(raw: str, authority: tuple[str, int | None]) -> None:
    assert split_authority(raw) == authority


@pytest.mark.parametrize(
    "raw",
    [
        "",
        ":443",
        "ok.test:",
        "ok.test:0",
        "ok.test:0443",
        "ok.test:443x",
        "ok.test:+443",
        "ok.test:65536",
        "ok.test:-1",
        "ok.test: 443",
        "ok.test:\uff14\uff14\uff13",
        "ok.test:80:90",
        "ok.test:80@evil.test",
        "user@ok.test",
        "2001:db8::5",
        "[2001:db8::5]x",
        "[2001:db8::5",
        "[2001:db8::5]:",
        "[ok.test]:443",
    ],
)
def test_what_is_no_authority_is_refused(raw: str) -> None:
    with pytest.raises(ValueError):
        split_authority(raw)


@given(st.text(max_size=300))
def test_a_host_is_its_own_canonical_form_and_nothing_but_a_value_error_is_raised(raw: str) -> None:
    try:
        host = canonical_host(raw)
    except ValueError:
        return
    assert canonical_host(host) == host
    assert host.isascii()
    assert not set(host) & set("/@?#%*[] \\")


@given(st.ip_addresses())
def test_addresses_are_told_from_names(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert is_address(canonical_host(str(address)))
    assert not is_address(canonical_host(f"x{str(address).replace(':', '').replace('.', '')}.test"))
