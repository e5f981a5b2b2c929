"""What of pi's files is known to hold no secret, and so may stand in the box: an allow list, from pi's documents.

What is not on it is left out or taken for a secret: pi's files have room for keys in many places, under any name. The
facts are from pi's docs/models-configuration.md and docs/providers.md. No message has a value in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from impyard.addon.errors import ImpyardError
from impyard.addon.request import canonical_host
from impyard.runner.keys.pifiles import header_field
from impyard.runner.keys.pishapes import MODEL, OVERRIDE, PROVIDER, Shape, Wrong
from impyard.runner.keys.plainvalues import is_model, looks_harmless

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:/@+()-]{0,39}|")  # of a setting; a key is rarely so short
_BARE_HOST = re.compile(r"(?:https?://)?((?:[a-z0-9](?:[a-z0-9-]{0,40}[a-z0-9])?\.)+[a-z]{2,20})/?")

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


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(_WORD.fullmatch(value)) and looks_harmless(value)


def _is_id(value: Any) -> bool:
    """A value under a name that says that it is no secret: Cloudflare's ids are 32 digits."""
    return isinstance(value, str) and bool(_WORD.fullmatch(value))


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and fault_of_address(value) == ""


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

    def plain(part: Mapping[str, Any], known: Mapping[str, Shape], place: tuple[str | int, ...]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in part.items():
            if name == "headers" and isinstance(value, dict):
                kept["headers"] = _plain_headers(value, place, headers)
            elif name == "baseUrl" and name in known and _is_address(value):
                kept[name] = value
            elif name in known and name != "baseUrl":
                try:
                    kept[name] = known[name](value)
                    _compare(value, kept[name], (*place, name), left_out)
                except Wrong:
                    left_out.append(_path(place, name))
            elif name not in ("apiKey", "models", "modelOverrides"):
                left_out.append(_path(place, name))
        return kept

    found = plain(entry, PROVIDER, ())
    if isinstance(models := entry.get("models"), list):
        found["models"] = [
            plain(model, MODEL, ("models", number))
            for number, model in enumerate(model for model in models if isinstance(model, dict))
        ]
    if isinstance(overrides := entry.get("modelOverrides"), dict):
        found["modelOverrides"] = {
            name: plain(part, OVERRIDE, ("modelOverrides", name))
            for name, part in overrides.items()
            if is_model(name) and isinstance(part, dict)
        }
    return Plain(found, tuple(headers), tuple(left_out))


def _compare(given: Any, kept: Any, place: tuple[str | int, ...], left_out: list[str]) -> None:
    """Name the keys that a shape left out, at any depth."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            if name in kept:
                _compare(value, kept[name], (*place, name), left_out)
            else:
                left_out.append(_path(place, name))
    elif isinstance(given, list) and isinstance(kept, list):
        for before, after in zip(given, kept, strict=True):
            _compare(before, after, place, left_out)


def _path(place: tuple[str | int, ...], name: str) -> str:
    """A key with where it stands, as far as it cannot be a secret in the wrong place."""
    return ".".join(map(str, (*place, name if is_model(name) else "…")))


def plain_extra(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What of an entry in auth.json, beside key and tokens, may stand in the box: what pi reads and is no secret."""
    found: dict[str, Any] = {}
    own = entry.get("enterpriseUrl")
    if isinstance(own, str) and (bare := _BARE_HOST.fullmatch(own)) and looks_harmless(own):
        found["enterpriseUrl"] = bare[1]
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
    if len(address) > 300 or not address.isprintable() or not looks_harmless(address):
        return "holds what looks like a key"
    return ""


def _plain_headers(found: Mapping[str, Any], place: tuple[str | int, ...], headers: list[Header]) -> dict[str, str]:
    """The headers that hold no secret; the others are added to `headers`."""
    kept = {}
    for name, value in found.items():
        if not isinstance(value, str) or not is_model(name):
            continue
        if named := header_field(name, value):
            headers.append(Header(place, name, value, named))
        else:
            kept[name] = value
    return kept
