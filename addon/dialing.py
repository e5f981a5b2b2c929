"""How many connections to origins a run has, and how long one may take to come up."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import TracebackType

from mitmproxy.connection import Connection

from impyard.addon.destination import Attempt, attempt_of, dialled_for, note_attempt
from impyard.addon.limits import Limits

_QUOTED = re.compile(r"""b?(['"]).*\1""", re.DOTALL)


class NoRoom(Exception):
    """The run holds as many connections to origins as it may. The message is for the agent."""


class Dialer:
    """Stands in for the core's semaphores, one for all addresses: `async with` is what a connection lives in.

    make_room: asked when all connections are taken; ends one that nobody uses, if there is one.
    """

    def __init__(self, limits: Limits, make_room: Callable[[], None]) -> None:
        self._limits = limits
        self._make_room = make_room
        self._free = asyncio.Semaphore(limits.origin_connections)
        self._servers: dict[asyncio.Task[object] | None, Connection] = {}
        self._timers: dict[asyncio.Task[object] | None, asyncio.TimerHandle] = {}

    def __missing__(self, _address: object) -> Dialer:
        return self

    __getitem__ = __missing__

    async def __aenter__(self) -> None:
        if self._free.locked():
            self._make_room()
        try:
            async with asyncio.timeout(self._limits.connect_s):
                await self._free.acquire()
        except TimeoutError:
            raise NoRoom("too many connections to origins are open") from None
        self._start(self._limits.connect_s, "it did not take the connection within {:g} seconds")

    async def __aexit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._free.release()

    def dialling(self, server: Connection) -> None:
        """The current task waits for its turn to dial this one."""
        self._servers[asyncio.current_task()] = server

    def forget(self) -> None:
        """The current task is over with dialling."""
        self._stop()
        self._servers.pop(asyncio.current_task(), None)

    def connected(self, server: Connection) -> None:
        """The current task has its connection; now TLS and the tunnel of a proxy may take their time."""
        self._stop()
        judged = dialled_for(server)
        if judged is not None and judged[0].proxy is not None:
            self._start(self._limits.establish_s, "the tunnel through it did not come up within {:g} seconds")
        elif server.tls:
            self._start(self._limits.establish_s, "its TLS handshake did not end within {:g} seconds")

    def _start(self, seconds: float, why: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        server = self._servers[task]
        self._timers[task] = asyncio.get_running_loop().call_later(
            seconds, self._give_up, server, task, why.format(seconds)
        )

    def _give_up(self, server: Connection, task: asyncio.Task[object], why: str) -> None:
        """Whoever waits for the connection gets an error."""
        self._timers.pop(task, None)
        if not task.done() and attempt_of(server) is Attempt.GOING_ON:
            note_attempt(server, Attempt.GIVEN_UP)
            end(server, task, why)

    def _stop(self) -> None:
        if timer := self._timers.pop(asyncio.current_task(), None):
            timer.cancel()


def end(server: Connection, task: asyncio.Task[object], why: str) -> None:
    """End a connection to an origin; whoever waits for it hears `why`."""
    vars(server)["ended"] = why
    task.cancel(why)


def retire(server: Connection, task: asyncio.Task[object]) -> None:
    """End a connection to an origin that nobody uses, and have nobody use it any more."""
    note_attempt(server, Attempt.RETIRED)
    task.cancel("retired")


def without_quotes(message: str) -> str:
    """What a parser says of an answer, without what it quotes of it: an origin may echo a credential there."""
    return _QUOTED.sub("…", message)


def why_ended(server: object, message: str) -> str:
    """Why a connection ended, in our words if we ended it."""
    return str(vars(server).get("ended", message))
