"""Copies without secrets of settings that a project needs: cargo's, Gradle's, Maven's, NuGet's, .NET's, WordPress's,
templates of environment files, and those of tools that agents are given (MCP). Pure; for the rest as clean.py.

References such as `${TOKEN}` stay, and so do placeholders: what is no secret must not cost the agent a file. Names
that are written with escapes (a `w` as its number) are not known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from impyard.runner.secretfiles.clean import Groups, is_token, linear, replaced, without_users

_SECRET = rb"(?:pass(?:word|wd|phrase)?|pwd|secret|token|(?:api|access|account|private|secret|signing|auth)[_.-]?key)"
_SECRET_NAME = linear(rb"(?i)(?:\A|[\w.:-])" + _SECRET + rb"\z|(?i)\A(?:pwd|authorization|cookie)\z|(?i)[_-]pat\z")
# Whole references only: half of one may stand in what was made by chance, as WordPress's salts are.
_REFERENCE = linear(
    rb"\$?\{\{[^{}]*\}\}|\$\{[^{}]*\}|\$\([^()]*\)|%\w+%|ENC\[[^\[\]]*\]|ENC\([^()]*\)|\A\$\w+\z|\A<[^<>]*>\z|\A\{[^{}]*\}\z"
)
_PLACEHOLDER = linear(
    rb"(?i)your|example|(?:change|replace|insert)[_ -]?(?:me|it|this|to|with|here|your)|placeholder|dummy"
    rb"|\A(?:x+|\*+|true|false|null|none)\z"
)
_LEAST = 6  # characters of a secret
_SCHEME = linear(rb"(?i)\A\s*(?:bearer|basic|digest|token|negotiate|oauth|jwt|api-?key|key)\s+")
_TOML = linear(
    rb"(?i)([\w-]*(?:token|password|secret-key|secret|api[_-]key|access[_-]key)[\"']?\s*=\s*"
    rb"(?:\{\s*(?:[\w-]+\s*=\s*\w+\s*,\s*)*value\s*=\s*)?)(\"{3}|'{3}|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*')"
)
_PROPERTY = linear(
    rb"(?im)^((?:\xef\xbb\xbf)?[ \t\f#!]*[\w.-]*(?:" + _SECRET + rb"|signingInMemoryKey)[ \t]*[=:][ \t]*)([^\r\n]*)"
)
_XML = linear(rb"(?is)(<[\w.:-]*" + _SECRET + rb"(?:\s[^<>]*)?>)((?:[^<]|<!\[CDATA\[.*?\]\]>|<!--.*?-->)*)(</)")
_XML_MARKS = linear(rb"(?s)<!\[CDATA\[(.*?)\]\]>|<!--(.*?)-->")
_XML_HEADER = linear(rb"(?is)(<name>\s*[\w-]*(?:token|secret|key|authorization|cookie)\s*</name>\s*<value>)([^<]*)(</)")
_NUGET = linear(rb"(?is)<add\s(?:\"[^\"]*\"|'[^']*'|[^<>\"'])*>")
_NUGET_NAME = linear(rb"(?is)\skey\s*=\s*(?:\"[^\"]*(?:password|apikey|token)|'[^']*(?:password|apikey|token))")
_NUGET_KEYS = linear(rb"(?is)(<apikeys\b[^<>]*>)(.*?)(</apikeys\s*>)")
_VALUE = linear(rb"(?is)(\svalue\s*=\s*)(\"[^\"]*\"|'[^']*')()")
_JSON = linear(rb'(?i)("(?:[^"\\\n]|\\.)*' + _SECRET + rb'"\s*:\s*(?:/\*[^*]*\*/\s*)?")((?:[^"\\\n]|\\.)*)(")')
_JSON_KEY = linear(rb'(?i)("(?:jwt[_.-]?)?key"\s*:\s*")([^"\\\n:]{16,})(")')
_DIGIT = linear(rb"[0-9]")
_PARTS = linear(
    rb"(?i)((?:password|pwd|accountkey|sharedaccesskey|sharedsecret)\s*=\s*)"
    rb"('[^'\"\r\n]*'|\\\"(?:[^\"\\\r\n]|\\[^\"\r\n])*\\\"|(?:[^;\"\\\r\n]|\\[^\"\r\n])+)()"
)
_PHP_NAME = (
    rb"(?:DB_PASSWORD|FTP_PASS|\w*(?:AUTH|LOGGED_IN|NONCE)_(?:KEY|SALT)"
    rb"|\w*_(?:SECRET|TOKEN|API_KEY|SECRET_ACCESS_KEY|PASSWORD))"
)
_PHP = linear(
    rb"(?i)(\bdefine\s*\(\s*['\"]" + _PHP_NAME + rb"['\"]\s*,|\bconst\s+" + _PHP_NAME + rb"\s*=)"
    rb"((?:'(?:[^'\\]|\\(?s:.))*'|\"(?:[^\"\\]|\\(?s:.))*\"|[^'\";])*)"
)
_PHP_TEXT = linear(rb"(?s)'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_PHP_VARIABLE = linear(rb"['\"][A-Z][A-Z0-9_]*['\"]")  # the name of one in the environment
# A line of an environment file, one in a comment too: name, value, what follows.
_ENV = linear(
    rb"(?m)^([ \t]*(?:#[ \t#]*)?(?:export[ \t]+)?[A-Za-z_][\w.-]*[ \t]*=[ \t]*)"
    rb"(\"[^\"\n]*\"|'[^'\n]*'|[^\n]*?)([ \t]+#[^\r\n]*\r?|[ \t\r]*)$"
)
_QUOTES = frozenset({b'"', b"'", b"`"})
_FLAG = linear(rb"(?i)\A(--?[\w-]*" + _SECRET + rb")(=.*)?\z")
# In arguments, commands and URLs: `-e API_KEY=…`, `--header "X-Api-Key: …"`, `?token=…`.
_NAMED = linear(
    rb"(?i)((?:[\w.-]*(?:" + _SECRET + rb"|authorization|cookie)[\"']?\s*[=:]|\s--?[\w-]*" + _SECRET + rb"\s)\s*"
    rb"(?:(?:bearer|basic|digest|token)\s+)?[\"']?)([^\s&;\"']+)()"
)
_JSON_TEXT = rb'("(?:[^"\\\n]|\\.)*")'
_COMMENT = linear(_JSON_TEXT + rb"|//[^\n]*|/\*(?s:.*?)\*/")
_LAST_COMMA = linear(_JSON_TEXT + rb"|,(\s*[}\]])")


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
    if any(found[2].endswith(b"\\") for found in _PROPERTY.finditer(data)):
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
    data = replaced(_XML_HEADER, _emptied, text.encode("utf-8", "surrogateescape"))
    return _without_users(replaced(_XML, _emptied_xml, data))


def nuget_settings(text: str) -> str | None:
    """NuGet's settings without passwords and keys of sources."""

    def added(found: Groups) -> bytes:
        return replaced(_VALUE, _emptied_text, found[0]) if _NUGET_NAME.search(found[0]) else found[0]

    def keys(found: Groups) -> bytes:
        return found[1] + replaced(_VALUE, _emptied_text, found[2]) + found[3]

    data = replaced(_NUGET, added, text.encode("utf-8", "surrogateescape"))
    return _without_users(replaced(_NUGET_KEYS, keys, data))


