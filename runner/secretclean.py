"""Copies of settings without the secrets in them, for files that a project needs: git's, npm's, yarn's, pip's. Pure.

Each function gets a file's text and returns the text of the copy, which is the text itself where there is nothing to
take out, and None when a secret is there that cannot be taken out for sure.
"""

from __future__ import annotations

import re

from impyard.runner.gitsettings import plain_value

_URL_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^\s/]+)@")
_VALUE_USER = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*://)([^/]+)@")  # with blanks in it
_REFERENCE = re.compile(r"\$\{?\w+\}?")
_TOKEN = re.compile(r"[A-Za-z0-9_.%~-]{20,}|(?:gh[a-z]|glpat|npm|pypi|hf)[_-].+")
_HEADING = r'\[(?:"(?:\\.|[^"\\\n])*"|[^\]"\n])*\]'
_GIT_FILE = re.compile(
    r"(?im)^[ \t]*\[(?:core|remote|branch|http|credential|url|include|includeif|submodule|lfs|user)\b"
)
# A setting with the lines that a backslash joins to it; commented ones too.
_SETTING = re.compile(
    rf"^([ \t#;]*(?:{_HEADING}[ \t]*)?)([A-Za-z][A-Za-z0-9-]*)([ \t]*=)((?:[^\\\n]|\\\r?\n|\\.|\\\Z)*)", re.MULTILINE
)
_SECRET_KEY = re.compile(r"(?:(?<!ask)pass|passw(?:or)?d|token|secret|api-?key|privatekey)$", re.IGNORECASE)
_SECRET_HEADER = re.compile(r"[^:]*(?:auth|token|cookie|key|secret|pass)[^:]*:", re.IGNORECASE)
_SAID_PASSWORD = re.compile(r"password=(?!\s*[\"']?\$)\S")
_NPM = re.compile(
    r"^([ \t]*[\"']?(?:[^\s=#;]*:)?_(?:authToken|auth|password)(?:\[\])?[\"']?)(?:[ \t]*=[ \t]*|[ \t]+)([^\r\n]*)",
    re.MULTILINE,
)
_NPM_KEY = re.compile(r"^([ \t]*[\"']?[^\s=#;]*\bkey[\"']?)[ \t]*=[^\r\n]*PRIVATE KEY[^\r\n]*", re.MULTILINE)
_YARN = re.compile(
    r"(\bnpmAuth(?:Token|Ident)[\"']?[ \t]*:[ \t]*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,}#][^,}#\r\n]*|(?=\s*$))", re.MULTILINE
)


def git_settings(text: str) -> str | None:
    """git's settings (git-config(1), "Syntax") without what logs in: users in URLs, headers with authorization,
    passwords, and programs that say one. Text that is no settings of git is returned as it is."""
    if not _GIT_FILE.search(text):
        return text
    clean = _SETTING.sub(_git_setting, _without_users(text))
    plain = re.sub(r'\\\r?\n|["\\]', "", clean)  # whatever way it is written
    if _without_users(plain) != plain or re.search(r"(?i)extraheader\s*=\s*(?:proxy-)?authorization", plain):
        return None
    return clean


def git_stores(text: str) -> list[str]:
    """The files in which git's settings have a helper keep passwords."""
    found = []
    for _, key, _, raw in _SETTING.findall(text):
        value = plain_value(raw.lstrip())
        if key.lower() == "helper" and re.search(r"\bstore\b", value):
            found += re.findall(r"--file[= ]\s*['\"]?([^\s'\"]+)", value)
    return found


def npm_settings(text: str) -> str | None:
    """npm's settings, and yarn's older ones, without tokens and passwords; references to variables stay."""
    text = _NPM.sub(
        lambda found: found[0] if _is_reference(found[2]) else f"; {found[1].strip()} kept from the box", text
    )
    return _without_users(_NPM_KEY.sub(lambda found: f"; {found[1].strip()} kept from the box", text))


def yarn_settings(text: str) -> str | None:
    """yarn's settings without its tokens."""
    clean = _YARN.sub(lambda found: found[0] if _is_reference(found[2]) else f'{found[1]}""', text)
    if any(value[:1] in {"", ">", "|", "&", "*", "!"} for _, value in _YARN.findall(text)):
        return None  # the value stands elsewhere
    return _without_users(clean)


def urls(text: str) -> str | None:
    """Any text, without the passwords in URLs."""
    return _without_users(text)


def _without_users(text: str) -> str:
    return _URL_USER.sub(_without_user, text)


def _without_user(found: re.Match[str]) -> str:
    scheme, user = found[1], found[2]
    name, _, password = user.strip("\"'").partition(":")
    if password and not _is_reference(password):
        # Over ssh the name is whom to be there; elsewhere it may be the secret itself.
        return f"{scheme}{name}@" if "ssh" in scheme.lower() else scheme
    return scheme if _TOKEN.fullmatch(name) and not _is_reference(name) else found[0]


def _is_reference(value: str) -> bool:
    return not value.strip("\"' \t") or _REFERENCE.fullmatch(value.strip("\"' \t")) is not None


def _git_setting(found: re.Match[str]) -> str:
    head, key, equals, raw = found.groups()
    value = plain_value(raw.lstrip())
    name = key.lower()
    if (
        (name == "extraheader" and _SECRET_HEADER.match(value))
        or (name == "helper" and _SAID_PASSWORD.search(value))
        or (_SECRET_KEY.search(name) and value)
    ):
        return f"{head}{key}{equals}"
    clean = _VALUE_USER.sub(_without_user, _without_users(value))
    if clean == value:
        return found[0]
    quoted = (
        clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t").replace("\b", "\\b")
    )
    return f'{head}{key}{equals} "{quoted}"'
