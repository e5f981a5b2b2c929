"""One connection at the door: mitmproxy's layers with our hooks, no faster than the other side takes it.

What it may call is a fixed table of hooks, and an error anywhere inside ends it: the core alone would log it and go on.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, cast

from mitmproxy import options as moptions
from mitmproxy.connection import Client, Connection, ConnectionState, Server
from mitmproxy.proxy import commands, events, layer, mode_specs, server, server_hooks
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers import modes
from mitmproxy.proxy.layers.http._hooks import (
    HttpErrorHook,
    HttpRequestHeadersHook,
    HttpRequestHook,
    HttpResponseHeadersHook,
    HttpResponseHook,
)
from mitmproxy.proxy.layers.websocket import WebsocketMessageHook

from impyard.addon.backpressure import Gate, GatedReader, Gates, Lane
from impyard.addon.clocks import Owed
from impyard.addon.destination import Attempt, attempt_of
from impyard.addon.dialing import Dialer, NoRoom
from impyard.addon.fastread import FastReader
from impyard.addon.limits import Limits
from impyard.addon.notes import is_let_go

logger = logging.getLogger(__name__)

Handlers = Mapping[str, Callable[..., Any]]

# What is asked about each request, and about each message of a WebSocket; none of it is worth a task of its own.
_OFTEN = (
    HttpRequestHeadersHook,
    HttpRequestHook,
    HttpResponseHeadersHook,
    HttpResponseHook,
    HttpErrorHook,
    WebsocketMessageHook,
)

# How long the connections of a client that is gone may take to end by themselves.
CLEAR_UP_S = 5.0
# A unix peer has no address, and the core formats one wherever it logs.
NOWHERE = ("127.0.0.1", 0)


class DoorMode(mode_specs.ProxyMode):
    """Says which door a flow came through: `data` is the run's id, which nothing in the box can forge."""

    description = "impyard door"
    transport_protocol: Literal["tcp", "udp", "both"] = "tcp"

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("a door belongs to a run")


class DoorClient(Client):
    """A client whose layers can say how much waits for somebody."""

    gates: Gates
    limits: Limits
    owed: Owed
    target: tuple[str, int]  # of its tunnel; no name before it has one
    at_once: Callable[[commands.StartHook], bool]  # asks a hook's handlers; whether nobody has to wait for them
    enter: Callable[[layer.Layer], None]  # has that layer hear of all events from now on, in place of those around it


class _EventLock(asyncio.Lock):
    """The core's lock around each event of a connection: `begin` is called when the work on one begins, then `end`.

    Tasks begin at once, so there are many who wait for it where several requests share a connection.
    """

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        super().__init__()
        self._begin, self._end = begin, end

    async def acquire(self) -> Literal[True]:
        await super().acquire()
        self._begin()
        return True

    def release(self) -> None:
        self._end()
        super().release()


