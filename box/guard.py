"""Keeps the agent from slowing process 1 down.

Agent and process 1 are the same user, and without capabilities there is no other, so the kernel lets one lower the
other's priority and limits. With the lowest priority, and a box full of busy programs that send it signals, the
deadline came seconds late. A system call filter (seccomp(2)) on the agent refuses those calls for process 1, and those
for all processes of the user; all else stays with Docker's own filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Any

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
ALLOW = 0x7FFF0000
DENY = 0x00050000 | errno.EPERM
NO_SUCH_CALL = 0x00050000 | errno.ENOSYS
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
# struct seccomp_data: number, architecture, instruction pointer, six arguments of 8 bytes (little-endian).
NUMBER, ARCHITECTURE, FIRST, SECOND = 0, 4, 16, 24
X32_BIT = 0x40000000
PROCESS_1 = 1

# machine -> (AUDIT_ARCH, calls whose first argument is a process, {call with a kind and a number: the kind "user"}).
# These are sched_setparam, sched_setscheduler, sched_setaffinity, prlimit64, sched_setattr; setpriority, ioprio_set.
CALLS: dict[str, tuple[int, tuple[int, ...], dict[int, int]]] = {
    "x86_64": (0xC000003E, (142, 144, 203, 302, 314), {141: 2, 251: 3}),
    "aarch64": (0xC00000B7, (118, 119, 122, 261, 274), {140: 2, 30: 3}),
}


def build_filter(machine: str) -> bytes:
    """The filter as an array of struct sock_filter. Raises OSError for a machine that it does not know.

    Programs for other system call tables of the same machine (32-bit ones) get ENOSYS: their numbers differ.
    """
    if machine not in CALLS:
        raise OSError(errno.ENOSYS, f"no system call filter for {machine}")
    architecture, by_process, by_kind = CALLS[machine]
    code = [
        _do(LOAD, ARCHITECTURE),
        _do(EQUAL, architecture, then=1),
        _do(RETURN, NO_SUCH_CALL),
        _do(LOAD, NUMBER),
        _do(AT_LEAST, X32_BIT, otherwise=1),
        _do(RETURN, NO_SUCH_CALL),
    ]
    for number in by_process:
        code += [
            _do(EQUAL, number, otherwise=4),
            _do(LOAD, FIRST),
            _do(EQUAL, PROCESS_1, otherwise=1),
            _do(RETURN, DENY),
            _do(RETURN, ALLOW),
        ]
    for number, user in by_kind.items():
        code += [
            _do(EQUAL, number, otherwise=6),
            _do(LOAD, FIRST),
            _do(EQUAL, user, then=2),
            _do(LOAD, SECOND),
            _do(EQUAL, PROCESS_1, otherwise=1),
            _do(RETURN, DENY),
            _do(RETURN, ALLOW),
        ]
    return b"".join([*code, _do(RETURN, ALLOW)])


def protect_process_1() -> None:
    """Put the filter on this process and all that come of it, for good. Raises OSError when that is not possible."""
    code = build_filter(os.uname().machine)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot set the system call filter")


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _do(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """struct sock_filter; `then` and `otherwise` are how many instructions to skip after a comparison."""
    return struct.pack("<HBBI", code, then, otherwise, value)
