"""TLS on both sides: certificates signed by our authority towards the box, verified origins away from it."""

from __future__ import annotations

import functools
import ipaddress
import tempfile
from pathlib import Path
from typing import Any

import certifi
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from mitmproxy import certs, connection, tls
from mitmproxy.addons.tlsconfig import DEFAULT_HOSTFLAGS, TlsConfig, _default_ciphers
from mitmproxy.net import tls as net_tls
from OpenSSL import SSL

from impyard.addon.errors import ImpyardError
from impyard.certs.authority import Authority, system_bundle


class GatewayTls(TlsConfig):
    """mitmproxy's TLS settings with our own key store, and roots that add up instead of replacing each other."""

    def __init__(self, authority: Authority) -> None:
        self.certstore = _certstore(authority)

    def configure(self, updated: object) -> None:
        """Nothing comes from options: the key store is made once, above."""

    def running(self) -> None:
        """The base class reads its options again here; see configure."""

    def tls_start_server(self, tls_start: tls.TlsData) -> None:
        """Verify the origin by the name that was judged, against the host's roots, certifi's and the entry's own."""
        server = tls_start.conn
        if not isinstance(server, connection.Server) or not server.sni:
            raise RuntimeError("an origin without a name to verify")
        destination = getattr(server, "destination", None)
        upstream = destination.upstream if destination is not None else None
        if not server.alpn_offers:
            server.alpn_offers = tuple(tls_start.context.client.alpn_offers)
        ssl_conn = SSL.Connection(_origin_context(upstream.ca if upstream is not None else None))
        _verify_name(ssl_conn, server.sni)
        if server.alpn_offers:
            ssl_conn.set_alpn_protos(list(server.alpn_offers))
        ssl_conn.set_connect_state()
        tls_start.ssl_conn = ssl_conn


def _certstore(authority: Authority) -> certs.CertStore:
    key = serialization.load_pem_private_key(authority.key_path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ImpyardError("the authority's key is neither an EC nor an RSA key")
    cert = certs.Cert(x509.load_pem_x509_certificate(authority.cert_pem))
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # OpenSSL reads these from a file only
        file.write(certs.DEFAULT_DHPARAM)
        file.flush()
        dhparams = certs.CertStore.load_dhparam(Path(file.name))
    return certs.CertStore(key, cert, None, b"", dhparams)


def _verify_name(ssl_conn: SSL.Connection, name: str) -> None:
    # pyOpenSSL has no call for host verification on a connection; this is what mitmproxy itself does.
    lib: Any = vars(SSL)["_lib"]
    param = lib.SSL_get0_param(vars(ssl_conn)["_ssl"])
    lib.X509_VERIFY_PARAM_set_hostflags(param, DEFAULT_HOSTFLAGS)
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
    minimum = net_tls.DEFAULT_MIN_VERSION
    # The undecorated function: its own cache would hand out a context that another entry has added its roots to.
    context: SSL.Context = net_tls.create_proxy_server_context.__wrapped__(
        method=net_tls.Method.TLS_CLIENT_METHOD,
        min_version=minimum,
        max_version=net_tls.DEFAULT_MAX_VERSION,
        cipher_list=_default_ciphers(minimum),
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
