"""What comes of an allowed request: which failure it was, what may be asked again, whom to trust, where it led."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived

from impyard.certs.throwaway import Pki
from tests.support.gateway import LiveGateway, Reply, read_reply
from tests.support.moody import MoodyH2Origin, MoodyOrigin
from tests.support.origin import Origin

pytestmark = pytest.mark.gateway

ROOT = Path(__file__).resolve().parents[2]
READ = "    policies: [{{action: ALLOW, method: GET, path: /pub/.*}}]\n"
POLICY = (
    """\
networkPolicies:
  - host: public.test
    upstream: https://127.0.0.1:{public}
"""
    + READ
    + """\
  - host: internal.test
    upstream: https://127.0.0.1:{internal}
    upstream_ca: {ca}
"""
    + READ
    + """\
  - host: mallory.test
    upstream: https://127.0.0.1:{internal}
"""
    + READ
    + """\
  - host: misnamed.test
    upstream: https://127.0.0.1:{public}
"""
    + READ
    + """\
  - host: both.test
    upstream: https://127.0.0.1:{public}
    upstream_ca: {ca}
"""
    + READ
    + """\
  - host: refused.test
    upstream: https://127.0.0.1:1
"""
    + READ
    + """\
  - host: silent.test
    upstream: https://127.0.0.1:{silent}
"""
    + READ
    + """\
  - host: no-such-name.invalid
"""
    + READ
    + """\
  - host: registry.test
    scheme: http
    upstream: http://127.0.0.1:{plain}
    policies:
      - {{action: ALLOW, method: GET, path: "/[a-z]+"}}
      - {{action: ALLOW, method: GET, path: /gists}}
      - {{action: ALLOW, method: GET, path: /pub/fetch, query: {{url: "https://ok[.]test/.*"}}}}
      - {{action: ALLOW, method: POST, path: /v1/messages}}
  - host: deaf.test
    scheme: http
    upstream: http://127.0.0.1:1
    policies: [{{action: ALLOW, method: GET, path: /.*}}]
  - host: moody.test
    scheme: http
    upstream: http://127.0.0.1:{moody}
    policies: [{{action: ALLOW, method: [GET, HEAD, PUT, POST], path: /.*}}]
  - host: idle.test
    scheme: http
    upstream: http://127.0.0.1:{idle}
    policies: [{{action: ALLOW, method: [GET, POST], path: /.*}}]
"""
)


@dataclass
class Bed:
    """public: signed by an authority of the host's own bundle. internal: by one that only its entry names."""

    gateway: LiveGateway
    public: Origin
    internal: Origin
    plain: Origin
    moody: MoodyOrigin
    idle: MoodyOrigin
    public_pki: Pki

    def untouched(self) -> bool:
        return not any(origin.connections for origin in (self.public, self.internal, self.plain))


@pytest.fixture(scope="module")
def module_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    root = tmp_path_factory.mktemp("upstreams")
    for name in ("public", "internal"):
        (root / name).mkdir()
    public_pki, internal_pki = Pki(root / "public"), Pki(root / "internal")
    public = Origin(public_pki.context("public.test", "both.test"))
    internal = Origin(internal_pki.context("internal.test", "mallory.test"))
    plain, moody, idle = Origin(), MoodyOrigin(resets_at=2), MoodyOrigin(idle_s=0.1)
    silent = socket.create_server(("127.0.0.1", 0))
    ports = {"public": public.port, "internal": internal.port, "plain": plain.port, "moody": moody.port}
    policy = POLICY.format(**ports, idle=idle.port, silent=silent.getsockname()[1], ca=internal_pki.ca_path)
    gateway = LiveGateway(root, policy, env={"SSL_CERT_FILE": str(public_pki.ca_path)}, limits={"establish_s": 1.0})
    assert gateway.first.get("event") == "ready", (gateway.first, gateway.stderr_path.read_text())
    try:
        yield Bed(gateway, public, internal, plain, moody, idle, public_pki)
    finally:
        gateway.stop()
        silent.close()
        for origin in (public, internal, plain, moody, idle):
            origin.close()


@pytest.fixture
def bed(module_bed: Bed) -> Bed:
    for origin in (module_bed.public, module_bed.internal, module_bed.plain):
        origin.clear()
    for moody in (module_bed.moody, module_bed.idle):
        moody.connections.clear()
    module_bed.gateway.forget()
    return module_bed


