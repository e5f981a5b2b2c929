"""TLS of the door: what a connection shares with earlier ones is of its own name, and nothing old is spoken."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from collections.abc import Callable

import pytest
from cryptography import x509

from tests.gateway.conftest import Bed, make_bed
from tests.support.gateway import read_head, read_reply
from tests.support.origin import Pki

pytestmark = [
    pytest.mark.gateway,
    pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning"),  # what must be refused is offered
]

MB = 1 << 20
ASK = b"GET /pub/x HTTP/1.1\r\nhost: a.test\r\n\r\n"


def shake(bed: Bed, host: str, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
    return context.wrap_socket(bed.gateway.tunnel(f"{host}:443"), server_hostname=host, session=session)


def client_context(bed: Bed) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(bed.gateway.authority.cert_path))


def names_in(connection: ssl.SSLSocket) -> set[str]:
    der = connection.getpeercert(binary_form=True)
    assert der is not None
    found = x509.load_der_x509_certificate(der).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return set(found.value.get_values_for_type(x509.DNSName))


def test_every_connection_shows_its_own_name_and_no_other(bed: Bed) -> None:
    for host, sni in [("a.test", None), ("b.test", None), ("a.test", "b.test"), ("b.test", "a.test"), ("a.test", None)]:
        for _ in range(2):  # made, and kept
            with bed.gateway.tls(host, sni=sni) as connection:
                assert names_in(connection) == {host, sni or host}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"])
def test_a_session_is_taken_up_for_its_own_name_alone(bed: Bed, version: ssl.TLSVersion) -> None:
    context = client_context(bed)
    context.minimum_version = context.maximum_version = version
    with shake(bed, "a.test", context) as connection:
        connection.sendall(ASK)
        assert read_reply(connection).status == 200  # by now a ticket of TLS 1.3 has come too
        session = connection.session
    assert session is not None
    with shake(bed, "b.test", context, session) as other:
        assert not other.session_reused
        assert names_in(other) == {"b.test"}
    with shake(bed, "a.test", context, session) as again:  # control
        assert again.session_reused
        again.sendall(ASK)
        assert read_reply(again).status == 200


def test_nothing_is_kept_of_the_session_of_a_client_that_takes_no_ticket(bed: Bed) -> None:
    """Control: a client that takes one goes on with its session, in the test before."""
    context = client_context(bed)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET
    session = None
    for _ in range(2):
        connection = shake(bed, "a.test", context, session)
        connection.sendall(ASK)
        assert read_reply(connection).status == 200
        assert not connection.session_reused
        session = connection.session
        with contextlib.suppress(ssl.SSLError), connection:
            connection.unwrap()  # OpenSSL keeps no session that was not ended well


def test_a_hello_may_come_byte_by_byte(bed: Bed) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = client_context(bed).wrap_bio(incoming, outgoing, server_hostname="a.test")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    with bed.gateway.tunnel("a.test:443") as connection:
        for byte in outgoing.read(8):
            connection.sendall(bytes([byte]))
            time.sleep(0.02)
        connection.sendall(outgoing.read())
        while hello.version() is None:
            answer = connection.recv(1 << 16)
            assert answer
            incoming.write(answer)
            with contextlib.suppress(ssl.SSLWantReadError):
                hello.do_handshake()
    assert bed.gateway.decisions() == []


@pytest.mark.attack("26")
def test_what_only_begins_like_a_hello_is_refused(bed: Bed) -> None:
    with bed.gateway.tunnel("a.test:443") as connection:
        connection.sendall(b"\x16")
        time.sleep(0.1)
        connection.sendall(b"\x03\x09rest")
        assert connection.recv(100) == b""
    assert [line["reason"] for line in bed.gateway.decisions()] == ["not-http"]
    assert bed.untouched()


def test_the_box_is_not_spoken_to_below_tls_1_2(bed: Bed) -> None:
    context = client_context(bed)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with shake(bed, "a.test", context) as connection:  # control
        assert connection.version() == "TLSv1.3"
    allow_old(context)
    with pytest.raises(ssl.SSLError):
        shake(bed, "a.test", context)


def allow_old(context: ssl.SSLContext) -> None:
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1


def as_it_is(context: ssl.SSLContext) -> None:
    context.set_ciphers("ALL:@SECLEVEL=0")


@pytest.mark.parametrize(("change", "status"), [(allow_old, 502), (as_it_is, 200)], ids=["TLS 1.1", "control"])
def test_an_origin_is_not_spoken_to_below_tls_1_2(
    tmp_path_factory: pytest.TempPathFactory, change: Callable[[ssl.SSLContext], None], status: int
) -> None:
    class OddPki(Pki):
        def context(self, *names: str) -> ssl.SSLContext:
            context = super().context(*names)
            change(context)
            return context

    pki = OddPki(tmp_path_factory.mktemp("pki"))
    beds = make_bed(tmp_path_factory.mktemp("project"), pki)
    bed = next(beds)
    try:
        assert bed.gateway.get("https://a.test/pub/x").status == status
        assert len(bed.a.seen) == (status == 200)
    finally:
        assert next(beds, None) is None


@pytest.mark.attack("127")
@pytest.mark.parametrize("waits", [False, True], ids=["idle", "reads an answer"])
def test_what_comes_behind_a_broken_record_is_not_kept(bed: Bed, waits: bool) -> None:
    """OpenSSL would keep all of it, and a box could fill the machine's memory."""
    bed.gateway.get("https://a.test/pub/x")
    before, offered = bed.gateway.peak_from_now(), 100 * MB
    with bed.gateway.tls("a.test") as connection:
        if waits:
            connection.sendall(b"GET /pub/sse HTTP/1.1\r\nhost: a.test\r\n\r\n")
            read_head(connection)
        with socket.socket(fileno=os.dup(connection.fileno())) as below:
            below.settimeout(20)
            record = b"\x17\x03\x03\x40\x00" + bytes(16384)
            with pytest.raises(ConnectionError):
                for _ in range(offered // len(record)):
                    below.sendall(record)
    bed.a.release.set()
    assert bed.gateway.memory_kib() - before < offered // 1024 // 4
    assert bed.gateway.get("https://a.test/pub/x").status == 200
