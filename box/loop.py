"""A small event loop over epoll: descriptors, delays, nothing else. asyncio would cost each start 50 ms."""

from __future__ import annotations

import heapq
import select
import time
from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT


class Loop:
    """Calls handlers when their descriptors are ready, and delayed calls when they are due."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._delayed: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def watch(self, descriptor: int, events: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever one of `events` (READ, WRITE) or an error is there. Zero events: stop watching.

        A handler may be called without cause (an event of a descriptor that was closed and reopened within one round),
        so it must use non-blocking calls.
        """
        known = descriptor in self._handlers
        if not events:
            # epoll reports a hang-up even to those who want no event; only unregistering keeps that from spinning.
            if known:
                del self._handlers[descriptor]
                self._epoll.unregister(descriptor)
            return
        self._handlers[descriptor] = handler
        if known:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call once, after a delay. There is no way to cancel: the call has to see whether it still matters."""
        self._count += 1  # keeps the order of equal times, and callables from being compared
        heapq.heappush(self._delayed, (time.monotonic() + delay_s, self._count, call))

    def run(self, until: Callable[[], bool]) -> None:
        """Serve until `until()` is true, asked after every round."""
        while not until():
            timeout = -1.0
            if self._delayed:
                timeout = max(0.0, self._delayed[0][0] - time.monotonic())
            for descriptor, _events in self._epoll.poll(timeout):
                handler = self._handlers.get(descriptor)
                if handler is not None:
                    handler()
            now = time.monotonic()
            while self._delayed and self._delayed[0][0] <= now:
                heapq.heappop(self._delayed)[2]()
