"""The outside, played by a container: it answers at 198.51.100.0/24 (TEST-NET-2 of RFC 5737) and sees each packet.

An ordinary container gets there as it would get to the real internet: by its default route, through this machine. So a
route to the player is put into this machine's table, by a container that shares its network; no rights of our own are
needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impyard.runner.engine import client

PROBED = "198.51.100.1"  # what the box's own probes try, and other tests in open boxes: its packets prove nothing
ADDRESS = "198.51.100.77"
NAME_SERVER = "198.51.100.8"
NETWORK6 = "2001:db8:77::/64"
GREETING = "hello from outside"

# In the player. Every address of the network is its own; `lo` takes a whole subnet for local.
PLAYER = """
import fcntl, socket, ssl, struct, threading
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(asker, 0x8916, struct.pack("16sH2x4s8x", b"lo:1", socket.AF_INET, socket.inet_aton("198.51.100.1")))
fcntl.ioctl(asker, 0x891c, struct.pack("16sH2x4s8x", b"lo:1", socket.AF_INET, socket.inet_aton("255.255.255.0")))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tls.pem")
def answer(connection, secure):
    try:
        connection.settimeout(5)
        if secure:
            connection = context.wrap_socket(connection, server_side=True)
        connection.recv(4096)
        connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nhello from outside")
        connection.close()
    except OSError:
        pass
def serve(port):
    listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0], port == 443), daemon=True).start()
def echo(port):
    packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # A packet that came to another of our addresses must be answered from there.
    packets.setsockopt(socket.IPPROTO_IP, 8, 1)
    packets.bind(("0.0.0.0", port))
    while True:
        data, extra, _flags, peer = packets.recvmsg(2048, 256)
        packets.sendmsg([data], [(socket.IPPROTO_IP, 8, extra[0][2])], 0, peer)
for port in (22, 53, 80, 443, 853, 8080):
    threading.Thread(target=serve, args=(port,), daemon=True).start()
for port in (53, 443):
    threading.Thread(target=echo, args=(port,), daemon=True).start()
wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
print("ready", flush=True)
while True:
    data, (_device, kind, packet_type, *_rest) = wire.recvfrom(256)
    if packet_type == 4:
        continue
    if kind == 0x0800:
        to = socket.inet_ntoa(data[16:20])
        if to.startswith("198.51.100."):
            print(to, {1: "icmp", 6: "tcp", 17: "udp"}.get(data[9], data[9]), flush=True)
    elif kind == 0x86dd:
        to = socket.inet_ntop(socket.AF_INET6, data[24:40])
        if to.startswith("2001:db8:77:") and data[6] != 58:
            print(to, {6: "tcp", 17: "udp"}.get(data[6], data[6]), flush=True)
"""

# In this machine's network: argv is the gateway, or nothing to take the route away. rtentry of route(7), on 64 bits.
ROUTE = """
import fcntl, socket, struct, sys
def address(text): return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))
def entry(gateway):
    return struct.pack("L16s16s16sHhL8xh6xPLLH6x", 0, address("198.51.100.0"), address(gateway or "0.0.0.0"),
        address("255.255.255.0"), 3 if gateway else 1, 0, 0, 0, 0, 0, 0, 0)
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    try: fcntl.ioctl(asker, 0x890C, entry(""))
    except OSError: break
if sys.argv[1:]: fcntl.ioctl(asker, 0x890B, entry(sys.argv[1]))
"""


@dataclass
class Internet:
    """`neighbour` is the player's address among Docker's containers, `gateway` this machine's among them; `address6` is
    another of the player's, on `network`, and "" without IPv6."""

    container: Any
    network: str
    neighbour: str
    gateway: str
    address6: str

    def packets(self) -> list[str]:
        """What arrived so far, a line for each packet: the address it was sent to, and its protocol."""
        time.sleep(0.3)
        lines = self.container.logs().decode().splitlines()
        return [line for line in lines if line.split()[0] not in ("ready", PROBED)]


@contextlib.contextmanager
def play_internet(image: str, certificate: Path) -> Iterator[Internet]:
    """Play the outside until the end of the block. `certificate` is a key and a certificate in one PEM file."""
    docker = client()
    with contextlib.ExitStack() as stack:
        # The address and the route are this machine's: one at a time.
        lock = stack.enter_context(open(Path(tempfile.gettempdir()) / f"impyard-internet-{os.getuid()}.lock", "w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        player = docker.containers.run(
            image,
            ["-c", PLAYER],
            entrypoint="python3",
            user="0",
            detach=True,
            cap_add=["NET_ADMIN", "NET_RAW"],
            sysctls={"net.ipv6.conf.all.disable_ipv6": "0"} if Path("/proc/net/if_inet6").exists() else {},
            volumes={str(certificate): {"bind": "/tls.pem", "mode": "ro"}},
        )
        stack.callback(player.remove, force=True)
        address6 = ""
        network = "bridge"
        if Path("/proc/net/if_inet6").exists():
            network = f"impyard-test-{os.getpid()}"
            ipam: Any = {"Driver": "default", "Config": [{"Subnet": NETWORK6}]}
            made = docker.networks.create(network, enable_ipv6=True, ipam=ipam)
            stack.callback(made.remove)
            made.connect(player)
            stack.callback(made.disconnect, player, force=True)
        deadline = time.monotonic() + 30
        while b"ready" not in player.logs():
            assert time.monotonic() < deadline, player.logs()
            time.sleep(0.1)
        player.reload()
        networks = player.attrs["NetworkSettings"]["Networks"]
        if network != "bridge":
            address6 = networks[network]["GlobalIPv6Address"]
        neighbour = networks["bridge"]["IPAddress"]
        route(image, neighbour)
        stack.callback(route, image)
        yield Internet(player, network, neighbour, networks["bridge"]["Gateway"], address6)


def route(image: str, gateway: str = "") -> None:
    """Lead this machine's packets for 198.51.100.0/24 to a container, or end that."""
    client().containers.run(
        image,
        ["-c", ROUTE, *([gateway] if gateway else [])],
        entrypoint="python3",
        user="0",
        network_mode="host",
        cap_add=["NET_ADMIN"],
        remove=True,
    )
