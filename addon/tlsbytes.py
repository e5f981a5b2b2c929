"""Bytes through TLS, on both sides of the gateway: what is there in as few pieces as that takes.

mitmproxy's layer cuts what it sends at 64 KiB, and each piece passes all layers below it, which costs more than the
encryption. It must not know what the bytes are.
"""

from __future__ import annotations

import logging
from typing import Any

from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import tls as tls_layers
from mitmproxy.proxy.layers.tls import ServerTLSLayer, TLSLayer
from OpenSSL import SSL

from impyard.addon.backpressure import gate_of_client, gate_of_origin, note_unopened

# So much at a time goes into OpenSSL's buffers, which keep the largest size that they ever had.
_SLICE = 64 * 1024
_RECORD = 16 * 1024  # what one record holds at most (RFC 8446, 5.1)
# What a slice becomes, with room for the overhead of its records and for messages of TLS itself.
_SEALED = _SLICE + 8 * 1024
_LOAD = 4 * _SLICE  # what is read at once: its records are opened into one place

# Where opened records are put together, of any connection: nothing else runs until they are copied. They come of a load
# and of what was there of a record before it.
_LIB: Any = vars(SSL)["_lib"]
_FFI: Any = vars(SSL)["_ffi"]
_ROOM_BYTES = _LOAD + 2 * _RECORD
_ROOM = _FFI.new("char[]", _ROOM_BYTES)


class InFewPieces(TLSLayer):
    """TLS whose readers and writers get all that there is at once.

    Behind the end of the other side, or a record that is none, nothing is looked at: OpenSSL would only keep it.
    """

    _is_over = False
    _is_broken = False  # by the other side: OpenSSL seals nothing for it any more, and the connection is being closed

    def tls_interact(self) -> CommandGenerator[None]:
        if data := b"".join(self._sealed()):
            yield commands.SendData(self.conn, data)

    def _sealed(self) -> list[bytes]:
        """What OpenSSL has for the other side."""
        pieces = []
        try:
            while True:
                pieces.append(self.tls.bio_read(_SEALED))
                if len(pieces[-1]) < _SEALED:
                    break
        except SSL.WantReadError:
            pass
        return pieces

    def _opened(self, sealed: memoryview) -> bytes:
        """What OpenSSL makes of so much from the other side, which is a load at most."""
        ssl, count = vars(self.tls)["_ssl"], 0
        for at in range(0, max(len(sealed), 1), _SLICE):
            if sealed:
                self.tls.bio_write(sealed[at : at + _SLICE])
            # pyOpenSSL's `recv` makes a buffer and a copy for each record: a tenth of what a download takes.
            while (more := _LIB.SSL_read(ssl, _ROOM + count, min(_RECORD, _ROOM_BYTES - count))) > 0:
                count += more
            if not _LIB.SSL_want_read(ssl):
                break  # an end, or a fault
        return bytes(_FFI.buffer(_ROOM, count))

    def send_data(self, data: bytes) -> CommandGenerator[None]:
        whole, pieces = memoryview(data), []
        try:
            for at in range(0, len(data), _SLICE):
                self.tls.sendall(whole[at : at + _SLICE])
                pieces += self._sealed()
        except (SSL.ZeroReturnError, SSL.SysCallError):
            pieces += self._sealed()  # the other side has ended; the core drops the rest, too
        except SSL.Error:
            if not self._is_broken:
                raise
        if sealed := b"".join(pieces):
            yield commands.SendData(self.conn, sealed)

    def receive_data(self, data: bytes) -> CommandGenerator[None]:
        if self._is_over:
            return
        whole, pieces, closed = memoryview(data), [], False
        for at in range(0, max(len(data), 1), _LOAD):
            pieces.append(self._opened(whole[at : at + _LOAD]))
            try:
                while True:
                    pieces.append(self.tls.recv(_RECORD))  # says why there is no more
            except SSL.WantReadError:
                continue
            except SSL.ZeroReturnError:
                closed = True
            except SSL.Error as exc:
                yield commands.Log(f"TLS Error: {exc}", logging.WARNING)
                self._is_broken = True
            self._is_over = True
            break
        yield from self.tls_interact()
        if opened := b"".join(pieces):
            yield from self.event_to_child(events.DataReceived(self.conn, opened))
        elif not self._is_over:
            client = self.context.client
            note_unopened(gate_of_client(client) if self.conn is client else gate_of_origin(self.conn))
        if closed:
            self.conn.state &= ~ConnectionState.CAN_READ
            yield from self.event_to_child(events.ConnectionClosed(self.conn))
        if self._is_broken:
            yield commands.CloseConnection(self.conn)


class OriginTls(InFewPieces, ServerTLSLayer):
    """TLS towards an origin."""


def install() -> None:
    """Have the core use it towards origins."""
    vars(tls_layers)["ServerTLSLayer"] = OriginTls
