"""What of pi's files is known to hold no secret, and so may stand in the box: an allow list, from pi's documents.

What is not on it is left out or taken for a secret: pi's files have room for keys in many places, under any name. The
facts are from pi's docs/models-configuration.md and docs/providers.md. No message has a value in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from impyard.addon.errors import ImpyardError
from impyard.addon.request import canonical_host
from impyard.runner.pifiles import SECRET_NAME, header_field

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:/@+()-]{0,39}|")  # of a setting; a key is rarely so short
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,99}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,63}")  # of a setting of compat and the like
_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")
_LONGEST_WORD = 24
_DIGITS, _LONGEST_NAME = 4, 48  # of a name
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.IGNORECASE)
_DEPTH = 6

# Beyond these, a variable of an entry is a secret.
PLAIN_VARIABLES = frozenset(
    {
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AZURE_OPENAI_API_VERSION",
        "AZURE_OPENAI_RESOURCE_NAME",
        "CLOUDFLARE_ACCOUNT_ID",
        "CLOUDFLARE_GATEWAY_ID",
        "GOOGLE_CLOUD_LOCATION",
        "GOOGLE_CLOUD_PROJECT",
    }
)

_Check = Callable[[Any], bool]


def _looks_harmless(text: str) -> bool:
    """No key by its look, and no word as long as keys are."""
    if any(len(word) > _LONGEST_WORD for word in _SEPARATORS.split(text)):
        return False
    from impyard.addon import redact  # it loads RE2, which most runs have no need of this early

    return redact.is_clean((text,))


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(_WORD.fullmatch(value)) and _looks_harmless(value)


def _is_id(value: Any) -> bool:
    """A value under a name that says that it is no secret: Cloudflare's ids are 32 digits."""
    return isinstance(value, str) and bool(_WORD.fullmatch(value))


def is_model(value: Any) -> bool:
    """Whether it reads like the name of a model or provider, and like no key."""
    return isinstance(value, str) and bool(_MODEL.fullmatch(value)) and _looks_harmless(value)


