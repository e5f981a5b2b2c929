"""TLS on both sides: certificates signed by our authority towards the box, verified origins away from it.

Not built on mitmproxy's TLS add-on: the package of its add-ons takes longer to import than all the rest, and brings
features that a judge must not have (certificate lists served inside of tunnels, verification that can be turned off).
"""

from __future__ import annotations

import functools
import ipaddress
from pathlib import Path
from typing import Any

import certifi
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from mitmproxy import certs, connection, tls
from mitmproxy.net import tls as net_tls
from mitmproxy.proxy import commands
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import ClientTLSLayer
from OpenSSL import SSL

from impyard.addon.clocks import owes
from impyard.addon.destination import destination_of
from impyard.addon.errors import ImpyardError
from impyard.addon.limits import limits_of
from impyard.addon.tlsbytes import InFewPieces
from impyard.certs.authority import Authority, system_bundle

# TLS 1.2 suites with forward secrecy and an AEAD; TLS 1.3 chooses by itself. The first three are what HTTP/2 needs.
CIPHERS = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-CHACHA20-POLY1305",
)
ALPN = (b"h2", b"http/1.1")
# For so many names the certificate is kept, with what OpenSSL needs to show it: some 22 KiB for each.
_NAMES_KEPT = 100
# RFC 6125: no wildcard inside of a label, and the subject's common name counts for nothing (OpenSSL's values).
_NO_PARTIAL_WILDCARDS, _NEVER_CHECK_SUBJECT = 0x4, 0x20


class BoundedClientTls(InFewPieces, ClientTLSLayer):
    """TLS towards the box, whose hello must come to an end."""

    def receive_handshake_data(self, data: bytes) -> CommandGenerator[tuple[bool, str | None]]:
        owes(self.context.client, "handshake")
        if not self.client_hello_parsed and len(self.recv_buffer) > limits_of(self.context.client).hello_bytes:
            self.recv_buffer.clear()
            yield commands.CloseConnection(self.context.client)
            return False, "the TLS hello is too long"
        result: tuple[bool, str | None] = yield from super().receive_handshake_data(data)
        if result[0]:
            owes(self.context.client, "first")
        return result


class GatewayTls:
    """The TLS hooks of the door."""

    def __init__(self, authority: Authority) -> None:
        self._key, self._cert = _signer(authority)
        self._context_for = functools.lru_cache(_NAMES_KEPT)(self._make_context)

    def tls_start_client(self, tls_start: tls.TlsData) -> None:
        """Towards the box: a certificate for the tunnel's target and the name that the client asked for."""
        client, server = tls_start.context.client, tls_start.context.server
        names = [name for name in (client.sni, server.address[0] if server.address else None) if name]
        if not names:
            raise RuntimeError("TLS for no name")
        ssl_conn = SSL.Connection(self._context_for(*dict.fromkeys(names)))
        ssl_conn.set_accept_state()
        tls_start.ssl_conn = ssl_conn

    def _make_context(self, *names: str) -> SSL.Context:
        """What every connection to these names shares: the certificate for them and for nothing else, its key, and the
        tickets by which a client takes up an earlier session, which are of no use for other names."""
        # Not mitmproxy's store of certificates: with a hundred in it, to forget one takes twice as long as to sign it.
        shown = certs.dummy_cert(self._key, self._cert, names[0], [_general_name(name) for name in names])
        # The undecorated function: its own cache would hand out one context for all names.
        context: SSL.Context = net_tls.create_client_proxy_context.__wrapped__(
            method=net_tls.Method.TLS_SERVER_METHOD,
            min_version=net_tls.Version.TLS1_2,
            max_version=net_tls.Version.UNBOUNDED,
            cipher_list=CIPHERS,
            ecdh_curve=None,
            chain_file=None,
            alpn_select_callback=_select_alpn,
            request_client_cert=False,
            extra_chain_certs=(),
            dhparams=certs.DHParams(b""),  # no suite of ours needs them
        )
        context.use_certificate(shown.to_cryptography())
        context.use_privatekey(self._key)
        # Tickets are kept by the client. OpenSSL would keep 20,000 sessions of those that take none, 1 KiB each.
        context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
        return context

    def tls_start_server(self, tls_start: tls.TlsData) -> None:
        """Away from the box: the origin is verified by the judged name, against all roots and the entry's own."""
        server = tls_start.conn
        if not isinstance(server, connection.Server) or not server.sni:
            raise RuntimeError("an origin without a name to verify")
        destination = destination_of(server)
        upstream = destination.upstream if destination is not None else None
        if not server.alpn_offers:
            # The origin is spoken to in the client's own version of HTTP, if it can; what else the client offers is
            # nothing that an origin should hear of.
            server.alpn_offers = ALPN if tls_start.context.client.alpn == b"h2" else ALPN[1:]
        ssl_conn = SSL.Connection(_origin_context(upstream.ca if upstream is not None else None))
        _verify_name(ssl_conn, server.sni)
        if server.alpn_offers:
            ssl_conn.set_alpn_protos(list(server.alpn_offers))
        ssl_conn.set_connect_state()
        tls_start.ssl_conn = ssl_conn


def _select_alpn(conn: SSL.Connection, offered: list[bytes]) -> Any:
    return next((protocol for protocol in offered if protocol in ALPN), SSL.NO_OVERLAPPING_PROTOCOLS)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _signer(authority: Authority) -> tuple[ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, x509.Certificate]:
    """The authority's key, which all certificates share with it, and its certificate."""
    key = serialization.load_pem_private_key(authority.key_path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ImpyardError("the authority's key is neither an EC nor an RSA key")
    return key, x509.load_pem_x509_certificate(authority.cert_pem)


def _verify_name(ssl_conn: SSL.Connection, name: str) -> None:
    # pyOpenSSL has no call for host verification on a connection; this is what mitmproxy itself does.
    lib: Any = vars(SSL)["_lib"]
    param = lib.SSL_get0_param(vars(ssl_conn)["_ssl"])
    lib.X509_VERIFY_PARAM_set_hostflags(param, _NO_PARTIAL_WILDCARDS | _NEVER_CHECK_SUBJECT)
    try:
        packed = ipaddress.ip_address(name).packed
    except ValueError:
        encoded = name.encode("ascii")
        ssl_conn.set_tlsext_host_name(encoded)
        ok = lib.X509_VERIFY_PARAM_set1_host(param, encoded, len(encoded))
    else:
        ok = lib.X509_VERIFY_PARAM_set1_ip(param, packed, len(packed))
    if ok != 1:
        raise RuntimeError("the origin's name could not be set for verification")


def _origin_context(extra: Path | None) -> SSL.Context:
    return _cached_context(extra, extra.stat().st_mtime_ns if extra is not None else 0)


@functools.lru_cache(64)
def _cached_context(extra: Path | None, changed: int) -> SSL.Context:
    """`changed` is part of the key, so that a renewed file is read again."""
    # The undecorated function: its own cache would hand out a context that another entry has added its roots to.
    context: SSL.Context = net_tls.create_proxy_server_context.__wrapped__(
        method=net_tls.Method.TLS_CLIENT_METHOD,
        min_version=net_tls.Version.TLS1_2,
        max_version=net_tls.Version.UNBOUNDED,
        cipher_list=None,
        ecdh_curve=None,
        verify=net_tls.Verify.VERIFY_PEER,
        ca_path=None,
        ca_pemfile=str(system_bundle() or certifi.where()),
        client_cert=None,
        legacy_server_connect=False,
    )
    context.load_verify_locations(certifi.where())
    if extra is not None:
        context.load_verify_locations(str(extra))
    return context