class DoorConnection(server.ConnectionHandler):
    """One connection from the box, or from whoever speaks to the gateway."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        options: moptions.Options,
        mode: mode_specs.ProxyMode,
        handlers: Handlers,
        limits: Limits,
        dialer: Dialer,
        lane: Lane,
    ) -> None:
        client = DoorClient(
            transport_protocol="tcp",
            peername=writer.get_extra_info("peername") or NOWHERE,
            sockname=writer.get_extra_info("sockname") or NOWHERE,
            timestamp_start=time.time(),
            proxy_mode=mode,
            state=ConnectionState.OPEN,
        )
        context = Context(client, options)
        super().__init__(context)
        self._dialer = dialer
        # The core's five would make the sixth long stream of an HTTP/2 client wait; a client may open a hundred.
        self.max_conns = cast(collections.defaultdict[tuple[str, int], asyncio.Semaphore], dialer)
        self.gates = client.gates = Gates(limits.waiting_bytes)
        self.client: DoorClient = client
        self._limits = client.limits = limits
        client.owed = Owed()
        client.target = ("", 0)
        client.at_once = self._at_once
        client.enter = self._enter
        self._over = False
        self._lane = lane
        self._reads: dict[asyncio.Task[Any] | None, tuple[Connection, GatedReader]] = {}
        self._server_event_lock = _EventLock(self._begin, self._end)
        self._event_began = self._aside_s = 0.0  # of work that follows a hook, not a read
        self._handlers = handlers
        self.layer = modes.HttpProxy(context)
        self._writer = writer
        self.transports[client] = server.ConnectionIO(handler=None, reader=reader, writer=writer)

    async def handle_client(self) -> None:
        """Serve the client to its end; nothing of it is left afterwards."""
        try:
            await super().handle_client()
        finally:
            self._over = True
            running = [io.handler for io in self.transports.values() if io.handler and not io.handler.done()]
            for handler in running:
                handler.cancel("the client is gone")
            if running:
                await asyncio.wait(running, timeout=CLEAR_UP_S)
            # The core forgets a connection whose task was cancelled while it waited for its turn.
            self.abort()
            self.transports.clear()

    async def open_connection(self, command: commands.OpenConnection) -> None:
        """Dial, unless the client is gone."""
        if self._over:
            self.transports.pop(command.connection, None)
            command.connection.error = "the client is gone"
            await self.server_event(events.OpenConnectionCompleted(command, command.connection.error))
            return
        self._dialer.dialling(command.connection)
        try:
            await super().open_connection(command)
        except NoRoom as exc:
            self.transports.pop(command.connection, None)
            command.connection.error = str(exc)
            await self.server_event(events.OpenConnectionCompleted(command, command.connection.error))
        except asyncio.CancelledError:
            if attempt_of(command.connection) is not Attempt.GIVEN_UP:
                raise
        finally:
            self._dialer.forget()

    async def handle_connection(self, connection: Connection) -> None:
        """Read a connection to its end, no faster than the other side takes it."""
        io = self.transports[connection]
        gate = self.gates.uploads if connection is self.client else Gate(self._limits.waiting_bytes)
        if connection is not self.client:
            vars(connection)["gate"] = gate  # the streams that it carries find it there
        assert isinstance(io.reader, asyncio.StreamReader) and isinstance(io.writer, asyncio.StreamWriter)
        descriptor = io.writer.get_extra_info("socket").fileno()
        fast = FastReader(io.reader, cast(asyncio.Transport, io.writer.transport))
        reader = GatedReader(fast, gate, self._lane, descriptor, lambda: self._gone(connection), lambda: self._aside_s)
        io.reader = cast(asyncio.StreamReader, reader)  # the core only calls `read`
        task = asyncio.current_task()
        self._reads[task] = connection, reader
        try:
            await super().handle_connection(connection)
        except asyncio.CancelledError:
            await self._tell_the_end(connection)
            raise
        finally:
            reader.leave()
            del self._reads[task]

    async def _tell_the_end(self, connection: Connection) -> None:
        """Have the layers hear that a connection is over. The core tells it, but not of one that was cancelled while an
        event of it waited for its turn: its requests would wait for ever."""
        if (io := self.transports.get(connection)) is None:
            return  # told: the core has forgotten it
        connection.state = ConnectionState.CLOSED
        await self.server_event(events.ConnectionClosed(connection))
        self.transports.pop(connection, None)
        if isinstance(io.writer, asyncio.StreamWriter):
            io.writer.close()

    def _gone(self, connection: Connection) -> None:
        """The other side left: the core would take its end for that of its sending half alone."""
        if connection is self.client:
            connection.state = ConnectionState.CLOSED

    def _begin(self) -> None:
        """The work on an event begins. What a read costs is counted from here: until now the loop was with others."""
        read = self._reads.get(asyncio.current_task())
        if read is None:
            self._event_began = time.thread_time()
        else:
            read[1].begin()

    def _end(self) -> None:
        if asyncio.current_task() not in self._reads:
            # What had to wait for a hook is worked on behind it, and was read all the same.
            self._aside_s += time.thread_time() - self._event_began

    async def drain_writers(self) -> None:
        """Wait until the other side has taken what was just passed on.

        The core waits for both sides, one reader at a time: two peers that send much at once would wait for each other.
        """
        source, reader = self._reads[asyncio.current_task()]
        reader.done()
        from_box = source is self.client
        own = self._writer if from_box else self.transports[source].writer
        # What we say to one that does not listen: answers of our own, pongs. What others send it waits elsewhere.
        with contextlib.suppress(OSError):  # the next read says so
            while isinstance(own, asyncio.StreamWriter) and _unsent(own) > self._limits.waiting_bytes:
                await own.drain()
        for connection, io in list(self.transports.items()):
            if (connection is self.client) is from_box or not isinstance(io.writer, asyncio.StreamWriter):
                continue
            try:
                await io.writer.drain()
            except OSError as exc:
                if io.handler is not None:
                    io.handler.cancel(f"cannot send: {exc}")

    def _enter(self, inside: layer.Layer) -> None:
        self.layer = inside

    def _at_once(self, hook: commands.StartHook) -> bool:
        """Ask the handler of a hook now; whether its flow may go on without anybody's waiting for the end of the hook.

        Not one that we answer ourselves: a client that sends many such requests in a row would keep the loop busy, as
        the next one would be looked at before this one is left. The same with one that has sent the next already, at
        the end of an answer: the parser of the origin's side is not through with that before the hook is.
        """
        if not isinstance(hook, _OFTEN) or self.gates.later:
            return False
        rest = vars(hook)["rest"] = self._handler_of(hook)(hook.flow)
        if isinstance(hook, HttpErrorHook):
            return rest is None
        return rest is None and hook.flow.error is None and is_let_go(hook.flow)

    def _handler_of(self, hook: commands.StartHook) -> Callable[..., Any]:
        return self._handlers.get(hook.name, nobody)

    async def handle_hook(self, hook: commands.StartHook) -> None:
        if isinstance(hook, server_hooks.ServerConnectedHook):
            self._dialer.connected(hook.data.server)
        # Handlers guard themselves; whatever still escapes ends the connection instead of being logged and forgotten.
        try:
            asked = vars(hook)
            rest = asked["rest"] if "rest" in asked else self._handler_of(hook)(*hook.args())
            if rest is not None and inspect.isawaitable(rest):
                await rest
        except Exception as exc:
            logger.error("hook %s failed", hook.name, exc_info=exc)
            self.abort()

    def log(
        self,
        message: str,
        level: int = logging.INFO,
        exc_info: Literal[True]
        | tuple[type[BaseException], BaseException, TracebackType | None]
        | BaseException
        | None = None,
    ) -> None:
        if level < logging.WARNING:
            return  # the decision log says what people need
        logger.log(level, message, exc_info=exc_info)
        if exc_info is not None:
            # A layer has crashed in the middle of a message: what would follow is undefined.
            self.abort()

    @property
    def listens(self) -> bool:
        """Whether the box is waited for; else it is we who do not take what it has to say."""
        return any(reader.listens for source, reader in self._reads.values() if source is self.client)

    def say(self, last_words: bytes) -> None:
        """Send that to a client that speaks no TLS, and end its connection."""
        self._writer.write(last_words)
        self._writer.close()

    def abort(self) -> None:
        """End the connection and all that hangs on it, now."""
        for io in list(self.transports.values()):
            if isinstance(io.writer, asyncio.StreamWriter):
                io.writer.transport.abort()
            elif io.handler is not None:
                io.handler.cancel("aborted")

    def close_connection(self, connection: Connection, half_close: bool = False) -> None:
        io = self.transports.get(connection)
        writer = io.writer if io is not None and isinstance(connection, Server) and not half_close else None
        if isinstance(writer, asyncio.StreamWriter) and writer.transport.get_write_buffer_size():
            # An origin that no longer reads would keep the unsent rest, and everyone who waits for it, for ever.
            writer.transport.abort()
        super().close_connection(connection, half_close)


def nobody(*_: object) -> None:
    """Handles what nobody wants to hear of."""


def _unsent(writer: asyncio.StreamWriter) -> int:
    """How many bytes wait for the other side to take them."""
    return writer.transport.get_write_buffer_size()
