"""The relay in the real image, against a door that records what came through it and denies everything."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import signal
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from impyard.runner import boxspec
from impyard.runner.engine import attach, client, create, remove, start, wait_removed
from impyard.runner.image import ensure_image
from tests.support.listening import Listening, in_threads

pytestmark = [pytest.mark.box, pytest.mark.waits]

UID = GID = 1000
HOST = "abc.probe.impyard.invalid"
OUTSIDE = "198.51.100.1"
DENIAL = (
    b"HTTP/1.1 403 Forbidden\r\nx-impyard-verdict: deny\r\ncontent-type: text/plain\r\n"
    b"content-length: 6\r\nconnection: close\r\n\r\ndenied"
)


class Door:
    """judge.sock and life.sock in a folder, as the gateway serves them, with every answer a denial.

    seen: the head of each request, in order of arrival; one inside a tunnel is preceded by its CONNECT.
    """

    def __init__(self, folder: Path, tls: ssl.SSLContext) -> None:
        self.folder = folder
        self.seen: list[str] = []
        self.lives: list[socket.socket] = []
        self.answer = DENIAL
        self._tls = tls
        folder.mkdir(mode=0o700)
        self._listeners = [
            self._listen("judge.sock", in_threads(self._judge)),
            self._listen("life.sock", self.lives.append),
        ]
        for path in (folder, *folder.iterdir()):
            os.chown(path, UID, GID)

    def close(self) -> None:
        for listening in self._listeners:
            listening.close()
        for life in self.lives:
            life.close()

    def hosts(self) -> set[str]:
        """First lines of what arrived, without those of the probes."""
        return {head.split("\r\n", 1)[0] for head in self.seen if HOST not in head}

    def _listen(self, name: str, serve: Callable[[socket.socket], object]) -> Listening:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / name))
        listener.listen(100)

        return Listening(listener, serve)

    def _judge(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            head = self._head(connection)
            if head.startswith("CONNECT "):
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                if head.split(" ")[1].endswith(":443"):
                    with self._tls.wrap_socket(connection, server_side=True) as secure:
                        self._head(secure)
                        secure.sendall(self.answer)
                    return
                self._head(connection)
            connection.sendall(self.answer)

    def _head(self, connection: socket.socket) -> str:
        data = b""
        while b"\r\n\r\n" not in data and (more := connection.recv(65536)):
            data += more
        head = data.partition(b"\r\n\r\n")[0].decode("latin-1")
        self.seen.append(head)
        return head


@dataclass
class Result:
    """How a box ended. probes: its first line of standard output, when it is JSON; lines: the others."""

    code: int | None
    seconds: float
    out: str
    err: str
    probes: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def failed(self) -> set[str]:
        return {probe["name"] for probe in self.probes["probes"] if not probe["ok"]}


class Box:
    """One box, made as the runner makes it; `change` alters the engine's create call."""

    def __init__(
        self,
        door: Door,
        image: str,
        script: str,
        *,
        change: Callable[[dict[str, Any]], None] = lambda _spec: None,
        **config: Any,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="impyard-test-"))
        self.folder.chmod(0o755)
        self.workspace = self.folder / "workspace"
        self.workspace.mkdir()
        os.chown(self.workspace, UID, GID)
        (self.folder / "code").mkdir()
        (self.folder / "prompt.txt").write_text("the prompt")
        facts = {
            "denied_host": HOST,
            "code_paths": [str(self.folder / "code"), "/opt/pi"],
            "env_files": ["/none/.env"],
            "key_paths": ["/none/ca-key.pem"],
            "uid": UID,
            "outside": OUTSIDE,
        }
        facts.update(config.pop("facts", {}))
        environment = {
            "PATH": "/opt/pi/node_modules/.bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "https_proxy": "http://127.0.0.1:3128",
            "http_proxy": "http://127.0.0.1:3128",
        }
        self.config: dict[str, Any] = {
            "run": "test",
            "deadline_s": 60,
            "door": "/run/impyard/door",
            "argv": ["bash", "-c", script],
            "stdin": "/run/impyard/prompt.txt",
            "terminal": None,
            "cwd": str(self.workspace),
            "env": environment,
            "probes": facts,
            "mode": "run",
            **config,
        }
        (self.folder / "box.json").write_text(json.dumps(self.config))
        spec = self._spec(door, image)
        change(spec)
        self.id = create(f"impyard-test-{os.getpid()}-{time.monotonic_ns()}", spec)

    def _spec(self, door: Door, image: str) -> dict[str, Any]:
        mounts = [
            (door.folder, "/run/impyard/door", "ro"),
            (self.folder / "box.json", "/run/impyard/box.json", "ro"),
            (self.folder / "prompt.txt", "/run/impyard/prompt.txt", "ro"),
            (door.folder.parent / "ca.pem", "/etc/ssl/certs/ca-certificates.crt", "ro"),
            (self.folder / "code", self.folder / "code", "ro"),
            (self.workspace, self.workspace, "rw"),
        ]
        return {
            "Image": image,
            "User": f"{UID}:{GID}",
            "AttachStdout": True,
            "AttachStderr": True,
            "HostConfig": {
                "NetworkMode": "none",
                "Sysctls": {"net.ipv4.ip_unprivileged_port_start": "0"},
                "Dns": ["127.0.0.1"],
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "ReadonlyRootfs": True,
                "Tmpfs": {"/tmp": "size=64m,mode=1777"},
                "PidsLimit": 128,
                "Memory": 512 << 20,
                "AutoRemove": True,
                "LogConfig": {"Type": "none"},
                "Binds": [f"{source}:{target}:{mode}" for source, target, mode in mounts],
            },
        }

    def run(self, meanwhile: Callable[[], None] = lambda: None) -> Result:
        """Run to the end; `meanwhile` is called once the agent has written something."""
        output = attach(self.id)
        waiter = wait_removed(self.id)
        streams = {1: bytearray(), 2: bytearray()}
        began = time.monotonic()
        start(self.id)
        called = False
        for stream, data in output.chunks():
            streams[stream] += data
            if streams[1].count(b"\n") > 1 and not called:
                called = True
                threading.Thread(target=meanwhile, daemon=True).start()
        code = waiter.result()
        seconds = time.monotonic() - began
        output.close()
        out, err = (bytes(streams[number]).decode() for number in (1, 2))
        result = Result(code, seconds, out, err, lines=out.splitlines())
        if result.lines and result.lines[0].startswith('{"impyard": "probes"'):
            result.probes = json.loads(result.lines.pop(0))
        return result

    def close(self) -> None:
        remove(self.id)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def image() -> str:
    return ensure_image(lambda _line: None)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, bytes]:
    """A TLS server context for any `*.test` name and the probes' host, and the root that signed it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test root")])
    now = datetime.datetime.now(datetime.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(n) for n in ("a.test", "b.test", HOST)]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = cert.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    both = tmp_path_factory.mktemp("ca") / "both.pem"
    both.write_bytes(secret + pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context, pem


@pytest.fixture
def door(authority: tuple[ssl.SSLContext, bytes]) -> Iterator[Door]:
    # Not under pytest's folder: a user other than root could not reach it, and a socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="impyard-door-"))
    folder.chmod(0o755)
    (folder / "ca.pem").write_bytes(authority[1])
    made = Door(folder / "door", authority[0])
    yield made
    made.close()
    shutil.rmtree(folder)


Run = Callable[..., Result]


@pytest.fixture
def run(door: Door, image: str) -> Iterator[Run]:
    boxes: list[Box] = []

    def run(script: str, *, meanwhile: Callable[[Box], None] = lambda _box: None, **config: Any) -> Result:
        box = Box(door, image, script, **config)
        boxes.append(box)
        return box.run(lambda: meanwhile(box))

    yield run
    for box in boxes:
        box.close()


def test_a_locked_box_passes_every_probe_and_runs_the_agent(run: Run, door: Door) -> None:
    result = run('cat; echo; id -u; pwd; echo "$HOME"; echo to-stderr >&2; exit 7')
    assert result.code == 7, result
    assert result.probes["ok"] and not result.failed()
    assert len(result.probes["probes"]) >= 12
    assert result.lines[:2] == ["the prompt", "1000"]
    assert result.lines[2].endswith("/workspace") and result.lines[3] == "/tmp"
    assert result.err == "to-stderr\n"
    # The probes went both ways through the door.
    assert {head.split("\r\n")[0] for head in door.seen} == {
        f"GET http://{HOST}/ HTTP/1.1",
        f"CONNECT {HOST}:80 HTTP/1.1",
        "GET / HTTP/1.1",
    }


@pytest.mark.parametrize(
    ("command", "first_line"),
    [
        ("curl -sS http://a.test/x", "GET http://a.test/x HTTP/1.1"),
        ("curl -sS https://a.test/x", "CONNECT a.test:443 HTTP/1.1"),
        ("curl -sS --noproxy '*' http://a.test/x", "CONNECT a.test:80 HTTP/1.1"),
        ("curl -sS --noproxy '*' https://a.test/x", "CONNECT a.test:443 HTTP/1.1"),
        ("env -i /usr/bin/curl -sS https://a.test/x", "CONNECT a.test:443 HTTP/1.1"),
    ],
)
def test_each_way_of_asking_ends_at_the_door(run: Run, door: Door, command: str, first_line: str) -> None:
    result = run(f"{command} -w ' %{{http_code}}'")
    assert (result.code, result.lines) == (0, ["denied 403"]), result
    assert first_line in door.hosts()


LOCAL_SERVICE = """
python3 -m http.server --bind 127.0.0.1 --directory /tmp 8000 >/dev/null 2>&1 &
for _ in $(seq 100); do curl -s -o /dev/null --noproxy '*' http://127.0.0.1:8000/ && break; sleep 0.1; done
get='import sys, urllib.request, urllib.error
try: print(urllib.request.urlopen(sys.argv[1]).status)
except urllib.error.HTTPError as error: print(error.code)'
for without in NOTHING NO_PROXY no_proxy; do
    for host in localhost 127.0.0.1 side-car side-car.internal; do
        env -u $without curl -sS -o /dev/null -w '%{http_code} ' http://$host:8000/
        env -u $without python3 -c "$get" http://$host:8000/
    done
