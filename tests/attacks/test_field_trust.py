"""Certificates towards the box, and authorities that must not be used. Field notes F20 and F40."""

from __future__ import annotations

import datetime
import os
import shutil
import ssl
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification

from impyard.addon.errors import ImpyardError
from impyard.certs.authority import CERT_FILE, KEY_FILE, ensure_authority, inspect
from tests.gateway.conftest import Bed
from tests.gateway.test_protocols import Http2
from tests.support.gateway import LiveGateway, read_reply
from tests.support.origin import Pki
from tests.support.service import tools_behind

pytestmark = pytest.mark.gateway

DAY = datetime.timedelta(days=1)


def shown(bed: Bed, host: str, *, sni: str | None = None) -> x509.Certificate:
    """The certificate that a client of the door is shown."""
    with bed.gateway.tls(host, sni=sni) as connection:
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


# -- one name each (F20) --------------------------------------------------------------------------------------------


@pytest.mark.attack("F20")
def test_a_certificate_holds_the_asked_name_alone(bed: Bed) -> None:
    """The origin's own holds two: unknown-ca.test as well."""
    for host in ("a.test", "unknown-ca.test"):
        names = shown(bed, host).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [host]
        assert bed.gateway.get(f"https://{host}/pub/x").status in (200, 502)


@pytest.mark.attack("F20", "F06")
@pytest.mark.parametrize(("path", "status"), [("/pub/x", 200), ("/denied", 403)])
def test_a_client_that_names_no_host_in_its_hello_is_judged_by_its_tunnel(bed: Bed, path: str, status: int) -> None:
    context = ssl.create_default_context(cafile=str(bed.gateway.authority.cert_path))
    context.check_hostname = False  # the certificate's chain is checked all the same; its name below
    with context.wrap_socket(bed.gateway.tunnel("a.test:443")) as connection:
        subject = connection.getpeercert()
        assert subject is not None and subject["subjectAltName"] == (("DNS", "a.test"),)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n".encode())
        assert read_reply(connection).status == status
        connection.sendall(b"GET /pub/x HTTP/1.1\r\nHost: b.test\r\n\r\n")
        assert read_reply(connection).status == 403
    assert [line["reason"] for line in bed.gateway.decisions()][1] == "host-mismatch"
    assert len(bed.a.seen) == (status == 200)


@pytest.mark.attack("F20")
def test_a_client_that_shares_a_connection_among_hosts_is_told(bed: Bed) -> None:
    """Control: on its own connection the second host is another matter (502: its authority is unknown)."""
    client = Http2(bed.gateway, "a.test")
    first = client.send("/pub/x")
    client.wait(first)
    second = client.send("/pub/x", authority="unknown-ca.test")
    client.wait(second)
    assert client.answers[first][0] == 200
    status, body = client.answers[second]
    assert (status, b'"reason": "host-mismatch"' in body) == (403, True)
    third = client.send("/pub/y")
    client.wait(third)
    assert client.answers[third][0] == 200
    client.close()
    assert [line["reason"] for line in bed.gateway.decisions()] == ["rule", "host-mismatch", "rule"]
    assert [seen.target for seen in bed.a.seen] == ["/pub/x", "/pub/y"]
    assert bed.gateway.get("https://unknown-ca.test/pub/x").status == 502


# -- strict checks (F40) --------------------------------------------------------------------------------------------


@pytest.mark.attack("F40")
@pytest.mark.parametrize("days", [-1, 0, 1], ids=["a-day-behind", "now", "a-day-ahead"])
def test_a_strict_client_accepts_it_though_its_clock_is_wrong(bed: Bed, days: int) -> None:
    """The checks of the Web PKI as `cryptography` makes them, beside OpenSSL's in every other test."""
    leaf = shown(bed, "a.test")
    root = x509.load_pem_x509_certificate(bed.gateway.authority.cert_pem)
    when = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + days * DAY
    verifier = (
        verification.PolicyBuilder()
        .store(verification.Store([root]))
        .time(when)
        .build_server_verifier(x509.DNSName("a.test"))
    )
    assert verifier.verify(leaf, [])[-1] == root


