"""`upstream_proxy`: used where the policy says so and nowhere else, judged and verified all the same, secrets kept.

The gateway's environment names a proxy with a user, as a host behind one has it; the origins are reached only through
the proxies' own table of names.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import wsproto
import wsproto.events

from tests.support.connectproxy import ConnectProxy
from tests.support.gateway import ROOT, LiveGateway, read_reply
from tests.support.listening import free_port
from tests.support.origin import Origin, Pki

pytestmark = pytest.mark.gateway

SECRET = "s3cret-word"
CLOUDS = ("metadata.google.internal", "other.google.internal")
BASIC = base64.b64encode(f"ada:{SECRET}".encode()).decode()
POLICY = """\
networkPolicies:
  - host: "*.named.test"
    scheme: [https, http]
    upstream_proxy: http://127.0.0.1:{named}
    policies:
      - {{action: ALLOW, method: [GET, POST], path: /pub/.*}}
      - {{action: ALLOW, method: GET, path: /pub/ws, websocket: true}}
  - host: inspected.test
    upstream_proxy: http://127.0.0.1:{named}
    upstream_ca: {ca}
    policies:
      - {{action: ALLOW, method: GET, path: /pub/.*}}
  - host: forged.test
    upstream_proxy: http://127.0.0.1:{named}
    policies:
      - {{action: ALLOW, method: GET, path: /pub/.*}}
  - host: env.test
    scheme: [https, http]
    upstream_proxy: environment
    policies:
      - {{action: ALLOW, method: GET, path: /pub/.*}}
  - host: same.test
    upstream_proxy: http://localhost:{env}
    policies:
      - {{action: ALLOW, method: GET, path: /pub/.*}}
  - host: localhost
    scheme: [https, http]
    upstream_proxy: environment
    policies:
      - {{action: ALLOW, method: GET, path: /.*}}
  - host: inner.localhost
    upstream_proxy: http://127.0.0.1:{named}
    policies:
      - {{action: ALLOW, method: GET, path: /.*}}
  - host: "*.google.internal"
    scheme: http
    upstream_proxy: http://127.0.0.1:{named}
    policies:
      - {{action: ALLOW, method: GET, path: /latest/.*}}
  - host: 10.0.0.1
    upstream_proxy: http://127.0.0.1:{named}
    policies:
      - {{action: ALLOW, method: GET, path: /.*}}
  - host: 169.254.169.254
    scheme: http
    upstream_proxy: http://127.0.0.1:{named}
    policies:
      - {{action: ALLOW, method: GET, path: /.*}}
  - host: direct.test
    upstream: https://127.0.0.1:{origin}
    policies:
      - {{action: ALLOW, method: GET, path: /pub/.*}}
  - host: nowhere.invalid
    policies:
      - {{action: ALLOW, method: GET, path: /pub/.*}}
  - host: gone.test
    upstream_proxy: http://127.0.0.1:1
    policies:
      - {{action: ALLOW, method: GET, path: /pub/.*}}
  - host: tls.test
    upstream_proxy: https://localhost:{tls}
    policies:
      - {{action: ALLOW, method: GET, path: /pub/.*}}
  - host: tls-wrong.test
    upstream_proxy: https://127.0.0.1:{tls}
    policies:
      - {{action: ALLOW, method: GET, path: /pub/.*}}
"""
# Answers of a proxy that gives no tunnel, and what the box then reads.
MISBEHAVIOUR: dict[str, tuple[bytes | None, str]] = {
    "refuses": (b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno", "refuses the tunnel with status 403"),
    "wants": (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "with status 407: it wants other credentials"),
    "broken": (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "refuses the tunnel with status 503"),
    "moves": (b"HTTP/1.1 302 Found\r\nlocation: http://evil.test/\r\n\r\n", "refuses the tunnel with status 302"),
    "switches": (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "refuses the tunnel with status 101"),
    "garbage": (b"SSH-2.0-x\r\n\r\n", "its answer is not HTTP"),
    "binary": (b"\x16\x03\x01\x00\x05", "its answer is not HTTP"),
    "almost": (b"HTTP/1.1 2000 OK\r\n\r\n", "its answer is not HTTP"),
    "closes": (b"", "closed"),
    "half": (b"HTTP/1.1 200 OK\r\nx: y", "closed"),
    "endless": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, "its answer is not HTTP"),
    "early": (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "speaks before the host does"),
    "hangs": (None, "the tunnel through it did not come up within"),
}


@dataclass
class Bed:
    """A gateway whose environment names `env`, a proxy that wants a user. named, tls: the policy's own proxies."""

    gateway: LiveGateway
    origin: Origin
    plain: Origin
    named: ConnectProxy
    env: ConnectProxy
    tls: ConnectProxy
    policy: str

    def proxies(self) -> list[ConnectProxy]:
        return [self.named, self.env, self.tls]

    def unproxied(self) -> bool:
        return not any(proxy.connections for proxy in self.proxies())

    def only_decision(self) -> dict[str, object]:
        decisions = self.gateway.decisions()
        assert len(decisions) == 1, decisions
        return decisions[0]


