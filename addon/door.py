"""The door: a unix socket behind which every connection is handled by mitmproxy's layers and our hooks.

mitmproxy's own servers, add-on chain and event log are not used.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from mitmproxy import options as moptions
from mitmproxy.connection import Client

from impyard.addon import answers, backpressure
from impyard.addon.backpressure import Lane
from impyard.addon.dialing import Dialer
from impyard.addon.doorconnection import DoorConnection, DoorMode, Handlers, nobody
from impyard.addon.errors import ImpyardError
from impyard.addon.limits import DEFAULTS, Limits

# How long a client that is turned away may take over its answer.
_LAST_WORDS_S = 1.0


class Door:
    """Accepts connections until closed. `life` sockets are held open and never spoken to: their end is the news."""

    def __init__(self, options: moptions.Options, run: str, handlers: Handlers, limits: Limits = DEFAULTS) -> None:
        backpressure.keep_what_is_freed()
        self._limits = limits
        self.make_room: Callable[[], None] = lambda: None  # ends a connection to an origin that nobody uses
        self._dialer = Dialer(limits, lambda: self.make_room())
        self._lane = Lane(limits)
        self._turned_away = 0
        self._options = options
        self._mode = DoorMode(full_spec=f"door:{run}", data=run, custom_listen_host=None, custom_listen_port=None)
        self._handlers = handlers
        self._open: dict[str, DoorConnection] = {}
        self._servers: list[asyncio.Server] = []
        self._held: set[asyncio.StreamWriter] = set()

    async def listen_unix(self, directory: Path, *, uid: int | None = None, gid: int | None = None) -> None:
        """Open `judge.sock` and `life.sock` in `directory`, which is made private to `uid`.

        Raises ImpyardError when the folder is not ours alone or a socket is there already.
        """
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            info = directory.lstat()
            if not stat.S_ISDIR(info.st_mode) or info.st_uid not in (os.geteuid(), uid):
                raise ImpyardError(f"{str(directory)!r} is not a folder of this user")
            directory.chmod(0o700)
            judge = bind_unix(directory, "judge.sock")
            life = bind_unix(directory, "life.sock")
            if uid is not None and (uid, gid) != (os.geteuid(), os.getegid()):
                for path in (directory / "judge.sock", directory / "life.sock", directory):
                    os.chown(path, uid, -1 if gid is None else gid)
        except OSError as exc:
            raise ImpyardError(
                f"cannot open the door in {str(directory)!r}: {(exc.strerror or str(exc)).lower()}",
                hint="that folder must be writable, and its file system needs some space and must take sockets",
            ) from exc
        self._servers.append(await asyncio.start_unix_server(self._handle, sock=judge, backlog=self._limits.backlog))
        self._servers.append(await asyncio.start_unix_server(self._hold, sock=life))

    async def listen_tcp(self, host: str, port: int) -> int:
        """Listen on a TCP address, for people and other tools; the port that was taken. Raises OSError."""
        listener = await asyncio.start_server(self._handle, host, port)
        self._servers.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    def drop(self, client: Client) -> None:
        """End the connection of `client`, if it is still there."""
        if connection := self._open.get(client.id):
            connection.abort()

    def connections(self) -> list[DoorConnection]:
        """Those that are open."""
        return list(self._open.values())

    def connection(self, client: Client) -> DoorConnection | None:
        """The one of `client`, if it is still there."""
        return self._open.get(client.id)

    def close(self) -> None:
        """Stop accepting, and end every connection."""
        for listener in self._servers:
            listener.close()
        for connection in list(self._open.values()):
            connection.abort()
        for writer in list(self._held):
            writer.transport.abort()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._limits.connections:
            await self._turn_away(reader, writer)
            return
        connection = DoorConnection(
            reader, writer, self._options, self._mode, self._handlers, self._limits, self._dialer, self._lane
        )
        self._open[connection.client.id] = connection
        try:
            await connection.handle_client()
        finally:
            del self._open[connection.client.id]

    async def _turn_away(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say that there are too many, to as many at a time as may be told; the others just end."""
        self._handlers.get("turned_away", nobody)()
        if self._turned_away >= self._limits.turned_away:
            writer.transport.abort()
            return
        self._turned_away += 1
        try:
            writer.write(answers.raw_http1(answers.busy("it holds too many connections open")))
            writer.write_eof()
            async with asyncio.timeout(_LAST_WORDS_S):
                while await reader.read(4096):
                    pass  # closed at once, the answer might be lost to what was not read
        except (OSError, TimeoutError):
            pass
        finally:
            self._turned_away -= 1
            writer.transport.abort()

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._held) >= self._limits.connections:
            writer.transport.abort()
            return
        self._held.add(writer)
        try:
            while await reader.read(4096):
                pass  # nothing that is said here is heard
        except ConnectionError:
            pass
        finally:
            self._held.discard(writer)
            writer.close()


def bind_unix(directory: Path, name: str) -> socket.socket:
    """A unix socket bound to `directory/name`, mode 0600, however long the path is. Raises OSError.

    A socket address holds 108 bytes; the way through a descriptor of the folder needs fewer, wherever it lies.
    """
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bound.bind(f"/proc/self/fd/{folder}/{name}")
            os.chmod(name, 0o600, dir_fd=folder)
        except OSError:
            bound.close()
            raise
    finally:
        os.close(folder)
    bound.setblocking(False)
    return bound
