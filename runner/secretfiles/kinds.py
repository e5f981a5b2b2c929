"""Which files may hold a secret, by their names, and whether one does, by its first bytes. Pure: opens no file.

A file is covered when it is there for the secret: a key, a login, a token. Source, text and settings with a secret
among other things are not: without them the project would not work. Of some settings a cleaned copy can be shown
instead (secretclean.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from impyard.runner.secretfiles import clean as secretclean
from impyard.runner.secretfiles import cleansettings
from impyard.runner.secretfiles.clean import linear

# What is looked at of a file; keys and logins are shorter.
HEAD_BYTES = 64 * 1024

ENVIRONMENT = "environment file"
PRIVATE_KEY = "private key"
GIT_SETTINGS = "secret in git's settings"
# Installed from a registry, where everybody can read it: test keys of packages are no secrets.
PACKAGES = frozenset({"node_modules", "bower_components", "site-packages", "dist-packages", ".pnpm-store", "pods"})


class Suspect(NamedTuple):
    """A file that may hold a secret: of which kind. `look` says by its first bytes which kind it is, "" for none;
    without one the name is enough. `clean` makes the text of a copy without the secret, None when it cannot. `head`:
    how many first bytes `look` gets."""

    kind: str
    look: Callable[[bytes], str] | None = None
    clean: Callable[[str], str | None] | None = None
    head: int = HEAD_BYTES


def is_env(name: str) -> bool:
    """Whether a file or folder of this name is an environment file by convention, and no template of one."""
    return name == ".env" or (name.startswith(".env.") and not name.endswith(_TEMPLATES))


def suspect(name: str, folder: str) -> Suspect | None:
    """What a file of this name in a folder of that name may hold."""
    name = name.lower()
    special = _FOLDERS.get(folder)
    if special is not None and (found := special.get(name) or special.get("*")):
        return None if found is _NOTHING else found
    if found := _NAMES.get(name):
        return None if found is _NOTHING else found
    dot = name.rfind(".")
    ending = name[dot:] if dot >= 0 else ""
    if ending in _SOURCE:
        return None
    if name.endswith("~"):
        return Suspect(ENVIRONMENT) if is_env(name.rstrip("~")) else suspect(name.rstrip("~"), folder)
    if ending in _COPIES or (len(ending) > 1 and ending[1:].isdecimal()):
        return suspect(name[:dot], folder)
    if ending == ".lock":  # git's own way to write its settings anew
        whole = _NAMES.get(name[:dot])
        return whole if whole is _GIT else None
    if name.endswith(".tfvars.json"):
        return _JSON_SETTINGS
    if name.startswith(("kubeconfig", "kube_config", "kube-config")) and ending in {".yml", ".yaml"}:
        return _NAMES["kubeconfig"]
    if ending == ".csv":
        return _AWS_CSV if name == "rootkey.csv" or name.endswith(("accesskeys.csv", "credentials.csv")) else None
    if name.startswith("appsettings.") and ending == ".json":
        return _DOTNET
    if name.startswith(".env.") and name.endswith(_TEMPLATES):
        return _TEMPLATE
    if name.startswith((".env_", ".env-")) or (name.startswith("env.") and ending in _STAGES):
        return _SETTINGS
    if folder == "keys" and not ending:
        return _KEY
    if found := _ENDINGS.get(ending):
        return found
    if not ending and (name.startswith("id_") or name.endswith(_KEY_NAMES)):
        return _KEY
    # Whatever it is called; but not the objects of git, which are very many.
    return _BARE_KEY if (not ending or ending in _PLAIN) and len(name) < _HASH else None


# -- looks: the kind of secret in a file's first bytes, "" for none ----------------------------------------------------

_BLOCK = linear(rb"-----? ?BEGIN [A-Z0-9 ]*PRIVATE KEY|AGE-SECRET-KEY-1|PuTTY-User-Key-File-")
_RAW_KEY = linear(rb"[0-9A-Za-z+/_=-]+")
_WORD = linear(rb"[!-~]+")
# SEQUENCE, version 0 or 1, then an algorithm, a number or the key itself; a certificate has a SEQUENCE first.
_DER_KEY = linear(rb"(?s)\x30(?:[\x00-\x7f]|\x81.|\x82..)\x02\x01[\x00\x01][\x30\x02\x04]")
_GPG_SECRET = b"\x94\x95\x96\x97\xc5"  # tag 5 of RFC 9580, as old and as new formats write it
_SECRET_NAME = rb"(?:pass(?:word|wd|phrase)?|secret|token|api[_-]?key|access_?key|private_?key|auth|credentials?)"
_ASSIGNED = linear(
    rb"(?im)^[ \t]*(?:-[ \t]+)?(?:export[ \t]+)?[\"']?[\w.-]*" + _SECRET_NAME + rb"[\w.-]*[\"']?[ \t]*[:=][ \t]*"
    rb"[\"']?([^\s\"'#]{6,})"
)
_NO_VALUE = linear(rb"(?i)[$<{%*]|ENC\[|(?:var|local|data)\.|(?:true|false|null|none)\b")
_JSON_ASSIGNED = linear(rb"(?i)\"[\w.-]*" + _SECRET_NAME + rb"[\w.-]*\"\s*:\s*\"([^\"\s]{6,})")
_BUNDLE = linear(rb"(?m)^BUNDLE_[A-Z0-9_]+__[A-Z0-9_]+: *[\"']?[^\s\"':/-][^\s\"':/]*:[^\s\"'/]{4,}")
_KUBE = linear(rb"(?m)^[ \t-]*(?:token|password|client-key-data|id-token|refresh-token):[ \t]*[^\s\"']")
_OVPN = linear(rb"<(?:key|secret|tls-auth|tls-crypt(?:-v2)?|auth-user-pass|pkcs12)>|OpenVPN Static key")
_WIREGUARD = linear(rb"(?im)^[ \t]*(?:PrivateKey|PresharedKey)[ \t]*=[ \t]*[A-Za-z0-9+/]{43}=")
_NETRC = linear(rb"(?m)^[ \t]*(?:machine\s+\S+|default)\s+(?:(?:login|user|account|port)\s+\S+\s+)*password\s+\S")
_HASHED = linear(rb"(?m)^[^\s:#]+:(?:\$(?:apr1|2[abxy]|[156y])\$|\{(?:SHA|SSHA)\})\S{10}")
_SIGNED_IN = linear(rb"[!-~]{20,}")
_ACCOUNT_KEY = linear(rb'"private_key"\s*:\s*"-----BEGIN')
_JSON_MARKS = (
    b"PRIVATE KEY",
    b"client_secret",
    b"refresh_token",
    b"refreshToken",
    b"accessToken",
    b'"auths"',
    b'"kty"',
    b'"cookies"',
    b"service_account",
)
_JSON_MARK = linear(b"|".join(_JSON_MARKS))
_KEY_MARKS = (b"PRIVATE KEY", b"AGE-SECRET", b"PuTTY")
_VPN_MARKS = (b"Key", b"key", b"<", b"OpenVPN")
_SESSION = ("accessToken", "refreshToken")
_AUTH_KEYS = ("http-basic", "github-oauth", "gitlab-oauth", "gitlab-token", "bearer", "bitbucket-oauth", "tokens")


def _says(data: bytes, marks: tuple[bytes, ...]) -> bool:
    """Whether any of them is there: for most files the answer is no, and this finds out ten times as fast as a pattern
    does."""
    return any(mark in data for mark in marks)


def _key(data: bytes) -> str:
    if data.startswith(b"\0GITCRYPTKEY"):
        return "git-crypt key"
    if data[:1] == b"\x30" and _DER_KEY.match(data[:16]):
        return PRIVATE_KEY
    if b"\0" in data[:64]:
        data = data.replace(b"\0", b"")  # text of 16 bits, as a Windows shell writes it
    return PRIVATE_KEY if _says(data, _KEY_MARKS) and _BLOCK.search(data) else ""


def _bare_key(data: bytes) -> str:
    """One that is nothing but a key: text which speaks of keys has other words first."""
    return PRIVATE_KEY if _BLOCK.match(data.lstrip()) else ""


def _netrc(data: bytes) -> str:
    return "login" if _NETRC.search(data) else ""


def _htpasswd(data: bytes) -> str:
    return "login" if _HASHED.search(data) else ""


def _key_file(data: bytes) -> str:
    return _key(data) or (PRIVATE_KEY if 32 <= len(raw := data.strip()) <= 512 and _RAW_KEY.fullmatch(raw) else "")


def _gpg(data: bytes) -> str:
    return "gpg secret key" if data[:1] and data[:1] in _GPG_SECRET else _key(data)


def _assignments(data: bytes) -> str:
    return "secrets in settings" if any(not _NO_VALUE.match(one[1]) for one in _ASSIGNED.finditer(data)) else ""


def _json_assignments(data: bytes) -> str:
    return "secrets in settings" if any(not _NO_VALUE.match(one[1]) for one in _JSON_ASSIGNED.finditer(data)) else ""


def _bundle(data: bytes) -> str:
    return "registry token" if _BUNDLE.search(data) else ""


def _aws_csv(data: bytes) -> str:
    lower = data.lower()
    return "AWS credentials" if b"secret access key" in lower or b"awssecretkey" in lower else ""


def _vault(data: bytes) -> str:
    return "impyard's vault" if _says(data, (b'"credentials"',)) and b'"version"' in data else ""


def _word(data: bytes) -> str:
    return "token or password" if 8 <= len(word := data.strip()) <= 4096 and _WORD.fullmatch(word) else ""


def _plain_config(data: bytes) -> str:
    if b"aws_secret_access_key" in data:
        return "AWS credentials"
    return "cluster login" if b"kind: Config" in data and _KUBE.search(data) else ""


def _kube(data: bytes) -> str:
    return "cluster login" if _KUBE.search(data) else ""


def _conf(data: bytes) -> str:
    if _says(data, _VPN_MARKS) and (_WIREGUARD.search(data) or _OVPN.search(data)):
        return "VPN key"
    return _key(data)


def _json(data: bytes) -> str:
    if not _JSON_MARK.search(data):
        return ""
    content = _object(data)
    if content is None:  # broken, or longer than what was read
        return "service account" if _ACCOUNT_KEY.search(data) else ""
    if isinstance(key := content.get("private_key"), str) and "PRIVATE KEY" in key:
        return "service account" if content.get("type") == "service_account" else PRIVATE_KEY
    inner = next((content[name] for name in ("installed", "web") if isinstance(content.get(name), dict)), content)
    if any(isinstance(inner.get(name), str) and inner[name] for name in ("client_secret", "refresh_token")):
        return "OAuth credentials"
    if any(
        isinstance(word := content.get(name), str) and _SIGNED_IN.fullmatch(word.encode("utf-8", "replace"))
        for name in _SESSION
    ):
        return "login"
    auths = content.get("auths")
    if isinstance(auths, dict) and any(isinstance(entry, dict) and entry for entry in auths.values()):
        return "registry login"
    keys = content.get("keys") if isinstance(content.get("keys"), list) else [content]
    if any(isinstance(key, dict) and "kty" in key and ("d" in key or "k" in key) for key in keys or ()):
        return PRIVATE_KEY
    return "browser session" if content.get("cookies") and content.keys() == {"cookies", "origins"} else ""


def _auth_json(data: bytes) -> str:
    content = _object(data) or {}
    entries = [entry for entry in content.values() if isinstance(entry, dict)]
    if any(entry.get("type") in ("api_key", "oauth") for entry in entries):
        return "model credentials"
    if any(content.get(name) for name in (*_AUTH_KEYS, "OPENAI_API_KEY")):
        return "login"
    return _json(data)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


# -- names -------------------------------------------------------------------------------------------------------------

_NOTHING = Suspect("")
_KEY = Suspect(PRIVATE_KEY, _key)
_LOGIN = Suspect("login")
_TOKEN = Suspect("token")
_SETTINGS = Suspect("secrets in settings", _assignments)
_WORDS = Suspect("token or password", _word)
_GIT = Suspect(GIT_SETTINGS, _plain_config, secretclean.git_settings)
_JSON_SETTINGS = Suspect("secrets in settings", _json_assignments)
_AWS_CSV = Suspect("AWS credentials", _aws_csv)
_HTPASSWD = Suspect("login", _htpasswd)
_KEY_NAMES = ("_rsa", "_dsa", "_ecdsa", "_ed25519", "-rsa", "-ed25519", "_key", "-key", ".key")
# Most files: that they are none of what follows is found out at once.
_SOURCE = frozenset(
    {".py", ".js", ".ts", ".tsx", ".jsx", ".go", ".rs", ".c", ".h", ".java", ".rb", ".md", ".css", ".html"}
)
_BARE_KEY = Suspect(PRIVATE_KEY, _bare_key, head=256)
_PLAIN = frozenset({".txt", ".ssh"})
_HASH = 38  # digits in the name of one of git's objects
# Files that say which variables there are, for whoever writes the `.env` itself.
_TEMPLATES = (".example", ".sample", ".template", ".dist", ".defaults")
_TEMPLATE = Suspect("values in a template", None, cleansettings.env_template)
_STAGES = frozenset({".local", ".prod", ".production", ".staging", ".dev", ".development", ".test"})
_DOTNET = Suspect("secrets in settings", None, cleansettings.dotnet_settings)
_TOOLS = Suspect("token in settings of tools", None, cleansettings.tool_settings)
_PROPERTIES = Suspect("secrets in settings", None, cleansettings.properties)
_MAVEN = Suspect("secrets in settings", None, cleansettings.maven_settings)
_NETRC_FILE = Suspect("login", _netrc)
_CARGO = Suspect("registry token", None, cleansettings.cargo_settings)
_COPIES = frozenset({".bak", ".backup", ".old", ".orig", ".save", ".copy", ".tmp"})

_NAMES: Mapping[str, Suspect] = {
    **dict.fromkeys(
        ("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk"), Suspect(PRIVATE_KEY)
    ),
    **dict.fromkeys((".netrc", "_netrc", ".git-credentials", ".pgpass", ".pypirc", ".dockercfg"), _LOGIN),
    **dict.fromkeys(
        (".s3cfg", ".boto", ".databrickscfg", ".smbcredentials", ".passwd-s3fs", ".dockerconfigjson"), _LOGIN
    ),
    **dict.fromkeys((".htpasswd", "rclone.conf", "credentials.tfrc.json", "kaggle.json"), _LOGIN),
    **dict.fromkeys((".vault-token", ".sentryclirc", ".vault_pass", ".vault_pass.txt", ".vault-pass"), _TOKEN),
    **dict.fromkeys((".secrets", ".dev.vars"), Suspect(ENVIRONMENT)),
    **dict.fromkeys((f"{name}.{end}" for name in ("secret", "secrets") for end in ("yml", "yaml", "toml")), _SETTINGS),
    **dict.fromkeys((".envrc", ".my.cnf", ".terraformrc", "terraform.rc"), _SETTINGS),
    **dict.fromkeys((".token", "token", "token.txt", ".api_key", ".apikey", "api_key.txt", "apikey.txt"), _WORDS),
    **dict.fromkeys((".password", "password.txt", ".passwd", "passwd.txt", "secret.txt", ".secret"), _WORDS),
    **dict.fromkeys(("key.txt", "keys.txt"), _KEY),
    **dict.fromkeys(("config", "config.worktree", ".gitconfig", ".gitmodules", ".lfsconfig"), _GIT),
    **dict.fromkeys((".npmrc", ".yarnrc"), Suspect("registry token", None, secretclean.npm_settings)),
    ".yarnrc.yml": Suspect("registry token", None, secretclean.yarn_settings),
    **dict.fromkeys(("pip.conf", "pip.ini"), Suspect("password in a URL", None, secretclean.urls)),
    **dict.fromkeys(("pgpass.conf", ".mylogin.cnf"), _LOGIN),
    **dict.fromkeys(("netrc", ".authinfo"), _NETRC_FILE),
    **dict.fromkeys(("my.cnf", ".flaskenv"), _SETTINGS),
    "htpasswd": _HTPASSWD,
    **dict.fromkeys(
        ("gradle.properties", "local.properties", "keystore.properties", "key.properties", "signing.properties"),
        _PROPERTIES,
    ),
    **dict.fromkeys(("settings.xml", "ci_settings.xml"), _MAVEN),
    "nuget.config": Suspect("secrets in settings", None, cleansettings.nuget_settings),
    **dict.fromkeys(("appsettings.json", "local.settings.json"), _DOTNET),
    "wp-config.php": Suspect("secrets in settings", None, cleansettings.wordpress_settings),
    **dict.fromkeys((".mcp.json", "mcp.json", "mcp_config.json", ".claude.json", "claude_desktop_config.json"), _TOOLS),
    "application_default_credentials.json": Suspect("Google credentials"),
    "auth.json": Suspect("login", _auth_json),
    "vault.json": Suspect("impyard's vault", _vault),
    "kubeconfig": Suspect("cluster login", _kube),
    "secring.gpg": Suspect("gpg secret key"),
    **dict.fromkeys((f".env{ending}" for ending in _TEMPLATES), _TEMPLATE),
    ".env.example": _NOTHING,
    "debug.keystore": _NOTHING,  # Android's own: its password is public, and builds need it
}
_ENDINGS: Mapping[str, Suspect] = {
    **dict.fromkeys((".pem", ".p8", ".priv", ".private", ".crt", ".cer", ".cert", ".der", ".pub", ".openssh"), _KEY),
    **dict.fromkeys((".key", ".agekey"), Suspect(PRIVATE_KEY, _key_file)),
    **dict.fromkeys((".p12", ".pfx", ".jks", ".keystore", ".bks", ".jceks", ".keytab"), Suspect("key store")),
    **dict.fromkeys((".ppk", ".pk8"), Suspect(PRIVATE_KEY)),
    **dict.fromkeys((".kdbx", ".kdb"), Suspect("password safe")),
    **dict.fromkeys((".asc", ".gpg", ".pgp"), Suspect("gpg secret key", _gpg)),
    ".tfstate": Suspect("Terraform state"),
    **dict.fromkeys((".tfvars", ".env"), _SETTINGS),
    **dict.fromkeys((".ovpn", ".conf"), Suspect("VPN key", _conf)),
    ".kubeconfig": Suspect("cluster login", _kube),
    ".htpasswd": _HTPASSWD,
    ".json": Suspect("login", _json),
}
# By the folder's name, then the file's; `*` is any other.
_FOLDERS: Mapping[str, Mapping[str, Suspect]] = {
    ".bundle": {"config": Suspect("registry token", _bundle)},
    ".docker": {"config.json": Suspect("registry login", _json)},
    ".kube": {"config": Suspect("cluster login")},
    ".aws": {"credentials": Suspect("AWS credentials")},
    ".azure": dict.fromkeys(
        (
            *("accesstokens.json", "msal_token_cache.json", "msal_token_cache.bin"),
            *("service_principal_entries.json", "service_principal_entries.bin"),
        ),
        _LOGIN,
    ),
    ".cargo": {
        **dict.fromkeys(("credentials", "credentials.toml"), _TOKEN),
        **dict.fromkeys(("config", "config.toml"), _CARGO),
    },
    "glab-cli": {"config.yml": _SETTINGS},
    ".config": {"hub": _TOKEN},
    "pypoetry": {"auth.toml": _LOGIN},
    ".gem": {"credentials": _TOKEN},
    "gh": {"hosts.yml": _TOKEN},
    "gcloud": dict.fromkeys(("credentials.db", "access_tokens.db"), Suspect("Google credentials")),
    "huggingface": {"token": _TOKEN},
    ".pulumi": {"credentials.json": _TOKEN},
    ".fly": {"config.yml": _TOKEN},
    ".claude": {
        ".credentials.json": Suspect("model credentials"),
        **dict.fromkeys(("settings.json", "settings.local.json"), _TOOLS),
    },
    ".gemini": {"oauth_creds.json": Suspect("model credentials"), "settings.json": _TOOLS},
    ".m2": dict.fromkeys(("settings.xml", "settings-security.xml"), _LOGIN),
    ".snowsql": {"config": _LOGIN},
    ".ssh": {**dict.fromkeys(("config", "known_hosts", "authorized_keys"), _NOTHING), "*": _KEY},
    ".gnupg": {"*": Suspect("gpg secret key", _gpg)},
    "private-keys-v1.d": {"*": Suspect("gpg secret key")},
}
