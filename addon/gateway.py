"""The gateway process: the door, the judge behind it, and the line to the runner.

The line (`lifeline`) is a socket pair of JSON lines. The runner sends one line with the configuration and later closes
its sending side; the gateway says `ready` or `failed`, then each denial, then `closed` with its totals. When the line
ends without a word, the other side is dead: the gateway then exits at once, and the door is gone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mitmproxy import http, options
from mitmproxy.utils import asyncio_utils

from impyard.addon.descriptors import fit
from impyard.addon.door import Door
from impyard.addon.doorconnection import Handlers
from impyard.addon.errors import ImpyardError, PolicyError
from impyard.addon.hooks import JudgeAddon
from impyard.addon.keys import Keys
from impyard.addon.limits import DEFAULTS, Limits
from impyard.addon.log import DecisionLog, OutcomeLog
from impyard.addon.policysource import PolicySource
from impyard.addon.record import Record
from impyard.addon.sweep import sweep
from impyard.addon.tls import GatewayTls
from impyard.certs.authority import Authority, inspect

logger = logging.getLogger(__name__)

# News beyond this many unsent bytes is dropped: a runner that does not listen must not stall the judge.
MAX_UNSENT_BYTES = 1 << 20

JUDGE_HOOKS = (
    "next_layer",
    "http_connect",
    "client_disconnected",
    "server_connect",
    "refused",
    "requestheaders",
    "request",
    "responseheaders",
    "response",
    "error",
    "websocket_message",
    "websocket_end",
)
TLS_HOOKS = ("tls_start_client", "tls_start_server")


@dataclass(frozen=True, slots=True)
class Config:
    """What a gateway needs to know.

    run: the run's id. policies: the policy files, in order. root: the project, for paths as people know them.
    runs: the folder of `decisions.jsonl`. ca: the authority's folder. door: where to open the sockets, or None.
    secret: shared with the runner. door_uid, door_gid: who may use the door; None: this process's own user.
    vault: the folder of the credentials, None for a gateway that puts none on requests.
    """

    run: str
    policies: tuple[Path, ...]
    root: Path
    runs: Path
    ca: Path
    door: Path | None = None
    secret: bytes = b""
    door_uid: int | None = None
    door_gid: int | None = None
    limits: Limits = DEFAULTS
    vault: Path | None = None

    @classmethod
    def from_json(cls, line: bytes) -> Config:
        """Read the runner's line. Raises ImpyardError when it is not one."""
        try:
            raw = json.loads(line)
            return cls(
                run=raw["run"],
                policies=tuple(Path(path) for path in raw["policies"]),
                root=Path(raw["root"]),
                runs=Path(raw["runs"]),
                ca=Path(raw["ca"]),
                door=Path(raw["door"]),
                secret=bytes.fromhex(raw["secret"]),
                door_uid=raw.get("door_uid"),
                door_gid=raw.get("door_gid"),
                limits=Limits.from_dict(raw.get("limits", {})),
                vault=Path(raw["vault"]) if raw.get("vault") is not None else None,
            )
        except (ValueError, KeyError, TypeError) as exc:
            raise ImpyardError(f"the gateway's configuration is not valid: {exc}") from exc


