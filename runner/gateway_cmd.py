"""`impyard gateway`: the judge alone, in the foreground, as a proxy for other tools on this machine.

There is no box around those tools: who does not use the proxy is not judged. It listens on loopback only, since
whoever reaches it speaks with the rights of the policy.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import shlex
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from impyard.addon.errors import ImpyardError
from impyard.runner.project import POLICY, find_root

if TYPE_CHECKING:
    from impyard.addon.gateway import Config

LISTEN = "127.0.0.1:7300"


@click.command()
@click.option(
    "--listen", default=LISTEN, show_default=True, metavar="HOST:PORT", help="A loopback address; port 0: any."
)
@click.option("--policy", type=click.Path(path_type=Path), multiple=True, help=f"Instead of {POLICY}; repeatable.")
@click.option("--project", type=click.Path(path_type=Path), help="The project's folder (default: found from here).")
@click.option("--json", "as_json", is_flag=True, help="Show the decisions as JSON lines.")
def gateway(listen: str, policy: tuple[Path, ...], project: Path | None, as_json: bool) -> int:
    """Judge requests on 127.0.0.1:7300 until Ctrl-C, for tools outside of a box.

    Shows each decision as it is made; they are recorded in runs/decisions.jsonl like those of a run.
    """
    host, port = parse_listen(listen)
    root = find_root(project)
    files = [Path(os.path.abspath(path)) for path in policy] or [root / POLICY]
    for file in files:
        if not file.exists():
            hint = "check the path given to --policy" if policy else "`impyard init` writes a commented one"
            raise ImpyardError(f"there is no policy at {file}", hint=hint)
    return serve(root, files, host, port, as_json=as_json)


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `[HOST]:PORT` or `PORT` as a loopback address and a port; raises ImpyardError for anything else."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    host = {"": "127.0.0.1", "localhost": "127.0.0.1"}.get(host, host)
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ImpyardError(f"--listen {text!r} is no address with a port", hint=f"write it like {LISTEN}")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ImpyardError(f"--listen {text!r}: {host!r} is no IP address", hint=f"write it like {LISTEN}") from None
    if not address.is_loopback:
        raise ImpyardError(
            f"--listen {text!r} would open the judge to other machines, which it must not serve",
            hint=f"use a loopback address, like {LISTEN}; to reach it from elsewhere, forward the port with ssh -L",
        )
    return str(address), int(port)


def serve(root: Path, files: list[Path], host: str, port: int, *, as_json: bool) -> int:
    """Run the judge until a signal; the exit status: 130 after Ctrl-C, 0 after SIGTERM."""
    from impyard.addon.gateway import Config
    from impyard.certs.authority import default_dir, ensure_authority

    authority = ensure_authority(default_dir())
    runs = root / "runs"
    try:
        runs.mkdir(exist_ok=True)
    except OSError as exc:
        raise ImpyardError(f"cannot make {runs}: {(exc.strerror or str(exc)).lower()}") from exc
    name = f"gateway-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    config = Config(run=name, policies=tuple(files), root=root, runs=runs, ca=default_dir())

    def is_ready(taken: int) -> None:
        address = f"[{host}]:{taken}" if ":" in host else f"{host}:{taken}"
        click.echo(
            f"judging on http://{address} by {', '.join(_named(file, root) for file in files)}\n"
            f"  curl --cacert {shlex.quote(str(authority.cert_path))} -x http://{address} https://api.github.com/\n"
            f"only what uses this proxy is judged; `impyard run` locks an agent in. Ctrl-C ends it.",
            err=True,
        )

    with _Shown(runs / "decisions.jsonl", name, as_json):
        status = asyncio.run(_serve(config, host, port, is_ready))
    click.echo(f"the judge has ended; impyard decisions --run {name}", err=True)
    return status


async def _serve(config: Config, host: str, port: int, is_ready: Callable[[int], None]) -> int:
    from impyard.addon.gateway import serve_tcp

    def tell(event: dict[str, Any]) -> None:
        if event.get("event") == "log-unwritable":
            click.echo(f"error: {event.get('error')}: everything is denied until it can be written", err=True)

    server = asyncio.ensure_future(serve_tcp(config, host, port, on_event=tell, on_ready=is_ready))
    status = 0

    def end(number: signal.Signals) -> None:
        nonlocal status
        status = 130 if number == signal.SIGINT else 0
        server.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        await server
    except asyncio.CancelledError:
        return status
    except ImpyardError as exc:
        if isinstance(exc.__cause__, OSError):
            raise ImpyardError(
                exc.message, hint="choose another port; `--listen 127.0.0.1:0` takes a free one"
            ) from exc
        raise
    return status


class _Shown:
    """Prints the decisions of one run as the log gets them, while the block lasts."""

    def __init__(self, log: Path, run: str, as_json: bool) -> None:
        self._log, self._run, self._as_json = log, run, as_json
        self._ended = threading.Event()
        self._last = False  # the next look at the log is the last one
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> None:
        try:
            self._start = self._log.stat().st_size
        except OSError:
            self._start = 0
        self._thread.start()

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join(2)

    def _show(self) -> None:
        from impyard.runner import logread
        from impyard.runner.decisions_view import Selection, emitter

        emit = emitter(self._as_json)
        wanted = Selection(self._run, denied=False)
        try:
            for line in logread.follow(self._log, self._start, sleep=self._pause):
                if wanted(line):
                    emit([line])
        except _Ended:
            return
        except (OSError, ImpyardError) as exc:
            # The judge goes on without its audience: a closed pipe or terminal is no reason to stop judging.
            click.echo(f"warning: decisions are no longer shown: {exc}", err=True)

    def _pause(self, seconds: float) -> None:
        if self._last:
            raise _Ended
        self._last = self._ended.wait(seconds)


class _Ended(Exception):
    """The display was told to end."""


def _named(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
