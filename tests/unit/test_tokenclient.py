"""The request to a token endpoint, against real servers on loopback."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from impyard.addon.vault.oauth import TokenRequest
from impyard.addon.vault.tokenclient import MAX_ANSWER_BYTES, TokenAnswer, ask
from impyard.addon.vault.tokenlines import NoAnswer
from impyard.certs.throwaway import Pki
from tests.support.connectproxy import ConnectProxy
from tests.support.tokenendpoint import Answer, TokenEndpoint, drips, given, hangs, says, writes

VALUE = "secret-refresh-value"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def shared(pki: Pki) -> Iterator[TokenEndpoint]:
    endpoint = TokenEndpoint(pki.context("localhost", "login.example.test"))
    yield endpoint
    endpoint.close()


@pytest.fixture
def endpoint(shared: TokenEndpoint) -> TokenEndpoint:
    shared.answer = says({"ok": True}, headers={"date": "Sun, 06 Nov 1994 08:49:37 GMT"})
    shared.asked.clear()
    return shared


def send(
    endpoint: TokenEndpoint, pki: Pki, *, proxy: str | None = None, url: str = "", limit_s: float = 5
) -> TokenAnswer:
    request = TokenRequest("POST", url or endpoint.url, (("x-kind", "test"),), VALUE.encode(), str(pki.ca_path))
    return ask(request, proxy, limit_s=limit_s)


def fails(endpoint: TokenEndpoint, pki: Pki, answer: Answer | None = None, **more: float) -> str:
    if answer is not None:
        endpoint.answer = answer
    with pytest.raises(NoAnswer) as caught:
        send(endpoint, pki, limit_s=more.get("limit_s", 5))
    assert VALUE not in str(caught.value)
    return str(caught.value)


def test_an_answer_comes_with_its_status_and_time(endpoint: TokenEndpoint, pki: Pki) -> None:
    assert send(endpoint, pki) == TokenAnswer(200, b'{"ok": true}', 784111777000.0)
    asked = endpoint.asked[0]
    assert (asked.method, asked.target, asked.body) == ("POST", "/oauth/token", VALUE.encode())
    assert asked.headers["host"] == f"localhost:{endpoint.port}"
    assert asked.headers["x-kind"] == "test"


@pytest.mark.parametrize("status", [204, 301, 302, 307, 308, 400, 500])
def test_every_status_is_an_answer_and_no_redirect_is_followed(endpoint: TokenEndpoint, pki: Pki, status: int) -> None:
    endpoint.answer = says(b"", status=status, headers={"location": endpoint.url})
    assert send(endpoint, pki).status == status
    assert len(endpoint.asked) == 1


def test_an_answer_in_chunks_is_read(endpoint: TokenEndpoint, pki: Pki) -> None:
    endpoint.answer = writes(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    )
    assert send(endpoint, pki).body == b"{}"


SLOW: dict[str, Answer] = {
    "says nothing": hangs,
    "drips its head": drips(given(b"x" * 100), 0.02),
    "drips its body": drips(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n" + b"x" * 100, 0.02),
    "drips chunks": drips(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100, 0.01),
    "goes on being about to": drips(b"HTTP/1.1 100 Continue\r\n\r\n" * 30, 0.005),
}


@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW.keys())
def test_the_limit_is_for_everything_in_all(endpoint: TokenEndpoint, pki: Pki, answer: Answer) -> None:
    started = time.monotonic()
    assert fails(endpoint, pki, answer, limit_s=0.3) == "the token endpoint did not answer within 0.3 seconds"
    assert time.monotonic() - started < 3


def test_a_handshake_that_drips_counts_too(pki: Pki) -> None:
    """Bytes of a record that never comes to an end."""
    server = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        client, _ = server.accept()
        with client:
            client.sendall(b"\x16\x03\x03\x40\x00")
            for _ in range(100):
                try:
                    client.sendall(b"\x02")
                except OSError:
                    return
                time.sleep(0.02)

    threading.Thread(target=drip, daemon=True).start()
    request = TokenRequest("GET", f"https://localhost:{server.getsockname()[1]}/", (), ca=str(pki.ca_path))
    started = time.monotonic()
    with server, pytest.raises(NoAnswer, match=r"within 0\.3 seconds"):
        ask(request, limit_s=0.3)
    assert time.monotonic() - started < 3


BIG = b"x" * (MAX_ANSWER_BYTES + 1)
LARGE: dict[str, Answer] = {
    "by its length": says(BIG),
    "in chunks": writes(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BIG), BIG)
    ),
    "to the end": writes(b"HTTP/1.1 200 OK\r\n\r\n" + BIG),
    "without end": writes(BIG, 50),
    "in one header": writes(b"HTTP/1.1 200 OK\r\nx: " + BIG * 4),
    "in headers": writes(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 60_000),
}


@pytest.mark.parametrize("answer", LARGE.values(), ids=LARGE.keys())
def test_a_huge_answer_is_none(endpoint: TokenEndpoint, pki: Pki, answer: Answer) -> None:
    assert any(word in fails(endpoint, pki, answer) for word in ("larger than 64 KiB", "not HTTP"))


def test_the_largest_answer_is_one(endpoint: TokenEndpoint, pki: Pki) -> None:
    endpoint.answer = says(b"x" * MAX_ANSWER_BYTES)
    assert len(send(endpoint, pki).body) == MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "broke off"),
        (b"hello\r\n\r\n", "not HTTP"),
        (f"HTTP/1.1 200 {VALUE}\r\nno colon {VALUE}".encode(), "broke off"),
        (b"HTTP/1.1 abc OK\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{}", "broke off"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "broke off"),  # no length, and TLS does not say that it is the end
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n\x1f\x8b", "compressed"),
    ],
)
def test_an_answer_that_is_broken_is_none(endpoint: TokenEndpoint, pki: Pki, data: bytes, why: str) -> None:
    with pytest.raises(NoAnswer, match=why):
        endpoint.answer = writes(data)
        send(endpoint, pki)


def test_another_authority_and_another_name_do_not_hold(endpoint: TokenEndpoint, pki: Pki, tmp_path: Path) -> None:
    other = Pki(tmp_path)
    assert "certificate does not hold" in fails(endpoint, other)
    usual = TokenRequest("GET", endpoint.url, ())
    with pytest.raises(NoAnswer, match="certificate does not hold"):
        ask(usual)
    with pytest.raises(NoAnswer, match="certificate does not hold"):
        send(endpoint, pki, url=f"https://127.0.0.1:{endpoint.port}/")
    assert endpoint.asked == []
    assert send(endpoint, pki).status == 200  # the control


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example.test/",
        "http://198.51.100.7/",
        "http://127.0.0.1.evil.test/",
        "ftp://localhost/",
        "https://user:pw@localhost/",
        "https:///x",
        "https://localhost:99999/",
        "https://localhost/a b",
        "https://localhost/a\r\nx: y",
        "//localhost/",
        "",
    ],
)
def test_only_https_and_this_machine_are_asked(endpoint: TokenEndpoint, pki: Pki, url: str) -> None:
    with pytest.raises(NoAnswer, match=r"is not one|over https only"):
        ask(TokenRequest("GET", url, (), ca=str(pki.ca_path)))


def test_plain_http_is_for_this_machine() -> None:
    plain = TokenEndpoint(None)
    plain.answer = says({})
    try:
        for host in ("127.0.0.1", "localhost"):
            assert ask(TokenRequest("GET", f"http://{host}:{plain.port}/", ())).status == 200
        proxy = "http://127.0.0.1:1"  # which nobody is asked for on the way to here
        assert ask(TokenRequest("GET", f"http://127.0.0.1:{plain.port}/", ()), proxy).status == 200
    finally:
        plain.close()


def test_nobody_there_and_roots_that_are_not_there_say_so(endpoint: TokenEndpoint, pki: Pki, tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match="cannot be reached: Connection refused"):
        send(endpoint, pki, url="https://localhost:1/")
    with pytest.raises(NoAnswer, match="cannot be reached"):
        send(endpoint, pki, url="https://nobody.invalid/")
    (tmp_path / "empty.pem").write_text("nothing here")
    for ca in ("/nowhere/ca.pem", str(tmp_path / "empty.pem")):
        with pytest.raises(NoAnswer, match="roots"):
            ask(TokenRequest("GET", endpoint.url, (), ca=ca))


def test_the_environments_proxy_counts_for_nothing(
    endpoint: TokenEndpoint, pki: Pki, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert send(endpoint, pki).status == 200
    assert not os.path.exists(tmp_path / "keys")


def test_a_named_proxy_is_asked_for_a_tunnel(endpoint: TokenEndpoint, pki: Pki) -> None:
    proxy = ConnectProxy({f"login.example.test:{endpoint.port}": endpoint.port}, wants="Basic dXNlcjpwQHM=")
    try:
        url = f"https://login.example.test:{endpoint.port}/t"
        assert send(endpoint, pki, url=url, proxy=f"http://user:p%40s@127.0.0.1:{proxy.port}").status == 200
        assert proxy.targets() == [f"login.example.test:{endpoint.port}"]
        assert VALUE.encode() not in b"".join(proxy.heads)
        with pytest.raises(NoAnswer, match="refuses the tunnel with status 407"):
            send(endpoint, pki, url=url, proxy=f"http://127.0.0.1:{proxy.port}")
    finally:
        proxy.close()


def test_a_proxys_own_authority_counts_only_through_it(endpoint: TokenEndpoint, pki: Pki) -> None:
    """Such a proxy answers in the endpoint's place."""
    proxy = ConnectProxy({f"localhost:{endpoint.port}": endpoint.port})
    named = f"http://127.0.0.1:{proxy.port}"
    try:
        request = TokenRequest("GET", endpoint.url, ())
        assert ask(request, named, pki.ca_path).status == 200
        for way in ((named, None), (None, pki.ca_path)):
            with pytest.raises(NoAnswer, match="certificate does not hold"):
                ask(request, *way)
    finally:
        proxy.close()


