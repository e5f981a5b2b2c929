"""The agent's system call filter, run by a small interpreter: also for machines that the tests do not have."""

from __future__ import annotations

import errno
import struct

import pytest

from impyard.box.guard import CALLS, build_filter

REFUSED = 0x00050000 | errno.EPERM
UNKNOWN = 0x00050000 | errno.ENOSYS
ALLOWED = 0x7FFF0000
KILL = {"x86_64": 62, "aarch64": 129}


def decide(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the kernel would do with a call (the classic BPF of seccomp(2): load, compare, return)."""
    arch = CALLS[machine][0] if architecture is None else architecture
    data = struct.pack("<II Q 6Q", number, arch, 0, *(*arguments, *[0] * (6 - len(arguments))))
    code = build_filter(machine)
    position = accumulator = 0
    while True:
        operation, then, otherwise, value = struct.unpack_from("<HBBI", code, position * 8)
        position += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif operation in (0x15, 0x35):
            holds = accumulator == value if operation == 0x15 else accumulator >= value
            position += then if holds else otherwise
        elif operation == 0x06:
            return int(value)
        else:
            pytest.fail(f"unknown operation {operation:#x}")


@pytest.mark.parametrize("machine", CALLS)
def test_calls_about_process_1_are_refused_and_those_about_others_are_not(machine: str) -> None:
    for number in CALLS[machine][1]:
        assert decide(machine, number, 1) == REFUSED
        assert decide(machine, number, 0) == ALLOWED
        assert decide(machine, number, 4711) == ALLOWED
        assert decide(machine, number, (5 << 32) | 1) == REFUSED  # the kernel takes the lower half too


@pytest.mark.parametrize("machine", CALLS)
def test_priorities_of_process_1_of_its_group_and_of_the_user_are_refused(machine: str) -> None:
    for number, user in CALLS[machine][2].items():
        for kind in (user - 2, user - 1):
            assert decide(machine, number, kind, 1) == REFUSED
            assert decide(machine, number, kind, 0) == ALLOWED
        assert decide(machine, number, user, 0) == decide(machine, number, user, 1000) == REFUSED


@pytest.mark.parametrize("machine", CALLS)
def test_other_calls_pass_whatever_their_arguments(machine: str) -> None:
    filtered = {*CALLS[machine][1], *CALLS[machine][2]}
    assert KILL[machine] not in filtered
    for number in set(range(500)) - filtered:
        assert decide(machine, number, 1, 1) == ALLOWED


@pytest.mark.parametrize("machine", CALLS)
def test_other_system_call_tables_are_not_there(machine: str) -> None:
    assert decide(machine, KILL[machine], 1, architecture=0x40000003) == UNKNOWN  # i386
    assert decide(machine, 0x40000000 | KILL[machine], 1) == UNKNOWN  # x32


def test_an_unknown_machine_has_no_filter() -> None:
    with pytest.raises(OSError):
        build_filter("riscv64")