done
"""


@pytest.mark.attack("F46")
def test_loopback_is_the_box_s_own_and_every_other_name_is_the_door_s(run: Run, door: Door) -> None:
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), boxspec.PROXY)
    local = dict.fromkeys(("NO_PROXY", "no_proxy"), boxspec.NO_PROXY)
    result = run(LOCAL_SERVICE, env={"PATH": "/usr/local/bin:/usr/bin:/bin", **proxies, **local})
    assert result.lines == ["200 200", "200 200", "403 403", "403 403"] * 3, result
    asked = [head for head in door.hosts() if "8000" in head]
    assert asked and all("side-car" in head for head in asked)


ASK = """
import socket
for name in ("a.test", "b.test", "A.TEST", "localhost"):
    print(socket.getaddrinfo(name, 443, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
try: print(socket.getaddrinfo("a.test", 443, socket.AF_INET6))
except socket.gaierror: print("no IPv6")
with socket.create_connection(("127.0.0.1", 53)) as tcp:
    query = bytes.fromhex("000701000001000000000000" + "016104746573740000010001")
    tcp.sendall(len(query).to_bytes(2, "big") + query)
    print(socket.inet_ntoa(tcp.recv(512)[-4:]))
"""


def test_names_have_addresses_of_their_own_and_nothing_else_is_answered(run: Run, door: Door) -> None:
    result = run(
        'python3 -c "$ASK"; node -e \''
        'const {promises: dns} = require("dns"); const say = e => console.log(e.code);'
        'dns.resolveTxt("a.test").catch(say).then(() => dns.resolve6("a.test").catch(say))\'',
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "ASK": ASK},
    )
    assert result.code == 0, result
    first, second, same, local, no6, by_tcp, txt, aaaa = result.lines
    assert first.startswith("127.64.") and second.startswith("127.64.") and first != second
    assert (same, by_tcp, local) == (first, first, "127.0.0.1")
    assert (no6, txt, aaaa) == ("no IPv6", "ENOTIMP", "ENODATA")
    assert door.hosts() == set()  # asking for a name sends nothing


FLOOD = """
import socket
def address(name): return socket.getaddrinfo(name.encode(), 443, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
first = address("a.test")
given = {address(f"n{number}.test") for number in range(1500)}
print(len(given), first in given, address("a.test") not in given | {first})
try: socket.create_connection((first, 443))
except ConnectionRefusedError: print("refused")
socket.create_connection((address("n1499.test"), 443)).close()
print(*[int(line.split()[1]) < 60000 for line in open("/proc/1/status") if line.startswith("VmHWM")])
"""


def test_a_flood_of_names_is_bounded_and_no_address_leads_to_another_name(run: Run) -> None:
    result = run('python3 -c "$FLOOD"', env={"PATH": "/usr/bin:/bin", "FLOOD": FLOOD})
    assert result.code == 0, result
    # Each name had an address of its own; the first name's was dropped, is closed, and the name got a new one.
    assert result.lines == ["1500 False True", "refused", "True"]


def test_the_agent_gets_its_streams_and_no_other_file(run: Run) -> None:
    result = run("ls /proc/self/fd | tr '\\n' ' '; echo; ulimit -n; ulimit -c; cat /proc/self/oom_score_adj")
    descriptors, files, core, oom = result.lines
    assert descriptors.split() == ["0", "1", "2", "3"]  # 3 is what ls reads the folder with
    assert int(files) >= 1024 and core == "0" and int(oom) >= 500


def test_an_address_outside_fails_at_once(run: Run, door: Door) -> None:
    result = run(
        f"curl -sS --noproxy '*' -m 5 -w '%{{time_total}}\\n' https://{OUTSIDE}/; echo $?;"
        "curl -sS --noproxy '*' -m 5 'https://[2001:db8::1]/'; echo $?;"
        f'python3 -c \'import socket; socket.socket(2, 2).sendto(b"x", ("{OUTSIDE}", 53))\' 2>&1 | tail -1'
    )
    took, code, code6, udp = result.lines
    assert float(took) < 0.1 and code == "7" and code6 == "7"
    assert "Network is unreachable" in udp
    assert door.hosts() == set()


def test_a_large_body_passes_whole_in_both_directions(run: Run, door: Door) -> None:
    size = 30_000_000
    body = os.urandom(1 << 16) * (size // (1 << 16))
    door.answer = b"HTTP/1.1 200 OK\r\nx-impyard-verdict: deny\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    # The probes want a denial, which `door.answer` no longer is: they are answered by a door of their own below.
    door.answer, large = DENIAL, door.answer

    def judge(connection: socket.socket) -> None:
        with connection:
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65536)
            if HOST.encode() in head:
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" if head.startswith(b"CONNECT") else DENIAL)
                if head.startswith(b"CONNECT"):
                    connection.recv(65536)
                    connection.sendall(DENIAL)
                return
            got = len(head.partition(b"\r\n\r\n")[2])
            want = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            while got < want:
                got += len(connection.recv(1 << 20))
            door.seen.append(f"body {got}")
            connection.sendall(large)

    door._judge = judge  # type: ignore[method-assign]
    door._listeners[0].close()
    (door.folder / "judge.sock").unlink()
    door._listeners[0] = door._listen("judge.sock", judge)
    os.chown(door.folder / "judge.sock", UID, GID)
    result = run(
        f"head -c {size} /dev/zero > /tmp/up; curl -sS -H 'Expect:' --data-binary @/tmp/up -o /tmp/down http://a.test/;"
        "wc -c < /tmp/down; sha256sum < /tmp/down | cut -c1-64"
    )
    import hashlib

    assert result.lines == [str(len(body)), hashlib.sha256(body).hexdigest()], result
    assert f"body {size}" in door.seen


def test_the_deadline_ends_a_box_whose_agent_ignores_every_signal(run: Run) -> None:
    script = (
        "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & while :; do sleep 0.2; done"
    )
    result = run(script, deadline_s=3)
    assert result.code == 124
    assert 2.5 < result.seconds < 6


def test_an_agent_that_ends_on_the_warning_still_counts_as_stopped_at_the_deadline(run: Run) -> None:
    result = run("trap 'echo warned; exit 0' TERM; while :; do sleep 0.1; done", deadline_s=4)
    assert result.code == 124 and result.lines == ["warned"]
    assert result.seconds < 8


def test_nothing_that_the_agent_does_to_process_1_puts_the_deadline_off(run: Run) -> None:
    attack = (
        "import ctypes, os, signal, threading, time\n"
        "for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGTSTP, signal.SIGCHLD):\n"
        "    os.kill(1, number)\n"
        "libc = ctypes.CDLL(None)\n"
        "assert libc.ptrace(16, 1, None, None) == -1\n"
        "for path in ('/proc/1/mem', '/proc/1/environ', '/proc/1/oom_score_adj'):\n"
        "    try: open(path, 'r+b')\n"
        "    except PermissionError: pass\n"
        "    else: print('opened', path)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for weaken in (lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),\n"
        "               lambda: os.setpriority(os.PRIO_USER, 1000, 19),\n"
        "               lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))):\n"
        "    try: weaken()\n"
        "    except PermissionError: pass\n"
        "    else: print('weakened')\n"
        "print('busy', flush=True)\n"
        "for _ in range(60):\n"
        "    if os.fork() == 0:\n"
        "        while True: os.kill(1, signal.SIGALRM)\n"
        "time.sleep(60)\n"
    )
    result = run('python3 -c "$ATTACK"', deadline_s=6, env={"PATH": "/usr/bin:/bin", "ATTACK": attack})
    assert result.lines == ["busy"], result
    # Long before the agent's own minute: sixty busy processes take a slow machine ten seconds by themselves.
    assert result.code == 124 and result.seconds < 20


@pytest.mark.parametrize(("code", "seen"), [(3, 3), (123, 123), (124, 1), (125, 1), (126, 1), (127, 127)])
def test_an_agent_cannot_end_with_a_status_of_the_relay(run: Run, code: int, seen: int) -> None:
    assert run(f"exit {code}").code == seen


def test_a_gateway_that_goes_away_ends_the_box(run: Run, door: Door) -> None:
    def hang_up(_box: Box) -> None:
        for life in door.lives:
            life.shutdown(socket.SHUT_RDWR)

    result = run("trap '' TERM; echo ready; sleep 60", meanwhile=hang_up)
    assert result.code == 126 and result.seconds < 10


def test_without_a_gateway_the_agent_does_not_start(run: Run, door: Door) -> None:
    (door.folder / "life.sock").unlink()
    result = run("echo started")
    assert result.code == 125 and "started" not in result.out
    assert "no gateway behind the door" in result.err


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_status_of_the_agent_passes_through(run: Run, script: str, code: int) -> None:
    assert run(script).code == code


def test_an_agent_that_cannot_be_executed_is_a_refusal(run: Run) -> None:
    result = run("", argv=["/no/such/program"])
    assert result.code == 125
    assert "cannot execute /no/such/program: No such file or directory" in result.err


def test_a_signal_to_the_box_ends_the_agent(run: Run) -> None:
    def stop(box: Box) -> None:
        client().api.kill(box.id, signal="SIGTERM")

    result = run("trap 'echo ending; exit 5' TERM; echo ready; while :; do sleep 0.1; done", meanwhile=stop)
    assert result.code == 5 and result.lines == ["ready", "ending"] and result.seconds < 10


def test_an_agent_that_ignores_the_signal_is_killed(run: Run) -> None:
    def stop(box: Box) -> None:
        client().api.kill(box.id, signal="SIGINT")

    result = run("trap '' TERM; echo ready; while :; do sleep 0.1; done", meanwhile=stop)
    assert result.code == 128 + signal.SIGKILL and 4 < result.seconds < 12


def test_orphans_are_reaped(run: Run) -> None:
    result = run(
        "for i in $(seq 30); do (sh -c 'exit 0' & sh -c 'sleep 0.05' &) ; done; sleep 1;"
        "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l; ps -e --no-headers | wc -l"
    )
    assert result.code == 0
    assert result.lines[0] == "0" and int(result.lines[1]) < 8


def _writable_root(spec: dict[str, Any]) -> None:
    spec["HostConfig"]["ReadonlyRootfs"] = False


def _default_network(spec: dict[str, Any]) -> None:
    spec["HostConfig"]["NetworkMode"] = "bridge"


def _capabilities(spec: dict[str, Any]) -> None:
    del spec["HostConfig"]["CapDrop"]


def _new_privileges(spec: dict[str, Any]) -> None:
    spec["HostConfig"]["SecurityOpt"] = []


def _root(spec: dict[str, Any]) -> None:
    spec["User"] = "0:0"


def _writable_code(spec: dict[str, Any]) -> None:
    spec["HostConfig"]["Binds"] = [bind.replace("/code:ro", "/code:rw") for bind in spec["HostConfig"]["Binds"]]


def _docker_socket(spec: dict[str, Any]) -> None:
    spec["HostConfig"]["Binds"].append("/var/run/docker.sock:/var/run/docker.sock")


@pytest.mark.parametrize(
    ("change", "probes"),
    [
        (_writable_root, {"root-file-system", "code"}),
        (_default_network, {"interfaces", "routes", "direct-tcp", "direct-udp"}),
        (_capabilities, {"capabilities"}),
        (_new_privileges, {"new-privileges"}),
        (_root, {"user"}),
        (_writable_code, {"code"}),
        (_docker_socket, {"docker-socket"}),
    ],
)
def test_an_open_box_does_not_start_the_agent(
    run: Run, door: Door, change: Callable[[dict[str, Any]], None], probes: set[str]
) -> None:
    if change is _root:  # who has no capability may not pass the door of another user
        os.chown(door.folder, 0, 0)
        for path in door.folder.iterdir():
            path.chmod(0o777)
    result = run("echo started", change=change)
    assert result.code == 125
    assert "started" not in result.lines
    assert probes <= result.failed()
    assert "probes failed" in result.err


@pytest.mark.parametrize(
    ("facts", "probe"),
    [
        ({"env_files": ["/run/impyard/prompt.txt"]}, "env-files"),
        ({"key_paths": ["/run/impyard/box.json"]}, "ca-key"),
        ({"uid": 1001}, "user"),
        ({"denied_host": "allowed.test"}, "denied-by-name"),
    ],
)
def test_a_secret_or_a_door_that_does_not_deny_stops_the_start(
    run: Run, door: Door, facts: Mapping[str, Any], probe: str
) -> None:
    if "denied_host" in facts:
        door.answer = DENIAL.replace(b"403", b"200").replace(b"deny", b"allow")
    result = run("echo started", facts=facts)
    assert result.code == 125 and "started" not in result.lines
    assert probe in result.failed()


def test_every_attempt_to_break_out_fails(run: Run) -> None:
    result = run("", mode="prove")
    assert result.code == 0, result
    claims = json.loads(result.lines[0])["claims"]
    assert len(claims) >= 25
    assert [claim for claim in claims if not claim["ok"]] == []
