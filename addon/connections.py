"""Connections to origins: each is dialled for one destination, and carries requests for that one alone."""

from __future__ import annotations

from mitmproxy.connection import Connection, Server
from mitmproxy.net.server_spec import ServerSpec
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers.http import (
    GetHttpConnection,
    GetHttpConnectionCompleted,
    RegisterHttpConnection,
)

from impyard.addon import originends, proxytunnel, tlsbytes
from impyard.addon.destination import (
    Attempt,
    Destination,
    GetJudgedConnection,
    attempt_of,
    carrier,
    destination_of,
    dialled_for,
    has_served,
    is_full,
    is_idle,
    is_over,
    note_attempt,
    note_idle,
    note_over,
    stamp,
)
from impyard.addon.dialing import why_ended
from impyard.addon.h2writes import FlushingLayer

originends.install()
tlsbytes.install()
proxytunnel.install()


class Undialled(str):
    """Why there is no connection, where not even the address answered: another address may."""

    __slots__ = ()


def connection_to(
    destination: Destination, *, fresh: bool = False, at_once: bool = False
) -> CommandGenerator[tuple[Connection | None, str | None]]:
    """A connection for a destination, kept or new, or why there is none; asked for from inside of a layer.

    fresh: one that served nobody yet. at_once: one on which a request has not to wait for others.
    """
    proxy = destination.proxy
    via: ServerSpec | None = None
    if proxy is not None:
        via = "https" if proxy.scheme == "https" else "http", (proxy.host, proxy.port)
    connection: Connection | None = None
    error: str | None = "there is no address"
    for address in destination.addresses:
        judged = destination.host, destination.port
        while True:
            connection, error = yield GetJudgedConnection(
                judged, destination.tls, via, destination=destination, dial=address, fresh=fresh, at_once=at_once
            )
            if connection is None or not at_once or not is_full(connection) or not has_served(connection):
                break  # else others who waited for the same one were quicker
        if not isinstance(error, Undialled):
            break
    return connection, error


class JudgedConnections(FlushingLayer):
    """The part of an HTTP layer that opens connections and hands them out."""

    def _handle_event(self, event: events.Event) -> CommandGenerator[None]:
        yield from super()._handle_event(event)
        if isinstance(event, events.ConnectionClosed):
            note_over(event.connection)
            self._forget()  # a tunnel's outer layer, which opens no connection, hears of all that are opened inside

    def _forget(self) -> None:
        """Drop connections that have ended, of which the core would keep all until the client is gone.

        Not the client's own: what is still said to it must find it, even when it does not hear it any more.
        """
        servers = [stream.context.server for stream in self.streams.values()]
        used = {self.context.client, *servers, *map(carrier, servers), *self.waiting_for_establishment}
        for connection in [each for each in self.connections if is_over(each) and each not in used]:
            del self.connections[connection]

    def get_connection(self, event: GetHttpConnection, *, reuse: bool = True) -> CommandGenerator[None]:
        self._forget()
        if getattr(self.command_sources[event], "is_cancelled", False):
            stream = self.command_sources.pop(event)
            yield from self.event_to_child(
                stream, GetHttpConnectionCompleted(event, (None, "nobody wants it any more"))
            )
            return
        # Without `reuse` it is one of several that waited for a first connection, which may be free again.
        if self.context.client.alpn == b"h2" and (kept := self._idle(event)) is not None:
            note_idle(kept, False)
            stream = self.command_sources.pop(event)
            yield from self.event_to_child(stream, GetHttpConnectionCompleted(event, (kept, None)))
            return
        for command in super().get_connection(event, reuse=reuse):
            # One that is stamped comes from within: of a stream that got this one, and asked for another at once.
            if (
                isinstance(command, commands.OpenConnection)
                and isinstance(event, GetJudgedConnection)
                and dialled_for(command.connection) is None
            ):
                self._stamp(event, command.connection)
            yield command

    def _idle(self, event: GetHttpConnection) -> Connection | None:
        """An HTTP/1 connection for a request of HTTP/2. The core opens one for each: an answer may only end with its
        connection, for which a second request in there would wait. One that carries nothing makes nobody wait."""
        return next((each for each in self.connections if is_idle(each) and event.connection_spec_matches(each)), None)

    def _stamp(self, event: GetJudgedConnection, dialled: Connection) -> None:
        """Say what a connection is for before it is dialled: the connect hook refuses one without."""
        waiting = self.waiting_for_establishment.items()
        made = [connection for connection, asked in waiting if any(one is event for one in asked)]
        destination = event.destination
        if destination is None or event.dial is None or len(made) != 1 or not isinstance(made[0], Server):
            raise RuntimeError("a connection that nobody judged")
        stamp(made[0], dialled, destination, event.dial)
        if destination.tls:
            made[0].sni = destination.host

    def register_connection(self, command: RegisterHttpConnection) -> CommandGenerator[None]:
        connection, err = command.connection, command.err
        if not err:
            note_attempt(connection, Attempt.DONE)
            yield from super().register_connection(command)
            return
        if attempt_of(connection) is Attempt.GIVEN_UP:
            err = why_ended(carrier(connection), "no connection came up in time")
        destination, dialled = destination_of(connection), carrier(connection)
        if destination is not None and destination.proxy is not None:
            err = f"through the upstream proxy: {err}"
        if isinstance(dialled, Server) and dialled.timestamp_tcp_setup is None:
            note_over(dialled)
            err = Undialled(err)
        yield from super().register_connection(RegisterHttpConnection(connection, err))