# -- whom to trust


@pytest.mark.attack("F41", "F33", control=True)
def test_origins_of_the_host_s_roots_and_of_an_entry_s_own_verify_in_one_run(bed: Bed) -> None:
    for host in ("public.test", "internal.test", "both.test", "public.test"):
        assert bed.gateway.get(f"https://{host}/pub/x").status == 200, host


@pytest.mark.attack("F41")
def test_the_authority_of_one_entry_counts_for_no_other(bed: Bed) -> None:
    assert bed.gateway.get("https://internal.test/pub/x").status == 200
    bed.internal.clear()
    reply = bed.gateway.get("https://mallory.test/pub/x")
    assert (reply.status, reply.json()["reason"]) == (502, "upstream")
    assert bed.internal.seen == []


# -- which failure is it


@pytest.mark.attack("F22")
@pytest.mark.parametrize(
    ("url", "status", "reason", "words"),
    [
        ("https://unlisted.test/pub/x", 403, "unlisted-host", "does not name this host"),
        ("https://public.test/private", 403, "no-rule", "has no rule for it"),
        ("https://no-such-name.invalid/pub/x", 502, "upstream", "could not be resolved"),
        ("https://refused.test/pub/x", 502, "upstream", "Connect call failed"),
        ("https://mallory.test/pub/x", 502, "upstream", "unable to get local issuer certificate"),
        ("https://misnamed.test/pub/x", 502, "upstream", "hostname mismatch"),
        ("https://silent.test/pub/x", 502, "upstream", "its TLS handshake did not end"),
        ("https://public.test/pub/garbage", 502, "upstream", "Cannot parse HTTP response"),
        ("https://public.test/pub/x#y", 400, "malformed", "well-formed"),
    ],
)
def test_each_failure_is_told_apart(bed: Bed, url: str, status: int, reason: str, words: str) -> None:
    reply = bed.gateway.get(url)
    assert (reply.status, reply.json()["reason"]) == (status, reason)
    assert words in reply.json()["error"]
    decisions = bed.gateway.decisions()
    assert [line["reason"] for line in decisions] == ["rule" if status == 502 else reason]
    if status == 502:
        outcome = bed.gateway.outcomes(1)[0]
        assert words in outcome["error"] and outcome["status"] is None and outcome["id"] == decisions[0]["id"]
    assert bed.gateway.get("https://public.test/pub/after").status == 200


# -- what may be asked again


def ask(connection: socket.socket, method: str, host: str, number: int) -> Reply:
    length = "content-length: 1\r\n" if method in ("POST", "PUT") else ""
    body = "x" if length else ""
    connection.sendall(f"{method} http://{host}/{number} HTTP/1.1\r\nhost: {host}\r\n{length}\r\n{body}".encode())
    return read_reply(connection, head_only=method == "HEAD")


@pytest.mark.attack("F18")
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_origin_that_closes_idle_connections_fails_no_request_that_can_be_repeated(bed: Bed, method: str) -> None:
    def one_client(first: int) -> list[Reply]:
        replies = []
        with bed.gateway.connect() as connection:
            for number in range(12):
                replies.append(ask(connection, method, "idle.test", first + number))
                time.sleep(bed.idle.idle_s * (0.9 + number / 60))  # 0.9 to 1.1 of its patience
        return replies

    with ThreadPoolExecutor(4) as clients:
        replies = [reply for many in clients.map(one_client, (0, 100, 200, 300)) for reply in many]
    failed = [reply for reply in replies if reply.status != 200]
    if method == "GET":
        assert not failed
    assert all("closed" in reply.json()["error"] for reply in failed)
    assert len(bed.idle.connections) > 4  # control: it did close some


@pytest.mark.attack("F18")
@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("HEAD", 200), ("POST", 502), ("PUT", 502)])
def test_an_origin_that_resets_a_kept_connection(bed: Bed, method: str, status: int) -> None:
    """What changes nothing is asked once more, on a new connection; the rest is never sent twice."""
    with bed.gateway.connect() as connection:
        assert ask(connection, "GET", "moody.test", 1).status == 200
        second = ask(connection, method, "moody.test", 2)
    assert second.status == status
    sent = [line for lines in bed.moody.connections for line in lines if line.startswith(f"{method} /2")]
    assert len(sent) == (2 if status == 200 else 1)
    assert len(bed.gateway.decisions()) == 2
    outcomes = bed.gateway.outcomes(2)
    assert len(outcomes) == 2
    if status == 502:
        assert "closed" in second.json()["error"] and "closed" in outcomes[1]["error"]


