"""The judge as a mitmproxy addon: flow -> request -> judge -> record -> apply. It decides nothing itself.

Every hook denies when it fails: mitmproxy logs an exception in a hook and lets the flow go on, so none may leave here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hmac
import logging
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from mitmproxy import http
from mitmproxy.connection import Client, Server
from mitmproxy.net.http.http1 import expected_http_body_size
from mitmproxy.net.tls import starts_like_tls_record
from mitmproxy.proxy import layer, server_hooks
from mitmproxy.proxy.layers import modes
from mitmproxy.proxy.layers.http import HTTPMode, HttpStream

from impyard.addon import answers, proxytunnel
from impyard.addon.clocks import owes
from impyard.addon.destination import Destination, Refusal, dialled_for
from impyard.addon.errors import PolicyError
from impyard.addon.failclosed import fail_closed
from impyard.addon.judge import Decision, Verdict, denial, judge
from impyard.addon.limits import DEFAULTS, Limits
from impyard.addon.notes import Notes, notes_of, take_notes
from impyard.addon.policy import Policy
from impyard.addon.record import Record
from impyard.addon.redirects import Redirects
from impyard.addon.request import CANARY_SUFFIX, Request, canonical_host
from impyard.addon.routes import Routed, Router
from impyard.addon.stream import BoundedClientTls, JudgedHttpLayer, RefusedLayer
from impyard.addon.turnedaway import TurnedAway
from impyard.addon.turns import Busy, Queue, Turns
from impyard.addon.wire import is_event_stream, looks_like_http, request_from, strip_for_origin, to_response

logger = logging.getLogger(__name__)

# Bodies of unknown length, event streams, and what is longer than this are passed on as they come; the rest in one
# piece: it is quicker.
STREAM_OVER_BYTES = 64 * 1024
# A head that waits for its turn weighs this part of what may wait in a connection: more of them, and it is not read on.
_HEADS_WAITING = 64
_ROOM = "impyard-room"  # on a flow that takes one of the places of those in progress
_TOO_MANY_DECISIONS = "it asks for more decisions per second than it may"
_TOO_MUCH_IN_PROGRESS = "too many of its requests are in progress"


class Policies(Protocol):
    """Where the policy comes from, asked once per request."""

    def current(self) -> Policy | PolicyError: ...


class JudgeAddon:
    """The hooks of one door.

    policies: asked for each request. record: where decisions and outcomes go. secret: proves this gateway to its
    runner in the answer to a canary. limits: how much the run may ask.
    """

    def __init__(
        self,
        policies: Policies,
        record: Record,
        *,
        router: Router | None = None,
        secret: bytes = b"",
        limits: Limits = DEFAULTS,
    ) -> None:
        self.policies = policies
        self.record = record
        self.router = router or Router()
        self.secret = secret
        self.limits = limits
        self.turns = Turns(limits)
        self.turned_away = TurnedAway(record)
        record.wrote = self.turns.wrote
        self._undecided: dict[str, asyncio.TimerHandle] = {}
        self._redirects = Redirects()
        self.begun: dict[str, dict[str | None, http.HTTPFlow]] = {}  # by client and decision: what was let go

    # -- connections and layers -------------------------------------------------------------------------------------

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
        if context.client.alpn == b"h2" and not at_the_door and not in_tunnel:
            plausible: bool | None = True
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
        self.turns.decision.drop(client.id)
        self.turns.room.drop(client.id)
        self.give_up(client, "the client left")

    def give_up(self, client: Client, why: str) -> None:
        """Close the record of all that is in progress for a client."""
        for flow in self.begun.pop(client.id, {}).values():
            if (notes := notes_of(flow)) is not None:
                self.record.close(notes, None, why)
            self._leave(flow)

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
                await self._turn(refusal.client, self.turns.decision, _TOO_MANY_DECISIONS, weight=1)
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

    async def _turn(self, client: Client, queue: Queue, why: str, *, weight: int = _HEADS_WAITING) -> None:
        """Wait for a turn, while the client's connection is read no further than its limit. Raises Busy."""
        gates, size = getattr(client, "gates", None), self.limits.waiting_bytes // weight + 1
        if gates is not None:
            gates.uploads.add(size)
        try:
            await queue.wait(client.id, why)
        finally:
            if gates is not None:
                gates.uploads.add(-size)

    # -- requests ---------------------------------------------------------------------------------------------------

    @fail_closed
    def requestheaders(self, flow: http.HTTPFlow) -> Coroutine[Any, Any, None] | None:
        """The verdict, before any byte of the body moves."""
        if self.turns.decision.take():
            return self._decide(flow)
        return self._decide_in_turn(flow)

    async def _decide_in_turn(self, flow: http.HTTPFlow) -> None:
        try:
            await self._turn(flow.client_conn, self.turns.decision, _TOO_MANY_DECISIONS)
        except Busy as exc:
            self._count_turned_away(flow.client_conn)
            take_notes(flow, Notes(denial("busy"), request_from(flow, None)))
            self._answer(flow, answers.busy(str(exc)))
            return
        if (rest := self._decide(flow)) is not None:
            await rest

    def _decide(self, flow: http.HTTPFlow) -> Coroutine[Any, Any, None] | None:
        request = request_from(flow, self._body_bytes(flow))
        policy = self.policies.current()
        if flow.error is not None or (flow.request.is_http2 and request.body_bytes and not flow.request.stream):
            # The latter: HTTP/2 says that no body follows, and its length that one does. An origin would wait for it.
            decision = denial("malformed", hint="a header or the framing of the body is not valid HTTP")
        elif flow.request.is_http2 and not flow.request.stream and request.body_bytes:
            # An HTTP/1 origin would take the next request on its connection for that body.
            decision = denial("malformed", hint="send a well-formed HTTP request: it declares a body and has none")
        else:
            decision = judge(request, policy)
        version = policy.hash if isinstance(policy, Policy) else ""
        if decision.verdict is Verdict.DENY:
            self._conclude(flow, request, Routed(decision), version)
            return None
        routed = self.router.at_once(request, decision)
        if routed is None:
            return self._look_up(flow, request, decision, version)
        if routed.destination is not None and not self._enter(flow):
            return self._make_room(flow, request, routed, version)
        self._conclude(flow, request, routed, version)
        return None

    @staticmethod
    def _body_bytes(flow: http.HTTPFlow) -> int | None:
        if flow.request.is_http2 and "content-length" not in flow.request.headers:
            # HTTP/2 frames bodies without a length; `stream` is how JudgedStream says that one follows.
            return None if flow.request.stream else 0
        try:
            size = expected_http_body_size(flow.request)
        except ValueError:
            return None
        return size if size is not None and size >= 0 else None

    async def _look_up(self, flow: http.HTTPFlow, request: Request, decision: Decision, version: str) -> None:
        await self._make_room(flow, request, await self.router.look_up(request, decision), version)

    async def _make_room(self, flow: http.HTTPFlow, request: Request, routed: Routed, version: str) -> None:
        """Conclude once there is room for one more request in progress, which one that is let go needs."""
        busy = False
        try:
            if routed.destination is not None and not self._enter(flow):
                await self._turn(flow.client_conn, self.turns.room, _TOO_MUCH_IN_PROGRESS)
                flow.metadata[_ROOM] = True
        except Busy as exc:
            routed, busy = Routed(routed.decision, failure=str(exc)), True
        self._conclude(flow, request, routed, version, busy=busy)

    def _enter(self, flow: http.HTTPFlow) -> bool:
        """Take room for a request, if there is some now."""
        if self.turns.room.take():
            flow.metadata[_ROOM] = True
        return _ROOM in flow.metadata

    def _conclude(
        self, flow: http.HTTPFlow, request: Request, routed: Routed, version: str, *, busy: bool = False
    ) -> None:
        """Record the verdict, then apply it. busy: allowed, but there is no room."""
        decision = routed.decision
        if decision.verdict is Verdict.DENY:
            decision = dataclasses.replace(decision, led_by=self._redirects.led_by(request.host))
        decision, decision_id = self.record.decide(request, decision, version)
        notes = take_notes(flow, Notes(decision, request, decision_id))
        if decision.verdict is Verdict.DENY:
            self._leave(flow)
            self._answer(
                flow,
                answers.denial(
                    decision,
                    decision_id,
                    user_agent=flow.request.headers.get("user-agent", ""),
                    proof=self._proof(decision, request.host),
                ),
            )
        elif routed.destination is None:  # allowed, yet there is nowhere to go
            answer = answers.upstream_failure(routed.failure, host=request.host, decision_id=decision_id)
            self._answer(flow, answers.busy(routed.failure) if busy else answer)
            self._close(flow, notes, None, routed.failure)
        else:
            self._let_go(flow, notes, routed.destination)

    def _let_go(self, flow: http.HTTPFlow, notes: Notes, destination: Destination) -> None:
        request, notes.destination = notes.request, destination
        strip_for_origin(flow.request, request.host, request.port, request.scheme)
        self.begun.setdefault(flow.client_conn.id, {})[notes.decision_id] = flow
        flow.request.stream = request.body_bytes is None or request.body_bytes > STREAM_OVER_BYTES

    def _answer(self, flow: http.HTTPFlow, answer: answers.Answer) -> None:
        flow.request.stream = False
        flow.request.headers.pop("expect", None)  # else the core would ask for the body first
        flow.response = to_response(answer)

    def _proof(self, decision: Decision, host: str) -> str:
        if decision.reason != "canary" or not self.secret:
            return ""
        return hmac.new(self.secret, host.removesuffix(CANARY_SUFFIX).encode(), "sha256").hexdigest()

    # -- answers and ends -------------------------------------------------------------------------------------------

    @fail_closed
    def responseheaders(self, flow: http.HTTPFlow) -> None:
        notes, response = notes_of(flow), flow.response
        if notes is None or response is None:
            raise RuntimeError("an answer without a verdict")
        if notes.destination is None:
            return  # our own answer
        if response.status_code == 101 and not notes.request.upgrade:
            self._close(flow, notes, 101, "the origin switched protocols unasked")
            flow.kill()
            return
        if 300 <= response.status_code < 400:
            location = response.headers.get("location", "")
            notes.redirect = self._redirects.note(location, notes.request.host, notes.decision_id)
        size = expected_http_body_size(flow.request, response)
        if size is None or size < 0 or size > STREAM_OVER_BYTES or is_event_stream(response):
            response.stream = functools.partial(_count_down, notes)

    @fail_closed
    def response(self, flow: http.HTTPFlow) -> None:
        notes, response = notes_of(flow), flow.response
        if notes is None or notes.destination is None or response is None or flow.websocket is not None:
            return
        if not notes.uploaded:
            notes.uploaded = len(flow.request.raw_content or b"")
        if not response.stream:
            notes.downloaded = len(response.raw_content or b"")
        self._close(flow, notes, response.status_code, None)

    @fail_closed
    def error(self, flow: http.HTTPFlow) -> None:
        notes = notes_of(flow)
        if notes is not None and notes.destination is not None:
            status = flow.response.status_code if flow.response else None
            self._close(flow, notes, status, flow.error.msg if flow.error else "unknown")

    @fail_closed
    def websocket_message(self, flow: http.HTTPFlow) -> None:
        notes = notes_of(flow)
        if notes is None or flow.websocket is None:
            raise RuntimeError("a WebSocket without a verdict")
        flow.websocket.messages.clear()  # the core would keep every message until the end

    @fail_closed
    def websocket_end(self, flow: http.HTTPFlow) -> None:
        notes = notes_of(flow)
        if notes is not None:
            self._close(flow, notes, 101, None)

    def _close(self, flow: http.HTTPFlow, notes: Notes, status: int | None, error: str | None) -> None:
        self.record.close(notes, status, error)
        if begun := self.begun.get(flow.client_conn.id):
            begun.pop(notes.decision_id, None)
        self._leave(flow)

    def _leave(self, flow: http.HTTPFlow) -> None:
        if flow.metadata.pop(_ROOM, False):
            self.turns.leave()

    # -- failure ----------------------------------------------------------------------------------------------------

    def deny_after_error(self, data: Any) -> None:
        """Deny whatever a hook failed on. Nothing in here may depend on what just failed, so it stays plain."""
        if isinstance(data, http.HTTPFlow):
            self._deny_flow_after_error(data)
        elif isinstance(data, server_hooks.ServerConnectionHookData):
            data.server.error = "the judge failed"
        elif isinstance(data, layer.NextLayer):
            data.layer = RefusedLayer(data.context)
        elif isinstance(data, Client | Server):
            data.error = "the judge failed"

    def _deny_flow_after_error(self, flow: http.HTTPFlow) -> None:
        self._leave(flow)
        notes = notes_of(flow)
        if notes is not None or flow.response is not None:
            # A verdict was given already; what came after it failed.
            if notes is not None:
                self._close(flow, notes, None, "the judge failed")
            flow.kill()
            return
        decision = denial("judge-error")
        host = str(flow.request.data.host)
        request = Request(method=str(flow.request.method), scheme="http", host=host, port=0, path="", query="")
        try:
            decision, decision_id = self.record.decide(request, decision, "")
        except Exception as exc:
            logger.error("the denial could not be recorded", exc_info=exc)
            decision_id = None
        take_notes(flow, Notes(decision, request, decision_id))
        self._answer(flow, answers.denial(decision, decision_id))


def _count_down(notes: Notes, chunk: bytes) -> bytes:
    notes.downloaded += len(chunk)
    notes.touched = time.monotonic()
    return chunk
