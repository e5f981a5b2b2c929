"""The last look at an allowed request, just before its head goes to the origin: what has changed since its verdict?

The box may take its time over a small body, which is not forwarded before it is there, and so may a connection that has
to come up or to have room. What the policy no longer allows by then is denied, and so is what has no credential in the
vault any more; a line of its own `follows` the one that allowed it. What would be allowed only in another way has to be
asked for again. What goes at once, as most do, is not looked at twice.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from mitmproxy import http

from impyard.addon import answers
from impyard.addon.answers import Answer
from impyard.addon.bodywatch import followed
from impyard.addon.errors import PolicyError
from impyard.addon.injection import Injector
from impyard.addon.judge import Decision, Verdict, denial, judge
from impyard.addon.notes import Notes
from impyard.addon.policy import Policy
from impyard.addon.policysource import Policies
from impyard.addon.record import Record
from impyard.addon.routes import Routed
from impyard.addon.secretwatch import SecretWatch

logger = logging.getLogger(__name__)

# A verdict that is no older than this still stands: the change could as well have come this much later.
RECENT_S = 0.01
# A login was good for a minute at the verdict. Who would renew it now, with a connection waiting, would lose that one.
_GOOD_FOR_S = 30.0


class _Otherwise(Exception):
    """It would be allowed, but not as it stands. The message is for people, and for the agent."""


@dataclass(frozen=True, slots=True)
class LastLook:
    """Of one judge, at each of its requests."""

    policies: Policies
    injector: Injector
    watch: SecretWatch
    record: Record

    def is_due(self, notes: Notes) -> bool:
        """Whether so much time has passed that something may have changed."""
        return time.monotonic() - notes.looked > RECENT_S

    def renewal(self, notes: Notes) -> Coroutine[Any, Any, Routed] | None:
        """What `refusal` is better asked after, None where it need not wait: the login has to be renewed again."""
        if notes.injection is None:
            return None
        routed = Routed(notes.decision, notes.destination)
        waits = self.injector.at_once(notes.request, routed) is None
        return self.injector.awaited(notes.request, routed) if waits else None

    def refusal(self, request: http.Request, notes: Notes, *, body_is_new: bool = False) -> Answer | None:
        """Why a request may not go now, which `notes.refused` then says too; None when it may.

        A credential that has another value by now is put on anew. body_is_new: that nobody has looked at its body yet,
        which is there as a whole unless it is streamed.
        """
        due = self.is_due(notes)
        if notes.refusal is None and due:
            notes.refusal = self._looked(request, notes)
        if notes.refusal is None and (due or body_is_new) and request.raw_content:
            if notes.watch is None:
                raise RuntimeError("a body that nobody looks at")
            notes.refusal, notes.refused = notes.watch.whole(request.raw_content), notes.watch.why
        return notes.refusal

    def _looked(self, request: http.Request, notes: Notes) -> Answer | None:
        policy: Policy | PolicyError | None
        try:
            decision, policy = self._judged(notes)
            if decision.verdict is Verdict.ALLOW:
                assert isinstance(policy, Policy)
                routed = self.injector.at_once(notes.request, Routed(decision, notes.destination), _GOOD_FOR_S)
                if routed is None:
                    raise _Otherwise("the login for it has to be renewed")
                decision = routed.decision
                if decision.verdict is Verdict.ALLOW:
                    self._adopt(request, notes, routed, policy)
                    return None
        except _Otherwise as exc:
            notes.refused = str(exc)
            return answers.overtaken(notes.refused)
        except Exception as exc:
            logger.error("a request could not be judged again", exc_info=exc)
            decision, policy = denial("judge-error"), None
        notes.refused = f"{decision.reason}: judged again before it went"
        version = policy.hash if isinstance(policy, Policy) else ""
        return followed(self.record, notes.request, decision, notes.decision_id, version)

    def _judged(self, notes: Notes) -> tuple[Decision, Policy | PolicyError]:
        """The verdict as of now. Raises _Otherwise where the request would go to another place."""
        policy, decision = self.policies.current(), notes.decision
        if policy is not notes.policy:
            decision = judge(notes.request, policy)
        decision = self.watch.judged(notes.request, decision, policy)  # the vault may hold more by now
        if decision.verdict is Verdict.ALLOW and policy is not notes.policy:
            if notes.policy is None or decision.upstream != judge(notes.request, notes.policy).upstream:
                raise _Otherwise("the policy leads it to another place by now")
            decision = dataclasses.replace(decision, upstream=notes.decision.upstream)
        return decision, policy

    def _adopt(self, request: http.Request, notes: Notes, routed: Routed, policy: Policy) -> None:
        """Have the request go under what holds now. Raises _Otherwise."""
        injection, before = routed.injection, notes.injection
        if (injection.names if injection else ()) != (before.names if before else ()):
            raise _Otherwise("other headers are put on it by now")
        if injection is not before or policy is not notes.policy:
            self.injector.apply(request, injection, sentinels_pass=policy.sentinels_pass(notes.request.host))
        if injection is not None and injection is not before:
            self.watch.learn(injection.credential)
            notes.mask = self.watch.mask(injection.credential, injection.taken)
        if policy is not notes.policy and notes.watch is not None:
            notes.watch.judge_by(policy)
        notes.decision, notes.policy, notes.injection = routed.decision, policy, injection
        notes.looked = time.monotonic()
