"""What the gateway puts on allowed requests: the right headers at the right host, and nothing that the box said there.

The host to which nothing is bound is the control: what comes there would come without injection.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from impyard.addon.vault.templates import READY
from tests.gateway.test_protocols import Http2, WebSocket
from tests.support.gateway import read_reply
from tests.support.h2echo import H2Echo
from tests.support.keybed import ACCESS, ACCOUNT, KEY, KeyBed, entry, key_bed
from tests.support.origin import Pki
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gateway


def basic(user: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()


ANTHROPIC = "{credential: key, template: anthropic}"


class Shown(NamedTuple):
    """How a credential is presented: headers, or None where the template has none for its kind."""

    template: str
    credential: str
    headers: dict[str, str] | None


KEY_BEARER, LOGIN_BEARER = {"authorization": f"Bearer {KEY}"}, {"authorization": f"Bearer {ACCESS}"}
BEARERS = (
    *("openai", "github-copilot", "xai", "groq", "mistral", "deepseek", "cerebras", "together", "fireworks"),
    *("huggingface", "nvidia", "moonshotai", "zai", "kimi-coding", "openrouter", "github"),
)
SHOWN = [
    *(Shown(name, "key", KEY_BEARER) for name in BEARERS),
    *(Shown(name, "login", LOGIN_BEARER) for name in BEARERS if name != "github"),
    Shown("anthropic", "key", {"x-api-key": KEY}),
    Shown("anthropic", "login", LOGIN_BEARER),
    Shown("openai-codex", "login", {**LOGIN_BEARER, "chatgpt-account-id": ACCOUNT}),
    Shown("openai-codex", "key", None),
    Shown("google", "key", {"x-goog-api-key": KEY}),
    Shown("google", "login", None),
    Shown("minimax", "key", {"x-api-key": KEY}),
    Shown("vercel-ai-gateway", "key", {"x-api-key": KEY}),
    Shown("github-git", "key", {"authorization": basic("x-access-token", KEY)}),
    Shown("gitlab", "key", {"private-token": KEY, "authorization": basic("oauth2", KEY)}),
    Shown("npm", "key", KEY_BEARER),
]


def name_of(shown: Shown) -> str:
    return f"{shown.template}-{shown.credential}.test"


HOSTS = [*map(name_of, SHOWN), "bound.test", "other.test", "elsewhere.test", "passes.test", "two.test"]


@pytest.fixture(scope="module")
def module_bed(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[KeyBed]:
    entries = [
        *(entry(name_of(each), f"{{credential: {each.credential}, template: {each.template}}}") for each in SHOWN),
        entry("bound.test", ANTHROPIC),
        entry("bound.test", more="port: 8443"),
        entry("other.test"),
        entry("passes.test", more="sentinels: pass"),
    ]
    with key_bed(tmp_path_factory.mktemp("keys"), pki, *entries, hosts=HOSTS) as bed:
        yield bed


@pytest.fixture
def bed(module_bed: KeyBed) -> Iterator[KeyBed]:
    module_bed.clear()
    yield module_bed
    assert module_bed.holds_none_of(KEY, ACCESS)


def as_in_the_box(bed: KeyBed, headers: dict[str, str]) -> str:
    """The lines of headers with sentinels in place of the values."""
    key, login = bed.gateway.sentinel("key"), bed.gateway.sentinel("login")
    pairs = [(KEY, key.key), (ACCESS, login.access), (ACCOUNT, login.account)]
    lines = []
    for name, value in headers.items():
        if value.startswith("Basic "):
            user, _, secret = base64.b64decode(value[6:]).decode().partition(":")
            value = basic(user, secret.replace(KEY, key.key))
        for real, stand_in in pairs:
            value = value.replace(real, stand_in)
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines)


@pytest.mark.parametrize("shown", [each for each in SHOWN if each.headers], ids=name_of)
def test_each_ready_template_puts_its_headers_on(bed: KeyBed, shown: Shown) -> None:
    """Whether its tools say something with sentinels, or nothing, as git does first."""
    expected, host = shown.headers or {}, name_of(shown)
    with bed.gateway.tls(host) as connection:
        for said in (as_in_the_box(bed, expected), ""):
            connection.sendall(f"GET /pub/x HTTP/1.1\r\nhost: {host}\r\n{said}\r\n".encode())
            assert read_reply(connection).status == 200
    for seen, decision in zip(bed.origin.seen, bed.gateway.decisions(), strict=True):
        assert {name: seen.header(name) for name in expected} == {name: [value] for name, value in expected.items()}
        assert b"impyard" not in seen.head
        assert seen.header("accept-encoding") == ["identity"]
        assert (decision["credential"], sorted(decision["injected"])) == (shown.credential, sorted(expected))


def test_every_ready_template_is_tried() -> None:
    assert {each.template for each in SHOWN} == set(READY)


@pytest.mark.parametrize("shown", [each for each in SHOWN if not each.headers], ids=name_of)
def test_a_credential_that_the_template_cannot_show_is_a_denial(bed: KeyBed, shown: Shown) -> None:
    reply = bed.get(name_of(shown))
    assert (reply.status, reply.json()["reason"]) == (403, "credential-unavailable")
    assert bed.untouched()
    assert bed.decision()["credential"] == shown.credential
    assert "injected" not in bed.decision()
    denied = {"event": "denied", "reason": "credential-unavailable", "credential": shown.credential}
    wait_until(lambda: any(denied.items() <= event.items() for event in bed.gateway.events), 5)


OWN = [
    "Authorization: Bearer mine\r\n",
    "AUTHORIZATION: Bearer mine\r\nauthorization: Basic bWluZQ==\r\n",
    "x-api-key: mine\r\nX-API-KEY: mine-too\r\n",
    "X_Api_Key: mine\r\nx-api_key: mine\r\n",
    "x.api.key: mine\r\nx~api+key: mine\r\n",
    "Connection: x-api-key, authorization\r\nx-api-key: mine\r\nauthorization: Bearer mine\r\n",
    "accept-encoding: gzip, mine\r\naccept_encoding: mine\r\n",
]


@pytest.mark.parametrize("own", OWN)
def test_nothing_that_the_box_says_in_the_gateways_headers_remains(bed: KeyBed, own: str) -> None:
    """The control is the host to which nothing is bound: there the same arrives."""
    assert bed.get("bound.test", headers=own).status == 200
    seen = bed.seen()
    assert b"mine" not in seen.head and b"bWluZQ" not in seen.head
    assert seen.header("x-api-key") == [KEY]
    assert seen.header("authorization") == []
    bed.clear()
    assert bed.get("other.test", headers=own).status == 200
    assert b"mine" in bed.seen().head or b"bWluZQ" in bed.seen().head
    assert KEY.encode() not in bed.seen().head


@pytest.mark.parametrize(("template", "header"), [("google", "Authorization"), ("gitlab", "JOB-TOKEN")])
def test_a_credential_of_the_boxs_own_goes_in_no_other_header_of_the_service(
    bed: KeyBed, template: str, header: str
) -> None:
    """Else the box could have the service act for an account of its choice."""
    host = next(name_of(each) for each in SHOWN if each.template == template and each.headers)
    assert bed.get(host, headers=f"{header}: Bearer mine\r\n").status == 200
    assert b"mine" not in bed.seen().head
    bed.clear()
    assert bed.get("other.test", headers=f"{header}: Bearer mine\r\n").status == 200
    assert b"Bearer mine" in bed.seen().head


def test_a_header_that_holds_a_sentinel_is_removed_wherever_it_is(bed: KeyBed) -> None:
    stand_in = bed.gateway.sentinel("key").key
    encoded = base64.b64encode(f"user:{stand_in}".encode()).decode()
    own = f"x-else: a {stand_in} b\r\nx-{stand_in}: c\r\nx-basic: Basic {encoded}\r\nx-kept: d\r\n"
    assert bed.get("bound.test", headers=own).status == 200
    assert b"impyard" not in bed.seen().head
    assert bed.seen().header("x-basic") == []
    assert bed.seen().header("x-kept") == ["d"]


def test_a_host_that_may_see_sentinels_gets_them(bed: KeyBed) -> None:
    stand_in = bed.gateway.sentinel("key").key
    assert bed.get("passes.test", headers=f"x-else: {stand_in}\r\n").status == 200
    assert bed.seen().header("x-else") == [stand_in]
    assert KEY.encode() not in bed.seen().head


def test_over_http2_it_is_the_same(bed: KeyBed) -> None:
    client = Http2(bed.gateway, "bound.test")
    own = (("x-api-key", "mine"), ("authorization", "Bearer mine"), ("accept-encoding", "gzip"), ("x_api_key", "mine"))
    stream = client.send("/pub/x", authority="bound.test", extra=own)
    client.wait(stream)
    client.close()
    assert client.answers[stream][0] == 200
    seen = bed.seen()
    assert (seen.header("x-api-key"), seen.header("authorization")) == ([KEY], [])
    assert b"mine" not in seen.head and b"gzip" not in seen.head
    assert bed.decision()["http"] == "2.0"


def test_an_http2_origin_gets_it_and_keeps_it_in_no_table(tmp_path, pki: Pki) -> None:  # type: ignore[no-untyped-def]
    with H2Echo(pki.context("h2.test", "free.test")) as echo:
        there = f"https://127.0.0.1:{echo.port}"
        more = "upstream_ca: {ca}"
        entries = [
            entry("h2.test", ANTHROPIC, upstream=there, more=more),
            entry("free.test", upstream=there, more=more),
        ]
        with key_bed(tmp_path, pki, *entries, hosts=["unused.test"]) as bed:
            client = Http2(bed.gateway, "h2.test")
            streams = [
                client.send("/pub/x", authority="h2.test", extra=(("x-api-key", "mine"), ("x-own", "1"))) for _ in "12"
            ]
            client.wait(*streams)
            client.close()
            assert [client.answers[stream][0] for stream in streams] == [200, 200]
            for headers in echo.seen:
                assert [value for name, value, _ in headers if name == "x-api-key"] == [KEY]
                assert ("x-api-key", KEY, False) in headers, "it may be kept in the table of the connection"
            assert any(kept for name, _, kept in echo.seen[0] if name == "x-own"), "control: other headers are kept"


def test_a_websocket_handshake_gets_it(bed: KeyBed) -> None:
    own = [(b"authorization", f"Bearer {bed.gateway.sentinel('login').access}".encode())]
    client = WebSocket(bed, "/pub/ws", host="openai-codex-login.test", headers=own)
    assert client.echo(b"hello")
    client.socket.close()
    seen = bed.seen()
    assert seen.header("authorization") == [f"Bearer {ACCESS}"]
    assert seen.header("chatgpt-account-id") == [ACCOUNT]
    assert bed.decision()["injected"] == ["authorization", "chatgpt-account-id"]


def test_a_request_that_is_asked_again_has_it_again(bed: KeyBed) -> None:
    """The origin closes a kept connection: the second request on it goes out twice."""
    with bed.gateway.tls("bound.test") as connection:
        for path in ("/pub/last", "/pub/x"):
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: bound.test\r\n\r\n".encode())
            assert read_reply(connection).status == 200
    assert [seen.header("x-api-key") for seen in bed.origin.seen] == [[KEY], [KEY]]


def test_a_kept_connection_carries_it_only_on_the_bound_hosts_requests(bed: KeyBed) -> None:
    with bed.gateway.tls("bound.test") as connection:
        for path in ("/pub/x", "/denied", "/pub/x"):
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: bound.test\r\n\r\n".encode())
            read_reply(connection)
    assert [seen.header("x-api-key") for seen in bed.origin.seen] == [[KEY], [KEY]]
    assert [line.get("injected") for line in bed.gateway.decisions()] == [["x-api-key"], None, ["x-api-key"]]


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 %b\r\n\r\n", b"%b\r\n\r\n", b"HTTP/1.1 200 OK\r\n%b\r\n\r\n", b"HTTP/1.1 200 %b"]
)
def test_an_answer_that_cannot_be_read_is_quoted_nowhere(bed: KeyBed, answer: bytes) -> None:
    """An origin may say again what came; the core's words about it would go into the log and to the box."""
    bed.origin.answers["/pub/x"] = lambda connection, seen: connection.sendall(answer % KEY.encode())
    reply = bed.get("bound.test")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert KEY.encode() not in reply.body
    (outcome,) = bed.gateway.outcomes(1)
    assert outcome["error"] and KEY not in str(outcome)


