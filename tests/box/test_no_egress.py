"""The box has no way out but the door. Each attempt that fails in it succeeds in an ordinary container."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from impyard.runner.canaries import Canaries
from tests.support.internet import ADDRESS, GREETING, NAME_SERVER, PROBED, Internet, play_internet
from tests.support.origin import Origin, Pki
from tests.support.project import Project

pytestmark = pytest.mark.box

METADATA = ("169.254.169.254", "100.100.100.200", "168.63.129.16")
# The second is IPv6's: there is no address to send from.
NO_WAY = ("OSError: Network is unreachable", "OSError: Cannot assign requested address")
# Both kinds of client, for a name that no policy lists and for one that the test's policy allows.
CURLS = """
curl -sS -m 10 -o body -w '%{http_code}\\n' https://NAME/plain
curl -sS -m 10 -o body -w '%{http_code}\\n' --noproxy '*' https://NAME/noproxy
curl -sS -m 10 -o body -w '%{http_code}\\n' --noproxy '*' http://NAME/http
env -i PATH="$PATH" curl -sS -m 10 -o body -w '%{http_code}\\n' https://NAME/no-environment
NO_PROXY='*' curl -sS -m 10 -o body -w '%{http_code}\\n' https://NAME/no-proxy-all
NODE_TLS_REJECT_UNAUTHORIZED=0 curl -sSk -m 10 -o body -w '%{http_code}\\n' https://NAME/insecure
curl -sS -m 10 -o body -w '%{http_code}\\n' https://NAME:8443/port
python3 -c 'import urllib.request as u; print(u.urlopen("https://NAME/python").status)' 2>&1 | tail -n 1
node -e 'fetch("https://NAME/node").then(r => console.log(r.status), e => console.log(e.cause.code))'
"""
# What is asked for through the proxy: the Docker API, its host's alias, DNS over HTTPS.
JUDGED = (
    *("http://192.168.65.7:2375/containers/json", "http://host.docker.internal:2375/version"),
    *(f"'https://{PROBED}/dns-query?name=secret.canary.test'", "'https://doh.test/resolve?name=secret.canary.test'"),
)
# argv: JSON of [name, kind, address, port]. Prints what became of each, and needs no tool but Python.
ATTEMPTS = """
import json, socket, struct, sys, time
QUESTION = b"\\0\\1\\1\\0\\0\\1" + b"\\0" * 6 + b"\\1x\\6canary\\4test\\0\\0\\1\\0\\1"
def attempt(kind, address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if kind == "tcp":
        with socket.create_connection((address, port), 3): return "reached"
    if kind == "icmp":
        with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_ICMP) as ping:
            ping.settimeout(3)
            ping.sendto(struct.pack(">BBHHH", 8, 0, 0xf7fd, 1, 1), (address, 0))
            ping.recv(100)
            return "reached"
    if kind == "broadcast":
        with socket.socket(family, socket.SOCK_DGRAM) as udp:
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            udp.sendto(b"x", (address, port))
            return "reached"
    with socket.socket(family, socket.SOCK_DGRAM if kind.startswith("udp") else socket.SOCK_STREAM) as talk:
        talk.settimeout(3)
        if kind == "udp":
            talk.sendto(QUESTION, (address, port))
            return "reached" if talk.recv(512) else "?"
        talk.connect((address, port))
        talk.sendall(QUESTION)
        return "reached" if talk.recv(512) else "?"