def test_a_proxy_may_be_spoken_to_over_tls(endpoint: TokenEndpoint, pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = ConnectProxy({f"login.example.test:{endpoint.port}": endpoint.port}, tls=pki.context("localhost"))
    url, named = f"https://login.example.test:{endpoint.port}/t", f"https://localhost:{proxy.port}"
    try:
        with pytest.raises(NoAnswer, match="certificate does not hold"):
            send(endpoint, pki, url=url, proxy=named)
        monkeypatch.setenv("SSL_CERT_FILE", str(pki.ca_path))
        assert send(endpoint, pki, url=url, proxy=named).status == 200
    finally:
        proxy.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 403 No\r\n\r\n", "refuses the tunnel with status 403"),
        (b"SSH-2.0-x\r\n\r\n", "does not answer with HTTP"),
        (b"", "does not answer with HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 40_000, "does not answer with HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", "speaks before"),
    ],
)
def test_a_proxy_that_gives_no_tunnel_gets_nothing(pki: Pki, answer: bytes, why: str) -> None:
    proxy = TokenEndpoint(None)
    proxy.answer = writes(answer)
    try:
        with pytest.raises(NoAnswer, match=why):
            ask(
                TokenRequest("POST", "https://login.example.test/", (), VALUE.encode()),
                f"http://127.0.0.1:{proxy.port}",
            )
        assert VALUE not in repr(proxy.asked)
    finally:
        proxy.close()


@pytest.mark.parametrize("proxy", ["proxy:3128", "socks5://127.0.0.1:1", "http://", "http://[", ""])
def test_a_proxy_that_is_none_is_not_left_out(endpoint: TokenEndpoint, pki: Pki, proxy: str) -> None:
    with pytest.raises(NoAnswer, match="proxy's URL"):
        send(endpoint, pki, proxy=proxy)
    assert endpoint.asked == []