@pytest.mark.attack("F40", "F20", control=True)
def test_control_the_same_verifier_refuses_another_name(bed: Bed) -> None:
    root = x509.load_pem_x509_certificate(bed.gateway.authority.cert_pem)
    builder = verification.PolicyBuilder().store(verification.Store([root]))
    with pytest.raises(verification.VerificationError):
        builder.build_server_verifier(x509.DNSName("b.test")).verify(shown(bed, "a.test"), [])


def newer_python() -> str:
    """A Python whose default context checks strictly."""
    named = [found for name in ("python3.13", "python3.14") if (found := shutil.which(name))]
    for found in [*named, *map(str, Path.home().glob(".pyenv/versions/3.1[3-9]*/bin/python3"))]:
        if subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    pytest.skip("no Python 3.13 here")


@pytest.mark.attack("F40")
def test_the_default_context_of_python_3_13_accepts_it(bed: Bed, tmp_path: Path) -> None:
    code = (
        "import ssl, urllib.request as u; assert ssl.create_default_context().verify_flags & ssl.VERIFY_X509_STRICT;"
        "print(u.urlopen('https://a.test/pub/x').read().decode())"
    )
    with tools_behind(bed.gateway, tmp_path / "home") as tools:
        done = tools.run(newer_python(), "-I", "-c", code)
    assert "hello from the origin" in done.stdout, done


@dataclass
class Wanted:
    """An authority as somebody might bring it along. `lacks`: the field that is left out."""

    lacks: str = ""
    ca: bool = True
    critical: bool = True
    signs: bool = True
    begins: int = -2
    ends: int = 300
    issuer: str = "own CA"

    def write(self, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name, issuer = (
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in ("own CA", self.issuer)
        )
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + self.begins * DAY)
            .not_valid_after(now + self.ends * DAY)
        )
        usage = dict.fromkeys(
            ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "encipher_only", "decipher_only"), False)  # fmt: skip
        fields: dict[str, tuple[x509.ExtensionType, bool]] = {
            "basicConstraints": (x509.BasicConstraints(self.ca, None), self.critical),
            "keyUsage": (x509.KeyUsage(**usage, key_cert_sign=self.signs, crl_sign=True), True),
            "subjectKeyIdentifier": (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        }
        for field, (value, critical) in fields.items():
            if field != self.lacks:
                builder = builder.add_extension(value, critical)
        folder.mkdir(parents=True)
        pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
        (folder / KEY_FILE).touch(mode=0o600)
        (folder / KEY_FILE).write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none))
        (folder / CERT_FILE).write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))


UNFIT = {
    "no-key-identifier": (Wanted(lacks="subjectKeyIdentifier"), "lacks the field subjectKeyIdentifier"),
    "no-key-usage": (Wanted(lacks="keyUsage"), "lacks the field keyUsage"),
    "no-constraints": (Wanted(lacks="basicConstraints"), "lacks the field basicConstraints"),
    "not-critical": (Wanted(critical=False), "basicConstraints is not marked critical"),
    "no-authority": (Wanted(ca=False), "not one of an authority"),
    "signs-nothing": (Wanted(signs=False), "keyUsage does not allow"),
    "expired": (Wanted(begins=-20, ends=-1), "is valid from"),
    "not-yet": (Wanted(begins=2), "is valid from"),
    "intermediate": (Wanted(issuer="some other CA"), "signed by another authority"),
}


@pytest.mark.attack("F40")
@pytest.mark.parametrize("name", UNFIT)
def test_an_authority_that_strict_clients_refuse_is_refused_with_its_fault(tmp_path: Path, name: str) -> None:
    wanted, message = UNFIT[name]
    wanted.write(tmp_path / "ca")
    with pytest.raises(ImpyardError, match=message) as raised:
        ensure_authority(tmp_path / "ca")
    assert raised.value.hint
    assert "\n" not in raised.value.message


@pytest.mark.attack("F40")
def test_an_authority_of_ones_own_with_all_fields_is_used(tmp_path: Path) -> None:
    Wanted().write(tmp_path / "ca")
    assert inspect(tmp_path / "ca") == ensure_authority(tmp_path / "ca")


