"""TLS in few pieces: what comes and goes is whole, and what is broken ends it."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from mitmproxy import connection, options
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.tunnel import TunnelState
from OpenSSL import SSL

from impyard.addon.tlsbytes import OriginTls

WHOLE = os.urandom(300_001)  # of more than one slice, and of no whole number of records


class Child(layer.Layer):
    """Keeps what it hears."""

    heard: list[events.Event]

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        self.heard.append(event)
        yield from ()


@functools.cache
def _context() -> SSL.Context:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a.test")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.use_certificate(builder.sign(key, hashes.SHA256()))
    context.use_privatekey(key)
    return context


def _taken(end: SSL.Connection) -> bytes:
    found = b""
    try:
        while True:
            found += end.bio_read(1 << 20)
    except SSL.WantReadError:
        return found


def _up() -> tuple[OriginTls, Child, SSL.Connection]:
    """A layer whose handshake is through, what is inside of it, and the origin's end."""
    origin = SSL.Connection(_context())
    origin.set_accept_state()
    ours = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD))
    ours.set_connect_state()
    for _ in range(3):
        for end, other in ((ours, origin), (origin, ours)):
            with contextlib.suppress(SSL.WantReadError):
                end.do_handshake()
            if sent := _taken(end):
                other.bio_write(sent)
    client = connection.Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), timestamp_start=0)
    context = Context(client, options.Options())
    context.server = connection.Server(address=("a.test", 443))
    context.server.state = connection.ConnectionState.OPEN
    tls = OriginTls(context)
    child = Child(context)
    child.heard = []
    tls.tls, tls.child_layer, tls.tunnel_state = ours, child, TunnelState.OPEN
    return tls, child, origin


def _come(tls: OriginTls, data: bytes) -> list[commands.Command]:
    return list(tls.handle_event(events.DataReceived(tls.conn, data)))


def test_what_comes_at_once_is_handed_on_whole_in_one_piece() -> None:
    tls, child, origin = _up()
    origin.sendall(WHOLE)
    _come(tls, _taken(origin))
    assert [event.data for event in child.heard if isinstance(event, events.DataReceived)] == [WHOLE]


def test_what_comes_byte_by_byte_is_handed_on_too() -> None:
    tls, child, origin = _up()
    origin.sendall(b"hello")
    for byte in _taken(origin):
        _come(tls, bytes([byte]))
    assert b"".join(event.data for event in child.heard if isinstance(event, events.DataReceived)) == b"hello"


def test_what_is_sent_at_once_goes_out_in_one_piece() -> None:
    tls, _, origin = _up()
    (sent,) = tls.send_data(WHOLE)
    assert isinstance(sent, commands.SendData)
    origin.bio_write(sent.data)
    heard = b""
    with pytest.raises(SSL.WantReadError):
        while True:
            heard += origin.recv(1 << 20)
    assert heard == WHOLE


def test_the_end_of_the_other_side_is_told_behind_its_last_bytes() -> None:
    tls, child, origin = _up()
    origin.sendall(b"last")
    origin.shutdown()
    _come(tls, _taken(origin))
    assert [type(event) for event in child.heard] == [events.DataReceived, events.ConnectionClosed]


def test_a_changed_record_hands_nothing_on_that_comes_with_it_or_behind_it() -> None:
    tls, child, origin = _up()
    origin.sendall(b"good")
    good = _taken(origin)
    origin.sendall(b"changed")
    changed = bytearray(_taken(origin))
    changed[-1] ^= 1
    origin.sendall(b"behind")
    said = _come(tls, good + changed + _taken(origin))
    assert [event.data for event in child.heard if isinstance(event, events.DataReceived)] == [b"good"]
    assert any(isinstance(command, commands.Log) and "TLS Error" in command.message for command in said)
    assert isinstance(said[-1], commands.CloseConnection) and said[-1].connection is tls.conn
    origin.sendall(b"later")
    assert not _come(tls, _taken(origin))
    assert [event.data for event in child.heard if isinstance(event, events.DataReceived)] == [b"good"]


def test_what_comes_behind_the_end_is_dropped_and_the_end_told_once() -> None:
    tls, child, origin = _up()
    origin.shutdown()
    _come(tls, _taken(origin))
    assert not _come(tls, b"more")
    assert [type(event) for event in child.heard] == [events.ConnectionClosed]


def test_nothing_is_sent_to_who_broke_the_protocol_nor_is_that_a_fault_of_ours() -> None:
    tls, _, origin = _up()
    origin.sendall(b"changed")
    changed = bytearray(_taken(origin))
    changed[-1] ^= 1
    assert any(isinstance(command, commands.CloseConnection) for command in _come(tls, bytes(changed)))
    assert not list(tls.send_data(WHOLE))


def test_what_cannot_be_sent_for_another_reason_is_an_error() -> None:
    tls, _, _ = _up()
    tls.tls = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD))  # knows not which end it is
    with pytest.raises(SSL.Error):
        list(tls.send_data(b"hello"))
