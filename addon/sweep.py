"""Ends what takes too long: once a second, all connections of a door are looked at.

One look at all of them costs less than a timer for each request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from mitmproxy import http
from mitmproxy.connection import Connection, Server

from impyard.addon import answers
from impyard.addon.destination import Attempt, Refusal, attempt_of, carrier
from impyard.addon.dialing import end, retire
from impyard.addon.door import Door
from impyard.addon.doorconnection import DoorConnection
from impyard.addon.hooks import JudgeAddon
from impyard.addon.notes import Notes, notes_of

_SLOW = {
    "head": "the head of a request did not come to its end in time",
    "handshake": "the TLS handshake did not come to its end in time",
}


async def sweep(door: Door, judge: JudgeAddon) -> None:
    """Look every `sweep_s` seconds until cancelled."""
    used: dict[Connection, float] = {}
    door.make_room = lambda: _end_longest_idle(door, judge)
    while True:
        await asyncio.sleep(judge.limits.sweep_s)
        now = time.monotonic()
        for connection in door.connections():
            if not connection.listens and connection.client.owed.what != "answer":
                connection.client.owed.since = now
            elif connection.client.owed.is_late(now, judge.limits):
                _end_late(connection, judge)
        used = _end_idle(door, judge, used, now)
        judge.look_at_policy()
        for flow, notes in _in_progress(judge):
            if now - notes.touched > judge.limits.silent_s:
                _end_silent(door, judge, flow, notes)


def _in_progress(judge: JudgeAddon) -> Iterable[tuple[http.HTTPFlow, Notes]]:
    flows = [flow for flows in judge.begun.values() for flow in flows.values()]
    return [(flow, notes) for flow in flows if (notes := notes_of(flow)) is not None]


def _end_late(connection: DoorConnection, judge: JudgeAddon) -> None:
    client = connection.client
    what = client.owed.what
    if what in _SLOW:
        refusal = Refusal(client, *client.target, "too-slow", _SLOW[what], status=408)
        judge.record_refusal(refusal)
        if refusal.answer is not None and not client.tls and what == "head":
            connection.say(answers.raw_http1(refusal.answer))
            return
    elif what == "rest":
        judge.give_up(client, "a line of the body did not come to its end in time")
    elif what == "answer":
        judge.give_up(
            client, f"the client closed its side, and not a byte came in {judge.limits.half_closed_s:g} seconds"
        )
    connection.abort()


def _end_idle(door: Door, judge: JudgeAddon, used: dict[Connection, float], now: float) -> dict[Connection, float]:
    """End connections to origins that carry nothing; when each of the others was last used."""
    busy = {carrier(flow.server_conn) for flow, _ in _in_progress(judge)}
    kept: dict[Connection, float] = {}
    for connection in door.connections():
        for server, io in list(connection.transports.items()):
            if not isinstance(server, Server) or not server.connected or io.handler is None:
                continue
            last = now if server in busy else used.get(server, now)
            if now - last > judge.limits.origin_idle_s:
                retire(server, io.handler)
            else:
                kept[server] = last
    return kept


def _end_longest_idle(door: Door, judge: JudgeAddon) -> None:
    """End the connection to an origin that has been there longest of those that carry nothing."""
    busy = {carrier(flow.server_conn) for flow, _ in _in_progress(judge)}
    found = [
        (server, io.handler)
        for connection in door.connections()
        for server, io in connection.transports.items()
        if isinstance(server, Server) and server.connected and server not in busy and io.handler is not None
        if attempt_of(server) is Attempt.DONE
    ]
    if found:
        retire(*min(found, key=lambda pair: pair[0].timestamp_start or 0.0))


def _end_silent(door: Door, judge: JudgeAddon, flow: http.HTTPFlow, notes: Notes) -> None:
    """End the origin's side, so that the box is answered; without one, the box's connection."""
    why = f"not a byte in {judge.limits.silent_s:g} seconds"
    connection = door.connection(flow.client_conn)
    io = connection.transports.get(carrier(flow.server_conn)) if connection is not None else None
    others = [n for other, n in _in_progress(judge) if carrier(other.server_conn) is carrier(flow.server_conn)]
    if any(time.monotonic() - n.touched <= judge.limits.silent_s for n in others):
        return  # streams of one HTTP/2 connection: the last of them to fall silent ends it
    if flow.websocket is not None:
        judge.record.close(notes, 101, why)
    if io is not None and io.handler is not None:
        end(flow.server_conn, io.handler, why)
    elif connection is not None:
        judge.give_up(flow.client_conn, why)
        connection.abort()
