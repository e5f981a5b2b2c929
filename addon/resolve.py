"""Where an allowed name leads: one look-up, every answer checked, few addresses to dial. Knows nothing of mitmproxy."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path

from impyard.addon.publicaddresses import is_public

Lookup = Callable[[str], Awaitable[list[str]]]

# A name is looked up at most this often, in seconds: long enough to cost nothing per request, short enough to follow
# a moving origin.
TTL_S = 60.0
MAX_NAMES = 1024
LOOKUP_TIMEOUT_S = 15.0
# Names that are asked for at the same time, each in a thread; others wait their turn.
MAX_ASKING = 64
# Addresses of one name that are tried.
MAX_ADDRESSES = 3

HOSTS_FILE = Path("/etc/hosts")


class PrivateAddress(Exception):
    """The name leads, with at least one of its answers, to an address that is not on the public internet."""


class Unresolvable(Exception):
    """The name has no address, or no answer came."""


async def system_lookup(host: str) -> list[str]:
    """All addresses that the host's own resolver knows for a name, in its order of preference.

    The name as it stands: the search list of resolv.conf would ask for names below it that no rule allows.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str] | Exception) -> None:
        if answer.done():
            return  # nobody waits any more
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def ask() -> None:
        found: list[str] | Exception
        try:
            found = ask_system(host)
        except (OSError, ValueError) as exc:
            found = exc
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, found)

    # Not the loop's own threads: they are few, and the process would wait for them at its end.
    threading.Thread(target=ask, daemon=True).start()
    return await answer


def ask_system(host: str) -> list[str]:
    """The same, standing still meanwhile. Raises OSError."""
    absolute = host if _in_hosts_file(host) else f"{host}."  # the file's names end without a dot
    found = socket.getaddrinfo(absolute, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


def _in_hosts_file(host: str) -> bool:
    try:
        lines = HOSTS_FILE.read_text("utf-8", "replace").lower().splitlines()
    except OSError:
        return False
    return any(host in line.partition("#")[0].split()[1:] for line in lines)


class Resolver:
    """Names to checked addresses, remembered for TTL_S seconds, at most MAX_NAMES of them."""

    def __init__(self, lookup: Lookup = system_lookup, clock: Callable[[], float] = time.monotonic) -> None:
        self._lookup = lookup
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()
        self._asking: dict[str, asyncio.Future[tuple[str, ...]]] = {}
        self._turns = asyncio.Semaphore(MAX_ASKING)

    def remembered(self, host: str) -> tuple[str, ...]:
        """The checked addresses of `host` if they are still fresh, else none; for the path without an await."""
        entry = self._known.get(host)
        return entry[1] if entry and entry[0] > self._clock() else ()

    async def resolve(self, host: str) -> tuple[str, ...]:
        """The addresses to dial for `host`, a canonical name or address literal: the first, or else the next.

        Raises PrivateAddress if any answer is not public, Unresolvable if there is none.
        """
        if known := self.remembered(host):
            return known
        asking = self._asking.get(host)
        if asking is None:
            asking = self._asking[host] = asyncio.ensure_future(self._ask(host))
            asking.add_done_callback(lambda done: self._asked(host, done))
        # Shielded: whoever gives up takes nobody else's answer along.
        return await asyncio.shield(asking)

    def _asked(self, host: str, done: asyncio.Future[tuple[str, ...]]) -> None:
        self._asking.pop(host, None)
        if not done.cancelled():
            done.exception()  # all who asked may have gone

    async def _ask(self, host: str) -> tuple[str, ...]:
        try:
            answers = [str(ipaddress.ip_address(host.strip("[]")))]
        except ValueError:
            try:
                async with asyncio.timeout(LOOKUP_TIMEOUT_S), self._turns:
                    answers = await self._lookup(host)
            except (OSError, UnicodeError, TimeoutError) as exc:
                raise Unresolvable(f"the name {host} could not be resolved") from exc
        if not answers:
            raise Unresolvable(f"the name {host} has no address")
        # One private answer among public ones is how a name is bent towards the inside: refuse them all.
        if not all(is_public(answer) for answer in answers):
            raise PrivateAddress(host)
        found = tuple(answers[:MAX_ADDRESSES])
        self._known[host] = (self._clock() + TTL_S, found)
        self._known.move_to_end(host)
        while len(self._known) > MAX_NAMES:
            self._known.popitem(last=False)
        return found
