"""Copies without secrets of settings that a project needs: cargo's, Gradle's, Maven's, NuGet's, .NET's, WordPress's,
templates of environment files, and those of tools that agents are given (MCP). Pure; for the rest as clean.py.

References such as `${TOKEN}` stay, and so do placeholders: what is no secret must not cost the agent a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import re2

from impyard.runner.secretfiles.clean import Groups, is_token, linear, replaced, urls

_SECRET = rb"(?:pass(?:word|wd|phrase)?|pwd|secret|token|(?:api|access|account|private|secret|signing|auth)[_.-]?key)"
_SECRET_NAME = linear(rb"(?i)(?:\A|[\w.:-])" + _SECRET + rb"\z|(?i)\A(?:pwd|authorization|cookie)\z")
_OPEN = linear(
    rb"(?i)\$[{(]|\A\$\w+\z|\A%\w+%\z|\{\{|\A[<{]|\AENC[\[(]"
    rb"|your|example|change|replace|placeholder|dummy|insert|\A(?:x+|\*+|true|false|null|none)\z"
)
_LEAST = 6  # characters of a secret
_TOML = linear(
    rb"(?i)([\w-]*(?:token|password|secret-key|secret|api[_-]key|access[_-]key)[\"']?\s*=\s*)(\"{3}|'{3}|\"[^\"\n]*\"|'[^'\n]*')"
)
_PROPERTY = linear(rb"(?im)^([ \t]*[\w.-]*" + _SECRET + rb"[ \t]*[=:][ \t]*)([^\r\n]*)")
_XML = linear(rb"(?is)(<(?:password|passphrase)>)([^<]*)(</)")
_NUGET = linear(rb"(?is)(<add\s+key\s*=\s*\"[^\"]*(?:password|apikey|token)[^\"]*\"\s+value\s*=\s*\")([^\"]*)(\")")
_NUGET_KEYS = linear(rb"(?is)(<apikeys>)(.*?)(</apikeys>)")
_VALUE = linear(rb"(?is)(\svalue\s*=\s*\")([^\"]*)(\")")
_JSON = linear(rb'(?i)("(?:[^"\\\n]|\\.)*' + _SECRET + rb'"\s*:\s*")((?:[^"\\\n]|\\.)*)(")')
_PARTS = linear(rb'(?i)((?:password|pwd|accountkey|sharedaccesskey|sharedsecret)\s*=\s*)([^;"\\\r\n]+)()')
_DEFINE = linear(
    rb"(?i)(\bdefine\s*\(\s*['\"](?:DB_PASSWORD|\w*(?:AUTH|LOGGED_IN|NONCE)_(?:KEY|SALT)|\w*_(?:SECRET|TOKEN|API_KEY|PASSWORD))"
    rb"['\"]\s*,\s*)('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")()"
)
# A line of an environment file, one in a comment too: name, value, what follows.
_ENV = linear(
    rb"(?m)^([ \t]*(?:#[ \t#]*)?(?:export[ \t]+)?[A-Za-z_][\w.-]*[ \t]*=[ \t]*)"
    rb"(\"[^\"\n]*\"|'[^'\n]*'|[^\n]*?)([ \t]+#[^\r\n]*\r?|[ \t\r]*)$"
)
_QUOTES = frozenset({b'"', b"'", b"`"})
_FLAG = linear(rb"(?i)\A(--?[\w-]*" + _SECRET + rb")(=.*)?\z")


def cargo_settings(text: str) -> str | None:
    """cargo's settings without tokens of registries."""
    data = text.encode("utf-8", "surrogateescape")
    if any(found[2][:3] in {b'"""', b"'''"} for found in _TOML.finditer(data)):
        return None
    return _without_users(
        replaced(_TOML, lambda found: found[1] + b'""' if _is_secret(found[2][1:-1]) else found[0], data)
    )


def properties(text: str) -> str | None:
    """Java's properties, as Gradle has them, without passwords and tokens."""
    data = text.encode("utf-8", "surrogateescape")
    if any(found[2].endswith(b"\\") and _is_secret(found[2]) for found in _PROPERTY.finditer(data)):
        return None  # it goes on in the next line
    return _without_users(replaced(_PROPERTY, lambda found: found[1] if _is_secret(found[2]) else found[0], data))