class Gateway:
    """A judge with a door, inside a running event loop. Raises ImpyardError when it must not start."""

    def __init__(self, config: Config, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.config = config
        limits = fit(config.limits)
        self.authority: Authority = inspect(config.ca)
        self.policies = PolicySource(config.policies, config.root)
        policy = self.policies.current()
        if isinstance(policy, PolicyError):
            raise policy
        self.policy_hash = policy.hash
        self.record = Record(
            DecisionLog(config.runs / "decisions.jsonl", config.run),
            OutcomeLog(config.runs / "outcomes.jsonl", config.run),
            on_event,
        )
        self.keys = Keys(config.vault, policy, on_event)
        self.record.clean, self.record.clean_text = self.keys.watch.clean, self.keys.watch.clean_text
        self.judge = JudgeAddon(
            self.policies,
            self.record,
            injector=self.keys.injector,
            watch=self.keys.watch,
            secret=config.secret,
            limits=limits,
        )
        self._sweeping: asyncio.Task[None] | None = None
        self._tls = GatewayTls(self.authority)
        self.door = Door(make_options(), config.run, self._handlers(), limits)
        self.judge.drop = self.door.drop  # type: ignore[method-assign]  # the door comes after its judge

    def _handlers(self) -> Handlers:
        table = {name: getattr(self.judge, name) for name in JUDGE_HOOKS}
        table |= {name: getattr(self._tls, name) for name in TLS_HOOKS}
        table["turned_away"] = self.judge.turned_away.count
        return table

    async def open(self) -> None:
        """Open the door."""
        if self.config.door is None:
            raise ImpyardError("this gateway has no door to open")
        await self.door.listen_unix(self.config.door, uid=self.config.door_uid, gid=self.config.door_gid)
        self.keep_time()

    def keep_time(self) -> None:
        """End from now on what takes too long."""
        self._sweeping = asyncio.create_task(sweep(self.door, self.judge))

    def close(self) -> None:
        """Close the door; what ended by it writes its outcome in the loop's next turn."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        self.door.close()
        self.judge.turned_away.flush()


def make_options() -> options.Options:
    """mitmproxy's options as a judging proxy needs them.

    Its layers also read options that its add-ons define; those are not loaded, so they are defined here, at the values
    that they must have. A layer that reads any other one fails, and so ends its connection.
    """
    opts = options.Options()
    fixed: dict[str, tuple[type, Any]] = {
        "connection_strategy": (str, "lazy"),  # nothing is dialled before the verdict
        "validate_inbound_headers": (bool, True),
        "normalize_outbound_headers": (bool, True),
        "store_streamed_bodies": (bool, False),
        "keep_host_header": (bool, False),
        "proxy_debug": (bool, False),
    }
    for name, (kind, value) in fixed.items():
        opts.add_option(name, kind, value, "")
    for name in ("stream_large_bodies", "body_size_limit"):  # both undo what the judge decides about a body
        opts.add_option(name, str | None, None, "")
    # Time is kept in addon/sweep.py, where a connection's pings do not count as a request's progress.
    opts.update(rawtcp=False, http2=True, websocket=True, tcp_timeout=7 * 24 * 3600)
    # Nobody changes them any more; the core looks some up for each message, and makes a deep copy of what it finds.
    names: set[str] = opts.keys()
    vars(opts).update({name: getattr(opts, name) for name in names})
    return opts


def skip_type_checks() -> None:
    """Leave out mitmproxy's check of the type of each field of each message, which its debug mode makes.

    A fifth of the processor time of a request. Our own answers are made in one place, and tested.
    """
    http.MessageData.__post_init__ = lambda self: None  # type: ignore[method-assign]


def settle() -> None:
    """Leave what is loaded by now out of the collector's rounds: it stays as long as the process."""
    gc.freeze()


class Lifeline:
    """The gateway's end of the line to its runner."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, descriptor: int) -> Lifeline:
        """Take over an inherited descriptor of a stream socket."""
        return cls(*await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor), limit=1 << 20))

    async def config(self) -> Config:
        """Wait for the runner's configuration."""
        return Config.from_json(await self._reader.readline())

    def tell(self, event: dict[str, Any]) -> None:
        """Send one line, or drop it when the runner does not listen."""
        transport = self._writer.transport
        if not transport.is_closing() and transport.get_write_buffer_size() < MAX_UNSENT_BYTES:
            self._writer.write(json.dumps(event).encode() + b"\n")

    async def ended(self) -> None:
        """Wait until the runner has closed its side, or is gone."""
        with suppress(ConnectionError):
            while await self._reader.read(4096):
                pass

    async def say_goodbye(self, event: dict[str, Any]) -> None:
        """Send the last line and wait until it is out. A runner that is gone does not mind."""
        self.tell(event)
        with suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self._writer.drain(), 2)
            self._writer.close()
            await asyncio.wait_for(self._writer.wait_closed(), 2)


async def serve(descriptor: int) -> int:
    """Be the gateway of one run; the exit status of the process."""
    lifeline = await Lifeline.open(descriptor)
    with asyncio_utils.install_exception_handler(_log_unhandled), asyncio_utils.set_eager_task_factory():
        try:
            skip_type_checks()
            gateway = Gateway(await lifeline.config(), lifeline.tell)
            await gateway.open()
            settle()
        except ImpyardError as exc:
            await lifeline.say_goodbye({"event": "failed", "error": exc.message, "hint": exc.hint})
            return 1
        ready = {"event": "ready", "policy": gateway.policy_hash, "ca": gateway.authority.fingerprint}
        lifeline.tell({**ready, "pid": os.getpid(), "keys": gateway.keys.for_runner()})
        await lifeline.ended()
        gateway.close()
        await asyncio.sleep(0)  # let the ended flows write their outcomes
        await gateway.keys.finish(lifeline.tell)
        await lifeline.say_goodbye({"event": "closed", **gateway.record.totals()})
    return 0


async def serve_tcp(
    config: Config, host: str, port: int, *, on_event: Callable[[dict[str, Any]], None], on_ready: Callable[[int], None]
) -> None:
    """Judge on a TCP address of this machine until cancelled. `on_ready` gets the port.

    Raises ImpyardError when it must not start or the address is taken.
    """
    with asyncio_utils.install_exception_handler(_log_unhandled), asyncio_utils.set_eager_task_factory():
        skip_type_checks()
        gateway = Gateway(config, on_event)
        try:
            taken = await gateway.door.listen_tcp(host, port)
            gateway.keep_time()
            settle()
        except OSError as exc:
            raise ImpyardError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
        on_ready(taken)
        try:
            await asyncio.Event().wait()
        finally:
            gateway.close()


def _log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    logger.error("unhandled in the event loop: %s", context.get("message"), exc_info=context.get("exception"))
