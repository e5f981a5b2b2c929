"""`impyard prove --deep --proxy URL`: the attempts against another proxy, from this machine.

What the origin saw is told apart by honest requests in between, so attempts of one origin go one after another. Several
lanes, each with an origin of its own, keep a proxy that lets clients hang from taking minutes.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click

from impyard.addon.errors import ImpyardError
from impyard.box.attacks import run
from impyard.box.attacks.client import Client, Refused
from impyard.box.attacks.model import EVIL, LIMIT, OK, WS, Attempt, Tried
from impyard.runner.deep import Bench, document, show
from impyard.runner.text import columns_of, wrapped
from impyard.runner.typed import as_typed

WAIT_S = 2.0  # for each step of an attempt: a tunnel, TLS in it, an answer
TOTAL_S = 240.0
SET_UP_S = 120.0


def against(proxy: str, ca: Path | None, bench: Bench, *, as_json: bool) -> int:
    """Make the attempts of a bench against another proxy, a lane for each of its origins; the exit status.

    Raises ImpyardError when the proxy is not set up for them in time. What is not made within TOTAL_S is a failure.
    """
    address = _address(proxy)
    ports = [origin.port for origin in bench.origins]
    listed = ", ".join(map(str, ports))
    for line in (
        f"the proxy must take {OK}, {WS} and {EVIL} for 127.0.0.1, and trust {bench.ca} for them",
        f"on the ports {listed} it should allow GET https://{OK}:PORT/public/…, POST /v1/messages, POST /limited "
        f"up to {LIMIT} bytes, GET /search?repo=ok, git's fetch of /repo.git, a WebSocket on {WS}:PORT/ws; "
        f"nothing else (for `impyard gateway`: --policy {bench.policy_here})",
    ):
        click.echo(wrapped(as_typed(line), columns_of(sys.stderr)), err=True)
    clients = [
        Client(address, ca=str(ca) if ca else None, port=port, limit_s=WAIT_S, quiet_s=WAIT_S, keep=True)
        for port in ports
    ]
    deadline = time.monotonic() + SET_UP_S
    for client in clients:
        _wait(client, proxy, deadline)
    for origin in bench.origins:
        origin.take()
    click.echo(f"making {len(bench.attempts)} attempts through {proxy}, in {TOTAL_S:.0f} s at most", err=True)
    verdicts = bench.judged(made(clients, bench.attempts, TOTAL_S), None)
    if as_json:
        click.echo(json.dumps(document(verdicts), indent=2))
    else:
        show(verdicts)
    return 1 if any(verdict.faults for verdict in verdicts) else 0


def made(clients: Sequence[Client], attempts: Sequence[Attempt], total_s: float) -> list[Tried]:
    """Make the attempts, each by the next client that is free, and return those that were made within `total_s`."""
    waiting = deque(enumerate(attempts))
    tried: deque[Tried] = deque()
    over = threading.Event()

    def work(client: Client) -> None:
        while waiting and not over.is_set():
            try:
                numbered = waiting.popleft()
            except IndexError:
                break
            tried.extend(run.carry_out(client, [numbered]))
        client.close()

    # Daemons, so that one that hangs does not keep the command from ending, nor Ctrl-C.
    lanes = [threading.Thread(target=work, args=(client,), daemon=True) for client in clients]
    for lane in lanes:
        lane.start()
    deadline = time.monotonic() + total_s
    try:
        for lane in lanes:
            lane.join(max(0.0, deadline - time.monotonic()))
    finally:
        over.set()
    return list(tried)


def _address(proxy: str) -> tuple[str, int]:
    parts = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme != "http" or not host or not port:
        raise ImpyardError(f"--proxy {proxy!r} is no proxy's address", hint="write it like http://127.0.0.1:8080")
    return host, port


def _wait(client: Client, proxy: str, deadline: float) -> None:
    """Until an honest request works, for as long as it takes to set a proxy up. Raises ImpyardError."""
    while True:
        try:
            found = str(client.get("/public/before").status)
        except (OSError, Refused) as exc:
            found = str(exc)
        if found == "200":
            return
        if time.monotonic() > deadline:
            where = f"port {client.port} of {OK} through {proxy}"
            raise ImpyardError(f"an honest request to {where} fails: {found}", hint="set the proxy up as above")
        time.sleep(0.5)