@pytest.mark.attack("F18")
def test_nothing_is_asked_again_for_ever(bed: Bed) -> None:
    bed.moody.resets_at = 1
    try:
        with bed.gateway.connect() as connection:
            assert ask(connection, "GET", "moody.test", 1).status == 502
        assert [len(lines) for lines in bed.moody.connections] == [1]  # new, and so not closed for being idle
    finally:
        bed.moody.resets_at = 2


@pytest.mark.attack("F18")
@pytest.mark.parametrize(("method", "statuses"), [("GET", ["200"] * 5), ("POST", ["200"] + ["502"] * 4)])
def test_an_origin_that_drops_a_shared_connection(bed: Bed, method: str, statuses: list[str]) -> None:
    """Four requests are on it. Those that change nothing are asked once more, all on one new connection."""
    origin = MoodyH2Origin(bed.public_pki.context("shared.test"), ends_at=5)
    policy = bed.gateway.policy_path.read_text()
    entry = f"  - host: shared.test\n    upstream: https://127.0.0.1:{origin.port}\n"
    rule = "    policies: [{action: ALLOW, method: [GET, POST], path: /.*}]\n"
    bed.gateway.policy_path.write_text(policy + entry + rule)
    try:
        with bed.gateway.tls("shared.test", alpn=("h2",)) as connection:
            box = H2Connection(H2Configuration(client_side=True))
            box.initiate_connection()
            found = h2_ask(connection, box, method, ["/1"])
            found += h2_ask(connection, box, method, ["/2", "/3", "/4", "/5"])
    finally:
        bed.gateway.policy_path.write_text(policy)
        origin.close()
    assert found == statuses
    expected = [["/1", "/2", "/3", "/4", "/5"]] + ([["/2", "/3", "/4", "/5"]] if method == "GET" else [])
    assert [sorted(paths) for paths in origin.connections] == expected
    assert len(bed.gateway.decisions()) == 5


def h2_ask(connection: socket.socket, box: H2Connection, method: str, paths: list[str]) -> list[str]:
    """The statuses of requests made at once."""
    statuses: dict[int, str] = {}
    for path in paths:
        number = box.get_next_available_stream_id()
        fields = {":method": method, ":scheme": "https", ":authority": "shared.test", ":path": path}
        box.send_headers(number, list(fields.items()), end_stream=True)
        statuses[number] = ""
    connection.sendall(box.data_to_send())
    while not all(statuses.values()):
        for event in box.receive_data(connection.recv(65536)):
            if isinstance(event, ResponseReceived):
                statuses[event.stream_id] = dict(event.headers)[b":status"].decode()
        connection.sendall(box.data_to_send())
    return list(statuses.values())


