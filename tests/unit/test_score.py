"""Which arrivals belong to which attempt, when the origin reads a request after its client is gone."""

from __future__ import annotations

from collections import Counter

from impyard.box.attacks.model import Asked, Line, Seen
from impyard.box.attacks.score import settled

ALLOWED = Line("allow", "rule", "GET", "ok.test", "/public/a")
DENIED = Line("deny", "no-rule", "GET", "ok.test", "/private")
A, B = Asked("GET", "/public/a", b"first"), Asked("GET", "/public/b", b"")


def test_what_was_allowed_and_has_not_arrived_is_owed_once() -> None:
    seen, owed = settled(Seen(), [ALLOWED, DENIED], Counter())
    assert (seen, owed) == (Seen(), Counter({("GET", "/public/a"): 1}))
    late = Seen(connections=2, asked=(A, A, A))
    seen, owed = settled(late, [ALLOWED], owed)
    assert seen == Seen(connections=1, asked=(A, A)), "one is owed, one allowed, and one too many"
    assert owed == Counter()


def test_nothing_else_is_taken_for_what_is_owed() -> None:
    """The control: what no line allowed stays, and is a fault."""
    owed = Counter({("GET", "/public/a"): 1})
    assert settled(Seen(asked=(B,)), [], owed) == (Seen(asked=(B,)), Counter())
    assert settled(Seen(asked=(A,)), [ALLOWED], owed) == (Seen(asked=(A,)), Counter()), "its own"
    assert settled(Seen(asked=(A,)), [DENIED], Counter()) == (Seen(asked=(A,)), Counter())
