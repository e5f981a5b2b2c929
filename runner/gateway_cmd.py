"""`impyard gateway`: the judge alone, in the foreground, as a proxy for other tools on this machine.

There is no box around those tools: who does not use the proxy is not judged. It listens on loopback only, since
whoever reaches it speaks with the rights of the policy.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import secrets
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from impyard.addon.errors import ImpyardError, WrongUsage
from impyard.addon.newfile import make_folder
from impyard.runner.decisions.tend import tend
from impyard.runner.options import project_option
from impyard.runner.policy.place import policy_option
from impyard.runner.project import POLICY, find_root
from impyard.runner.records import check_records
from impyard.runner.text import columns_of, visible, wrapped
from impyard.runner.typed import as_typed, command_line

if TYPE_CHECKING:
    from impyard.addon.gateway import Config

LISTEN = "127.0.0.1:7300"
SAMPLE = "https://api.github.com/"
# mitmproxy's words for a client that ends the handshake because of the certificate (its TLS layer).
_DISTRUST = re.compile(r"(?:does|may) not trust the proxy's certificate for (\S+)")
MOST_HOSTS = 1000
TEND_S = 60.0  # between two looks at the logs' size


@click.command()
@click.option(
    "--listen", default=LISTEN, show_default=True, metavar="HOST:PORT", help="A loopback address; port 0: any."
)
@policy_option
@project_option
@click.option("--json", "as_json", is_flag=True, help="Show the decisions as JSON lines.")
@click.option("--inject", "inject", is_flag=True, help="Put the vault's credentials on requests, for all who connect.")
def gateway(listen: str, policies: tuple[Path, ...], project: Path | None, as_json: bool, inject: bool) -> int:
    """Judge requests on 127.0.0.1:7300 until Ctrl-C, for tools outside of a box.

    Shows each decision as it is made; they are recorded in runs/decisions.jsonl like those of a run. An allowed
    request that comes to nothing gets a second line, `failed`. Ctrl-C and SIGTERM end it with exit status 0.

    What the policy injects a credential on is denied, unless --inject is given.

    \b
    impyard gateway                   and in another shell:
    curl -x http://127.0.0.1:7300 …   with --cacert, as it says when it starts
    """
    host, port = parse_listen(listen)
    root = find_root(project)
    files = [Path(os.path.abspath(path)) for path in policies] or [root / POLICY]
    for file in files:
        if not file.exists():
            hint = "check the path given to --policy" if policies else "`impyard init` writes a commented one"
            raise ImpyardError(f"there is no policy at {file}", hint=hint)
    status, name = serve(root, files, host, port, as_json=as_json, inject=inject)
    click.echo(f"the judge has ended; {command_line('decisions', '--run', name, project=project)}", err=True)
    return status


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `[HOST]:PORT` or `PORT` as a loopback address and a port; raises WrongUsage for anything else."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    host = {"": "127.0.0.1", "localhost": "127.0.0.1"}.get(host, host)
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise WrongUsage(f"--listen {text!r} is no address with a port", hint=f"write it like {LISTEN}")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise WrongUsage(f"--listen {text!r}: {host!r} is no IP address", hint=f"write it like {LISTEN}") from None
    if not address.is_loopback:
        raise WrongUsage(
            f"--listen {text!r} would open the judge to other machines, which it must not serve",
            hint=f"use a loopback address, like {LISTEN}; to reach it from elsewhere, forward the port with ssh -L",
        )
    return str(address), int(port)


def serve(
    root: Path, files: list[Path], host: str, port: int, *, as_json: bool, inject: bool = False
) -> tuple[int, str]:
    """Run the judge until a signal; the exit status, and its name in the log. Raises ImpyardError when it must not
    start. inject: with the user's vault."""
    check_records(root)
    from impyard.addon.__main__ import keep_memory_private
    from impyard.addon.gateway import Config
    from impyard.addon.vault import store
    from impyard.certs.authority import default_dir, ensure_authority

    authority = ensure_authority(default_dir())
    runs = root / "runs"
    try:
        make_folder(runs)
    except OSError as exc:
        raise ImpyardError(
            f"cannot make {runs}: {(exc.strerror or str(exc)).lower()}", hint="check the project's owner and mode"
        ) from exc
    name = f"gateway-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    vault = store.default_dir() if inject else None
    config = Config(run=name, policies=tuple(files), root=root, runs=runs, ca=default_dir(), vault=vault)
    bindings = _bindings(files, root, vault)
    if inject:
        keep_memory_private()

    ca = shlex.quote(str(authority.cert_path))

    def is_ready(taken: int) -> None:
        address = f"[{host}]:{taken}" if ":" in host else f"{host}:{taken}"
        for line in (
            f"judging on http://{address} by {', '.join(_named(file, root) for file in files)}",
            f"  curl --cacert {ca} -x http://{address} {SAMPLE}",
            f"  ({_sample_answer(files, root)})",
            *bindings,
            as_typed("only what uses this proxy is judged; `impyard run` locks an agent in. Ctrl-C ends it."),
        ):
            click.echo(wrapped(line, columns_of(sys.stderr)) if "curl" not in line else line, err=True)

    words = _Words(ca)
    logging.getLogger().addHandler(words)
    try:
        with _Shown(runs / "decisions.jsonl", name, as_json):
            status = asyncio.run(_serve(config, host, port, is_ready))
    finally:
        logging.getLogger().removeHandler(words)
    return status, name


