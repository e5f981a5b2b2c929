"""A throw-away authority for origins that impyard makes itself: in `prove --deep`, and in the tests."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Pki:
    """An authority made for one purpose, with its files in `directory`, and contexts for names signed by it.

    ca_path: its certificate, PEM. The key is only in memory.
    """

    def __init__(self, directory: Path) -> None:
        self._dir = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._cert = self._sign("impyard throw-away CA", self._key, ca=True)
        self.ca_path = directory / "origin-ca.pem"
        self.ca_path.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def context(self, *names: str) -> ssl.SSLContext:
        """A server context whose certificate holds `names`."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert = self._sign(names[0], key, names=names)
        path = self._dir / f"{names[0]}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + cert.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _sign(
        self, common: str, key: ec.EllipticCurvePrivateKey, *, names: tuple[str, ...] = (), ca: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if ca else self._cert.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())
