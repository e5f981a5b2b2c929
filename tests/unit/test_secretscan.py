"""What is kept from a box: found by name and by a look into small files; and what is left alone."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.secretfiles.scan import CHANNEL, Found, notes, scan, shown_notes, tracked, without_allowed
from tests.support.reading import reads_little


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
    ".bundle/config": f'---\nBUNDLE_GEMS__A__TEST: "user:{TOKEN}"\n',
    ".env~": "A=1",
    ".netrc~": "",
    "keys/default": b"\0GITCRYPTKEY\0\0\0\2",
    "terraform.tfstate.1700000000.backup": "{}",
    "prod.auto.tfvars.json": f'{{"db_password": "{TOKEN}"}}',
    "kubeconfig.prod.yaml": f"users:\n- user:\n    token: {TOKEN}\n",
    "kube_config_cluster.yml": f"users:\n- user:\n    client-key-data: {TOKEN}\n",
    "me_accessKeys.csv": f"Access key ID,Secret access key\nAKIA,{TOKEN}\n",
    "rootkey.csv": f"AWSAccessKeyId=AKIA\nAWSSecretKey={TOKEN}\n",
    "pgpass.conf": f"db:5432:*:u:{TOKEN}\n",
    ".mylogin.cnf": b"\0\0\0\0\x14",
    "netrc": f"machine a.test\n\tlogin b\n\tpassword {TOKEN}\n",
    ".authinfo": f"machine mail.test login b password {TOKEN}\n",
    "htpasswd": "ada:$apr1$abcdefgh$abcdefghijklmnopqrstuv\n",
    "nginx/site.htpasswd": "ada:$2y$05$" + "a" * 53 + "\n",
    "docker/my.cnf": f"[client]\nuser = a\npassword = {TOKEN}\n",
    ".flaskenv": f"FLASK_APP=a\nSECRET_KEY={TOKEN}\n",
    ".env_production": f"DB_PASSWORD={TOKEN}\n",
    ".env-staging": f"DB_PASSWORD={TOKEN}\n",
    "env.local": f"DB_PASSWORD={TOKEN}\n",
    "deploy": BLOCK.format("OPENSSH ", "OPENSSH "),
    "github-deploy": "\n" + KEY,
    "server.txt": BLOCK.format("RSA ", "RSA "),
    "work.ssh": BLOCK.format("OPENSSH ", "OPENSSH "),
    "backup/key.age.txt": "AGE-SECRET-KEY-1QQ\n",
    ".config/hub": f"github.com:\n- oauth_token: {TOKEN}\n",
    ".config/glab-cli/config.yml": f"hosts:\n  gitlab.com:\n    token: {TOKEN}\n",
    ".config/gh/hosts.yml": f"github.com:\n    oauth_token: {TOKEN}\n",
    "pypoetry/auth.toml": f'[http-basic.a]\nusername = "a"\npassword = "{TOKEN}"\n',
    ".azure/service_principal_entries.json": f'[{{"client_id": "a", "client_secret": "{TOKEN}"}}]',
    ".azure/msal_token_cache.json": "{}",
    ".config/gcloud/credentials.db": b"SQLite format 3\0",
    ".aws/sso/cache/0a1b.json": f'{{"startUrl": "https://a.test", "accessToken": "{TOKEN}"}}',
    ".terraformrc": f'credentials "app.terraform.io" {{\n  token = "{TOKEN}"\n}}\n',
    ".terraform.d/credentials.tfrc.json": f'{{"credentials": {{"a.test": {{"token": "{TOKEN}"}}}}}}',
    "old/vault.json": f'{{"version": 1, "credentials": {{"a": "{TOKEN}"}}}}',
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
    ".bundle/config": '---\nBUNDLE_PATH: "vendor/bundle"\nBUNDLE_BUILD__NOKOGIRI: "--use-system-libraries"\n',
    "terraform.tfvars.json": '{"region": "europe-west", "password_length": 12}',
    "kubeconfig.yaml": "apiVersion: v1\nkind: Config\n",
    "credentials.csv": "name,issued\n",
    "vault.json": '{"path": "secret/data"}',
    "yarn.lock": "x",
    "libkey.so.1": "x",
    "netrc": "machine is a word, and password too\n",
    "htpasswd": "usage: htpasswd [-c] file user\n",
    "nginx/none.htpasswd": "",
    "docker/my.cnf": "[mysqld]\nmax_connections = 100\n",
    ".flaskenv": "FLASK_APP=a\nFLASK_DEBUG=1\n",
    ".env-cmdrc": '{"dev": {"PORT": 80}}',
    "env.local": "PORT=80\n",
    "README": f"Make a key as follows.\n{KEY}",
    "LICENSE": "MIT\n",
    "docs/tls.txt": f"A key looks like this:\n{KEY}",
    "public.txt": "-----BEGIN PUBLIC KEY-----\nMIIB\n",
    ".git/objects/ab/" + "0" * 38: KEY,
    ".config/glab-cli/config.yml": "git_protocol: ssh\n",
    ".azure/azureProfile.json": '{"subscriptions": []}',
    "locales/de/session.json": '{"accessToken": "Ihr Zugang", "refreshToken": "Erneuern"}',
    ".terraformrc": 'plugin_cache_dir = "$HOME/.terraform.d/plugin-cache"\n',
    "conf/credentials.yml.enc": "x--y--z",
    "keys/layout": "qwerty",
    "notes.md~": KEY,
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


REMOTE = f'[core]\n\tbare = false\n[remote "o"]\n\turl = https://x:{TOKEN}@github.com/a/b\n'


def test_settings_that_a_project_needs_are_cleaned_wherever_they_are(tmp_path: Path) -> None:
    places = [".git/config", ".git/modules/lib/config", "vendor/inner/.git/config", "bare.git/config", ".gitmodules"]
    plant(tmp_path, dict.fromkeys((*places, ".git/worktrees/w/config.worktree"), REMOTE))
    plant(tmp_path, {".npmrc": f"registry=https://r.test/\n//r.test/:_authToken={TOKEN}\n"})
    plant(tmp_path, {"web/.yarnrc.yml": f"npmAuthToken: {TOKEN}\n"})
    plant(tmp_path, {"pip.conf": f"index-url = https://u:{TOKEN}@r.test\n"})
    found = {str(item.path.relative_to(tmp_path)): item for item in scan([tmp_path])}
    more = {".git/worktrees/w/config.worktree", ".npmrc", "web/.yarnrc.yml", "pip.conf"}
    assert found.keys() == {*places, *more}
    for item in found.values():
        assert item.how == "cleaned"
        assert item.clean is not None and TOKEN.encode() not in item.clean and b"\n" in item.clean


# Settings that a project needs: the first with a secret, which a copy lacks; the second has none.
TOOLS = (
    '{{"mcpServers": {{"a": {{"command": "npx", "args": ["-y", "@a/server", {}], "env": {{{}}}, "headers": {{{}}}}}}}}}'
)
NEEDED: dict[str, tuple[str, str]] = {
    ".mcp.json": (
        TOOLS.format('"--verbose"', f'"GITHUB_TOKEN": "{TOKEN}", "LEVEL": "debug"', ""),
        TOOLS.format('"--token", "${A_TOKEN}"', '"GITHUB_TOKEN": "${GITHUB_TOKEN}"', '"Authorization": "Bearer ${A}"'),
    ),
    ".cursor/mcp.json": (
        TOOLS.format('"--verbose"', "", f'"Authorization": "Bearer {TOKEN}"'),
        TOOLS.format('"a"', "", ""),
    ),
    ".vscode/mcp.json": (
        TOOLS.format(f'"--api-key", "{TOKEN}"', "", ""),
        TOOLS.format('"--api-key", "${input:a}"', "", ""),
    ),
    "claude_desktop_config.json": (
        TOOLS.format(f'"--token={TOKEN}", "postgres://a:{TOKEN}@db.test/x"', "", ""),
        TOOLS.format('"postgres://a@db.test/x"', '"PATH": "/usr/local/share/a/very/long/path/to/things"', ""),
    ),
    ".claude/settings.json": (f'{{"env": {{"ANTHROPIC_API_KEY": "{TOKEN}"}}}}', '{"env": {"MAX_TOKENS": "100000"}}'),
    ".cargo/config.toml": (
        f'[build]\njobs = 4\n[registries.a]\nindex = "sparse+https://a.test/"\ntoken = "{TOKEN}"\n',
        '[build]\njobs = 4\n[registry]\nglobal-credential-providers = ["cargo:token"]\n',
    ),
    "android/gradle.properties": (
        f"org.gradle.jvmargs=-Xmx2g\nsigning.keyId=24875D73\nsigning.password={TOKEN}\nMAPS_API_KEY={TOKEN}\n",
        "org.gradle.jvmargs=-Xmx2g\nsigning.secretKeyRingFile=/home/a/secring.gpg\nossrhPassword=${env.OSSRH}\n",
    ),
    "ci/settings.xml": (
        f"<settings><servers><server><id>a</id><password>{TOKEN}</password></server></servers></settings>",
        "<settings><servers><server><id>a</id><password>${env.TOKEN}</password></server></servers></settings>",
    ),
    "NuGet.Config": (
        "<configuration><packageSourceCredentials><a>"
        f'<add key="Username" value="a" /><add key="ClearTextPassword" value="{TOKEN}" /></a>'
        "</packageSourceCredentials>"
        f'<apikeys><add key="https://a.test" value="{TOKEN}" /></apikeys></configuration>',
        '<configuration><packageSources><add key="a" value="https://a.test/index.json" /></packageSources>'
        '<packageSourceCredentials><a><add key="ClearTextPassword" value="%TOKEN%" /></a></packageSourceCredentials>'
        "</configuration>",
    ),
    "api/appsettings.Production.json": (
        f'{{"ConnectionStrings": {{"A": "Server=db;Uid=sa;Password={TOKEN};"}}, "Jwt": {{"SigningKey": "{TOKEN}"}}}}',
        '{"Logging": {"LogLevel": {"Default": "Information"}}, "Jwt": {"Authority": "https://a.test", "Secret": ""}}',
    ),
    "local.settings.json": (
        f'{{"Values": {{"AzureWebJobsStorage": "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={TOKEN}=="}}}}',
        '{"Values": {"AzureWebJobsStorage": "UseDevelopmentStorage=true"}}',
    ),
    ".env.sample": (
        f"# the service\nexport STRIPE={TOKEN}\nDB_URL='{TOKEN}' # why\r\nPORT=3000\nKEY=<your key>\n#OLD={TOKEN}\n",
        '# the service\n\nPORT=3000 # of 65535\nexport KEY="<your key>"\n# KEY=changeme\nEMPTY=\n',
    ),
    ".env.template": (f"A=https://u:{TOKEN}@example.test/\nB=${{B}}\n", "B=${B}\nC=https://example.test/\n"),
    "web/.env.dist": (f"A = {TOKEN}\n", "A = \n"),
    ".env.defaults": (f'A="{TOKEN} and blanks"\n', 'A=""\n'),
    ".env.production.example": (f"A={TOKEN}\n", "A=example\n"),
    "wp-config.php": (
        f"<?php\ndefine( 'DB_NAME', 'a' );\ndefine( 'DB_PASSWORD', '{TOKEN}' );\ndefine('AUTH_KEY', \"{TOKEN}\");\n",
        "<?php\ndefine( 'DB_PASSWORD', getenv('DB_PASSWORD') );\ndefine('AUTH_KEY', 'put your unique phrase here');\n",
    ),
}


def meaning(name: str, text: str) -> list[tuple[str, str]]:
    """What a program reads of settings: places and values."""
    if name.endswith((".json", ".toml")):
        found: list[tuple[str, str]] = []

        def walk(at: str, value: Any) -> None:
            if isinstance(value, dict | list):
                for key, each in value.items() if isinstance(value, dict) else enumerate(value):
                    walk(f"{at}/{key}", each)
            else:
                found.append((at, str(value)))

        walk("", json.loads(text) if name.endswith(".json") else tomllib.loads(text))
        return found
    if name.lower().endswith((".xml", ".config")):
        return [
            (f"{each.tag} {key}", value or "")
            for each in ElementTree.fromstring(text).iter()
            for key, value in [*each.items(), ("", each.text)]
        ]
    split = "=" if name.endswith(".properties") or "/.env." in f"/{name}" else ","
    return [(key, value) for key, _, value in (line.partition(split) for line in text.splitlines())]


@pytest.mark.parametrize("name", NEEDED)
def test_settings_among_other_things_are_shown_without_the_secret(tmp_path: Path, name: str) -> None:
    secret, none = NEEDED[name]
    plant(tmp_path, {name: none})
    assert scan([tmp_path]) == [], "the neighbour"
    plant(tmp_path, {name: secret})
    (found,) = scan([tmp_path])
    assert (found.path, found.how) == (tmp_path / name, "cleaned")
    assert found.clean is not None and TOKEN.encode() not in found.clean and TOKEN not in found.kind
    before, after = meaning(name, secret), meaning(name, found.clean.decode())
    assert [key for key, _ in before] == [key for key, _ in after]
    changed = [old for (_, old), (_, new) in zip(before, after, strict=True) if old != new]
    assert changed and all(TOKEN in old for old in changed), "nothing else"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".mcp.json", f'// mine\n{{"a": {{"env": {{"API_TOKEN": "{TOKEN}"}}}}}}'),
        (".mcp.json", '{"a": ' * 50_000 + f'"token": "{TOKEN}"'),
        (".cargo/config.toml", f'[registry]\ntoken = """\n{TOKEN}"""\n'),
        ("gradle.properties", f"signing.password={TOKEN[:20]}\\\n{TOKEN[20:]}\n"),
        ("settings.xml", "<settings>" + " " * 300_000),
        (".env.sample", f'A="\n{TOKEN}"\n'),
        (".env.sample", f"A=b \\\n{TOKEN}\n"),
        (".env.sample", f"A:\n  {TOKEN}\n"),
        (".env.sample", f"# as ghp_{TOKEN} was\nA=\n"),
        (".env.sample", f"A=b # as ghp_{TOKEN} was\n"),
        (".env.sample", f"# as\rA={TOKEN}\n"),
    ],
)
def test_settings_in_another_form_are_covered(tmp_path: Path, name: str, text: str) -> None:
    plant(tmp_path, {name: text})
    assert [item.how for item in scan([tmp_path])] == ["covered"]


SALT = "k7$(Fq{{zT!9aB2c|Xw"  # the middle of what wordpress.org makes by chance; halves of references are in it


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".mcp.json", TOOLS.format(f'"-e", "API_KEY={TOKEN}"', "", "")),
        (".mcp.json", TOOLS.format(f'"--header", "Authorization: Bearer {TOKEN}"', "", "")),
        (".mcp.json", TOOLS.format(f'"https://a.test/mcp?v=1&api_key={TOKEN}"', "", "")),
        (".mcp.json", TOOLS.format(f'"postgres://a:{TOKEN}@db.test/é"', "", "")),
        (".mcp.json", TOOLS.format('"x"', f'"TOKEN": "{TOKEN} x", "GITHUB_PAT": "{TOKEN}"', "")),
        (".mcp.json", f'{{"a": {{"command": "a --api-key {TOKEN}", "tokens": [{{"token": ["{TOKEN}"]}}]}}}}'),
        (".mcp.json", TOOLS.format('"x"', "", f'"Cookie": "session={TOKEN}; a=b"')),
        (".cargo/config.toml", f'[registries.a]\ntoken = "a\\"{TOKEN}"\n'),
        (".cargo/config.toml", f'[env]\nA_TOKEN = {{ force = true, value = "{TOKEN}" }}\n'),
        ("gradle.properties", f"#mavenPassword={TOKEN}\nsigningInMemoryKey={TOKEN}\n"),
        ("gradle.properties", f"\ufeffmavenPassword={TOKEN}\n"),
        ("settings.xml", f'<a><password >{TOKEN}</password><password x="y">{TOKEN}</password></a>'),
        ("settings.xml", f"<a><password><![CDATA[{TOKEN}]]></password><password>a<!-- b -->{TOKEN}</password></a>"),
        ("settings.xml", f"<a><a.password>{TOKEN}</a.password><name>Private-Token</name><value>{TOKEN}</value></a>"),
        ("nuget.config", f"<a><add key='ClearTextPassword' value='{TOKEN}' /></a>"),
        ("nuget.config", f'<a><add value="{TOKEN}" key="ClearTextPassword" /></a>'),
        ("nuget.config", f"<a><apikeys ><add key='https://a.test' value='{TOKEN}' /></apikeys></a>"),
        ("appsettings.json", f'{{"A": "Server=a;Password=\'b;{TOKEN}\';", "B": "Pwd=\\"b;{TOKEN}\\";C=d"}}'),
        ("appsettings.json", f'{{"A": "Password=b\\\\{TOKEN};C=d", "Jwt": {{"Key": "{TOKEN}"}}}}'),
        ("appsettings.json", f'{{"Password": "<{TOKEN}"}}'),
        ("wp-config.php", f"<?php\ndefine('AUTH_KEY', '<{SALT}{TOKEN}');\ndefine('DB_PASSWORD', 'ex' . '{TOKEN}');\n"),
        ("wp-config.php", f"<?php\nconst DB_PASSWORD = '{TOKEN}';\ndefine('FTP_PASS', /* a */ \"{TOKEN}\");\n"),
        ("wp-config.php", f"<?php\ndefine('DB_PASSWORD', getenv('A_SECRET_NAME_OF_MINE') ?: '{TOKEN}');\n"),
    ],
)
def test_a_secret_that_is_written_in_another_way_is_taken_out_too(tmp_path: Path, name: str, text: str) -> None:
    plant(tmp_path, {name: text})
    (found,) = scan([tmp_path])
    assert found.how == "cleaned"
    assert found.clean is not None and TOKEN.encode() not in found.clean
    text = text.removeprefix("\ufeff")
    assert [key for key, _ in meaning(name, text)] == [
        key for key, _ in meaning(name, found.clean.decode("utf-8-sig"))
    ] or name == "wp-config.php"
    if "getenv" in text:
        assert b"getenv('A_SECRET_NAME_OF_MINE')" in found.clean


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".mcp.json", "/* mine */" + TOOLS.format(f'"--token", "{TOKEN}",', "", "")),
        (".mcp.json", f'{{"args": ["--token", "{TOKEN}"]'),
        (".mcp.json", "// mine\n" + TOOLS.format('"x"', "", f'"Authorization": "Bearer {TOKEN}"')),
        (".mcp.json", f'{{"a": {{"token": "{TOKEN}", "token": "${{A}}"}}}}'),
        (".mcp.json", f'// "token": "{TOKEN}"\n{{}}'),
        ("gradle.properties", f"mavenPassword=\\\n  {TOKEN}\n"),
        ("wp-config.php", f"<?php define('DB_PASSWORD', <<<A\n{TOKEN}\nA);"),
    ],
)
def test_a_secret_that_cannot_be_taken_out_of_settings_covers_them(tmp_path: Path, name: str, text: str) -> None:
    plant(tmp_path, {name: text})
    assert [item.how for item in scan([tmp_path])] == ["covered"]


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_settings_in_16_bits_are_covered_when_they_have_a_secret(tmp_path: Path, name: str, encoding: str) -> None:
    secret, none = NEEDED[name]
    plant(tmp_path, {name: none.encode(encoding)})
    assert scan([tmp_path]) == []
    plant(tmp_path, {name: secret.encode(encoding)})
    assert [item.how for item in scan([tmp_path])] == ["covered"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".mcp.json", "// mine\n" + TOOLS.format('"--token", "${input:a}",', '"A": "b",', "")),
        (".mcp.json", TOOLS.format('"-e", "A_TOKEN", "-e", "B_KEY=${B}"', '"SORT_KEY": "created-at-2024-01"', "")),
        (".mcp.json", '{"url": "https://a.test/mcp?api_key=${input:key}&max_tokens=100000"}'),
        (".claude/settings.json", '{"permissions": {"allow": ["Bash(gh auth token:*)", "Read(**/secret/**)"]}}'),
        (
            "settings.xml",
            "<a><password>{COQLCE6DU6GtcS5P=}</password><password/><passwordPolicy>abcdefgh</passwordPolicy></a>",
        ),
        ("appsettings.json", '{"A": [{"Key": "Logging:LogLevel:Default1"}], "Password": "<from the vault>"}'),
        (
            "wp-config.php",
            "<?php\ndefine('DB_PASSWORD', getenv_docker('WORDPRESS_DB_PASSWORD', 'example password'));\n",
        ),
    ],
)
def test_references_and_names_in_settings_stay(tmp_path: Path, name: str, text: str) -> None:
    plant(tmp_path, {name: text})
    assert scan([tmp_path]) == []


def test_what_an_agent_writes_into_settings_ends_no_run(tmp_path: Path) -> None:
    odd = ['"\\ud800"', '{"token": "\\ud800aaaaaa"}', "[[[", "1e999", '{"a":' * 900 + "1" + "}" * 900, "\udcff"]
    for number, text in enumerate(odd):
        for name in (".mcp.json", "appsettings.json", "settings.xml", "wp-config.php"):
            place = tmp_path / str(number) / name
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert all(b"aaaaaa" not in (item.clean or b"") for item in scan([tmp_path]))


def test_what_cannot_be_cleaned_for_sure_is_covered(tmp_path: Path) -> None:
    plant(tmp_path, {".yarnrc.yml": f"npmAuthToken: >-\n  {TOKEN}\n"})
    plant(tmp_path, {".git/config": REMOTE + "#\n" * 600_000})
    assert [item.how for item in scan([tmp_path])] == ["covered", "covered"]


def test_what_gits_settings_name_is_looked_at_too(tmp_path: Path) -> None:
    settings = "[include]\n\tpath = ../.gitsettings\n[credential]\n\thelper = store --file=.git/logins\n"
    plant(tmp_path, {".git/config": settings, ".git/logins": f"https://a:{TOKEN}@h.test\n", ".gitsettings": REMOTE})
    found = {(item.path.name, item.how) for item in scan([tmp_path])}
    assert found == {("logins", "covered"), (".gitsettings", "cleaned")}
    plant(tmp_path, {".git/config": settings.replace("../.gitsettings", "/etc/hostname").replace(".git/logins", "/x")})
    assert scan([tmp_path]) == [], "what lies elsewhere is not the box's to see"


def test_copies_of_settings_and_settings_named_by_settings_are_cleaned_too(tmp_path: Path) -> None:
    copies = [f".git/config{end}" for end in (".bak", ".save", ".orig", ".lock", "~", ".1")] + [".npmrc.bak", ".npmrc~"]
    plant(tmp_path, dict.fromkeys(copies, REMOTE))
    plant(
        tmp_path, {".git/config": "[include]\n\tpath = ../a\n", "a": "[include]\n\tpath = b\n\tpath = a\n", "b": REMOTE}
    )
    found = scan([tmp_path])
    assert {str(item.path.relative_to(tmp_path)) for item in found} == {*copies, "b"}
    assert all(item.clean is not None and TOKEN.encode() not in item.clean for item in found)


def test_names_and_links_of_an_agent_hide_nothing_but_secrets(tmp_path: Path) -> None:
    """An agent may leave links in a workspace: later boxes must not miss what they lead to."""
    plant(tmp_path, {"src/main.py": "print(1)\n", "policies/gateway.yaml": "x", "real.dat": KEY})
    near = {"a.p12": "src/main.py", "id_rsa": "src/main.py", "b.key": "src", ".npmrc": "src/main.py"}
    far = {"c.pem": "policies/gateway.yaml", "d.pem": "/etc/passwd", "e.pem": "nowhere", "f.pem": "f.pem"}
    for name, target in {**near, **far}.items():
        (tmp_path / name).symlink_to(target)
    assert scan([tmp_path]) == []
    (tmp_path / "g.pem").symlink_to("real.dat")
    assert [item.path for item in scan([tmp_path])] == [tmp_path / "real.dat"], "the control: a key in another's name"


def test_a_file_of_a_gigabyte_is_not_read_through(tmp_path: Path) -> None:
    for name in ("big.json", "big.pem", "safe.kdbx", ".npmrc"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(2**30)
    with reads_little():
        assert [item.path.name for item in scan([tmp_path])] == [".npmrc", "safe.kdbx"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_what_cannot_be_read_is_covered_as_the_box_could_open_it_again(tmp_path: Path) -> None:
    plant(tmp_path, {"a.pem": KEY, "shut/.env": "S=1"})
    for name in ("a.pem", "shut"):
        (tmp_path / name).chmod(0)
    try:
        assert names(scan([tmp_path]), tmp_path) == ["a.pem", "shut"]
    finally:
        (tmp_path / "shut").chmod(0o700)


def test_a_key_with_a_name_that_the_engine_cannot_be_told_is_refused(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"\xff.pem")
    with open(path, "wb") as file:
        file.write(CERTIFICATE.encode())
    assert scan([tmp_path]) == [], "the control: nothing to keep from the box"
    with open(path, "wb") as file:
        file.write(KEY.encode())
    with pytest.raises(ImpyardError, match="not valid UTF-8"):
        scan([tmp_path])


def test_looking_for_secrets_takes_not_much_longer_than_listing_the_files(tmp_path: Path) -> None:
    """Measured, best of 20, busy machine: 29 to 57 ms for 5000 files, five to six times what a bare walk takes."""
    endings = [*[".py"] * 10, *[".ts"] * 6, *[".json"] * 3, ".md", ".txt", ".conf", ".pem", ".yml", ".css", ".png"]
    for folder in range(100):
        place = f"{tmp_path}/part{folder}"
        os.mkdir(place)
        for number in range(20):
            with open(f"{place}/file{number}{endings[(folder + number) % 25]}", "wb") as file:
                file.write(b'{"name": "x"}' + b" " * 2000)

    def least(act: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            began = time.process_time()
            assert act() == []
            times.append(time.process_time() - began)
        return min(times)

    assert least(lambda: scan([tmp_path])) < 15 * least(lambda: list(os.walk(tmp_path))[:0])


# -- what is shown on purpose, and what is said ------------------------------------------------------------------------


@pytest.fixture
def several(tmp_path: Path) -> Path:
    plant(tmp_path, {"keys/a.pem": KEY, "keys/b.pem": KEY, ".env": "S=1", ".env.d/x": "S=1", "src/main.py": ""})
    plant(tmp_path, {".git/config": REMOTE})
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def names(found: list[Found], root: Path) -> list[str]:
    return [str(item.path.relative_to(root)) for item in found]


@pytest.mark.parametrize(
    ("allowed", "left"),
    [
        ([], [".env", ".env.d", ".git/config", "keys/a.pem", "keys/b.pem", "pipe"]),
        (["keys/a.pem"], [".env", ".env.d", ".git/config", "keys/b.pem", "pipe"]),
        (["keys/../keys/a.pem", ".env"], [".env.d", ".git/config", "keys/b.pem", "pipe"]),
        (["keys", "./.git/config"], [".env", ".env.d", "pipe"]),
        ([".env.d"], [".env", ".git/config", "keys/a.pem", "keys/b.pem", "pipe"]),
    ],
)
def test_a_file_is_shown_on_purpose(several: Path, allowed: list[str], left: list[str]) -> None:
    found = scan([several])
    assert names(without_allowed(found, map(Path, allowed), several), several) == left
    assert names(without_allowed(found, [several / name for name in allowed], several), several) == left


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("keys/c.pem", "no such file"),
        ("src/main.py", "not covered"),
        ("src", "not covered"),
        ("../elsewhere", "no such file"),
        ("pipe", "never shown"),
        (".env.d/x", "covered as a whole"),
        ("", "project as a whole"),
        (".", "project as a whole"),
        ("..", "project as a whole"),
        ("/", "project as a whole"),
        ("src/..", "project as a whole"),
    ],
)
def test_who_shows_what_is_not_covered_is_told(several: Path, path: str, why: str) -> None:
    with pytest.raises(ImpyardError, match=why) as error:
        without_allowed(scan([several]), [Path(path)], several)
    assert error.value.hint


def test_a_run_says_in_few_lines_what_it_keeps_from_the_box(several: Path) -> None:
    for number in range(9):
        (several / f"{number}\x1b.p12").touch()
    lines = notes(scan([several]), several)
    assert lines[0] == "covered in the box: .env and 1 more environment file"
    assert lines[1] == "cleaned in the box: .git/config (secret in git's settings)"
    assert len(lines) == 7 and lines[-1].startswith("and 7 more") and "--allow-file PATH" in lines[-1]
    assert not any("pipe" in line or "\x1b" in line or TOKEN in line for line in lines)
    assert notes([item for item in scan([several]) if item.kind == CHANNEL], several) == []


def test_one_more_than_the_few_is_named_too(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.p12").touch()
    assert [line.split(": ")[-1] for line in notes(scan([tmp_path]), tmp_path)[:6]] == [
        f"{number}.p12 (key store)" for number in range(6)
    ]


def test_what_is_shown_on_purpose_is_named_and_whether_the_box_can_read_it(several: Path) -> None:
    found = [item for item in scan([several]) if item.path.name in (".env", "a.pem")]
    assert shown_notes([], several, None) == []
    assert shown_notes(found, several, None) == ["shown to the agent on purpose: .env, keys/a.pem"]
    (several / ".env").chmod(0o600)
    (several / "keys/a.pem").chmod(0o644)
    other = os.getuid() + 1
    assert shown_notes(found, several, other)[1:] == [
        f".env: the box's user ({other}) cannot read it; `chmod o+r` lets it"
    ]
    assert len(shown_notes(found, several, os.getuid())) == 1


def test_files_that_git_tracks_are_told_from_others(tmp_path: Path) -> None:
    plant(tmp_path, {"keys/a.pem": KEY, "a.pem": KEY, "s/a.pem": KEY, ".env": "S=1", ".npmrc": f"_auth={TOKEN}"})
    (tmp_path / "plain").mkdir()
    for words in (["init", "--quiet"], ["add", "keys/a.pem", ".env", ".npmrc"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
    found = scan([tmp_path])
    assert tracked(found, tmp_path) == [tmp_path / ".env", tmp_path / "keys" / "a.pem"]
    assert tracked(found, tmp_path / "s") == []
    (tmp_path / ".git" / "index").unlink()
    assert tracked(found, tmp_path) == []
