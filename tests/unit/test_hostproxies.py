"""The environment's proxies: chosen only on the policy's word, their users given only to them."""

from __future__ import annotations

import base64

import pytest

from impyard.addon.hostproxies import HostProxies, NoProxy
from impyard.addon.rules import Proxy

FROM_ENVIRONMENT = Proxy()
HTTPS = {"HTTPS_PROXY": "http://ada:p%40ss@Proxy.Example.org:3128", "HTTP_PROXY": "http://other.example.org"}


def chosen(environment: dict[str, str], host: str = "a.test", port: int = 443, scheme: str = "https") -> str:
    return str(HostProxies(environment).chosen(FROM_ENVIRONMENT, scheme, host, port))


def test_the_variable_of_the_scheme_counts() -> None:
    assert chosen(HTTPS) == "via http://proxy.example.org:3128"
    assert chosen(HTTPS, scheme="http") == "via http://other.example.org:80"
    assert chosen({"ALL_PROXY": "https://[2001:db8::1]:8443"}) == "via https://[2001:db8::1]:8443"
    assert chosen({"https_proxy": "lower.example.org:3128", **HTTPS}) == "via http://lower.example.org:3128"
    assert chosen({}) == chosen({"HTTPS_PROXY": ""}) == "None"


def test_a_proxy_that_the_policy_names_is_used_whatever_the_environment_says() -> None:
    named = Proxy("http", "127.0.0.1", 3128)
    assert HostProxies({**HTTPS, "NO_PROXY": "*"}).chosen(named, "https", "a.test", 443) == named


@pytest.mark.attack("F46")
@pytest.mark.parametrize(
    ("no_proxy", "host"),
    [
        ("*", "a.test"), ("a.test", "a.test"), ("A.Test.", "a.test"), ("test", "a.test"), (".test", "a.test"),
        ("*.test", "a.test"), ("x, a.test ,y", "a.test"), ("x a.test", "a.test"), ("a.test:443", "a.test"),
        ("::1", "::1"), ("[::1]:443", "::1"), ("127.0.0.1", "127.0.0.1"), ("b\u00fccher.test", "xn--bcher-kva.test"),
    ],
)  # fmt: skip
def test_hosts_that_no_proxy_names_go_direct(no_proxy: str, host: str) -> None:
    assert chosen({**HTTPS, "NO_PROXY": no_proxy}, host) == "None"
    assert chosen({**HTTPS, "no_proxy": no_proxy}, host) == "None"


@pytest.mark.attack("F46")
@pytest.mark.parametrize("no_proxy", ["", "b.test", "aa.test", "xa.test", "a.test:80", "10.0.0.0/8", ",", "a.tes", "["])
def test_others_do_not(no_proxy: str) -> None:
    assert chosen({**HTTPS, "NO_PROXY": no_proxy}) == "via http://proxy.example.org:3128"


@pytest.mark.parametrize(
    "url", ["socks5://127.0.0.1:1080", "http://", "http://ada:pw@", "http://ex ample:1", "http://a:0"]
)
def test_what_is_no_proxy_is_an_error_without_its_value(url: str) -> None:
    with pytest.raises(NoProxy) as caught:
        chosen({"HTTPS_PROXY": url})
    assert url not in str(caught.value) and "pw" not in str(caught.value)


def test_the_user_is_given_to_just_the_proxy_that_it_is_for() -> None:
    proxies = HostProxies(HTTPS)
    expected = "Basic " + base64.b64encode(b"ada:p@ss").decode()
    assert proxies.authorization(Proxy("http", "proxy.example.org", 3128)) == expected
    for other in (
        Proxy("https", "proxy.example.org", 3128),
        Proxy("http", "proxy.example.org", 3129),
        Proxy("http", "other.example.org", 80),
        Proxy("http", "evil.test", 3128),
    ):
        assert proxies.authorization(other) == ""
