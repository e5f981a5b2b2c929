"""The judge's hooks around requests: what may come up on a connection, and what is refused before there is a request.

Every hook denies when it fails: mitmproxy logs an exception in a hook and lets the flow go on, so none may leave here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any

from mitmproxy import http
from mitmproxy.connection import Client, Server
from mitmproxy.net.tls import starts_like_tls_record
from mitmproxy.proxy import commands, events, layer, server_hooks
from mitmproxy.proxy.layers import modes
from mitmproxy.proxy.layers.http import HTTPMode, HttpStream

from impyard.addon import answers, proxytunnel
from impyard.addon.clocks import owes
from impyard.addon.destination import Refusal, dialled_for
from impyard.addon.failclosed import fail_closed
from impyard.addon.judge import denial
from impyard.addon.limits import Limits
from impyard.addon.record import Record
from impyard.addon.request import Request, canonical_host
from impyard.addon.stream import JudgedHttpLayer
from impyard.addon.tls import BoundedClientTls
from impyard.addon.turnedaway import TurnedAway
from impyard.addon.turns import Busy, Queue, Turns
from impyard.addon.wire import looks_like_http, to_response

# A head that waits for its turn weighs this part of what may wait in a connection: more of them, and it is not read on.
_HEADS_WAITING = 64
_TLS = b"\x16\x03"  # how the record of a hello begins
TOO_MANY_DECISIONS = "it asks for more decisions per second than it may"


class RefusedLayer(layer.Layer):
    """The end of a connection that must not go on: closes it, ignores the rest."""

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        if isinstance(event, events.Start):
            yield commands.CloseConnection(self.context.client)


class TunnelHooks:
    """The hooks about connections. record: where refusals go. limits: how much the run may ask."""

    def __init__(self, record: Record, limits: Limits) -> None:
        self.record = record
        self.limits = limits
        self.turns = Turns(limits)
        self.turned_away = TurnedAway(record)
        record.wrote = self.turns.wrote
        self._undecided: dict[str, asyncio.TimerHandle] = {}
        self._waiting: dict[str, set[asyncio.Future[Any]]] = {}  # by client: what `while_there` waits for

    @fail_closed
    def next_layer(self, next_layer: layer.NextLayer) -> Coroutine[Any, Any, None] | None:
        """Only TLS and HTTP come up; everything else is recorded and closed."""
        context = next_layer.context
        data = next_layer.data_client()
        at_the_door = len(context.layers) == 1 and isinstance(context.layers[0], modes.HttpProxy)
        in_tunnel = isinstance(context.layers[-1], HttpStream)
        if in_tunnel and starts_like_tls_record(data):
            self._decided(context.client)
            context.server.tls = True  # what comes out of this TLS is https
            next_layer.layer = BoundedClientTls(context)
            return None
        if in_tunnel and data and _TLS.startswith(data):
            plausible: bool | None = None  # a record of which the first bytes came alone
        elif context.client.alpn == b"h2" and not at_the_door and not in_tunnel:
            plausible = True
        else:
            plausible = looks_like_http(data)
        if plausible is None:
            if data:
                owes(context.client, "head")
            return None  # not enough bytes to tell
        self._decided(context.client)
        if plausible:
            mode = HTTPMode.regular if at_the_door else HTTPMode.transparent
            next_layer.layer = JudgedHttpLayer(context, mode)
            return None
        return self._not_http(next_layer)

    async def _not_http(self, next_layer: layer.NextLayer) -> None:
        context = next_layer.context
        host, port = context.server.address or ("", 0)
        await self._refuse(Refusal(context.client, host, port, "not-http", "only HTTP and TLS may pass"))
        next_layer.layer = RefusedLayer(context)

    @fail_closed
    async def http_connect(self, flow: http.HTTPFlow) -> None:
        """A tunnel is granted to any well-formed target: the verdict is given on the requests inside.

        A refused CONNECT would hide its reason from most clients and make them try again.
        """
        why: tuple[str, str | None] | None = None
        try:
            host = canonical_host(flow.request.host)
            port = flow.request.data.authority.rpartition(b":")[2]
            if not 0 < flow.request.port < 65536 or port != b"%d" % flow.request.port:
                raise ValueError("the port is not one")  # the core also takes 0443 and the digits of other scripts
            if proxytunnel.SELF in flow.request.headers.get("via", ""):
                why = "loop", None
        except ValueError as exc:
            why = "malformed", str(exc)
        if why is not None:
            refusal = Refusal(flow.client_conn, flow.request.host, flow.request.port, *why, "CONNECT")
            await self._refuse(refusal)
            if refusal.answer is not None:
                flow.response = to_response(refusal.answer)
            else:
                flow.kill()
            return
        flow.request.data.host = host
        vars(flow.client_conn)["target"] = (host, flow.request.port)  # for what is refused before there is a request
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.limits.tunnel_s, self._silent, flow.client_conn, host, flow.request.port)
        self._undecided[flow.client_conn.id] = timer

    def _decided(self, client: Client) -> None:
        if timer := self._undecided.pop(client.id, None):
            timer.cancel()

    def _silent(self, client: Client, host: str, port: int) -> None:
        self._undecided.pop(client.id, None)
        self.record_refusal(Refusal(client, host, port, "not-http", "nobody spoke; only HTTP and TLS may pass"))
        self.drop(client)

    def drop(self, client: Client) -> None:
        """Close a client's connection from outside of its layers; the door fills this in."""

    @fail_closed
    def client_disconnected(self, client: Client) -> None:
        self._decided(client)
        for task in tuple(self._waiting.get(client.id, ())):
            task.cancel()
        self.turns.decision.drop(client.id)
        self.turns.room.drop(client.id)
        self.give_up(client, "the client left")

    def give_up(self, client: Client, why: str) -> None:
        """Close the record of all that is in progress for a client, who has gone or has to go."""

    @fail_closed
    def server_connect(self, data: server_hooks.ServerConnectionHookData) -> None:
        """Dial the checked address, and only for a judged request. The name stays for SNI and verification."""
        dialled = dialled_for(data.server)
        if dialled is None:
            # Invariant: nothing is dialled before a verdict.
            data.server.error = "no verdict for this connection"
            return
        data.server.address = dialled[1]

    @fail_closed
    async def refused(self, refusal: Refusal) -> None:
        """Record a refusal that has no flow, and make its answer."""
        await self._refuse(refusal)

    async def _refuse(self, refusal: Refusal) -> None:
        try:
            if not self.turns.decision.take():
                # Whoever is refused below the level of a flow ends or is alone with it: nothing more is read.
                await self.turn(refusal.client, self.turns.decision, TOO_MANY_DECISIONS, weight=1)
        except Busy as exc:
            self._count_turned_away(refusal.client)
            refusal.answer = answers.busy(str(exc))
            return
        self.record_refusal(refusal)

    def _count_turned_away(self, client: Client) -> None:
        if client.connected:  # else it left before its turn, and was refused nothing
            self.turned_away.count()

    def record_refusal(self, refusal: Refusal) -> None:
        """The same at once, whoever's turn it is: for what time itself bounds."""
        decision = denial(refusal.reason, hint=refusal.hint)
        request = Request(
            method=refusal.method,
            scheme="https" if refusal.client.tls else "http",
            host=refusal.host,
            port=refusal.port,
            path=refusal.path.partition("?")[0],
            query=refusal.path.partition("?")[2],
            http=refusal.http,
        )
        decision, decision_id = self.record.decide(request, decision, "")
        refusal.answer = answers.denial(decision, decision_id, status=refusal.status if decision_id else 0)

    async def turn(self, client: Client, queue: Queue, why: str, *, weight: int = _HEADS_WAITING) -> None:
        """Wait for a turn, while the client's connection is read no further than its limit. Raises Busy."""
        with self._held_back(client, weight):
            await queue.wait(client.id, why)

    @contextlib.contextmanager
    def _held_back(self, client: Client, weight: int) -> Iterator[None]:
        gates, size = getattr(client, "gates", None), self.limits.waiting_bytes // weight + 1
        if gates is not None:
            gates.uploads.add(size)
        try:
            yield
        finally:
            if gates is not None:
                gates.uploads.add(-size)

    async def while_there[T](self, client: Client, waiting: Coroutine[Any, Any, T], otherwise: T) -> T:
        """Wait for something as long as the client is there, whose connection is read no further than its limit; then
        `otherwise`."""
        task = asyncio.ensure_future(waiting)
        tasks = self._waiting.setdefault(client.id, set())
        tasks.add(task)
        try:
            with self._held_back(client, _HEADS_WAITING):
                await asyncio.wait((task,))
        finally:
            task.cancel()
            tasks.discard(task)
            if not tasks:
                self._waiting.pop(client.id, None)
        return otherwise if task.cancelled() else task.result()

    def deny_after_error(self, data: Any) -> None:
        """Deny whatever a hook failed on. Nothing in here may depend on what just failed, so it stays plain."""
        if isinstance(data, server_hooks.ServerConnectionHookData):
            data.server.error = "the judge failed"
        elif isinstance(data, layer.NextLayer):
            data.layer = RefusedLayer(data.context)
        elif isinstance(data, Client | Server):
            data.error = "the judge failed"