def write_policy(bed: Bed, policy: str) -> None:
    bed.gateway.policy_path.write_text(policy)


@pytest.fixture(scope="module")
def module_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    root = tmp_path_factory.mktemp("proxied")
    (root / "inspector").mkdir()
    pki, inspector = Pki(root), Pki(root / "inspector")
    names = ("a.named.test", "b.named.test", "env.test", "same.test", "direct.test", "tls.test", "tls-wrong.test")
    inspecting = Origin(inspector.context("inspected.test", "forged.test"))
    origin, plain = Origin(pki.context(*names)), Origin()
    routes = {f"{name}:443": origin.port for name in (*names, "wrong.named.test", "localhost")}
    routes |= {f"{name}:80": plain.port for name in (*names, "localhost", "169.254.169.254", *CLOUDS)}
    routes |= {"10.0.0.1:443": origin.port, "inner.localhost:443": origin.port}
    routes |= {f"{name}.test:443": inspecting.port for name in ("inspected", "forged")}
    named = ConnectProxy(routes)
    named.misbehave = {f"{name}.named.test:443": answer for name, (answer, _) in MISBEHAVIOUR.items()}
    env = ConnectProxy(routes, wants=f"Basic {BASIC}")
    tls = ConnectProxy(routes, tls=pki.context("localhost"))
    policy = POLICY.format(named=named.port, env=env.port, tls=tls.port, origin=origin.port, ca=inspector.ca_path)
    theirs = f"http://ada:{SECRET}@localhost:{env.port}"
    gateway = LiveGateway(
        root,
        policy,
        limits={"establish_s": 1.0},
        env={
            "HTTPS_PROXY": theirs,
            "HTTP_PROXY": theirs,
            "NO_PROXY": "elsewhere.test, localhost,.corp.test",
            "SSL_CERT_FILE": str(pki.ca_path),
        },
    )
    assert gateway.first.get("event") == "ready", (gateway.first, gateway.stderr_path.read_text())
    bed = Bed(gateway, origin, plain, named, env, tls, policy)
    try:
        yield bed
    finally:
        gateway.stop()
        for end in (origin, plain, inspecting, named, env, tls):
            end.close()


@pytest.fixture
def bed(module_bed: Bed) -> Iterator[Bed]:
    """The module's bed with nothing remembered. After each test: nobody but the proxy has seen the secret."""
    for origin in (module_bed.origin, module_bed.plain):
        origin.clear()
    for proxy in module_bed.proxies():
        proxy.clear()
    if module_bed.gateway.policy_path.read_text() != module_bed.policy:
        write_policy(module_bed, module_bed.policy)
    module_bed.gateway.forget()
    yield module_bed
    gateway = module_bed.gateway
    written = [path.read_text() for path in (*gateway.runs.glob("*.jsonl"), gateway.stderr_path)]
    assert not any(SECRET in text or BASIC in text for text in [*written, repr(gateway.events)])
    heads = [head for proxy in (module_bed.named, module_bed.tls) for head in proxy.heads]
    heads += [seen.head for seen in module_bed.origin.seen + module_bed.plain.seen]
    assert not any(BASIC.encode() in head for head in heads)


@pytest.mark.attack("F33", control=True)
@pytest.mark.parametrize(("scheme", "port"), [("https", 443), ("http", 80)])
def test_a_named_proxy_is_asked_for_the_judged_host(bed: Bed, scheme: str, port: int) -> None:
    reply = bed.gateway.get(f"{scheme}://a.named.test/pub/x?q=1", headers="Proxy-Authorization: Basic Ym94Og==\r\n")
    assert (reply.status, reply.body) == (200, b"hello from the origin\n")
    assert bed.named.targets() == [f"a.named.test:{port}"]
    head = bed.named.heads[0].lower()
    assert head.startswith(b"connect ") and b"proxy-authorization" not in head
    origin = bed.origin if scheme == "https" else bed.plain
    assert [seen.target for seen in origin.seen] == ["/pub/x?q=1"]
    assert origin.seen[0].header("host") == ["a.named.test"]
    decision = bed.only_decision()
    assert (decision["verdict"], decision["host"]) == ("allow", "a.named.test")
    assert decision["upstream"] == f"via http://127.0.0.1:{bed.named.port}"


