"""The first process of the box: opens the way to the door, checks the box, then starts the agent and watches over it.

Untrusted like all in the box: the gateway believes nothing that comes from here, and the runner keeps time itself.
What this adds is that a box whose runner was killed still ends in time, and that no agent starts in a box that is not
locked.

Reads /run/impyard/box.json: run, deadline_s (seconds from the start), door (folder of judge.sock and life.sock), argv,
env, cwd, stdin (path or null), terminal (rows and columns, or null; see terminal.py), probes (see probes.py), mode
("run", or "prove": attempts instead of an agent).

Prints one JSON line with the probes; from then on standard output and error are the agent's. Exit status: the agent's,
or 124 at the deadline, 125 when it refuses to start the agent, 126 when the gateway is gone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # python3 -I leaves the script's folder out
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from impyard.box import codecache
from impyard.box.loop import READ, Loop
from impyard.box.pid1 import GATEWAY_LOST, Warden, end, harden, refuse
from impyard.box.services import PROXY, Doorway, Names, name_limit

if TYPE_CHECKING:
    from impyard.box.terminal import Terminal

CONFIG = "/run/impyard/box.json"
PROBES_LIMIT_S = 120.0  # they take a tenth of a second; with very many boxes on one machine each gets few turns
PROVE_LIMIT_S = 120.0


def main() -> None:
    """Never returns: ends the box with the exit status above."""
    started = time.monotonic()
    agent_started = False
    try:
        with open(CONFIG, "rb") as file:
            config = json.load(file)
        files, agent_files = harden()
        loop = Loop()
        warden = Warden(loop, started + float(config["deadline_s"]), agent_files)
        warden.arm()
        lifeline = hold_lifeline(loop, config["door"], lambda: agent_started)
        serve(loop, config["door"], files)
        probe(loop, warden, config["probes"], started)
        if config["mode"] == "prove":
            prove(loop, warden, config["probes"])
            end(0)
        terminal = make_terminal(loop, config.get("terminal"))
        slave = terminal.slave if terminal is not None else None
        with suppress(OSError):  # an image without it, or a full disk
            codecache.lay_out()
        warden.start(config["argv"], config["env"], config["cwd"], config["stdin"], slave)
        agent_started = True
        if terminal is not None:
            terminal.serve()
        loop.run(until=lambda: warden.status is not None)
        if terminal is not None:
            terminal.drain()
        del lifeline
        end(warden.status or 0)
    except BaseException as exc:  # noqa: BLE001 - whatever it is, the box must not live on without its first process
        if agent_started:
            end(GATEWAY_LOST)
        refuse(f"{type(exc).__name__}: {exc}")


def make_terminal(loop: Loop, size: list[int] | None) -> Terminal | None:
    """The agent's terminal, of `size` (rows, columns), for a run that has one."""
    if not size:
        return None
    from impyard.box.terminal import Terminal  # what no other run waits for

    return Terminal(loop, *size)


def hold_lifeline(loop: Loop, door: str, agent_started: Callable[[], bool]) -> socket.socket:
    """Connect to the gateway's life.sock, which says nothing for as long as the gateway lives."""
    lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lifeline.connect(os.path.join(door, "life.sock"))
    except OSError as exc:
        refuse(f"no gateway behind the door: {exc.strerror}")
    lifeline.setblocking(False)

    def listen() -> None:
        try:
            alive = bool(lifeline.recv(4096))
        except BlockingIOError:
            return
        except OSError:
            alive = False
        if not alive:
            if agent_started():
                end(GATEWAY_LOST)
            refuse("the gateway went away")

    loop.watch(lifeline.fileno(), READ, listen)
    return lifeline


def serve(loop: Loop, door: str, files: int) -> None:
    """Listen for the programs of the box: proxy, names, and the addresses handed out for them."""
    doorway = Doorway(loop, os.path.join(door, "judge.sock"))
    doorway.listen(PROXY, None)
    Names(loop, doorway, name_limit(files)).listen()


def probe(loop: Loop, warden: Warden, facts: dict[str, Any], started: float) -> None:
    """Check the box, print the one line about it, and refuse to go on unless all is as expected."""

    def check() -> list[dict[str, Any]]:
        from impyard.box.probes import run_probes

        return run_probes(facts)

    found = in_child(loop, warden, check, PROBES_LIMIT_S)
    failed = [item["name"] for item in found if not item["ok"]]
    ms = round((time.monotonic() - started) * 1000)
    tell({"impyard": "probes", "ok": not failed and bool(found), "probes": found, "ms": ms})
    if failed or not found:
        refuse(f"probes failed: {', '.join(failed) or 'none ran'}")


def prove(loop: Loop, warden: Warden, facts: dict[str, Any]) -> None:
    """Try to break out with the standing that an agent has, and print one line about each attempt."""

    def attempt() -> list[dict[str, Any]]:
        from impyard.box.prove import run_claims

        warden.become_agent()
        return run_claims(facts)

    def deep() -> list[dict[str, Any]]:
        from impyard.box.attacks.bed import chosen
        from impyard.box.attacks.client import Client
        from impyard.box.attacks.run import HONEST, as_json, carry_out

        warden.become_agent()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a connection that is ended while we send is a result
        client = Client(PROXY, ca=facts["deep"]["ca"], keep=True)
        client.get(f"{HONEST}0")  # what the log holds until here belongs to no attempt
        return [as_json(tried) for tried in carry_out(client, enumerate(chosen(facts["deep"]["groups"]), 1))]

    tell({"impyard": "prove", "claims": in_child(loop, warden, attempt, PROVE_LIMIT_S)})
    if facts.get("deep"):
        tell({"impyard": "deep", "tried": in_child(loop, warden, deep, PROVE_LIMIT_S)})


def in_child(
    loop: Loop, warden: Warden, call: Callable[[], list[dict[str, Any]]], limit_s: float
) -> list[dict[str, Any]]:
    """What `call` returns, run in a child while this process serves it like any program of the box."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    gathered = bytearray()
    done = False

    def work() -> None:
        os.close(reader)
        with os.fdopen(writer, "w") as file:
            json.dump(call(), file)

    def gather() -> None:
        nonlocal done
        try:
            data = os.read(reader, 65536)
        except BlockingIOError:
            return
        gathered.extend(data)
        done = not data

    warden.fork(work)
    os.close(writer)
    os.set_blocking(reader, False)
    loop.watch(reader, READ, gather)
    loop.later(limit_s, lambda: None if done else refuse(f"the probes did not end within {limit_s:.0f} s"))
    loop.run(until=lambda: done)
    loop.watch(reader, 0, gather)
    os.close(reader)
    result = json.loads(gathered)
    if not isinstance(result, list):
        raise TypeError("the probes answered with something else than a list")
    return result


def tell(line: dict[str, Any]) -> None:
    """Write a line for the runner to standard output."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