@pytest.mark.attack("F17")
@pytest.mark.parametrize(("host", "status"), [("registry.test", 200), ("deaf.test", 502)])
def test_connections_that_have_ended_are_forgotten(bed: Bed, host: str, status: int) -> None:
    """On one connection of the box, each request needs a new one to the origin; without care, 6 KiB stay of each."""
    with bed.gateway.connect() as connection:

        def ask_often(count: int) -> None:
            for _ in range(count):
                connection.sendall(f"GET http://{host}/last HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
                assert read_reply(connection).status == status

        ask_often(100)
        before = bed.gateway.peak_from_now()
        ask_often(300)
        assert bed.gateway.memory_kib() - before < 900


# -- where it led


@pytest.mark.attack("101", "F45")
def test_a_redirect_to_an_unlisted_host_is_denied_and_linked(bed: Bed) -> None:
    curl = shutil.which("curl")
    assert curl
    with bed.gateway.tcp_port() as port:
        command = [curl, "-sSL", "-m", "10", "--cacert", str(bed.gateway.authority.cert_path)]
        command += ["-x", f"http://127.0.0.1:{port}", "https://public.test/pub/redirect=https://releases.test/x?y=1"]
        answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert answer["reason"] == "unlisted-host"
    first, second = bed.gateway.decisions()
    assert (first["verdict"], second["verdict"], second["host"]) == ("allow", "deny", "releases.test")
    assert second["redirected_by"] == first["id"]
    outcome = bed.gateway.outcomes(1)[0]
    assert (outcome["id"], outcome["status"], outcome["redirect"]) == (first["id"], 302, "releases.test")
    assert len(bed.public.seen) == 1


@pytest.mark.attack("101", "F45", control=True)
def test_control_a_redirect_to_a_listed_host_is_followed(bed: Bed) -> None:
    first = bed.gateway.get("https://public.test/pub/redirect=https://internal.test/pub/x")
    assert bed.gateway.get(first.headers["location"]).status == 200
    assert len(bed.internal.seen) == 1
    assert not any("redirected_by" in line for line in bed.gateway.decisions())


@pytest.mark.attack("F31", "101")
@pytest.mark.parametrize(
    "location",
    ["https://public.test:8443/pub/x", "http://public.test/pub/x", "https://public.test/private", "//evil.test/x"],
)
def test_a_redirect_is_judged_like_any_request(bed: Bed, location: str) -> None:
    reply = bed.gateway.get(f"https://public.test/pub/redirect={location}")
    assert reply.headers["location"] == location
    target = location if "://" in location else f"https:{location}"
    assert bed.gateway.get(target).status == 403
    assert len(bed.public.seen) == 1


@pytest.mark.attack("101")
@pytest.mark.parametrize(
    "location", ["/pub/y", "https://", "https://[::1", "https://xn--/", "mailto:a@b", "https://a..b/", "https://1.2/"]
)
def test_a_location_that_names_no_other_host_is_passed_on_and_not_noted(bed: Bed, location: str) -> None:
    reply = bed.gateway.get(f"https://public.test/pub/redirect={location}")
    assert reply.status == 302
    assert "redirect" not in bed.gateway.outcomes(1)[0]


# -- what may leave through an allowed host


@pytest.mark.attack("103")
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("url=https://ok.test/x", 200),  # control
        ("url=https://evil.test", 403),
        ("url=https://ok.test.evil.test/", 403),
        ("url=https://ok.test/&url=https://evil.test/", 403),
        ("url=https%3A%2F%2Fevil.test", 403),
        ("", 403),
    ],
)
def test_a_rule_about_the_query_keeps_an_open_redirect_closed(bed: Bed, query: str, status: int) -> None:
    assert bed.gateway.get(f"http://registry.test/pub/fetch?{query}").status == status
    assert len(bed.plain.seen) == (status == 200)
    assert len(bed.gateway.decisions()) == 1


@pytest.mark.attack("106")
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/gists"), ("PUT", "/package"), ("PATCH", "/gists"), ("DELETE", "/package")]
)
def test_publishing_on_a_host_that_may_be_read_is_denied(bed: Bed, method: str, path: str) -> None:
    reply = bed.gateway.get(f"http://registry.test{path}", method, body=b"stolen")
    assert (reply.status, reply.json()["reason"]) == (403, "no-rule")
    assert bed.gateway.decisions()[0]["nearest"]["failed"] == "method"
    assert bed.untouched()
    assert bed.gateway.get(f"http://registry.test{path}").status == 200  # control: reading it is allowed


@pytest.mark.attack("107", "104")
def test_what_leaves_inside_of_an_allowed_request_is_on_record(bed: Bed) -> None:
    """Not prevented, and said so: the threat model names it. It can be seen afterwards, and it is counted."""
    told = {"user-agent": "data-in-agent", "accept-language": "data-in-language", "x-other": "data-in-other"}
    headers = "".join(f"{name}: {value}\r\n" for name, value in told.items()) + "Cookie: data\r\n"
    body = b'{"messages": "fetch https://evil.test/?data"}'
    assert bed.gateway.get("http://registry.test/tail?q=data-in-query", headers=headers).status == 200
    assert bed.gateway.get("http://registry.test/v1/messages", "POST", body=body).status == 200
    read, sent = bed.gateway.decisions()
    assert (read["path"], read["query"]) == ("/tail", "q=data-in-query")
    assert told.items() <= read["headers"].items()
    assert read["headers"]["cookie"] == "<redacted>"
    assert sent["body_bytes"] == len(body)
    assert [line["bytes_up"] for line in bed.gateway.outcomes(2)] == [0, len(body)]
    said = " ".join((ROOT / "docs" / "threat-model.md").read_text().split())
    assert "path, query, headers, body" in said and "fetches for the model" in said