def _bindings(files: list[Path], root: Path, vault: Path | None) -> list[str]:
    """What people must know of the credentials that the policy injects, as lines; none where it injects nothing."""
    from impyard.addon.keys import Keys
    from impyard.addon.policy import load_policy

    policy = load_policy(files, root=root)
    if not policy.injects:
        return []
    if vault is None:
        hosts = ", ".join(dict.fromkeys(entry.host for entry, _ in policy.injects))
        return [f"denied, as the policy puts credentials on it and this is without --inject: {hosts}"]
    bound = Keys(vault, policy).for_runner()["bindings"]
    lines = [
        f"  {each['credential']} for {each['host']} ({each['at']})"
        + (f": not in the vault; {command_line('vault', 'set', each['credential'])}" if each["missing"] else "")
        for each in bound
    ]
    return ["everyone who can connect to this address uses these credentials:", *lines]


def _sample_answer(files: list[Path], root: Path) -> str:
    """What the sample command will show under these policies."""
    from impyard.addon.judge import Verdict, judge
    from impyard.addon.policy import load_policy
    from impyard.addon.request import Request

    host = SAMPLE.split("/")[2]
    sample = Request("GET", "https", host, 443, "/", "", host_header=host, sni=host)
    if judge(sample, load_policy(files, root=root)).verdict is Verdict.ALLOW:
        return "the policy allows this one"
    return "the policy does not allow this one, so it shows what a denial looks like"


async def _serve(config: Config, host: str, port: int, is_ready: Callable[[int], None]) -> int:
    from impyard.addon.gateway import serve_tcp

    def tell(event: dict[str, Any]) -> None:
        if event.get("event") == "credential":
            cause = f"credential {event.get('name')}: {event.get('what')}"
            click.echo(wrapped(f"warning: {visible(cause)}", columns_of(sys.stderr)), err=True)
        elif event.get("event") == "log-unwritable":
            click.echo(f"error: {event.get('error')}: everything is denied until it can be written", err=True)

    server = asyncio.ensure_future(serve_tcp(config, host, port, on_event=tell, on_ready=is_ready))

    def end(number: signal.Signals) -> None:
        if number == signal.SIGINT and sys.stderr.isatty():
            click.echo(err=True)  # the cursor stands behind ^C
        server.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        await server
    except asyncio.CancelledError:
        return 0
    except ImpyardError as exc:
        if isinstance(exc.__cause__, OSError):
            raise ImpyardError(
                exc.message, hint="choose another port; `--listen 127.0.0.1:0` takes a free one"
            ) from exc
        raise
    return 0


class _Words(logging.Handler):
    """Says on standard error what the proxy has to say: a client without our authority once per host, with the mending
    option, and the rest as it comes."""

    def __init__(self, ca: str) -> None:
        super().__init__(logging.WARNING)
        self._ca = ca
        self._known: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        found = _DISTRUST.search(text)
        if found is None:
            click.echo(f"warning: {visible(text)}", err=True)
            return
        host = found[1]
        if host not in self._known and len(self._known) < MOST_HOSTS:
            self._known.add(host)
            line = f"{visible(host)}: the client does not trust impyard's authority; with curl: --cacert {self._ca}"
            click.echo(wrapped(line, columns_of(sys.stderr)), err=True)


class _Shown:
    """Prints the decisions of one run as the log gets them, while the block lasts."""

    def __init__(self, log: Path, run: str, as_json: bool) -> None:
        self._log, self._run, self._as_json = log, run, as_json
        self._ended = threading.Event()
        self._tend_at = 0.0
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
        from impyard.runner.decisions import outcomes
        from impyard.runner.decisions.lines import Selection
        from impyard.runner.decisions.view import emitter, follow_log

        try:
            follow_log(
                self._log,
                self._start,
                Selection(self._run, denied=False),
                emitter(self._as_json),
                None if self._as_json else outcomes.Failures(outcomes.path_beside(self._log)),
                sleep=self._pause,
            )
        except _Ended:
            return
        except (OSError, ImpyardError) as exc:
            # The judge goes on without its audience: a closed pipe or terminal is no reason to stop judging.
            click.echo(f"warning: decisions are no longer shown: {exc}", err=True)
        while not self._ended.wait(TEND_S):
            tend(self._log.parent)

    def _pause(self, seconds: float) -> None:
        if self._last:
            raise _Ended
        if time.monotonic() > self._tend_at:  # it may run for months
            self._tend_at = time.monotonic() + TEND_S
            tend(self._log.parent)
        self._last = self._ended.wait(seconds)


class _Ended(Exception):
    """The display was told to end."""


def _named(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
