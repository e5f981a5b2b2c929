"""The judge as a mitmproxy addon: flow -> request -> judge -> record -> apply. It decides nothing itself.

Every hook denies when it fails: mitmproxy logs an exception in a hook and lets the flow go on, so none may leave here.
"""

from __future__ import annotations

import dataclasses
import hmac
import logging
from collections.abc import Coroutine
from typing import Any

from mitmproxy import http
from mitmproxy.net.http.http1 import expected_http_body_size

from impyard.addon import answers
from impyard.addon.bodywatch import BodyWatch
from impyard.addon.errors import PolicyError
from impyard.addon.failclosed import fail_closed
from impyard.addon.forwarded import ForwardedHooks
from impyard.addon.injection import Injector
from impyard.addon.judge import Decision, Verdict, denial, judge
from impyard.addon.lastlook import LastLook
from impyard.addon.limits import DEFAULTS, Limits
from impyard.addon.notes import Notes, notes_of, stop, take_notes
from impyard.addon.policy import Policy
from impyard.addon.policysource import Policies
from impyard.addon.record import Record
from impyard.addon.request import CANARY_SUFFIX, Request
from impyard.addon.routes import Routed, Router
from impyard.addon.secretwatch import SecretWatch
from impyard.addon.tunnels import TOO_MANY_DECISIONS
from impyard.addon.turns import Busy
from impyard.addon.wire import request_from, to_response

logger = logging.getLogger(__name__)