def env_template(text: str) -> str | None:
    """A template of an environment file, with all names and comments, and no value but placeholders and short ones: no
    name says for sure that it is none of a secret. None for what has other lines."""
    data = text.encode("utf-8", "surrogateescape")
    values = [found[2] for found in _ENV.finditer(data)]
    other = replaced(_ENV, lambda _: b"", data).splitlines()
    clean = _without_users(replaced(_ENV, _emptied, data))
    if (
        any(value.endswith(b"\\") or (value[:1] in _QUOTES and value[-1:] != value[:1]) for value in values)
        or any(line.strip() and not line.lstrip().startswith(b"#") for line in other)
        or any(map(is_token, clean.encode("utf-8", "surrogateescape").split()))
    ):
        return None  # a value goes on in the next line, or stands elsewhere
    return clean


def maven_settings(text: str) -> str | None:
    """Maven's settings without passwords of servers and proxies."""
    return _xml(text, _XML)


def nuget_settings(text: str) -> str | None:
    """NuGet's settings without passwords and keys of sources."""
    data = _xml(text, _NUGET).encode("utf-8", "surrogateescape")
    return _text(replaced(_NUGET_KEYS, lambda found: found[1] + replaced(_VALUE, _emptied, found[2]) + found[3], data))


def dotnet_settings(text: str) -> str | None:
    """Settings of .NET, which may have comments, without keys and the passwords of connections."""
    data = replaced(_JSON, _emptied, text.encode("utf-8", "surrogateescape"))
    return _without_users(replaced(_PARTS, _emptied, data))


def wordpress_settings(text: str) -> str | None:
    """WordPress's settings without its password and salts."""

    def emptied(found: Groups) -> bytes:
        return found[1] + b"''" if _is_secret(found[2][1:-1]) else found[0]

    return _text(replaced(_DEFINE, emptied, text.encode("utf-8", "surrogateescape")))


def tool_settings(text: str) -> str | None:
    """Which servers an agent has as tools (MCP), or what it has in its environment, without their tokens: in `env`,
    `headers`, arguments and URLs. None where there are some in what is no plain JSON."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        without = dotnet_settings(text)
        return text if without == text else None
    try:
        clean = _tools(content, "")
        return text if clean == content else json.dumps(clean, indent=2) + "\n"
    except RecursionError:
        return None


def _tools(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _tools(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return _arguments([_tools(each, "") for each in value])
    if not isinstance(value, str):
        return value
    data = value.encode("utf-8", "surrogatepass")
    if _is_secret(data.rpartition(b" ")[2]) and (
        _SECRET_NAME.search(name.encode("utf-8", "surrogatepass")) or is_token(data)
    ):
        return ""
    return urls(value) if data.isascii() else value


def _arguments(values: list[Any]) -> list[Any]:
    """A list without the values of options that are named like a secret."""
    clean: list[Any] = []
    is_next = False
    for value in values:
        found = _FLAG.match(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else None
        if is_next and isinstance(value, str) and found is None and _is_secret(value.encode("utf-8", "surrogatepass")):
            value = ""
        elif found is not None and found[2] and _is_secret(found[2][1:]):
            value = f"{found[1].decode()}="
        is_next = found is not None and not found[2]
        clean.append(value)
    return clean


def _xml(text: str, pattern: re2._Regexp) -> str:
    return _without_users(replaced(pattern, _emptied, text.encode("utf-8", "surrogateescape")))


def _emptied(found: Groups) -> bytes:
    return found[1] + found[3] if _is_secret(found[2]) else found[0]


def _is_secret(value: bytes) -> bool:
    """Whether a value stands for itself, and is no placeholder."""
    value = value.strip(b"\"' \t\r\n")
    return len(value) >= _LEAST and not _OPEN.search(value)


def _without_users(data: bytes) -> str:
    return urls(_text(data))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
