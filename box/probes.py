"""Is the box locked? Each probe says what it expected and what it found; all of them hold before an agent starts.

A probe that cannot find out has failed. `facts` come from the runner: denied_host (a name that no policy allows),
code_paths (must not be writable), env_files (must be empty or absent), key_paths (must be absent or unreadable), uid,
outside (an address that is not this box); for `impyard prove` also listeners (addresses and ports of the host).
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ANSWER_LIMIT_S = 60.0
CONNECT_LIMIT_S = 2.0
SIOCGIFFLAGS, IFF_UP = 0x8913, 1
DOCKER_SOCKETS = (
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
)
NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES)

Facts = Mapping[str, Any]
# Name, what is expected, and a function that says what was found.
Probe = tuple[str, str, Callable[[], str]]


def run_probes(facts: Facts) -> list[dict[str, Any]]:
    """Run every probe. Each result has name, expected, found and ok, as `impyard prove` shows them."""
    return judge_all(probes(facts))


def judge_all(probes: Sequence[Probe]) -> list[dict[str, Any]]:
    """Run probes in order; one that raises has failed, with the error as what it found."""
    results = []
    for name, expected, find in probes:
        try:
            found = find()
        except Exception as exc:  # noqa: BLE001 - cannot find out is not locked
            found = f"{type(exc).__name__}: {exc}"
        results.append({"name": name, "expected": expected, "found": found, "ok": found == expected})
    return results


def probes(facts: Facts) -> list[Probe]:
    """The probes of design and documentation, in the order in which they are shown."""
    host = str(facts["denied_host"])
    outside = str(facts["outside"])
    return [
        ("interfaces", "lo", interfaces),
        ("routes", "none", routes),
        ("user", f"uid {facts['uid']}", user),
        ("capabilities", "none", capabilities),
        ("new-privileges", "off", new_privileges),
        ("root-file-system", "read-only", lambda: writable(["/", "/etc", "/usr/bin", "/opt/impyard"])),
        ("code", "read-only", lambda: writable(facts["code_paths"])),
        ("docker-socket", "absent", lambda: present(DOCKER_SOCKETS)),
        ("env-files", "empty", lambda: readable(facts["env_files"]) or "empty"),
        ("ca-key", "unreadable", lambda: readable(facts["key_paths"]) or "unreadable"),
        ("direct-tcp", "no route", lambda: connect(outside, 443)),
        ("direct-udp", "no route", lambda: send(outside, 53)),
        ("denied-by-proxy", "403 deny", lambda: ask(("127.0.0.1", 3128), f"http://{host}/", host)),
        ("denied-by-name", "403 deny", lambda: ask((resolve(host), 80), "/", host)),
    ]


def interfaces() -> str:
    """The names of the network interfaces that are up.

    Some kernels put idle tunnel devices (tunl0, sit0) into every network namespace; without capabilities, which another
    probe sees to, nobody can bring one up.
    """
    import fcntl

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _index, name in socket.if_nameindex():
            request = struct.pack("16sh22x", name.encode(), 0)  # struct ifreq of netdevice(7)
            flags = struct.unpack_from("16xh", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[0]
            if flags & IFF_UP:
                found.append(name)
    return " ".join(sorted(found)) or "none"


def routes() -> str:
    """Routes that lead out of the box: IPv4 ones at all, IPv6 ones not on lo."""
    with open("/proc/net/route") as file:
        found = [line.split()[0] for line in file.readlines()[1:] if line.strip()]
    try:
        with open("/proc/net/ipv6_route") as file:
            found += [fields[-1] for line in file if (fields := line.split()) and fields[-1] != "lo"]
    except FileNotFoundError:
        pass  # no IPv6 at all
    return " ".join(found) or "none"


def user() -> str:
    """The user, when real, effective and saved ids are one and not 0, and no group is root's."""
    ids = set(os.getresuid())
    if len(ids) != 1 or 0 in ids:
        return f"uids {sorted(ids)}"
    if 0 in {*os.getresgid(), *os.getgroups()}:
        return "group 0"
    return f"uid {ids.pop()}"


def capabilities() -> str:
    """The sets of capabilities that are not empty; the bounding set counts too."""
    found = [f"{key}={value}" for key, value in _status().items() if key.startswith("Cap") and int(value, 16)]
    return " ".join(found) or "none"


def new_privileges() -> str:
    """Whether a program that is set-user-id could gain anything."""
    return "off" if _status()["NoNewPrivs"] == "1" else "on"


def writable(paths: Sequence[str]) -> str:
    """ "read-only", or the first path that is not on a read-only mount: permissions of files alone are not enough."""
    for path in paths:
        target = os.path.join(path, ".impyard-probe") if os.path.isdir(path) else path
        try:
            # Opening an existing file for writing changes nothing in it.
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as exc:
            if exc.errno == errno.EROFS or os.statvfs(path).f_flag & os.ST_RDONLY:
                continue
            return f"{path}: {exc.strerror}, on a writable mount"
        os.close(descriptor)
        return f"{path} is writable"
    return "read-only" if paths else "nothing to check"


def present(paths: Sequence[str]) -> str:
    """ "absent", or the paths that exist."""
    return " ".join(path for path in paths if os.path.lexists(path)) or "absent"


def readable(paths: Sequence[str]) -> str:
    """The paths that give any byte, or a device that is not /dev/null; "" when there is none."""
    found = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                # The host's /dev/null is another file than the box's, but the same device.
                covered = not stat.S_ISCHR(status.st_mode) or status.st_rdev == os.stat(os.devnull).st_rdev
                if file.read(1) or not covered:
                    found.append(path)
        except OSError:
            continue
    return " ".join(found)


def connect(address: str, port: int) -> str:
    """What comes of a TCP connection straight to an address."""
    with socket.socket(_family(address), socket.SOCK_STREAM) as client:
        client.settimeout(CONNECT_LIMIT_S)
        try:
            client.connect((address, port))
        except OSError as exc:
            return _refusal(exc)
    return "connected"


def send(address: str, port: int) -> str:
    """What comes of a UDP packet straight to an address."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as client:
        try:
            client.sendto(b"impyard", (address, port))
        except OSError as exc:
            return _refusal(exc)
    return "sent"


def resolve(host: str) -> str:
    """The address that programs of the box get for a name, by the C library's own way."""
    # As bytes: a text would load the IDNA tables first, 10 ms.
    return str(socket.getaddrinfo(host.encode("ascii"), None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])


def ask(address: tuple[str, int], target: str, host: str) -> str:
    """Status and verdict of a plain HTTP request, such as "403 deny"."""
    with socket.create_connection(address, timeout=ANSWER_LIMIT_S) as client:
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("ascii"))
        head = b""
        while b"\r\n\r\n" not in head and len(head) < 65536 and (data := client.recv(65536)):
            head += data
    lines = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    status = " ".join(lines[0].split(" ")[1:2]) or "no answer"
    headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
    return f"{status} {headers.get('x-impyard-verdict', 'without a verdict')}"


def _status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _refusal(exc: OSError) -> str:
    return "no route" if exc.errno in NO_ROUTE else str(exc.strerror or exc)