@pytest.mark.attack("F33", control=True)
@pytest.mark.parametrize(("url", "port"), [("https://env.test/pub/x", 443), ("http://env.test/pub/x", 80)])
def test_the_environments_proxy_is_used_with_its_user_where_the_policy_says_so(bed: Bed, url: str, port: int) -> None:
    assert bed.gateway.get(url).status == 200
    assert bed.env.targets() == [f"env.test:{port}"]
    assert f"Proxy-Authorization: Basic {BASIC}".encode() in bed.env.heads[0]
    assert bed.only_decision()["upstream"] == f"via http://localhost:{bed.env.port}"
    for seen in bed.origin.seen + bed.plain.seen:
        assert seen.header("proxy-authorization") == seen.header("via") == []


def test_a_proxy_that_the_policy_names_gets_the_user_that_the_environment_has_for_it(bed: Bed) -> None:
    assert bed.gateway.get("https://same.test/pub/x").status == 200
    assert f"Proxy-Authorization: Basic {BASIC}".encode() in bed.env.heads[0]


@pytest.mark.attack("F33")
@pytest.mark.parametrize(
    ("url", "status"), [("https://direct.test/pub/x", 200), ("https://nowhere.invalid/pub/x", 502)]
)
def test_without_the_policys_word_no_proxy_is_used(bed: Bed, url: str, status: int) -> None:
    assert bed.gateway.get(url).status == status
    assert bed.unproxied()
    assert "via" not in str(bed.only_decision().get("upstream"))


@pytest.mark.attack("F33", "98")
def test_no_proxy_of_the_environment_leads_past_the_proxy_and_is_checked_then(bed: Bed) -> None:
    reply = bed.gateway.get("https://localhost/pub/x")
    assert (reply.status, reply.json()["reason"]) == (403, "private-address")
    assert bed.unproxied()


@pytest.mark.attack("98", "14")
@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.1/x",
        "http://169.254.169.254/latest/meta-data/",
        "https://inner.localhost/x",
        "http://metadata.google.internal/latest/x",
    ],
)
def test_what_is_known_to_be_private_is_denied_in_front_of_the_proxy(bed: Bed, url: str) -> None:
    reply = bed.gateway.get(url)
    assert (reply.status, reply.json()["reason"]) == (403, "private-address")
    assert bed.only_decision()["verdict"] == "deny"
    assert bed.unproxied()


@pytest.mark.attack("98", control=True)
def test_control_any_other_name_is_asked_of_the_proxy(bed: Bed) -> None:
    assert bed.gateway.get("http://other.google.internal/latest/x").status == 200
    assert bed.named.targets() == ["other.google.internal:80"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://a.named.test/private", "no-rule"),
        ("https://a.named.test/pub/%2e%2e/private", "ambiguous-path"),
        ("https://named.test/pub/x", "unlisted-host"),
        ("https://a.named.test:8443/pub/x", "no-rule"),
    ],
)
def test_what_is_denied_is_denied_in_front_of_the_proxy(bed: Bed, url: str, reason: str) -> None:
    reply = bed.gateway.get(url)
    assert (reply.status, reply.json()["reason"]) == (403, reason)
    assert bed.unproxied()
    assert bed.gateway.get("https://a.named.test/pub/after").status == 200


@pytest.mark.attack("F22", "F41")
def test_the_host_behind_the_proxy_is_verified_by_its_judged_name(bed: Bed) -> None:
    reply = bed.gateway.get("https://wrong.named.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert "certificate" in reply.json()["error"].lower()
    assert bed.named.targets() == ["wrong.named.test:443"]
    assert bed.origin.seen == []


@pytest.mark.attack("F33", "F41")
def test_a_proxy_that_looks_into_tls_is_accepted_by_its_authority_alone(bed: Bed) -> None:
    assert bed.gateway.get("https://inspected.test/pub/x").status == 200
    reply = bed.gateway.get("https://forged.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert "certificate" in reply.json()["error"].lower()


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200\r\n\r\n",
        b"HTTP/1.1 200 Connection established\r\nProxy-Agent: some/1.0\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 299 \xe9\r\nx: " + b"y" * 8000 + b"\r\n\r\n",
    ],
)
def test_proxies_may_greet_in_their_own_way(bed: Bed, greeting: bytes) -> None:
    usual, bed.named.greeting = bed.named.greeting, greeting
    try:
        assert bed.gateway.get("https://a.named.test/pub/x").status == 200
    finally:
        bed.named.greeting = usual


