"""Processes under measurement: where they run, what they used."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDS_DOCKER = "needs the docker command, to compare with: Debian's and Ubuntu's package docker.io or docker-cli"
START_LIMIT_S = 30.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def measured_cpu() -> set[int]:
    """The processor for what is measured: the first that this process may use."""
    return {min(os.sched_getaffinity(0))}


def other_cpu() -> set[int]:
    """The processor for the origin and the load: the last, which on a machine with one is the same."""
    return {max(os.sched_getaffinity(0))}


def start(command: list[str], cpus: set[int], *, log: Path | None = None) -> subprocess.Popen[str]:
    """Start a process on some processors; its standard output is a pipe unless it goes to `log`.

    It is in a session of its own: a Ctrl-C is ours alone, and who started a process ends it with `stop`.
    """
    with open(log or os.devnull, "ab") as sink:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=sink if log else subprocess.PIPE,
            stderr=sink if log else None,
            start_new_session=True,
            # A proxy variable of this shell must not put a third proxy into the measurement.
            env={key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")},
        )
    pin(process.pid, cpus)
    return process


def python(module: str, *arguments: str) -> list[str]:
    """The command line of a module of this package."""
    return [sys.executable, "-m", f"tests.bench.{module}", *arguments]


def pin(pid: int, cpus: set[int]) -> None:
    """Keep a process, and the threads that it makes from now on, on some processors."""
    with suppress(ProcessLookupError):
        os.sched_setaffinity(pid, cpus)


def wait_for_port(port: int, process: subprocess.Popen[str], name: str, log: Path) -> None:
    """Return once a process takes connections at a port of 127.0.0.1. Raises RuntimeError when
    it takes too long, and with the end of its log when it ends before."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended early: {log.read_text()[-500:]}")
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{name} did not open its port")


def stop(process: subprocess.Popen[str]) -> None:
    """End a process, however it takes it."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def said(process: subprocess.Popen[str], limit_s: float) -> str:
    """What a process printed until its end, which it is brought to when the limit passes or we are interrupted."""
    try:
        return process.communicate(timeout=limit_s)[0]
    finally:
        stop(process)


def cpu_s(pid: int) -> float:
    """The CPU time of a process so far, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def forget_peak(pid: int) -> int:
    """Set a process's peak memory to what it has now, and return that in KiB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # proc(5): resets VmHWM
    return peak_kib(pid)


def peak_kib(pid: int) -> int:
    """The peak of a process's resident memory in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
