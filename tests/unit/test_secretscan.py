"""What is kept from a box: found by name and by a look into small files; and what is left alone."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.secretscan import scan


def hidden(*roots: Path) -> list[tuple[Path, bool]]:
    """What is covered, with whether it is a folder."""
    return [(found.path, found.is_folder) for found in scan(roots)]


@contextlib.contextmanager
def bound(path: Path) -> Iterator[None]:
    """A listening socket at `path`, however long that is."""
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        yield


def test_every_env_file_is_found_and_the_example_is_not(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    for name in (".env", "a/.env.local", "a/b/.env", "a/.env.example", "a/environment", "runs/x/.env", "c/.env/inner"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("S=1")
    found = dict(hidden(root))
    assert found == {
        root / ".env": False,
        root / "a/.env.local": False,
        root / "a/b/.env": False,
        root / "c/.env": True,
    }


def test_an_env_link_covers_what_it_leads_to_if_the_box_could_see_it(tmp_path: Path) -> None:
    root = tmp_path / "p"
    (root / "deploy").mkdir(parents=True)
    (root / "deploy" / "secrets").write_text("S=1")
    (tmp_path / "outside").write_text("S=1")
    (root / ".env").symlink_to("deploy/secrets")
    (root / ".env.far").symlink_to(tmp_path / "outside")
    (root / ".env.dead").symlink_to("nothing")
    assert list(hidden(root)) == [(root / "deploy" / "secrets", False)]


@pytest.mark.parametrize(
    "target", [".", "..", "../src", "../policies/gateway.yaml", "../policies", "/", ".env", "../x"]
)
def test_an_env_link_that_an_agent_left_hides_nothing_of_the_project(tmp_path: Path, target: str) -> None:
    root = tmp_path / "p"
    for file in ("src/main.py", "policies/gateway.yaml", "ws/work"):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text("")
    (root / "ws" / ".env").symlink_to(target)
    assert list(hidden(root)) == []
    assert list(hidden(root, root / "ws")) == []


def test_folders_behind_links_are_not_searched(tmp_path: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / ".env").write_text("")
    (root / "far").symlink_to(tmp_path / "far")
    (root / "loop").symlink_to(root)
    assert list(hidden(root)) == []


def test_sockets_and_pipes_are_hidden_and_ordinary_files_and_links_are_not(tmp_path: Path) -> None:
    root = tmp_path / "p"
    (root / ".git").mkdir(parents=True)
    (root / "file").write_text("")
    (root / "link").symlink_to("file")
    os.mkfifo(root / "pipe")
    with bound(root / ".git" / "daemon.ipc"):
        assert set(hidden(root)) == {(root / "pipe", False), (root / ".git" / "daemon.ipc", False)}


@pytest.mark.attack("136", "140")
@pytest.mark.parametrize("name", [b".env.\xff", b"pipe\xff"])
def test_what_cannot_be_covered_is_refused(tmp_path: Path, name: bytes) -> None:
    """The engine's JSON would name another file, made anew, and leave this one bare."""
    path = os.path.join(os.fsencode(tmp_path), name)
    os.mkfifo(path) if name.startswith(b"pipe") else os.close(os.open(path, os.O_CREAT))
    with pytest.raises(ImpyardError, match="not valid UTF-8"):
        list(hidden(tmp_path))


