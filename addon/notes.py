"""What the judge remembers of one flow, from its verdict to its outcome."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mitmproxy import http

from impyard.addon.answers import Answer
from impyard.addon.destination import Destination
from impyard.addon.injectedheaders import Injection
from impyard.addon.judge import Decision
from impyard.addon.policy import Policy
from impyard.addon.request import Request
from impyard.addon.vault.masking import Mask

if TYPE_CHECKING:
    from impyard.addon.bodywatch import BodyWatch
    from impyard.addon.lastlook import LastLook

NOTES = "impyard"


@dataclass(slots=True)
class Notes:
    """What the judge remembers of one flow: its verdict, where it may go, how much went through, and when last.

    watch: looks at what the box sends after an allowed head. mask: hides in the answer what was put on the request.
    policy, injection: what it was allowed under, and what is put on it; last_look: at both before it goes, if the time
    since `looked` is long enough. refusal, refused: the answer if it did not go all the same, and why.
    """

    decision: Decision
    request: Request
    decision_id: str | None = None
    destination: Destination | None = None
    watch: BodyWatch | None = None
    mask: Mask | None = None
    policy: Policy | None = field(default=None, repr=False)
    injection: Injection | None = None
    last_look: LastLook | None = None
    refusal: Answer | None = None
    refused: str = ""
    looked: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.monotonic)
    touched: float = field(default_factory=time.monotonic)
    uploaded: int = 0
    downloaded: int = 0
    redirect: str | None = None  # the other host that the answer leads to
    closed: bool = False

    @property
    def was_refused(self) -> bool:
        """Whether the gateway itself ended it after its verdict, and said so in a decision or in its answer."""
        return self.refusal is not None or (self.watch is not None and self.watch.why != "")

    @property
    def max_body(self) -> int | None:
        return self.decision.max_body


def notes_of(flow: http.HTTPFlow) -> Notes | None:
    """The judge's notes on a flow; None before its verdict."""
    notes = flow.metadata.get(NOTES)
    return notes if isinstance(notes, Notes) else None


def is_let_go(flow: http.HTTPFlow) -> bool:
    """Whether a flow was allowed, and still goes to its origin."""
    notes = notes_of(flow)
    return notes is not None and notes.destination is not None


def take_notes(flow: http.HTTPFlow, notes: Notes) -> Notes:
    """Keep `notes` with a flow."""
    flow.metadata[NOTES] = notes
    return notes


def client_left(flow: http.HTTPFlow, error: str | None) -> bool:
    """Whether a flow ended in an error since its client went away, or gave up on this stream."""
    return error is not None and (not flow.client_conn.connected or " by client (" in error)  # the core's words


def stop(flow: http.HTTPFlow) -> None:
    """See to it that nothing more of a flow is forwarded. Depends on nothing that could have failed."""
    if (notes := notes_of(flow)) is not None:
        notes.destination = None
    if flow.killable:
        flow.kill()
