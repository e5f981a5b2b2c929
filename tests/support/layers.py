"""The gateway's layers and hooks without sockets: a test says what happens when, also what a loop rarely does."""

from __future__ import annotations

import inspect
from pathlib import Path

from mitmproxy.connection import Connection, ConnectionState, Server
from mitmproxy.proxy import commands, events, server_hooks
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode

from impyard.addon.backpressure import Gates
from impyard.addon.clocks import Owed
from impyard.addon.doorconnection import DoorClient, DoorMode
from impyard.addon.gateway import JUDGE_HOOKS, make_options
from impyard.addon.hooks import JudgeAddon
from impyard.addon.limits import DEFAULTS, Limits
from impyard.addon.log import DecisionLog, OutcomeLog
from impyard.addon.policysource import PolicySource
from impyard.addon.record import Record
from impyard.addon.routes import Router
from impyard.addon.stream import JudgedHttpLayer


def judge_in(folder: Path, policy: str, limits: Limits = DEFAULTS, *, router: Router | None = None) -> JudgeAddon:
    """A judge that writes its logs into `folder`."""
    path = folder / "gateway.yaml"
    path.write_text(policy)
    decisions, outcomes = DecisionLog(folder / "decisions.jsonl", "r1"), OutcomeLog(folder / "outcomes.jsonl", "r1")
    record = Record(decisions, outcomes, lambda event: None)
    return JudgeAddon(PolicySource([path], folder), record, router=router, limits=limits)


class Stage:
    """One client's connection. What its layer asks for waits in `hooks` and `dials` until the test lets it happen.

    alpn: b"h2" for HTTP/2, which comes as from inside of a tunnel to `target`.
    """

    def __init__(self, judge: JudgeAddon, alpn: bytes = b"", target: tuple[str, int] | None = None) -> None:
        self.judge = judge
        self.client = DoorClient(
            transport_protocol="tcp",
            peername=("127.0.0.1", 0),
            sockname=("127.0.0.1", 0),
            timestamp_start=1.0,
            proxy_mode=DoorMode(full_spec="door:r1", data="r1", custom_listen_host=None, custom_listen_port=None),
            state=ConnectionState.OPEN,
        )
        self.client.gates = Gates(judge.limits.waiting_bytes)
        self.client.limits = judge.limits
        self.client.owed = Owed()
        self.client.target = target or ("", 0)
        self.client.alpn = alpn or None
        context = Context(self.client, make_options())
        if target is not None:
            context.server.address = target
        self.layer = JudgedHttpLayer(context, HTTPMode.regular if target is None else HTTPMode.transparent)
        context.layers = [self.layer]
        self.hooks: list[commands.StartHook] = []
        self.dials: list[commands.OpenConnection] = []
        self.origins: list[Server] = []
        self.sent: dict[Connection, bytearray] = {self.client: bytearray()}
        self.closing: list[Connection] = []  # we closed them, and the news of it has not come yet
        self.heard: list[Connection] = []  # whose end the layer has heard of
        self.feed(events.Start())

    def feed(self, event: events.Event) -> None:
        """Hand an event to the layer, and keep what it asks for."""
        for command in self.layer.handle_event(event):
            if isinstance(command, commands.StartHook):
                self.hooks.append(command)
            elif isinstance(command, commands.OpenConnection):
                self.dials.append(command)
            elif isinstance(command, commands.SendData):
                if command.connection.state & ConnectionState.CAN_WRITE:
                    self.sent.setdefault(command.connection, bytearray()).extend(command.data)
            elif isinstance(command, commands.CloseTcpConnection) and command.half_close:
                command.connection.state &= ~ConnectionState.CAN_WRITE
            elif isinstance(command, commands.CloseConnection):
                if command.connection.state is not ConnectionState.CLOSED:
                    self.closing.append(command.connection)
                command.connection.state = ConnectionState.CLOSED
            elif not isinstance(command, commands.Log):
                raise AssertionError(command)

    async def hook(self, number: int = 0) -> None:
        """Run a hook that waits, as the door does."""
        hook = self.hooks.pop(number)
        if hook.name in JUDGE_HOOKS:
            result = getattr(self.judge, hook.name)(*hook.args())
            if inspect.isawaitable(result):
                await result
        if hook.blocking:
            self.feed(events.HookCompleted(hook))

    def dial(self, number: int = 0, error: str | None = None, alpn: bytes = b"") -> None:
        """A dialled connection comes up, or does not."""
        command = self.dials.pop(number)
        server = command.connection
        assert isinstance(server, Server)
        data = server_hooks.ServerConnectionHookData(server=server, client=self.client)
        self.judge.server_connect(data)
        assert not server.error
        if error is None:
            server.state = ConnectionState.OPEN
            server.timestamp_start = server.timestamp_tcp_setup = 1.0
            server.alpn = alpn or None
            self.origins.append(server)
        else:
            server.error = error
        self.feed(events.OpenConnectionCompleted(command, error))

    def says(self, connection: Connection, data: bytes) -> None:
        """Bytes come from a side that still may send."""
        if connection.state & ConnectionState.CAN_READ:
            self.feed(events.DataReceived(connection, data))

    def ends(self, connection: Connection, *, half: bool = False) -> None:
        """A side ends: its own sending half, or all of it."""
        if connection in self.closing:
            self.closing.remove(connection)
        elif not connection.state & ConnectionState.CAN_READ:
            return
        if connection in self.heard:
            return  # the door says so once
        if half and connection.state is ConnectionState.OPEN:
            connection.state &= ~ConnectionState.CAN_READ
        else:
            connection.state = ConnectionState.CLOSED
        self.heard.append(connection)
        self.feed(events.ConnectionClosed(connection))

    async def run_hooks(self) -> None:
        """Run all hooks that wait, and those that they lead to."""
        while self.hooks:
            await self.hook()

    async def leave(self, *, at_once: bool) -> None:
        """The client leaves, and all comes to its end. at_once: the judge hears of it before what is under way ends."""
        self.ends(self.client)
        self.client.timestamp_end = 2.0
        if at_once:
            self.judge.client_disconnected(self.client)
        await self._settle()
        if not at_once:
            self.judge.client_disconnected(self.client)
        for origin in self.origins:
            self.ends(origin)
        await self._settle()

    async def _settle(self) -> None:
        while self.hooks or self.dials or self.closing:
            if self.hooks:
                await self.hook()
            elif self.dials:
                self.dial(error="gone")
            else:
                self.ends(self.closing[0])