found = {}
for name, kind, address, port in json.load(open(sys.argv[1])):
    began = time.monotonic()
    try: found[name] = attempt(kind, address, port)
    except OSError as exc: found[name] = type(exc).__name__ + ": " + str(exc.strerror or exc)
    if time.monotonic() - began > 1: found[name] += " (slow)"
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def internet(box_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    folder = tmp_path_factory.mktemp("pki")
    Pki(folder).context(ADDRESS)
    with play_internet(box_image, folder / f"{ADDRESS}.pem") as internet:
        yield internet


@pytest.fixture
def origin() -> Iterator[Origin]:
    origin = Origin()
    yield origin
    origin.close()


@pytest.mark.attack("1", "2", "143", "F36", "F37")
@pytest.mark.attack("1", "2", "143", control=True)
def test_every_kind_of_client_ends_at_the_judge(project: Project, origin: Origin) -> None:
    entry = """\
  - host: allowed.test
    scheme: [http, https]
    upstream: http://127.0.0.1:{}
    policies: [{{action: ALLOW, method: GET, path: /.*}}]
"""
    project.policy.write_text("networkPolicies:\n" + entry.format(origin.port))
    denied = project.script("denied.sh", CURLS.replace("NAME", "example.com"))
    allowed = project.script("allowed.sh", CURLS.replace("NAME", "allowed.test"))
    result = project.demo(f"{denied} > denied 2>&1", f"{allowed} > allowed 2>&1")
    assert result.code == 0, result

    *curls, python, node = result.file("denied").splitlines()
    assert [*curls, node] == ["403"] * 8
    assert python.endswith("HTTP Error 403: Denied by egress policy (unlisted-host)")
    lines = [line for line in project.asked() if line["host"] == "example.com"]
    assert {line["verdict"] for line in lines} == {"deny"} and {line["reason"] for line in lines} == {"unlisted-host"}
    curl_paths = ["/plain", "/noproxy", "/http", "/no-environment", "/no-proxy-all", "/insecure", "/port"]
    paths = [*curl_paths, "/python", "/node"]
    assert [line["path"] for line in lines] == paths, "each has its line, both curl forms included"
    assert [line["port"] for line in lines] == [443, 443, 80, 443, 443, 443, 8443, 443, 443]
    assert result.receipt["decisions"]["denied_hosts"]["example.com"] == len(paths)
    assert "denied GET example.com/plain (unlisted-host)" in result.out, "a person sees a denial as it happens"

    # The control: the same clients, the same ways, a name that the policy allows.
    assert result.file("allowed").split() == [*["200"] * 6, "403", "200", "200"]
    assert {seen.target for seen in origin.seen} == set(paths) - {"/port"}


def attempts(internet: Internet, canaries: Canaries) -> list[tuple[str, str, str, int]]:
    """(name, kind, address, port) of what an ordinary container can do."""
    open_to_all = dict(canaries.addresses)[internet.gateway]
    found = [(f"tcp {port}", "tcp", ADDRESS, port) for port in (22, 53, 80, 443, 853, 8080)]
    found += [("udp 443", "udp", ADDRESS, 443), ("dns by udp", "udp", NAME_SERVER, 53)]
    found += [("dns by tcp", "talk", NAME_SERVER, 53), ("ping", "icmp", ADDRESS, 0)]
    found += [("neighbour", "tcp", internet.neighbour, 80), ("host, open to all", "tcp", internet.gateway, open_to_all)]
    if internet.address6:
        found += [("ipv6", "tcp", internet.address6, 80)]
    return found


@pytest.mark.attack("1", "4", "5", "7", "8", "10", "11", "13", "14", "16", "17", "19", "20", "F47", "F48", "F49")
@pytest.mark.attack("1", "4", "5", "7", "8", "11", "17", "F47", "F48", control=True)
def test_no_packet_leaves_the_box(project: Project, internet: Internet, ordinary_container: Callable[..., str]) -> None:
    project.script("attempts.py", ATTEMPTS)
    with Canaries() as canaries:
        tried = attempts(internet, canaries)
        inside_only = [
            *[(f"metadata {address}", "tcp", address, 80) for address in METADATA],
            ("metadata ipv6", "tcp", "fd00:ec2::254", 80),
            ("docker's own resolver", "talk", "127.0.0.11", 53),
            *[(f"docker at {address}", "tcp", address, 2375) for address in ("172.17.0.1", "192.168.65.7")],
            *[(f"tcp {port}", "tcp", ADDRESS, port) for port in (25, 8443)],
            ("everybody", "broadcast", "255.255.255.255", 67),
            ("multicast", "broadcast", "224.0.0.251", 5353),
            *[(f"host {address}", "tcp", address, port) for address, port in canaries.addresses],
        ]
        (project.root / "tried.json").write_text(json.dumps(tried))
        (project.root / "inside.json").write_text(json.dumps([*tried, *inside_only]))
        files = {str(project.root): {"bind": "/project", "mode": "ro"}}
        script = (
            f"python3 {project.root}/attempts.py {project.root}/inside.json;"
            f"curl -sS -m 5 --noproxy '*' -w '%{{http_code}} %{{time_total}}\\n' https://{PROBED}/; echo $?;"
            f"curl -sS -m 5 --noproxy '*' -w '%{{http_code}} %{{time_total}}\\n' https://{ADDRESS}/; echo $?;"
            f"curl -sS -m 5 -o /dev/null -w '%{{http_code}}\\n' https://{ADDRESS}/;"
            f"curl -sS -m 5 -o /dev/null -w '%{{http_code}}\\n' http://169.254.169.254/latest/meta-data/;"
            f"for url in {' '.join(JUDGED)}; do curl -sS -m 5 -o /dev/null -w '%{{http_code}}\\n' $url; done;"
            "cat /proc/net/route; awk '{print $NF}' /proc/net/ipv6_route; ls /sys/class/net"
        )
        result = project.demo(f"run: ( {script} ) > found 2>err")
        hits = canaries.hits
        assert internet.packets() == [], "nothing of the box has come this far"
        assert result.code == 0, result
        report, *direct = result.file("found").splitlines()
        direct, by_proxy, table = direct[:4], direct[4 : 6 + len(JUDGED)], direct[6 + len(JUDGED) :]
        found: dict[str, Any] = json.loads(report)
        refused = {"docker's own resolver", *(f"host {a}" for a, _ in canaries.addresses if a.startswith("127."))}
        for name, answer in found.items():
            if name == "ping":
                assert answer == "PermissionError: Operation not permitted"
            elif name in refused:
                assert answer.startswith("ConnectionRefusedError"), (name, answer)
            else:
                assert answer in NO_WAY, (name, answer)
        assert direct[1::2] == ["7", "7"], direct
        for line in direct[::2]:
            status, seconds = line.split()
            assert status == "000" and float(seconds) < 0.2
        assert by_proxy == ["403"] * (2 + len(JUDGED))
        asked = {(line["host"], line["verdict"], line["reason"]) for line in project.asked()}
        assert {(ADDRESS, "deny", "unlisted-host"), ("169.254.169.254", "deny", "unlisted-host")} <= asked
        by_name = {line["path"].partition("?")[0] for line in project.asked() if line["verdict"] == "deny"}
        assert {"/containers/json", "/dns-query", "/resolve", "/version"} <= by_name
        assert table[0].startswith("Iface"), table
        assert {name for name in table[1:] if not name.startswith(("tunl", "sit", "ip6", "gre", "erspan"))} == {"lo"}
        assert hits == 0, "no listener of this machine was touched"

        # The control: the very same attempts from an ordinary container.
        network = {"network": internet.network} if internet.address6 else {}
        run = "python3 /project/attempts.py /project/{}.json"
        (project.root / "six.json").write_text(json.dumps([one for one in tried if one[0] == "ipv6"]))
        (project.root / "four.json").write_text(json.dumps([one for one in tried if one[0] != "ipv6"]))
        reached = json.loads(ordinary_container(run.format("four"), volumes=files))
        reached |= json.loads(ordinary_container(run.format("six"), volumes=files, **network))
        assert {name: "reached" for name, *_ in tried} == reached
        assert ordinary_container(f"curl -sSk https://{ADDRESS}/") == GREETING
        assert canaries.hits > hits
    kinds = {line.split()[1] for line in internet.packets()}
    assert {"tcp", "udp", "icmp"} <= kinds
    assert f"{NAME_SERVER} udp" in internet.packets()
