"""Which model a run uses, with whose key, and the agent folder that pi finds in the box.

Only what the chosen provider needs goes in: one entry of pi's own auth.json, or one key variable. It is the one secret
that a box can read. Templates (`$NAME`, `!command`) are resolved here, on the host, as pi would; a refresh token never
goes in, as the box would spend it. The facts about pi's files are from its docs/providers.md and docs/settings.md.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from impyard.addon.errors import ImpyardError
from impyard.runner.keysources import KEY_VARIABLES, agent_folder, literal, read_object, resolve_template

DEMO = "demo"
DEMO_HOST = "demo-model.impyard.internal"

CARRIED_SETTINGS = ("defaultProvider", "defaultModel", "defaultThinkingLevel")
BOX_SETTINGS: dict[str, Any] = {
    "transport": "sse",  # no WebSocket: the judge sees each call as a request of its own
    "cacheWarming": "off",
    "enableInstallTelemetry": False,
    "defaultProjectTrust": "never",
    "quietStartup": True,
    "httpIdleTimeoutMs": 600_000,
}
FAR_FUTURE_MS = 4_102_444_800_000  # 2100: pi must not try to refresh a token that came without its refresh token


@dataclass(frozen=True, slots=True)
class Agent:
    """What pi gets. `pattern` is for its `--model`, None for the provider's default; `provider` owns the credential.

    `auth`, `settings` and `models` are the files of pi's agent folder; `source` says where the credential came from.
    """

    provider: str
    pattern: str | None
    source: str
    settings: Mapping[str, Any]
    auth: Mapping[str, Any] = field(default_factory=dict, repr=False)
    models: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """The model for people: `anthropic/claude-…`, or `anthropic (its default model)`."""
        return self.pattern or f"{self.provider} (its default model)"

    @property
    def is_demo(self) -> bool:
        return self.provider == DEMO


def choose_agent(model: str | None, environ: Mapping[str, str], *, now: Callable[[], float] = time.time) -> Agent:
    """The agent for `--model` (None: what the user's pi would take). Raises ImpyardError, naming the ways to a key."""
    if model is not None and model.split("/")[0] == DEMO:
        return demo_agent()
    folder = agent_folder(environ)
    theirs = read_object(folder / "settings.json")
    carried = {key: theirs[key] for key in CARRIED_SETTINGS if isinstance(theirs.get(key), str)}
    stored = read_object(folder / "auth.json")
    custom = read_object(folder / "models.json").get("providers")
    custom = custom if isinstance(custom, dict) else {}
    provider, pattern = _pick(model, carried, stored, custom, environ, folder)

    settings = {**BOX_SETTINGS, **carried}
    if pattern is None:
        settings = {**settings, "defaultProvider": provider}
    models = _custom_provider(provider, custom, environ, folder / "models.json")
    entry, source = _credential(provider, stored, environ, folder / "auth.json", now)
    if entry is None and not (models and models["providers"][provider].get("apiKey")):
        raise ImpyardError(f"no credentials for the model provider `{provider}`", hint=_ways(provider, folder))
    return Agent(
        provider=provider,
        pattern=pattern,
        source=source or str(folder / "models.json"),
        settings=settings,
        auth={provider: entry} if entry is not None else {},
        models=models,
    )


def demo_agent() -> Agent:
    """The scripted model that ships with impyard (`demo.py`); it needs no key, so its credential is worthless."""
    provider = {
        "baseUrl": f"https://{DEMO_HOST}",
        "api": "anthropic-messages",
        "apiKey": "demo",
        "models": [{"id": DEMO, "name": "impyard demo (a script, no LLM)"}],
    }
    return Agent(
        provider=DEMO,
        pattern=f"{DEMO}/{DEMO}",
        source="none needed",
        settings=BOX_SETTINGS,
        models={"providers": {DEMO: provider}},
    )


def write_agent_folder(agent: Agent, home: Path) -> Path:
    """Write pi's agent folder into the new folder `home`, readable for its owner only, and return it."""
    folder = home / "agent"
    folder.mkdir(mode=0o700)
    for name, content in (("settings", agent.settings), ("auth", agent.auth), ("models", agent.models)):
        if content or name == "settings":
            handle = os.open(folder / f"{name}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(content, file)
    return folder


def _pick(
    model: str | None,
    carried: Mapping[str, str],
    stored: Mapping[str, Any],
    custom: Mapping[str, Any],
    environ: Mapping[str, str],
    folder: Path,
) -> tuple[str, str | None]:
    """Provider and `--model` pattern."""
    if model is not None:
        provider, slash, name = model.partition("/")
        if not slash or not provider or not name.strip() or model.startswith("-") or not model.isprintable():
            raise ImpyardError(
                f"`{model}` is not of the form provider/model",
                hint="for example --model anthropic/claude-sonnet-4-5, or --model demo",
            )
        return provider, model
    provider = carried.get("defaultProvider", "")
    if provider:
        name = carried.get("defaultModel", "")
        return provider, f"{provider}/{name}" if name else None
    from_variables = {name for name, keys in KEY_VARIABLES.items() if any(environ.get(key) for key in keys)}
    usable = sorted({name for name in stored if isinstance(stored[name], dict)} | from_variables)
    if len(usable) == 1:
        return usable[0], None
    if usable:
        raise ImpyardError(
            f"no model chosen, and there are credentials for several providers: {', '.join(usable)}",
            hint=f"choose with --model provider/model, for example --model {usable[0]}/…",
        )
    raise ImpyardError("no model chosen, and no credentials for one", hint=_ways(None, folder))


def _ways(provider: str | None, folder: Path) -> str:
    known = KEY_VARIABLES.get(provider or "anthropic", ())
    ways = []
    if known:
        example = "" if provider else " for --model anthropic/…"
        ways.append(f"set {known[-1]}{example}")
    ways.append(f"log in with `pi` on this machine (its {folder / 'auth.json'} is used)")
    ways.append("see how it works without a key: --model demo")
    return "; or ".join(ways)


def _credential(
    provider: str,
    stored: Mapping[str, Any],
    environ: Mapping[str, str],
    file: Path,
    now: Callable[[], float],
) -> tuple[dict[str, Any] | None, str]:
    """The auth.json entry for the box and where it came from. A stored one wins over variables, as in pi."""
    entry = stored.get(provider)
    where = f"{file}: {provider}"
    if isinstance(entry, dict) and entry.get("type") == "oauth":
        return _without_refresh(entry, where, now()), str(file)
    if isinstance(entry, dict):
        key = entry.get("key")
        if not isinstance(key, str) or not key:
            raise ImpyardError(f"{where}: the entry has no key", hint="log in again with `pi`")
        own = entry.get("env")
        own = {str(name): str(text) for name, text in own.items()} if isinstance(own, dict) else {}
        result: dict[str, Any] = {"type": "api_key", "key": literal(resolve_template(key, own, environ, where))}
        if own:
            result["env"] = own
        return result, str(file)
    for name in KEY_VARIABLES.get(provider, ()):
        if environ.get(name):
            return {"type": "api_key", "key": literal(environ[name])}, name
    return None, ""


def _without_refresh(entry: Mapping[str, Any], where: str, now: float) -> dict[str, Any]:
    """A login for the box: it may use the token that is there, and cannot get another."""
    expires = entry.get("expires")
    if isinstance(expires, int | float) and expires / 1000 < now + 60 and entry.get("refresh"):
        raise ImpyardError(
            f"{where}: the login has expired",
            hint="run `pi auth check --provider " + where.split()[-1] + "` to renew it",
        )
    return {**entry, "refresh": "", "expires": FAR_FUTURE_MS}


def _custom_provider(
    provider: str, custom: Mapping[str, Any], environ: Mapping[str, str], file: Path
) -> dict[str, Any]:
    """The models.json for the box: the user's own entry of this provider, with its templates resolved."""
    entry = custom.get(provider)
    if not isinstance(entry, dict):
        return {}
    where = f"{file}: {provider}"
    host = urlsplit(str(entry.get("baseUrl", ""))).hostname or ""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        raise ImpyardError(
            f"{where}: baseUrl names {host}, which inside the box is the box itself",
            hint=f"give it a name, baseUrl https://{provider}.impyard.internal, and a policy entry for that host with "
            f"upstream: http://{urlsplit(str(entry['baseUrl'])).netloc}",
        )

    def resolved(item: Any, key: str = "") -> Any:
        if isinstance(item, dict):
            if key == "headers":
                return {name: _resolved_text(text, environ, where) for name, text in item.items()}
            return {name: resolved(value, name) for name, value in item.items()}
        if isinstance(item, list):
            return [resolved(value) for value in item]
        return _resolved_text(item, environ, where) if key == "apiKey" else item

    return {"providers": {provider: resolved(entry)}}


def _resolved_text(text: Any, environ: Mapping[str, str], where: str) -> Any:
    return literal(resolve_template(text, {}, environ, where)) if isinstance(text, str) else text
