"""Looks at what the box sends after an allowed head: its body, or the messages of its WebSocket.

What trips gets a decision line of its own, which follows the one that let the head go. A failure trips, too.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from impyard.addon import answers
from impyard.addon.answers import Answer
from impyard.addon.judge import Decision, Secret, denial
from impyard.addon.policy import Policy
from impyard.addon.record import Record
from impyard.addon.request import Request
from impyard.addon.secretwatch import SecretWatch, permitted
from impyard.addon.vault.tripwire import Follower, Found

logger = logging.getLogger(__name__)


class BodyWatch:
    """Of one allowed request.

    decision_id, policy: of the decision that allowed it, and what it was made under. why: for the outcome, once
    something has tripped.
    """

    def __init__(
        self,
        watch: SecretWatch,
        record: Record,
        request: Request,
        decision_id: str | None,
        policy: Policy,
    ) -> None:
        self.why = ""
        self._watch = watch
        self._record = record
        self._request = request
        self._decision_id = decision_id
        self._follower: Follower | None = None  # most bodies come in one piece
        self.judge_by(policy)

    def judge_by(self, policy: Policy) -> None:
        """Take what may go to the host from this policy. For a body of which nothing was looked at yet."""
        self._version = policy.hash
        self._bound, self._sentinels_pass = permitted(policy, self._request.host)

    def whole(self, content: bytes) -> Answer | None:
        """The refusal of a body that is there as a whole, None when it may go."""
        return self._refusal("body", lambda: self._look(content))

    def piece(self, chunk: bytes, where: str = "body") -> Answer | None:
        """The refusal of a piece of a body, or of a message, by which it holds something; None when it may go."""
        return self._refusal(where, lambda: self._feed(chunk))

    def end(self) -> Answer | None:
        """The refusal of a body whose pieces have all gone but for its end."""
        return self._refusal("body", lambda: self._follower.end() if self._follower is not None else None)

    def _look(self, content: bytes) -> Found | None:
        return self._watch.tripwire().look(content, self._bound, sentinels_pass=self._sentinels_pass)

    def _feed(self, chunk: bytes) -> Found | None:
        tripwire = self._watch.tripwire()
        if self._follower is None:
            self._follower = tripwire.follow(self._bound, sentinels_pass=self._sentinels_pass)
        self._follower.tripwire = tripwire
        return self._follower.feed(chunk)

    def _refusal(self, where: str, look: Callable[[], Found | None]) -> Answer | None:
        try:
            if (found := look()) is None:
                return None
            decision = dataclasses.replace(
                denial("secret-in-request"), secret=Secret(found.credential, found.kind, where)
            )
            self.why = f"secret-in-request: the {where} held a {found.kind} of credential {found.credential}"
        except Exception as exc:
            logger.error("a body could not be looked through for secrets", exc_info=exc)
            decision, self.why = denial("judge-error"), "the judge failed"
        return followed(self._record, self._request, decision, self._decision_id, self._version)


def followed(record: Record, request: Request, decision: Decision, first_id: str | None, version: str) -> Answer:
    """Record the denial of a request that was allowed at first, under the policy `version`; the answer that says so.

    first_id: of the decision that allowed it.
    """
    decision = dataclasses.replace(decision, follows=first_id)
    try:
        decision, decision_id = record.decide(request, decision, version)
    except Exception as exc:
        logger.error("the denial could not be recorded", exc_info=exc)
        decision_id = None
    agent = next((value for name, value in request.headers if name.lower() == "user-agent"), "")
    return answers.denial(decision, decision_id, user_agent=agent)
