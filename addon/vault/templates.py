"""How a credential becomes headers, and lines of files: templates, and the ready ones by name.

A template is text with fields in braces: `Bearer {access}`, `Basic {b64:x-access-token:{key}}`. There is no way to
write a brace as such, so what is rendered holds none but those of the values. Values in, text out: nothing here knows
a policy, a vault or a request.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

HOST = "host"  # a field of files only: the binding's host, with its port where that is not the scheme's own

MAX_TEXT = 2048
_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_BASE64 = "b64:"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROL_BUT_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NEVER = {
    "refresh": "a refresh token goes to its token endpoint only, never into a request",
    "expires": "there is no such value",
}
_HELP = "write {field} or {b64:text {field}}"


@dataclass(frozen=True, slots=True)
class _Base64:
    """Pieces of which the base64 form is wanted."""

    pieces: tuple[str | _Field, ...]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str


_Piece = str | _Field | _Base64


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template. fields: the names that it takes values of. literals: its text outside of fields."""

    pieces: tuple[_Piece, ...] = field(repr=False)
    fields: frozenset[str]
    literals: tuple[str, ...] = field(repr=False)

    @staticmethod
    def parse(text: str, *, lines: bool = False) -> Template:
        """The template that `text` spells; `lines` lets it have several, and tabs, as in a file.

        Raises ValueError with words for people. They hold nothing of the text, which may be a secret by mistake.
        """
        if not text.strip():
            raise ValueError("it is empty")
        if len(text) > MAX_TEXT:
            raise ValueError(f"it is longer than {MAX_TEXT} characters")
        if (_CONTROL_BUT_LINES if lines else _CONTROL).search(text):
            raise ValueError("it holds control characters")
        if not lines and (text != text.strip() or not text.isascii()):
            raise ValueError("it must be plain ASCII without space at its ends")
        parser = _Parser(text)
        pieces = parser.pieces()
        flat = [part for piece in pieces for part in (piece.pieces if isinstance(piece, _Base64) else (piece,))]
        return Template(
            pieces,
            frozenset(part.name for part in flat if isinstance(part, _Field)),
            tuple(part for part in flat if isinstance(part, str)),
        )

    def render(self, values: Mapping[str, str]) -> str:
        """The text with the values put in. Raises KeyError, naming the field, when one is missing.

        A value with control characters is a ValueError, as it could begin another header or line. Neither error
        holds a value.
        """
        return "".join(_rendered(piece, values) for piece in self.pieces)

    def taken(self, values: Mapping[str, str]) -> list[str]:
        """The pieces of the rendered text that hold a value, without what the template says by itself. Raises as
        `render`."""
        return [_rendered(piece, values) for piece in self.pieces if _has_field(piece)]


def _has_field(piece: _Piece) -> bool:
    if isinstance(piece, _Base64):
        return any(isinstance(part, _Field) for part in piece.pieces)
    return isinstance(piece, _Field)


def _rendered(piece: _Piece, values: Mapping[str, str]) -> str:
    if isinstance(piece, str):
        return piece
    if isinstance(piece, _Base64):
        return base64.b64encode("".join(_rendered(part, values) for part in piece.pieces).encode()).decode()
    value = values[piece.name]
    if _CONTROL.search(value):
        raise ValueError(f"the value of {piece.name} holds control characters")
    return value