def dotnet_settings(text: str) -> str | None:
    """Settings of .NET, which may have comments, without keys and the passwords of connections."""
    data = replaced(_JSON, _emptied, text.encode("utf-8", "surrogateescape"))
    data = replaced(_JSON_KEY, lambda found: _emptied(found) if _DIGIT.search(found[2]) else found[0], data)
    return _without_users(replaced(_PARTS, _emptied, data))


def wordpress_settings(text: str) -> str | None:
    """WordPress's settings without its password and salts."""
    data = text.encode("utf-8", "surrogateescape")
    if any(b"<<<" in replaced(_PHP_TEXT, lambda _: b"", found[2]) for found in _PHP.finditer(data)):
        return None  # text of several lines

    def emptied(found: Groups) -> bytes:
        return b"''" if _is_secret(found[0][1:-1]) else found[0]

    def but_names(found: Groups) -> bytes:
        return found[0] if _PHP_VARIABLE.fullmatch(found[0]) else emptied(found)

    def defined(found: Groups) -> bytes:
        is_plain = _PHP_TEXT.fullmatch(found[2].strip(b" \t\r\n)")) is not None
        return found[1] + replaced(_PHP_TEXT, emptied if is_plain else but_names, found[2])

    return _text(replaced(_PHP, defined, data))


def tool_settings(text: str) -> str | None:
    """Which servers an agent has as tools (MCP), or what it has in its environment, without their tokens: in `env`,
    `headers`, arguments and URLs. None for what is no JSON, and where there are some in JSON with comments or twice the
    same name."""
    try:
        content, is_plain = _json(text)
        clean = _tools(content, "")
        if clean == content:
            return text if is_plain or dotnet_settings(text) == text else None
        return json.dumps(clean, indent=2) + "\n" if is_plain else None
    except (_Twice, ValueError, RecursionError):
        return None


class _Twice(Exception):
    """Two values have the same name: which of them holds is each program's choice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice
    return found


def _json(text: str) -> tuple[Any, bool]:
    """What JSON says, and whether it is JSON as it should be: many tools take comments and a last comma. Raises
    ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_once), True
    except ValueError:
        data = text.removeprefix("\ufeff").encode("utf-8", "surrogateescape")
        data = replaced(_COMMENT, lambda found: found[1] or b" ", data)
        data = replaced(_LAST_COMMA, lambda found: found[1] or found[2], data)
        return json.loads(data, object_pairs_hook=_once), False


def _tools(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _tools(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return _arguments([_tools(each, name) for each in value])
    if not isinstance(value, str):
        return value
    data = value.encode("utf-8", "surrogatepass")
    is_named = _SECRET_NAME.search(name.strip().encode("utf-8", "surrogatepass"))
    if _is_secret(data) and (is_named or is_token(data)):
        return ""
    return replaced(_NAMED, _emptied, without_users(data)).decode("utf-8", "surrogatepass")


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


def _emptied_xml(found: Groups) -> bytes:
    bare = replaced(_XML_MARKS, lambda mark: (mark[1] or b"") + (mark[2] or b""), found[2])
    return found[1] + found[3] if _is_secret(bare) else found[0]


def _emptied_text(found: Groups) -> bytes:
    """A value without what stands in its quotes."""
    return found[1] + found[2][:1] + found[2][-1:] if _is_secret(found[2][1:-1]) else found[0]


def _emptied(found: Groups) -> bytes:
    return found[1] + found[3] if _is_secret(found[2]) else found[0]


def _is_secret(value: bytes) -> bool:
    """Whether a value, or what stands behind its scheme, stands for itself, and is no placeholder."""
    value = replaced(_SCHEME, lambda _: b"", value.strip(b"\"' \t\r\n"))
    return len(replaced(_REFERENCE, lambda _: b"", value)) >= _LEAST and not _PLACEHOLDER.search(value)


def _without_users(data: bytes) -> str:
    return _text(without_users(data))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