@pytest.mark.attack("F40")
def test_the_gateway_does_not_start_with_it(tmp_path: Path) -> None:
    UNFIT["no-key-identifier"][0].write(tmp_path / "data" / "ca")
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").write_text("networkPolicies: []\n")
    command = [sys.executable, "-m", "impyard.runner", "gateway", "--listen", "127.0.0.1:0"]
    env = {**os.environ, "IMPYARD_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "error: " in done.stderr and "lacks the field subjectKeyIdentifier" in done.stderr
    assert done.stderr.count("hint: ") == 1 and "Traceback" not in done.stderr


@pytest.mark.attack("F40", control=True)
def test_control_a_strict_client_would_have_refused_it(tmp_path: Path) -> None:
    """What the fields are for: without a key identifier OpenSSL, asked to be strict, does not take the authority."""
    UNFIT["no-key-identifier"][0].write(tmp_path / "ca")
    script = (
        "import ssl, sys\nfrom pathlib import Path\n"
        "from cryptography import x509\nfrom cryptography.hazmat.primitives import serialization\n"
        "from mitmproxy import certs\n"
        "folder = Path(sys.argv[1])\n"
        "key = serialization.load_pem_private_key((folder / 'ca-key.pem').read_bytes(), None)\n"
        "ca = certs.Cert.from_pem((folder / 'ca-cert.pem').read_bytes())\n"
        "store = certs.CertStore(key, ca, None, b'', certs.DHParams(b''))\n"
        "leaf = store.get_cert('a.test', [x509.DNSName('a.test')])\n"
        "(folder / 'leaf.pem').write_bytes(leaf.cert.to_pem())\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "ca"], check=True)
    files = [str(tmp_path / "ca" / name) for name in (CERT_FILE, "leaf.pem")]
    verify = ["openssl", "verify", "-x509_strict", "-CAfile", *files]
    assert subprocess.run(verify, capture_output=True, check=False).returncode != 0


# -- an environment that beats the code (F39) -----------------------------------------------------------------------


@pytest.mark.attack("F39")
def test_a_bundle_named_in_the_shell_changes_nothing(
    bed: Bed, pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """impyard's own Python and docker-py, and the gateway, where the variables name a file that holds no authority."""
    (tmp_path / "empty.pem").write_text("")
    env = {**os.environ, "IMPYARD_DATA_DIR": str(tmp_path / "data")}
    command = [sys.executable, "-m", "impyard.runner", "doctor"]

    def examined(**more: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            command, cwd=bed.gateway.root, env=env | more, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in done.stderr
        return done.returncode, marks(done.stdout)

    misleading = dict.fromkeys(("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), str(tmp_path / "empty.pem"))
    assert examined(**misleading) == examined()
    for name, value in misleading.items():
        monkeypatch.setenv(name, value)
    gateway = LiveGateway(tmp_path, bed.policy)
    try:
        assert gateway.get("https://a.test/pub/x").status == 200
        assert gateway.get("https://unknown-ca.test/pub/x").status == 502
    finally:
        gateway.stop()


@pytest.mark.attack("F39", control=True)
def test_control_the_same_variable_beats_what_code_asks_of_requests(bed: Bed, tmp_path: Path) -> None:
    """The session is told which authority to take, and takes the empty file."""
    (tmp_path / "empty.pem").write_text("")
    code = "import requests, sys; s = requests.Session(); s.verify = sys.argv[1]; s.get('https://a.test/pub/x')"
    with tools_behind(bed.gateway, tmp_path / "home") as tools:
        words = (sys.executable, "-c", code, bed.gateway.authority.cert_path)
        done = tools.run(*words, REQUESTS_CA_BUNDLE=str(tmp_path / "empty.pem"))
    assert done.returncode != 0 and bed.untouched()


def marks(text: str) -> list[str]:
    """What doctor found, without the figures."""
    return [line.split(maxsplit=1)[0] for line in text.splitlines() if line.strip()]