class _Parser:
    """One pass over a template's text. Places in messages count from 1."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def pieces(self) -> tuple[_Piece, ...]:
        found: list[_Piece] = []
        while self.at < len(self.text):
            if literal := self.literal():
                found.append(literal)
            elif self.text[self.at] == "}":
                raise ValueError(f'a "}}" without its "{{" at character {self.at + 1}')
            elif self.text.startswith(_BASE64, self.at + 1):
                found.append(self.base64())
            else:
                found.append(self.field())
        return tuple(found)

    def literal(self) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in "{}":
            self.at += 1
        return self.text[start : self.at]

    def field(self) -> _Field:
        start = self.at
        found = _FIELD.match(self.text, start + 1)
        if not found or not self.text.startswith("}", found.end()):
            raise ValueError(f"unknown braces at character {start + 1}: {_HELP}")
        if why := _NEVER.get(found[0]):
            raise ValueError(f"{{{found[0]}}}: {why}")
        self.at = found.end() + 1
        return _Field(found[0])

    def base64(self) -> _Base64:
        start = self.at
        self.at += 1 + len(_BASE64)
        found: list[str | _Field] = []
        while not self.text.startswith("}", self.at):
            if self.at >= len(self.text):
                raise ValueError(f'the "{{" at character {start + 1} has no "}}": {_HELP}')
            if literal := self.literal():
                found.append(literal)
            elif self.text.startswith("{", self.at):
                if self.text.startswith(_BASE64, self.at + 1):
                    raise ValueError(f"b64 inside of b64 at character {self.at + 1}")
                found.append(self.field())
        self.at += 1
        if not found:
            raise ValueError(f"b64 of nothing at character {start + 1}: {_HELP}")
        return _Base64(tuple(found))


@dataclass(frozen=True, slots=True)
class Variant:
    """The headers of one way to present a credential. kind: "api_key" or "oauth", None for any.

    headers: (lower-case name, template), each name once.
    """

    kind: str | None
    headers: tuple[tuple[str, Template], ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A ready template: how a provider wants its credential, and where its tools look for it in the box.

    env: variables that hold the sentinel. files: (path in HOME, template with `lines`). also: further headers, in lower
    case, in which the service would take another account's credential from the box.
    """

    variants: tuple[Variant, ...]
    env: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    also: tuple[str, ...] = ()


def _variant(kind: str | None, **headers: str) -> Variant:
    named = tuple((name.replace("_", "-"), Template.parse(text)) for name, text in headers.items())
    return Variant(kind, named)


_KEY = _variant("api_key", authorization="Bearer {key}")
_LOGIN = _variant("oauth", authorization="Bearer {access}")
_X_API_KEY = _variant("api_key", x_api_key="{key}")
_BEARER = Ready((_KEY, _LOGIN))


def _ready(names: Iterable[str], ready: Ready) -> dict[str, Ready]:
    return dict.fromkeys(names, ready)


# As pi 1.6.0 sends them, and by the services' documents. All headers of all variants are the gateway's.
READY: Mapping[str, Ready] = MappingProxyType(
    {
        "anthropic": Ready((_X_API_KEY, _LOGIN)),
        "openai": _BEARER,
        "openai-codex": Ready((_variant("oauth", authorization="Bearer {access}", chatgpt_account_id="{account_id}"),)),
        "google": Ready((_variant(None, x_goog_api_key="{key}"),), also=("authorization",)),
        # Claude models are asked for at /messages with x-api-key, all others with a bearer token.
        "openrouter": Ready((_KEY, _X_API_KEY, _LOGIN, _variant("oauth", x_api_key="{access}"))),
        **_ready(("github-copilot", "xai", "groq", "mistral", "deepseek", "cerebras", "together"), _BEARER),
        **_ready(("fireworks", "huggingface", "nvidia", "moonshotai", "zai", "kimi-coding"), _BEARER),
        "minimax": Ready((_X_API_KEY, _KEY)),
        "vercel-ai-gateway": Ready((_X_API_KEY, _KEY)),
        "github": Ready((_KEY,), env=("GH_TOKEN", "GITHUB_TOKEN")),
        # Git's smart HTTP takes the token as a password only.
        "github-git": Ready((_variant("api_key", authorization="Basic {b64:x-access-token:{key}}"),)),
        # One host for both: the API takes the first header and git the second, and each ignores the other's.
        "gitlab": Ready(
            (_variant("api_key", private_token="{key}", authorization="Basic {b64:oauth2:{key}}"),),
            env=("GITLAB_TOKEN",),
            also=("job-token", "deploy-token"),
        ),
        "npm": Ready((_KEY,), env=("NPM_TOKEN",), files=((".npmrc", "//{host}/:_authToken={key}"),)),
    }
)

# Services of which one host wants another template than the one that is named like the service.
BY_HOST: Mapping[tuple[str, str], str] = MappingProxyType(
    {("github", "github.com"): "github-git", ("github", "gist.github.com"): "github-git"}
)


def ready_for(name: str, host: str) -> Ready | None:
    """The ready template of this name as `host` wants it; None when there is none."""
    return READY.get(BY_HOST.get((name, host), name))
