"""The listeners that a box must not reach do count who reaches them."""

from __future__ import annotations

import ipaddress
import socket
import time

from impyard.runner.canaries import Canaries, own_addresses


def test_own_addresses_are_this_machines_and_not_loopback() -> None:
    for address in own_addresses():
        assert not ipaddress.ip_address(address).is_loopback
        with socket.socket() as bound:
            bound.bind((address, 0))  # only an address of this machine can be bound


def test_the_control_reaches_every_listener_by_tcp_and_udp() -> None:
    with Canaries() as canaries:
        assert canaries.addresses[0][0] == "127.0.0.1"
        assert [address for address, _port in canaries.addresses[1:]] == own_addresses()
        assert canaries.hits == 0
        assert canaries.control() == 2 * len(canaries.addresses)
        assert canaries.hits == 2 * len(canaries.addresses)


def test_each_visit_counts_once() -> None:
    with Canaries() as canaries:
        address = canaries.addresses[0]
        socket.create_connection(address, 2).close()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"", address)
        deadline = time.monotonic() + 5
        while canaries.hits < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert canaries.hits == 2


def test_the_listeners_are_gone_afterwards() -> None:
    with Canaries() as canaries:
        address, port = canaries.addresses[0]
    with socket.socket() as bound:
        bound.bind((address, port))