def _is_title(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 100 and value.isprintable() and _looks_harmless(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) or value is None


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a whole value is of numbers and short words, under names that say nothing of a secret."""
    if isinstance(value, dict):
        return depth < _DEPTH and all(_is_name(name) and _is_plain(item, depth + 1) for name, item in value.items())
    if isinstance(value, list):
        return depth < _DEPTH and all(_is_plain(item, depth + 1) for item in value)
    return _is_number(value) or _is_word(value)


def _is_name(name: str) -> bool:
    """Whether a setting may have this name: it says nothing of a secret, and is none itself."""
    # `maxTokensField` and `supportsThinkingTokenBudget` are about tokens of another kind.
    return _is_shown(name) and not SECRET_NAME.search(re.sub(r"(?i)tokens?|cachekey", "", name))


def _is_shown(name: str) -> bool:
    """Whether a name may stand in a message: `password` may, a password not."""
    return bool(_NAME.fullmatch(name)) and sum(map(str.isdigit, name)) <= _DIGITS and len(name) <= _LONGEST_NAME


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and fault_of_address(value) == ""


_MODEL_FIELDS: Mapping[str, _Check] = {
    "name": _is_title,
    "api": _is_word,
    "reasoning": _is_number,
    "thinkingLevelMap": _is_plain,
    "input": _is_plain,
    "inputLimits": _is_plain,
    "cost": _is_plain,
    "promptCache": _is_plain,
    "contextWindow": _is_number,
    "maxTokens": _is_number,
    "samplingParams": _is_plain,
    "samplingParamsByThinkingLevel": _is_plain,
    "compat": _is_plain,
}
_LISTED_FIELDS: Mapping[str, _Check] = {**_MODEL_FIELDS, "id": is_model, "baseUrl": _is_address}
_PROVIDER_FIELDS: Mapping[str, _Check] = {
    "name": _is_title,
    "baseUrl": _is_address,
    "api": _is_word,
    "oauth": _is_word,
    "authHeader": _is_number,
    "compat": _is_plain,
}


@dataclass(frozen=True, slots=True)
class Header:
    """A header of models.json that may hold a secret: where it stands (keys from the provider's entry on), its name,
    pi's template of its value, and the field of the credential that it becomes."""

    place: tuple[str | int, ...]
    name: str
    template: str = field(repr=False)
    named: str


@dataclass(frozen=True, slots=True)
class Plain:
    """A provider's entry without anything that may be secret: entry, the headers taken out, and names left out."""

    entry: dict[str, Any] = field(default_factory=dict)
    headers: tuple[Header, ...] = ()
    left_out: tuple[str, ...] = ()


def plain_provider(entry: Mapping[str, Any]) -> Plain:
    """What of a provider's entry in models.json may stand in the box. Its key is left out without being named."""
    headers: list[Header] = []
    left_out: list[str] = []

    def plain(part: Mapping[str, Any], known: Mapping[str, _Check], place: tuple[str | int, ...]) -> dict[str, Any]:
        kept = {}
        for name, value in part.items():
            if name == "headers" and isinstance(value, dict):
                kept["headers"] = _plain_headers(value, place, headers)
            elif name in known and known[name](value):
                kept[name] = value
            elif name not in ("apiKey", "models", "modelOverrides"):
                left_out.append(".".join(map(str, (*place, name if _is_shown(name) else "…"))))
        return kept

    found = plain(entry, _PROVIDER_FIELDS, ())
    if isinstance(models := entry.get("models"), list):
        found["models"] = [
            plain(model, _LISTED_FIELDS, ("models", number))
            for number, model in enumerate(model for model in models if isinstance(model, dict))
        ]
    if isinstance(overrides := entry.get("modelOverrides"), dict):
        found["modelOverrides"] = {
            name: plain(part, _MODEL_FIELDS, ("modelOverrides", name))
            for name, part in overrides.items()
            if is_model(name) and isinstance(part, dict)
        }
    return Plain(found, tuple(headers), tuple(left_out))


def plain_extra(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What of an entry in auth.json, beside key and tokens, may stand in the box: what pi reads and is no secret."""
    found: dict[str, Any] = {}
    own = entry.get("enterpriseUrl")
    if isinstance(own, str) and (_HOST.fullmatch(own) or fault_of_address(own) == ""):
        found["enterpriseUrl"] = own
    models = entry.get("availableModelIds")
    if isinstance(models, list) and all(map(is_model, models)):
        found["availableModelIds"] = models
    env = entry.get("env")
    if isinstance(env, dict):
        plain = {name: text for name, text in env.items() if name in PLAIN_VARIABLES and _is_id(text)}
        if plain:
            found["env"] = plain
    return found


def check_address(address: object, where: str) -> None:
    """Raises ImpyardError for a baseUrl that is none, or that may hold a secret."""
    if fault := fault_of_address(address):
        raise ImpyardError(
            f"{where}: its baseUrl {fault}",
            hint="write it as https://host/path; a key goes into apiKey or a header, and from there into the vault",
        )


def fault_of_address(address: object) -> str:
    """Why a baseUrl must not stand in the box, for people and without any of it; "" where it may."""
    if not isinstance(address, str):
        return "is no text"
    try:
        url = urlsplit(address)
        canonical_host(url.hostname or "")
        _ = url.port
    except ValueError:
        return "is no URL of a host"
    if url.scheme not in ("https", "http"):
        return "is no URL of a host"
    if "@" in url.netloc:
        return "holds a user"
    if url.query or url.fragment or "?" in address or "#" in address:
        return "holds a query"
    if len(address) > 300 or not address.isprintable() or not _looks_harmless(address):
        return "holds what looks like a key"
    return ""


def _plain_headers(found: Mapping[str, Any], place: tuple[str | int, ...], headers: list[Header]) -> dict[str, str]:
    """The headers that hold no secret; the others are added to `headers`."""
    kept = {}
    for name, value in found.items():
        if not isinstance(value, str):
            continue
        if named := header_field(name, value):
            headers.append(Header(place, name, value, named))
        else:
            kept[name] = value
    return kept
