"""The attempts that ship with impyard, scored: in a box of `prove --deep`, or against any other proxy.

The attempts are made by box/attacks; what the origin saw and what the log says is read here, on this machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from impyard.addon.errors import ImpyardError
from impyard.box.attacks import run, score
from impyard.box.attacks.bed import ATTEMPTS, policy
from impyard.box.attacks.client import Client, Refused
from impyard.box.attacks.model import EVIL, GROUPS, LIMIT, OK, WS, Attempt, Line, Seen, Tried
from impyard.box.attacks.origin import CountingOrigin
from impyard.runner.text import columns_of, visible, wrapped
from impyard.runner.typed import as_typed

NAMES = (OK, WS, EVIL, "*.wild.test")
QUIET_S = 1.5
SHOWN = 40
SET_UP_S = 120.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One attempt and what is wrong with how it ended; `faults` is empty when it was held."""

    attempt: Attempt
    faults: tuple[str, ...]


class Bench:
    """A counting origin on this machine's loopback, its authority, and the policy that leads to it. A context."""

    def __enter__(self) -> Bench:
        from impyard.certs.throwaway import Pki

        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="impyard-deep-")))
        pki = Pki(folder)
        self.origin = CountingOrigin(pki.context(*NAMES))
        self._stack.callback(self.origin.close)
        self.ca = pki.ca_path
        self.policy = folder / "deep.yaml"
        self.policy.write_text(policy(self.origin.port, str(self.ca)), "utf-8")
        self.policy_here = folder / "here.yaml"  # the same for names that are asked for under the origin's own port
        self.policy_here.write_text(policy(self.origin.port, str(self.ca), self.origin.port), "utf-8")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def judged(self, tried: Sequence[Tried], log: Iterable[Mapping[str, Any]] | None) -> list[Verdict]:
        """A verdict on every attempt. log: the decisions of the run; None where there is no log to look at."""
        seen = run.by_attempt(self.origin.take())
        lines: dict[int, list[Line]] | None = None
        if log is not None:
            lines = run.lines_by_attempt(run.line_from(entry) for entry in log)
        by_key = {each.key: each for each in tried}
        found = []
        for attempt in ATTEMPTS:
            made = by_key.get(attempt.key)
            if made is None:
                found.append(Verdict(attempt, ("it was not made",)))
                continue
            said = None if lines is None else lines.get(made.number, [])
            faults = score.faults(attempt, made.result, said, seen.get(made.number, Seen()))
            if made.after != 200:
                faults.append("the honest request after it did not work")
            found.append(Verdict(attempt, tuple(faults)))
        return found


def reported(event: Mapping[str, Any]) -> list[Tried]:
    """The attempts that a box says it made; what is no such report is left out."""
    found = []
    for item in event.get("tried") or ():
        try:
            found.append(run.from_json(item))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def against(proxy: str, ca: Path | None, *, as_json: bool) -> int:
    """Make the attempts against another proxy from this machine; the exit status."""
    parts = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme != "http" or not host or not port:
        raise ImpyardError(f"--proxy {proxy!r} is no proxy's address", hint="write it like http://127.0.0.1:8080")
    with Bench() as bench:
        at = bench.origin.port
        for line in (
            f"the proxy must lead {OK}, {WS} and {EVIL} to 127.0.0.1 port {at}, and trust {bench.ca} for them",
            f"it should allow GET https://{OK}:{at}/public/…, POST /v1/messages, POST /limited up to {LIMIT} bytes, "
            f"GET /search?repo=ok, git's fetch of /repo.git, a WebSocket on {WS}:{at}/ws; nothing else "
            f"(for `impyard gateway`: --policy {bench.policy_here})",
        ):
            click.echo(wrapped(as_typed(line), columns_of(sys.stderr)), err=True)
        client = Client((host, port), ca=str(ca) if ca else None, port=at, quiet_s=QUIET_S, keep=True)
        _wait(client, proxy)
        bench.origin.take()
        click.echo(f"making {len(ATTEMPTS)} attempts through {proxy}", err=True)
        verdicts = bench.judged(list(run.carry_out(client, ATTEMPTS)), None)
        client.close()
    if as_json:
        click.echo(json.dumps(document(verdicts), indent=2))
    else:
        show(verdicts)
    return 0 if all(not verdict.faults for verdict in verdicts) else 1


def _wait(client: Client, proxy: str) -> None:
    """Until an honest request works, for as long as it takes to set a proxy up. Raises ImpyardError."""
    deadline = time.monotonic() + SET_UP_S
    while True:
        try:
            found = str(client.get("/public/before").status)
        except (OSError, Refused) as exc:
            found = str(exc)
        if found == "200":
            return
        if time.monotonic() > deadline:
            raise ImpyardError(f"an honest request through {proxy} fails: {found}", hint="set the proxy up as above")
        time.sleep(0.5)


def document(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The scoreboard as JSON."""
    failed = [verdict for verdict in verdicts if verdict.faults]
    return {
        "ok": not failed,
        "groups": {
            group: {"name": name, "attempts": count, "held": held} for group, name, count, held in _groups(verdicts)
        },
        "failed": [{"attempt": verdict.attempt.key, "faults": list(verdict.faults)} for verdict in failed],
    }


def show(verdicts: Sequence[Verdict]) -> None:
    """Print a line for each group, then what failed."""
    click.echo(click.style("attempts to get past the proxy", bold=True))
    for group, name, count, held in _groups(verdicts):
        mark = click.style("ok  ", fg="green") if held == count else click.style("FAIL", fg="red", bold=True)
        missed = "" if held == count else f", {count - held} failed"
        click.echo(f"  {mark}  {group}  {name:<24}  {count} made, {held} held{missed}")
    failed = [verdict for verdict in verdicts if verdict.faults]
    columns = columns_of(sys.stdout)
    for verdict in failed[:SHOWN]:
        line = f"  {visible(verdict.attempt.key)}: {visible('; '.join(verdict.faults))}"
        click.echo(wrapped(line, columns, "    "))
    if len(failed) > SHOWN:
        click.echo(f"  and {len(failed) - SHOWN} more: --json lists all")


def _groups(verdicts: Sequence[Verdict]) -> list[tuple[str, str, int, int]]:
    found = []
    for group, name in GROUPS.items():
        mine = [verdict for verdict in verdicts if verdict.attempt.group == group]
        found.append((group, name, len(mine), sum(not verdict.faults for verdict in mine)))
    return found