@pytest.mark.attack("136", "140")
def test_folders_too_deep_to_be_searched_are_refused(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for number in range(20):
        if number == 10:
            assert list(hidden(tmp_path)) == [], "the control: half as deep"
        os.mkdir("x" * 250, dir_fd=here)
        inner = os.open("x" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    with pytest.raises(ImpyardError, match="nested deeper"):
        list(hidden(tmp_path))


# -- secrets under other names -----------------------------------------------------------------------------------------

BLOCK = "-----BEGIN {}PRIVATE KEY-----\nMIIB\n-----END {}PRIVATE KEY-----\n"
KEY = BLOCK.format("", "")
TOKEN = "0123456789abcdefABCDEF0123456789abcdef"  # in all that follows: what must not be seen
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
ACCOUNT = '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\nMIIB\\n"}'
SECRETS: dict[str, str | bytes] = {
    "id_rsa": "anything",
    "keys/id_ed25519": "anything",
    "deploy_ed25519": BLOCK.format("OPENSSH ", "OPENSSH "),
    "id_rsa_work": BLOCK.format("RSA ", "RSA "),
    "id_rsa.bak": KEY,
    "tls/server.pem": CERTIFICATE + KEY,
    "tls/server.key": BLOCK.format("EC ", "EC "),
    "tls/locked.pem": BLOCK.format("ENCRYPTED ", "ENCRYPTED "),
    "tls/wide.pem": KEY.encode("utf-16"),
    "tls/server.der": b"\x30\x82\x04\xbe\x02\x01\x00\x30\x0d",
    "tls/store.P12": b"\x30\x82",
    "android/release.keystore": b"",
    "a.pfx": b"",
    "a.jks": b"",
    "safe.kdbx": b"",
    "putty.ppk": "PuTTY-User-Key-File-3: ssh-ed25519",
    "config/master.key": TOKEN[:32],
    "sops/keys.txt": "# created\nAGE-SECRET-KEY-1QQ\n",
    "mine.asc": BLOCK.format("PGP ", "PGP ").replace("KEY-----", "KEY BLOCK-----"),
    "secret.gpg": b"\x95\x03\x98\x04",
    ".gnupg/private-keys-v1.d/AB.key": "(21:protected-private-key",
    ".ssh/work": KEY,
    ".netrc": f"machine a.test login b password {TOKEN}",
    "_netrc": "",
    ".pypirc": f"[pypi]\npassword = pypi-{TOKEN}",
    ".git-credentials": f"https://a:{TOKEN}@github.com",
    ".docker/config.json": '{"auths": {"r.test": {"auth": "YTpi"}}}',
    ".kube/config": "apiVersion: v1\n",
    "prod.kubeconfig": f"users:\n- user:\n    token: {TOKEN}\n",
    ".aws/credentials": "[default]",
    "gcloud/application_default_credentials.json": "{}",
    "deploy/prod-4711.json": ACCOUNT,
    "token.json": '{"refresh_token": "1//0e", "token": "ya29"}',
    "client_secret_1.json": '{"installed": {"client_id": "a", "client_secret": "GOCSPX-x"}}',
    "jwk.json": '{"keys": [{"kty": "RSA", "n": "x", "d": "y"}]}',
    ".pi/agent/auth.json": '{"anthropic": {"type": "api_key", "key": "sk"}}',
    "composer/auth.json": '{"http-basic": {"a.test": {"username": "a", "password": "b"}}}',
    ".htpasswd": "a:$apr1$x",
    "terraform.tfstate": "{}",
    "terraform.tfstate.backup": "{}",
    "prod.tfvars": f'db_password = "{TOKEN}"\n',
    ".cargo/credentials.toml": "",
    ".gem/credentials": "",
    ".vault-token": "hvs.x",
    ".wrangler.env": f"CLOUDFLARE_API_TOKEN={TOKEN}\n",
    ".dev.vars": "",
    ".envrc": f"export GITHUB_TOKEN={TOKEN}\n",
    "config/secrets.yml": f"production:\n  secret_key_base: {TOKEN}\n",
    "office.ovpn": f"client\n<key>\n{KEY}</key>\n",
    "wg0.conf": "[Interface]\nPrivateKey = " + "A" * 43 + "=\n",
    "token.txt": TOKEN,
}
# What a project needs and what is public; the names that come near to the ones above.
HARMLESS: dict[str, str | bytes] = {
    "ca.pem": CERTIFICATE,
    "fullchain.crt": CERTIFICATE * 3,
    "public.key": "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----\n",
    "id_rsa.pub": "ssh-rsa AAAA a@b",
    "id_card.py": f'"""{KEY}"""',
    "cert.der": b"\x30\x82\x04\xbe\x30\x82\x03\xa6",
    "slides.key": b"PK\x03\x04\x14\x00",
    "empty.pem": b"",
    "empty.key": b"",
    "signature.asc": "-----BEGIN PGP SIGNATURE-----\n",
    "pubkeys.gpg": b"\x99\x01\x0d\x04",
    "src/key.py": f"KEY = '''{KEY}'''\n",
    "docs/tls.md": KEY,
    "package.json": '{"name": "x", "dependencies": {"client_secret": "1.0.0"}}',
    "openapi.json": '{"paths": {"/token": {"refresh_token": "string"}}}',
    "locales/en/auth.json": '{"title": "Log in", "token": "Your token"}',
    "jwks.json": '{"keys": [{"kty": "RSA", "n": "x", "e": "AQAB"}]}',
    "broken.json": '{"private_key": ',
    ".docker/config.json": '{"credsStore": "desktop", "auths": {}}',
    "variables.tfvars": 'region = "eu"\npassword = var.password\n',
    ".envrc": "use flake\nexport PATH=$PWD/bin:$PATH\nexport TOKEN=$(pass show token)\n",
    "config/secrets.yml": "production:\n  secret_key_base: <%= ENV['SECRET_KEY_BASE'] %>\n",
    "k8s/secret.yaml": "data:\n  password: ENC[AES256_GCM,data:abc]\n",
    "nginx.conf": "server {\n  ssl_certificate_key /etc/ssl/site.key;\n  <Location />\n}\n",
    "android/debug.keystore": b"\xfe\xed",
    ".npmrc": "registry=https://r.test/\n//r.test/:_authToken=${NPM_TOKEN}\nalways_auth=true\n",
    ".yarnrc.yml": "nodeLinker: node-modules\nnpmAuthToken: ${NPM_TOKEN}\n",
    "pip.conf": "[global]\nindex-url = https://${USER}:${PASSWORD}@r.test/simple\n",
    "config": "[section]\nkey = value\n",
    ".ssh/config": "Host a\n  IdentityFile ~/.ssh/id_rsa\n",
    ".gitmodules": '[submodule "a"]\n\tpath = a\n\turl = https://alice@github.com/a/b\n',
    "keys.txt": "up, down, left\n",
    "node_modules/tls/test/server.key": KEY,
    "node_modules/tls/test/id_rsa": KEY,
    ".venv/lib/python3.12/site-packages/x/test.pem": KEY,
    "runs/20261129-201744-4ec0/workspace/id_rsa": KEY,
}


def plant(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("name", SECRETS)
def test_a_file_that_is_there_for_a_secret_is_covered(tmp_path: Path, name: str) -> None:
    plant(tmp_path, {name: SECRETS[name]})
    (found,) = scan([tmp_path])
    assert (found.path, found.how, found.is_folder) == (tmp_path / name, "covered", False)
    assert found.kind and TOKEN not in found.kind


@pytest.mark.parametrize("name", HARMLESS)
def test_what_a_project_needs_is_left_alone(tmp_path: Path, name: str) -> None:
    plant(tmp_path, {name: HARMLESS[name]})
    assert scan([tmp_path]) == []
