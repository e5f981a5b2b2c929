"""Copies of settings without the secrets in them, for files that a project needs: git's, npm's, yarn's, pip's. Pure.

Each function gets a file's text and returns the text of the copy, which is the text itself where there is nothing to
take out, and None when a secret is there that cannot be taken out for sure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import re2

from impyard.runner.gitsettings import plain_value


class Groups(Protocol):
    """What a match of an expression holds."""

    def __getitem__(self, group: int, /) -> bytes: ...


def linear(pattern: bytes) -> re2._Regexp:
    """An expression of RE2 over bytes as they are. An agent may have written the file that it looks at: whatever that
    holds, one search takes time in proportion to its length."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return re2.compile(pattern, options)


_URL_USER = linear(rb"([A-Za-z][A-Za-z0-9+.-]*://)([^\s/]+)@")
_VALUE_USER = linear(rb"\A([A-Za-z][A-Za-z0-9+.-]*://)([^/]+)@")  # with blanks in it
_REFERENCE = linear(rb"\$\{?\w+\}?")
_TOKEN = linear(rb"[A-Za-z0-9_.%~-]{20,}|(?:gh[a-z]|glpat|npm|pypi|hf)[_-].+")
_ISSUED = linear(
    rb"(?:gh[a-z]|github_pat|glpat|npm|pypi|hf|sk|xox[a-z]|hv[sbr]|dckr|dop|AKIA|ya29|lin|eyJ)[_.-]?[A-Za-z0-9_.-]{20,}"
)
_HEADING = rb'\[(?:"(?:\\.|[^"\\\n])*"|[^\]"\n])*\]'
_GIT_FILE = linear(rb"(?im)^[ \t]*\[(?:core|remote|branch|http|credential|url|include|includeif|submodule|lfs|user)\b")
# A setting with the lines that a backslash joins to it; commented ones too.
_SETTING = linear(
    rb"(?m)^([ \t#;]*(?:" + _HEADING + rb"[ \t]*)?)([A-Za-z][A-Za-z0-9-]*)([ \t]*=)"
    rb"((?:[^\\\n]|\\\r?\n|\\[^\n]|\\\z)*)"
)
_STORE = linear(rb"\bstore\b")
_STORE_FILE = linear(rb"--file[= ]\s*['\"]?([^\s'\"]+)")
_WRITING = linear(rb'(?:\\\r?\n|["\\])+')
_AUTHORIZATION = linear(rb"(?i)extraheader\s*=\s*(?:proxy-)?authorization")
_SECRET_KEY = linear(rb"(?i)(?:pass|passw(?:or)?d|token|secret|api-?key|privatekey)\z")
_SECRET_HEADER = linear(rb"(?i)\A[^:]*(?:auth|token|cookie|key|secret|pass)[^:]*:")
_SAID_PASSWORD = linear(rb"password=(?:[^\s\"'$]|[\"'](?:[^$]|\z))")
_NPM = linear(
    rb"(?m)^([ \t]*[\"']?(?:[^\s=#;]*:)?_(?:authToken|auth|password)(?:\[\])?[\"']?)"
    rb"(?:[ \t]*=[ \t]*|[ \t]+)([^\r\n]*)"
)
_NPM_KEY = linear(rb"(?m)^([ \t]*[\"']?[^\s=#;]*\bkey[\"']?)[ \t]*=[^\r\n]*PRIVATE KEY[^\r\n]*")
_YARN = linear(rb"(?m)(\bnpmAuth(?:Token|Ident)[\"']?[ \t]*:[ \t]*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,}#][^,}#\r\n]*|)")


def git_settings(text: str) -> str | None:
    """git's settings (git-config(1), "Syntax") without what logs in: users in URLs, headers with authorization,
    passwords, and programs that say one. Text that is no settings of git is returned as it is."""
    data = _bytes(text)
    if not _GIT_FILE.search(data):
        return text
    clean = replaced(_SETTING, _git_setting, without_users(data))
    plain = replaced(_WRITING, lambda _: b"", clean)  # whatever way it is written
    if without_users(plain) != plain or _AUTHORIZATION.search(plain):
        return None
    return _text(clean)


def git_stores(text: str) -> list[str]:
    """The files in which git's settings have a helper keep passwords."""
    found = []
    for one in _SETTING.finditer(_bytes(text)):
        value = _plain(one[4]) if one[2].lower() == b"helper" else b""
        if _STORE.search(value):
            found += [_text(file[1]) for file in _STORE_FILE.finditer(value)]
    return found


def npm_settings(text: str) -> str | None:
    """npm's settings, and yarn's older ones, without tokens and passwords; references to variables stay."""
    data = replaced(_NPM, lambda found: found[0] if _is_reference(found[2]) else _kept(found), _bytes(text))
    return _text(without_users(replaced(_NPM_KEY, _kept, data)))


def yarn_settings(text: str) -> str | None:
    """yarn's settings without its tokens."""
    data = _bytes(text)
    if any(found[2][:1] in {b"", b">", b"|", b"&", b"*", b"!"} for found in _YARN.finditer(data)):
        return None  # the value stands elsewhere
    clean = replaced(_YARN, lambda found: found[0] if _is_reference(found[2]) else found[1] + b'""', data)
    return _text(without_users(clean))


def urls(text: str) -> str:
    """Any text, without the passwords in URLs."""
    return _text(without_users(_bytes(text)))


def is_token(value: bytes) -> bool:
    """Whether a value, or its last word, has the form of a token that somebody issued."""
    return _ISSUED.fullmatch(value.rpartition(b" ")[2]) is not None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _plain(raw: bytes) -> bytes:
    return _bytes(plain_value(_text(raw).lstrip()))


def replaced(pattern: re2._Regexp, change: Callable[[Groups], bytes], data: bytes) -> bytes:
    """The data with each match changed."""
    parts: list[bytes] = []
    end = 0
    for found in pattern.finditer(data):
        parts += [data[end : found.start()], change(found)]
        end = found.end()
    return b"".join([*parts, data[end:]])


def _kept(found: Groups) -> bytes:
    return b"; " + found[1].strip() + b" kept from the box"


def without_users(data: bytes) -> bytes:
    """The same of bytes."""
    return replaced(_URL_USER, _without_user, data)


def _without_user(found: Groups) -> bytes:
    scheme, user = found[1], found[2]
    name, _, password = user.strip(b"\"'").partition(b":")
    if password and not _is_reference(password):
        # Over ssh the name is whom to be there; elsewhere it may be the secret itself.
        return scheme + name + b"@" if b"ssh" in scheme.lower() else scheme
    return scheme if _TOKEN.fullmatch(name) and not _is_reference(name) else found[0]


def _is_reference(value: bytes) -> bool:
    value = value.strip(b"\"' \t")
    return not value or _REFERENCE.fullmatch(value) is not None


def _git_setting(found: Groups) -> bytes:
    head, key, equals, raw = found[1], found[2], found[3], found[4]
    value = _plain(raw)
    name = key.lower()
    if (
        (name == b"extraheader" and _SECRET_HEADER.match(value))
        or (name == b"helper" and _SAID_PASSWORD.search(value))
        or (_SECRET_KEY.search(name) and not name.endswith(b"askpass") and value)
    ):
        return head + key + equals
    clean = replaced(_VALUE_USER, _without_user, without_users(value))
    if clean == value:
        return found[0]
    for char, written in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\t", b"\\t"), (b"\b", b"\\b")):
        clean = clean.replace(char, written)
    return head + key + equals + b' "' + clean + b'"'
