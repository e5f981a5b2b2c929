"""The authority that signs what the box sees of TLS, and the sets of roots that box and gateway trust.

The private key stays in the user's data directory, mode 0600; nothing here ever puts it into a run, a mount or an
environment. The box gets the certificate alone.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from impyard.addon.errors import ImpyardError

if TYPE_CHECKING:
    from cryptography import x509

KEY_FILE = "ca-key.pem"
CERT_FILE = "ca-cert.pem"
UPSTREAM_FILE = "upstream-trust.pem"
VALIDITY = datetime.timedelta(days=3650)
# A box whose clock is a day behind must still accept the certificate.
BACKDATED = datetime.timedelta(days=2)

# Where distributions keep the system's roots as one file, for Pythons built to look elsewhere.
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

_PEM = re.compile(rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.+?-----END (?:TRUSTED )?CERTIFICATE-----", re.S)


@dataclass(frozen=True, slots=True)
class Authority:
    """A usable certificate authority.

    cert_pem: the certificate, PEM. fingerprint: SHA-256 of its DER form, lower-case hex without colons.
    not_after: when it expires, UTC. key_path: the private key's file, readable by its owner alone.
    """

    dir: Path
    cert_pem: bytes
    fingerprint: str
    not_after: datetime.datetime

    @property
    def cert_path(self) -> Path:
        return self.dir / CERT_FILE

    @property
    def key_path(self) -> Path:
        return self.dir / KEY_FILE


def data_dir() -> Path:
    """The user's data directory for impyard; `IMPYARD_DATA_DIR` overrides it. It need not exist yet."""
    if override := os.environ.get("IMPYARD_DATA_DIR"):
        return Path(override).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("impyard", appauthor=False))


def refuse_missing_home(directory: Path) -> None:
    """Raises ImpyardError for a folder below a home that is not there: a typing error in HOME must not make one."""
    home = Path(os.path.expanduser("~"))
    if directory.is_relative_to(home) and not home.is_dir():
        raise ImpyardError(
            f"the home folder {str(home)!r} does not exist",
            hint="set HOME, or IMPYARD_DATA_DIR for impyard's own files",
        )


def default_dir() -> Path:
    """Where the user's authority lives."""
    return data_dir() / "ca"


def ensure_authority(directory: Path) -> Authority:
    """The authority in `directory`, minted there when there is none yet.

    Raises ImpyardError when the folder cannot be written, or holds an authority that must not be used.
    """
    refuse_missing_home(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Runs started together mint once: the first to hold the lock does it.
        with (directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (directory / CERT_FILE).exists() and not (directory / KEY_FILE).exists():
                _mint(directory)
    except OSError as exc:
        raise ImpyardError(
            f"cannot keep the certificate authority in {str(directory)!r}: {exc.strerror or exc}",
            hint="make that folder writable, or set IMPYARD_DATA_DIR to one that is",
        ) from exc
    return inspect(directory)


def inspect(directory: Path) -> Authority:
    """The authority in `directory` as it is; mints nothing.

    Raises ImpyardError when a file is missing or unreadable, when the key is readable by others, when key and
    certificate do not belong together, or when the certificate is not a valid authority today.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    hint = f"remove {str(directory)!r} to have a new one made (running boxes must then be started anew)"
    try:
        cert_pem = (directory / CERT_FILE).read_bytes()
        mode = (directory / KEY_FILE).stat().st_mode
        key = serialization.load_pem_private_key((directory / KEY_FILE).read_bytes(), None)
        cert = x509.load_pem_x509_certificate(cert_pem)
        unfit = _unfit(cert)
    except OSError as exc:
        raise ImpyardError(f"the certificate authority cannot be read: {exc}", hint=hint) from exc
    except (ValueError, TypeError) as exc:
        raise ImpyardError(f"the certificate authority in {str(directory)!r} is damaged: {exc}", hint=hint) from exc
    if mode & 0o077:
        raise ImpyardError(
            f"the private key {str(directory / KEY_FILE)!r} is open to other users",
            hint=f"chmod 600 {str(directory / KEY_FILE)!r}",
        )
    if key.public_key() != cert.public_key():
        raise ImpyardError("key and certificate of the authority do not belong together", hint=hint)
    if unfit:
        raise ImpyardError(f"the certificate authority in {str(directory)!r} cannot be used: {unfit}", hint=hint)
    now = datetime.datetime.now(datetime.UTC)
    if not cert.not_valid_before_utc <= now <= cert.not_valid_after_utc:
        raise ImpyardError(
            f"the certificate authority is valid from {cert.not_valid_before_utc:%Y-%m-%d} "
            f"to {cert.not_valid_after_utc:%Y-%m-%d} only",
            hint=hint,
        )
    return Authority(directory, cert_pem, cert.fingerprint(hashes.SHA256()).hex(), cert.not_valid_after_utc)


def _unfit(cert: x509.Certificate) -> str:
    """Why clients that check strictly (RFC 5280; Python since 3.13) would not take what `cert` signs; "" if they do."""
    from cryptography import x509

    fields = (x509.BasicConstraints, x509.KeyUsage, x509.SubjectKeyIdentifier)
    for field in fields:
        if not any(isinstance(extension.value, field) for extension in cert.extensions):
            return f"its certificate lacks the field {field.oid._name}"
    constraints = cert.extensions.get_extension_for_class(x509.BasicConstraints)
    if not constraints.value.ca:
        return "its certificate is not one of an authority"
    if not constraints.critical:
        return "its field basicConstraints is not marked critical"
    if not cert.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign:
        return "its field keyUsage does not allow to sign certificates"
    if cert.issuer != cert.subject:
        return "its certificate is signed by another authority; the box would need the whole chain"
    return ""


def system_bundle() -> Path | None:
    """The host's own set of roots as one PEM file, or None where there is none.

    `SSL_CERT_FILE` comes first: it is how people point a host at a network that intercepts TLS.
    """
    candidates = [os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile, *SYSTEM_BUNDLES]
    return next((Path(name) for name in candidates if name and Path(name).is_file()), None)


def upstream_roots(extra: Path | None = None) -> bytes:
    """The roots that the gateway verifies origins with: the host's, certifi's and `extra`, PEM, each once.

    An extra file adds to the others, it never replaces them. Raises ImpyardError when `extra` holds no certificate.
    """
    import certifi

    sources = [path for path in (system_bundle(), Path(certifi.where())) if path]
    if extra is not None:
        try:
            if not _PEM.search(extra.read_bytes()):
                raise ImpyardError(f"{str(extra)!r} holds no PEM certificate", hint="name a file with the origin's CA")
        except OSError as exc:
            raise ImpyardError(
                f"cannot read {str(extra)!r}: {exc.strerror or exc}", hint="name a file with the origin's CA"
            ) from exc
        sources.append(extra)
    seen: dict[bytes, None] = {}
    for path in sources:
        seen.update(dict.fromkeys(_PEM.findall(path.read_bytes())))
    return b"\n".join(seen) + b"\n"


def box_bundle(cert_pem: bytes) -> bytes:
    """The trust bundle of a box: our certificate first, then the host's roots and certifi's, PEM."""
    return cert_pem.strip() + b"\n" + upstream_roots()


def _mint(directory: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())  # an EC key costs less per new connection than RSA
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"impyard gateway CA {now:%Y-%m-%d}")])
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_signing_only(), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(directory / KEY_FILE, pem, 0o600)
    _write(directory / CERT_FILE, cert.public_bytes(serialization.Encoding.PEM), 0o644)


def _signing_only() -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write `path` whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