class JudgeAddon(ForwardedHooks):
    """The hooks of one door.

    policies: asked for each request. record: where decisions and outcomes go. secret: proves this gateway to its
    runner in the answer to a canary. limits: how much the run may ask. injector: puts credentials on; without one what
    the policy injects on is denied. watch: finds secrets in what the box sends.
    """

    def __init__(
        self,
        policies: Policies,
        record: Record,
        *,
        router: Router | None = None,
        injector: Injector | None = None,
        watch: SecretWatch | None = None,
        secret: bytes = b"",
        limits: Limits = DEFAULTS,
    ) -> None:
        injector, watch = injector or Injector(), watch or SecretWatch()
        super().__init__(record, limits, LastLook(policies, injector, watch, record))
        self.policies = policies
        self.router = router or Router()
        self.injector = injector
        self.watch = watch
        self.secret = secret

    def look_at_policy(self) -> None:
        """Have a change of the policy seen soon when nobody asks: compiling a big one begins when it is seen."""
        try:
            self.policies.current()
        except Exception as exc:
            logger.error("the policy could not be looked at", exc_info=exc)  # the next request is denied for it

    # -- requests ---------------------------------------------------------------------------------------------------

    @fail_closed
    def requestheaders(self, flow: http.HTTPFlow) -> Coroutine[Any, Any, None] | None:
        """The verdict, before any byte of the body moves."""
        if self.turns.decision.take():
            return self._decide(flow)
        return self._decide_in_turn(flow)

    async def _decide_in_turn(self, flow: http.HTTPFlow) -> None:
        try:
            await self.turn(flow.client_conn, self.turns.decision, TOO_MANY_DECISIONS)
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
        else:
            decision = judge(request, policy)
        # Before a name is looked up, which would tell it.
        decision = self.watch.judged(request, decision, policy)
        if decision.verdict is Verdict.DENY:
            self._conclude(flow, request, Routed(decision), policy)
            return None
        routed = self.router.at_once(request, decision)
        supplied = self.injector.at_once(request, routed) if routed is not None else None
        if supplied is None:
            return self._prepare(flow, request, decision, routed, policy)
        routed = supplied
        if routed.destination is not None and not self._enter(flow):
            return self._make_room(flow, request, routed, policy)
        self._conclude(flow, request, routed, policy)
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

    async def _prepare(
        self,
        flow: http.HTTPFlow,
        request: Request,
        decision: Decision,
        routed: Routed | None,
        policy: Policy | PolicyError,
    ) -> None:
        """Look up where it goes, and get the credential that it needs, where either takes time."""
        if routed is None:
            routed = await self.router.look_up(request, decision)
        supplied = self.injector.at_once(request, routed)
        if supplied is None:
            self._leave(flow)  # waiting takes no room from others
            left = Routed(decision, failure="the client left")
            supplied = await self.while_there(flow.client_conn, self.injector.awaited(request, routed), left)
        await self._make_room(flow, request, supplied, policy)

    async def _make_room(
        self, flow: http.HTTPFlow, request: Request, routed: Routed, policy: Policy | PolicyError
    ) -> None:
        """Conclude once there is room for one more request in progress, which one that is let go needs."""
        try:
            if routed.destination is not None and not self._enter(flow):
                await self._enter_in_turn(flow)
                # A credential that was removed or changed while this waited does not go.
                supplied = self.injector.at_once(request, routed)
                if supplied is None:
                    await self._prepare(flow, request, routed.decision, routed, policy)
                    return
                routed = supplied
            if routed.destination is not None:  # the vault may hold more by now
                decision = self.watch.judged(request, routed.decision, policy)
                routed = routed if decision is routed.decision else Routed(decision)
        except Busy as exc:
            self._conclude(flow, request, Routed(routed.decision, failure=str(exc)), policy, busy=True)
            return
        if self.policies.current() is not policy:  # it changed meanwhile
            if (rest := self._decide(flow)) is not None:
                await rest
        else:
            self._conclude(flow, request, routed, policy)

    def _conclude(
        self,
        flow: http.HTTPFlow,
        request: Request,
        routed: Routed,
        policy: Policy | PolicyError,
        *,
        busy: bool = False,
    ) -> None:
        """Record the verdict, then apply it. busy: allowed, but there is no room."""
        decision = routed.decision
        version = policy.hash if isinstance(policy, Policy) else ""
        if routed.destination is not None and flow.client_conn.timestamp_end is not None:
            routed = Routed(decision, failure="the client left")  # while it waited; all of it has been given up
        if routed.destination is None:
            decision = dataclasses.replace(decision, injected=())
        elif (decision.inject is None) is not (routed.injection is None):
            # Invariant: what the policy injects on does not go without, and nothing else gets a credential.
            raise RuntimeError("a credential that is not the decision's")
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
            assert isinstance(policy, Policy)
            self._let_go(flow, notes, routed.destination)
            notes.watch = BodyWatch(self.watch, self.record, request, decision_id, policy)
            notes.last_look, notes.policy, notes.injection = self._last_look, policy, routed.injection
            if (injection := routed.injection) is not None:
                self.watch.learn(injection.credential)
                notes.mask = self.watch.mask(injection.credential, injection.taken)
            self.injector.apply(flow.request, injection, sentinels_pass=policy.sentinels_pass(request.host))

    def _answer(self, flow: http.HTTPFlow, answer: answers.Answer) -> None:
        flow.request.stream = False
        flow.request.headers.pop("expect", None)  # else the core would ask for the body first
        flow.response = to_response(answer)

    def _proof(self, decision: Decision, host: str) -> str:
        if decision.reason != "canary" or not self.secret:
            return ""
        return hmac.new(self.secret, host.removesuffix(CANARY_SUFFIX).encode(), "sha256").hexdigest()

    # -- failure ----------------------------------------------------------------------------------------------------

    def deny_after_error(self, data: Any) -> None:
        """Deny whatever a hook failed on, as plainly as the rest of these."""
        if isinstance(data, http.HTTPFlow):
            self._deny_flow_after_error(data)
        else:
            super().deny_after_error(data)

    def _deny_flow_after_error(self, flow: http.HTTPFlow) -> None:
        notes = notes_of(flow)
        if notes is not None or flow.response is not None:
            # A verdict was given already; what came after it failed.
            stop(flow)
            if notes is not None:
                self._close(flow, notes, None, "the judge failed")
            return
        self._leave(flow)
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
