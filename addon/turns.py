"""Whose turn it is: how many requests of a run are in progress at once, and how many are decided per second.

Those over a limit wait, one client after the other in turn, so that a client with many waits for itself. Knows nothing
of mitmproxy.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from impyard.addon.limits import Limits

_AT_A_TIME = 4


class Busy(Exception):
    """No turn came in time. The message is for the agent: passing, so it may ask again."""


class Bucket:
    """So much at once, and so much per second from then on. What was spent beyond is owed."""

    def __init__(self, at_once: float, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_once, self._per_s, self._clock = at_once, per_s, clock
        self._left, self._at = at_once, clock()

    def wait_s(self) -> float:
        """How long until something may be spent; 0 for now."""
        now = self._clock()
        self._left = min(self._at_once, self._left + (now - self._at) * self._per_s)
        self._at = now
        return 0.0 if self._left > 0 else (1 - self._left) / self._per_s

    def spend(self, count: float) -> None:
        self._left -= count

    def take(self) -> bool:
        """Spend one, if there is one."""
        if self.wait_s():
            return False
        self._left -= 1
        return True

    def give(self, count: float) -> None:
        """So much more may be spent."""
        self._left += count


class Queue:
    """Those who wait for a turn, at most `most` of them, at most `limit_s` seconds each.

    may_go: seconds until the next one may go, None while that is up to others, who then call `go_on`.
    """

    def __init__(
        self, most: int, limit_s: float, may_go: Callable[[], float | None], taken: Callable[[], None]
    ) -> None:
        self._most, self._limit_s, self._may_go, self._taken = most, limit_s, may_go, taken
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self) -> bool:
        """Take a turn without waiting, if nobody else waits for one."""
        if self._waiting or self._may_go() != 0:
            return False
        self._taken()
        return True

    async def wait(self, client: str, why: str) -> None:
        """Wait for a turn and take it. Raises Busy, saying `why`, when too many wait, or for too long."""
        if self._count >= self._most and not self._push_out(client):
            raise Busy(why)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        self._count += 1
        self.go_on()
        try:
            async with asyncio.timeout(self._limit_s):
                await turn
        except (TimeoutError, asyncio.CancelledError) as exc:
            self._forget(client, turn)
            if turn.done() and not turn.cancelled():
                return  # it came in the same moment
            if isinstance(exc, TimeoutError) or turn.cancelled():
                raise Busy(why) from None
            raise

    def drop(self, client: str) -> None:
        """A client left: those of it that wait are busy for good."""
        for turn in list(self._waiting.get(client, ())):
            self._forget(client, turn)
            turn.cancel()

    def go_on(self) -> None:
        """Let go whoever may, a few at a time: the loop has others to look after in between."""
        let_go = 0
        while self._waiting:
            delay = self._may_go()
            if delay != 0 or let_go == _AT_A_TIME:
                if delay is not None and self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(delay, self._time_has_come)
                return
            let_go += 1
            client, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            self._count -= 1
            self._waiting.move_to_end(client)
            if not turns:
                del self._waiting[client]
            self._taken()
            turn.set_result(None)

    def _time_has_come(self) -> None:
        self._timer = None
        self.go_on()

    def _push_out(self, newcomer: str) -> bool:
        """Make room for a client that waits for less than another: whether there is some now."""
        client, turns = max(self._waiting.items(), key=lambda item: len(item[1]))
        if len(turns) <= len(self._waiting.get(newcomer, ())) + 1:
            return False
        turn = turns[-1]
        self._forget(client, turn)
        turn.cancel()
        return True

    def _forget(self, client: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(client)
        if turns is not None and turn in turns:
            turns.remove(turn)
            self._count -= 1
            if not turns:
                del self._waiting[client]


class Turns:
    """The two queues of a run: for a decision, by the rate and the growth of the log; for room to be in progress."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._decisions = Bucket(limits.decisions, limits.decisions_per_s, clock)
        self._log = Bucket(limits.log_bytes, limits.log_bytes_per_s, clock)
        self._in_progress = 0
        self.decision = Queue(limits.waiting, limits.turn_s, self._decision_may_go, lambda: self._decisions.spend(1))
        self.room = Queue(limits.waiting, limits.turn_s, self._room_may_go, self._enter)

    def _decision_may_go(self) -> float:
        return max(self._decisions.wait_s(), self._log.wait_s())

    def _room_may_go(self) -> float | None:
        return 0.0 if self._in_progress < self._limits.requests else None

    def _enter(self) -> None:
        self._in_progress += 1

    def leave(self) -> None:
        """A request that had room is over."""
        self._in_progress -= 1
        self.room.go_on()

    def wrote(self, size: int) -> None:
        """The log grew by that many bytes."""
        self._log.spend(size)