@pytest.mark.attack("F22")
@pytest.mark.parametrize("name", MISBEHAVIOUR)
def test_a_proxy_that_gives_no_tunnel_is_an_upstream_failure(bed: Bed, name: str) -> None:
    reply = bed.gateway.get(f"https://{name}.named.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert reply.headers["x-impyard-verdict"] == "allow"
    text = reply.json()["error"]
    assert "through the upstream proxy" in text and MISBEHAVIOUR[name][1] in text
    assert "127.0.0.1" not in text and str(bed.named.port) not in text
    assert bed.only_decision()["verdict"] == "allow"
    outcome = bed.gateway.outcomes(1)[0]
    assert outcome["status"] is None and MISBEHAVIOUR[name][1] in outcome["error"]
    assert bed.origin.seen == bed.plain.seen == []
    assert bed.gateway.get("https://a.named.test/pub/after").status == 200


@pytest.mark.attack("F22")
def test_a_proxy_that_is_gone_is_an_upstream_failure(bed: Bed) -> None:
    reply = bed.gateway.get("https://gone.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert "through the upstream proxy" in reply.json()["error"]


def test_a_proxy_is_spoken_to_in_tls_and_verified_by_its_own_name(bed: Bed) -> None:
    assert bed.gateway.get("https://tls.test/pub/x").status == 200
    assert bed.tls.targets() == ["tls.test:443"]
    reply = bed.gateway.get("https://tls-wrong.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert bed.tls.targets() == ["tls.test:443"]


@pytest.mark.attack("83")
def test_a_tunnel_is_kept_for_its_host_and_its_proxy_alone(bed: Bed) -> None:
    with bed.gateway.tls("a.named.test") as connection:

        def ask(path: str) -> int:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a.named.test\r\n\r\n".encode())
            return read_reply(connection).status

        assert [ask("/pub/1"), ask("/private"), ask("/pub/2")] == [200, 403, 200]
        assert bed.named.targets() == ["a.named.test:443"]
        write_policy(bed, bed.policy.replace(f"http://127.0.0.1:{bed.named.port}", "environment"))
        assert ask("/pub/3") == 200
        assert (len(bed.named.heads), bed.env.targets()) == (1, ["a.named.test:443"])
    assert bed.gateway.get("https://b.named.test/pub/x").status == 200
    assert bed.origin.connections == 3


@pytest.mark.attack("82")
def test_http2_uploads_downloads_and_websockets_go_through_the_tunnel(bed: Bed) -> None:
    import h2.config
    import h2.connection
    import h2.events

    with bed.gateway.tls("a.named.test", alpn=("h2",)) as connection:
        client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        client.initiate_connection()
        for number, path in ((1, "/pub/x"), (3, "/pub/y")):
            fields = {":method": "GET", ":scheme": "https", ":authority": "a.named.test", ":path": path}
            client.send_headers(number, list(fields.items()), end_stream=True)
        connection.sendall(client.data_to_send())
        ended = 0
        while ended < 2:
            for event in client.receive_data(connection.recv(65536)):
                ended += isinstance(event, h2.events.StreamEnded)
            connection.sendall(client.data_to_send())
    body = bytes(3 << 20)
    assert bed.gateway.get("https://a.named.test/pub/up", "POST", body=body).status == 200
    assert bed.origin.seen[-1].body_bytes == len(body)
    assert len(bed.gateway.get(f"https://a.named.test/pub/big={3 << 20}").body) == 3 << 20
    with bed.gateway.tls("a.named.test") as connection:
        relay = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        connection.sendall(relay.send(wsproto.events.Request(host="a.named.test", target="/pub/ws")))
        said: list[bytes] = []
        while not said:
            relay.receive_data(connection.recv(65536))
            for word in relay.events():
                if isinstance(word, wsproto.events.AcceptConnection):
                    connection.sendall(relay.send(wsproto.events.BytesMessage(b"ping")))
                elif isinstance(word, wsproto.events.BytesMessage):
                    said.append(bytes(word.data))
    assert said == [b"ping"]
    assert all(line["upstream"].startswith("via ") for line in bed.gateway.decisions())


def test_an_environment_without_a_usable_proxy_is_no_way_around_it(tmp_path: Path) -> None:
    value = "socks5://ada:pw@127.0.0.1:1080"
    policy = (
        "networkPolicies:\n  - host: nowhere.invalid\n    upstream_proxy: environment\n"
        "    policies: [{action: ALLOW, method: GET, path: /.*}]\n"
    )
    gateway = LiveGateway(tmp_path, policy, env={"HTTPS_PROXY": value, "NO_PROXY": "", "no_proxy": ""})
    try:
        reply = gateway.get("https://nowhere.invalid/x")
        assert (reply.status, reply.json()["reason"]) == (502, "upstream")
        assert "environment is no http or https proxy" in reply.json()["error"]
        assert "1080" not in reply.body.decode() and "pw" not in reply.json()["error"]
        assert gateway.outcomes(1)[0]["error"]
    finally:
        gateway.stop()


LOOP = """\
networkPolicies:
  - host: loop.test
    scheme: [https, http]
    {route}
    policies: [{{action: ALLOW, method: GET, path: /.*}}]
"""


@pytest.mark.attack("F33", "F14")
@pytest.mark.parametrize(
    ("route", "scheme", "status"),
    [
        ("upstream_proxy: environment", "http", 502),
        ("upstream_proxy: environment", "https", 502),
        ("upstream: http://127.0.0.1:{origin}", "http", 200),  # control: without the policy's word there is no loop
    ],
)
def test_a_gateway_that_is_its_own_proxy_does_not_loop(tmp_path: Path, route: str, scheme: str, status: int) -> None:
    port = free_port()
    origin = Origin()
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").write_text(LOOP.format(route=route.format(origin=origin.port)))
    itself = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "impyard", "gateway", "--listen", f"127.0.0.1:{port}"],
        cwd=tmp_path,
        env={
            **os.environ,
            "IMPYARD_DATA_DIR": str(tmp_path / "data"),
            "PYTHONPATH": str(ROOT),
            "HTTPS_PROXY": itself,
            "HTTP_PROXY": itself,
        },
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        assert process.stderr is not None
        assert b"judging on" in process.stderr.readline()
        command = ["curl", "-sS", "-m", "10", "-x", itself, "-k", "-w", "%{http_code}", f"{scheme}://loop.test/x"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        process.terminate()
        process.communicate(timeout=10)
        origin.close()
    assert answer.endswith(str(status))
    lines = [json.loads(line) for line in (tmp_path / "runs" / "decisions.jsonl").read_text().splitlines()]
    expected = [("allow", "rule"), ("deny", "loop")] if status == 502 else [("allow", "rule")]
    assert [(line["verdict"], line["reason"]) for line in lines] == expected
    if status == 502:
        assert "it is this gateway itself" in answer


PLANTED = """
import sys
from impyard.addon import proxytunnel, routes
def broken(*args, **kwargs):
    raise RuntimeError("planted")
{plant}
from impyard.addon.__main__ import main
sys.exit(main())
"""


@pytest.mark.attack("109")
@pytest.mark.parametrize(
    "plant",
    [
        "routes.HostProxies.chosen = broken",
        "proxytunnel.JudgedProxyTunnel.start_handshake = broken",
        "proxytunnel.JudgedProxyTunnel.receive_handshake_data = broken",
    ],
)
def test_an_exception_on_the_way_to_the_proxy_lets_nothing_through(tmp_path: Path, plant: str) -> None:
    origin = Origin()
    proxy = ConnectProxy({"a.test:80": origin.port})
    policy = (
        f"networkPolicies:\n  - host: a.test\n    scheme: http\n    upstream_proxy: http://127.0.0.1:{proxy.port}\n"
        "    policies: [{action: ALLOW, method: GET, path: /.*}]\n"
    )
    gateway = LiveGateway(tmp_path, policy, fault=PLANTED.format(plant=plant))
    try:
        assert gateway.get("http://a.test/x").status in (0, 403, 502)
        assert origin.connections == 0 or origin.seen == []
        assert "planted" in gateway.stderr_path.read_text()
    finally:
        gateway.stop()
        proxy.close()
        origin.close()