# -- where it does not go -----------------------------------------------------------------------------------------


def test_a_denied_request_gets_nothing_anywhere(bed: KeyBed) -> None:
    assert bed.get("bound.test", "/secret").status == 403
    assert bed.untouched()
    assert "injected" not in bed.decision()


def test_another_host_and_another_port_of_the_same_host_get_nothing(bed: KeyBed) -> None:
    for url in ("https://other.test/pub/x", "https://bound.test:8443/pub/x"):
        bed.clear()
        assert bed.gateway.get(url).status == 200
        assert KEY.encode() not in bed.seen().head
        assert "credential" not in bed.decision()


@pytest.mark.parametrize("to", ["other.test", "elsewhere.test", "bound.test:8443"])
def test_it_does_not_follow_a_redirect(bed: KeyBed, to: str) -> None:
    reply = bed.get("bound.test", f"/pub/redirect=https://{to}/pub/y")
    assert reply.status == 302
    bed.origin.clear()
    followed = bed.gateway.get(reply.headers["location"], headers=f"x-api-key: {bed.gateway.sentinel('key').key}\r\n")
    assert followed.status == (403 if to == "elsewhere.test" else followed.status)
    assert all(KEY.encode() not in seen.head for seen in bed.origin.seen)


@pytest.mark.parametrize(
    ("host", "sni", "said", "path"),
    [
        ("bound.test", "bound.test", "other.test", "/pub/x"),
        ("other.test", "other.test", "bound.test", "/pub/x"),
        ("other.test", "bound.test", "bound.test", "/pub/x"),
        ("bound.test", "other.test", "bound.test", "/pub/x"),
        ("other.test", "other.test", "other.test", "https://bound.test/pub/x"),
        ("other.test", "other.test", "other.test", "https://bound.test@other.test/pub/x"),
    ],
)
def test_it_cannot_be_steered_elsewhere_by_names_that_disagree(
    bed: KeyBed, host: str, sni: str, said: str, path: str
) -> None:
    with bed.gateway.tls(host, sni=sni) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: {said}\r\n\r\n".encode())
        reply = read_reply(connection)
    assert reply.status in (0, 400, 403), reply
    assert bed.untouched()
    # Control: where they agree it comes.
    assert bed.get("bound.test").status == 200
    assert bed.seen().header("x-api-key") == [KEY]
