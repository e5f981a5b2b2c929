"""Which model a run uses, and the agent folder that pi finds in the box. No secret passes through here.

What the box holds in place of the credential is the gateway's stand-in for it (a sentinel), in the shape that pi wants
to see. Where credentials come from is keysources.py's business, how they reach a request the gateway's. The facts about
pi's files are from its docs/providers.md and docs/settings.md.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from impyard.addon.errors import ImpyardError, WrongUsage
from impyard.addon.vault.credential import FAR_FUTURE_MS, Credential
from impyard.runner.keys.plainpi import Header, Plain, check_address, plain_extra, plain_provider
from impyard.runner.keys.plainvalues import is_model
from impyard.runner.keys.sources import (
    DEMO,
    KEY_VARIABLES,
    agent_folder,
    available,
    custom_providers,
    literal,
    read_object,
)
from impyard.runner.ownhosts import DEMO_HOST
from impyard.runner.typed import did_you_mean

SHOWN_IDS = 12
NO_KEY = "none"  # without any, pi would not even ask

CARRIED_SETTINGS = ("defaultProvider", "defaultModel", "defaultThinkingLevel")
BOX_SETTINGS: dict[str, Any] = {
    "transport": "sse",  # no WebSocket: the judge sees each call as a request of its own
    "cacheWarming": "off",
    "enableInstallTelemetry": False,
    "defaultProjectTrust": "never",
    "quietStartup": True,
    "httpIdleTimeoutMs": 600_000,
}
# Where pi asks each provider that it knows.
MODEL_HOSTS: dict[str, str] = {
    "anthropic": "api.anthropic.com",
    "openai": "api.openai.com",
    "openai-codex": "chatgpt.com",
    "google": "generativelanguage.googleapis.com",
    "openrouter": "openrouter.ai",
    "github-copilot": "api.individual.githubcopilot.com",
    "xai": "api.x.ai",
    "groq": "api.groq.com",
    "mistral": "api.mistral.ai",
    "deepseek": "api.deepseek.com",
    "cerebras": "api.cerebras.ai",
    "together": "api.together.ai",
    "fireworks": "api.fireworks.ai",
    "huggingface": "router.huggingface.co",
    "nvidia": "integrate.api.nvidia.com",
    "moonshotai": "api.moonshot.ai",
    "zai": "api.z.ai",
    "kimi-coding": "api.kimi.com",
    "minimax": "api.minimax.io",
    "vercel-ai-gateway": "ai-gateway.vercel.sh",
}
_COPILOT_HOST = re.compile(r"proxy-ep=proxy\.([a-z0-9.-]+)")
_OWN_API = "anthropic-messages"  # of the demo model, and of the known providers that are named here
_ANTHROPIC_LIKE = ("anthropic", "minimax", "vercel-ai-gateway")


@dataclass(frozen=True, slots=True)
class Agent:
    """What pi is told. `pattern` is for its `--model`, None for the provider's default; `provider` owns the credential.

    `settings` is a file of pi's agent folder. `custom` is the user's own entry of the provider in models.json, empty
    for most, without its secrets; `secret_headers` are those that it had, and `left_out` names what else the box does
    not get, as it may hold one.
    """

    provider: str
    pattern: str | None
    settings: Mapping[str, Any]
    custom: Mapping[str, Any] = field(default_factory=dict)
    secret_headers: tuple[Header, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The model for people: `anthropic/claude-…`, or `anthropic (its default model)`."""
        return self.pattern or f"{self.provider} (its default model)"

    @property
    def is_demo(self) -> bool:
        return self.provider == DEMO

    def host(self, stand_in: Credential | None = None) -> str | None:
        """The host that pi asks, where it is known: a Copilot token names its own."""
        if base := self.custom.get("baseUrl"):
            return urlsplit(str(base)).hostname
        if self.provider == "github-copilot" and stand_in:
            if found := _COPILOT_HOST.search(stand_in.access):
                return f"api.{found[1]}"
            if (own := stand_in.extra.get("enterpriseUrl")) and isinstance(own, str):
                return f"copilot-api.{urlsplit(own if '//' in own else f'//{own}').hostname}"
        return MODEL_HOSTS.get(self.provider)

    def headers(self) -> dict[str, str]:
        """The headers that carry this provider's credential, as templates: for the policy, where none is ready."""
        api = str(self.custom.get("api") or (_OWN_API if self.provider in _ANTHROPIC_LIKE else ""))
        form = {_OWN_API: {"x-api-key": "{key}"}, "google-generative-ai": {"x-goog-api-key": "{key}"}}
        found = dict(form.get(api, {"authorization": "Bearer {key}"}))
        if self.custom.get("authHeader") is True:
            found["authorization"] = "Bearer {key}"
        return found | {header.name.lower(): f"{{{header.named}}}" for header in self.secret_headers}


def choose_agent(model: str | None, environ: Mapping[str, str], kept: Callable[[], Iterable[str]] = tuple) -> Agent:
    """The agent for `--model` (None: what the user's pi would take). `kept` gives the names in the vault.

    Raises ImpyardError, naming the ways to a model. Whether there is a credential for it is asked later.
    """
    if model is not None and model.split("/")[0] == DEMO:
        return demo_agent()
    folder = agent_folder(environ)
    theirs = read_object(folder / "settings.json")
    carried = {key: theirs[key] for key in CARRIED_SETTINGS if is_model(theirs.get(key))}
    provider, pattern = _pick(model, carried, environ, kept)
    settings = {**BOX_SETTINGS, **carried}
    if pattern is None:
        settings = {**settings, "defaultProvider": provider}
    entry = custom_providers(environ).get(provider)
    plain = Plain()
    if isinstance(entry, dict):
        where = f"{folder / 'models.json'}: {provider}"
        addresses = [entry, *(entry["models"] if isinstance(entry.get("models"), list) else ())]
        for part in addresses:
            if isinstance(part, dict) and "baseUrl" in part:
                check_address(part["baseUrl"], where)
        plain = plain_provider(entry)
    agent = Agent(provider, pattern, settings, plain.entry, plain.headers, plain.left_out)
    _check_host(agent, folder / "models.json")
    return agent


def demo_agent() -> Agent:
    """The scripted model that ships with impyard (`demo.py`); the key of its account is in a file of impyard's own."""
    custom = {
        "baseUrl": f"https://{DEMO_HOST}",
        "api": _OWN_API,
        "models": [{"id": DEMO, "name": "impyard demo (a script, no LLM)"}],
    }
    return Agent(provider=DEMO, pattern=f"{DEMO}/{DEMO}", settings=BOX_SETTINGS, custom=custom)


def write_agent_folder(agent: Agent, stand_in: Credential | None, home: Path) -> Path:
    """Write pi's agent folder into the new folder `home`, readable for its owner only, and return it.

    `stand_in` is the gateway's sentinel for the provider's credential. Without one the gateway denies what pi asks.
    """
    folder = home / "agent"
    folder.mkdir(mode=0o700)
    auth = {agent.provider: _entry(stand_in)} if stand_in is not None else {}
    for name, content in (("settings", agent.settings), ("auth", auth), ("models", _models(agent, stand_in))):
        if content or name == "settings":
            handle = os.open(folder / f"{name}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(content, file)
    return folder


def ways(provider: str | None, folder: Path) -> str:
    """How to come to a credential for a provider, None for any."""
    known = KEY_VARIABLES.get(provider or "anthropic", ())
    found = []
    if known:
        example = "" if provider else " for --model anthropic/…"
        found.append(f"set {known[-1]}{example}")
    found.append(f"log in with `pi` on this machine (its {folder / 'auth.json'} is used)")
    if provider:
        found.append(f"put a key into the vault: `impyard vault set {provider}`")
    found.append("see how it works without a key: --model demo")
    return "; or ".join(found)


def _pick(
    model: str | None, carried: Mapping[str, str], environ: Mapping[str, str], kept: Callable[[], Iterable[str]]
) -> tuple[str, str | None]:
    """Provider and `--model` pattern."""
    if model is not None:
        provider, slash, name = model.partition("/")
        if not slash or not provider or not name.strip() or model.startswith("-") or not model.isprintable():
            close = did_you_mean(model, (DEMO,))
            raise WrongUsage(
                f"`{model}` is not of the form provider/model{close}",
                hint="for example --model anthropic/claude-sonnet-4-5, or --model demo",
            )
        _check_names(provider, name, environ, kept)
        return provider, model
    provider = carried.get("defaultProvider", "")
    if provider:
        name = carried.get("defaultModel", "")
        return provider, f"{provider}/{name}" if name else None
    there = {found.name for found in available(environ) if found.source == "pi" or found.name in KEY_VARIABLES}
    usable = sorted(there | {name for name in kept() if name in MODEL_HOSTS})
    if len(usable) == 1:
        return usable[0], None
    if usable:
        raise ImpyardError(
            f"no model chosen, and there are credentials for several providers: {', '.join(usable)}",
            hint=f"choose with --model provider/model, for example --model {usable[0]}/…",
        )
    raise ImpyardError("no model chosen, and no credentials for one", hint=ways(None, agent_folder(environ)))


def _check_names(provider: str, name: str, environ: Mapping[str, str], kept: Callable[[], Iterable[str]]) -> None:
    """Refuse a slip of the fingers: a name that nobody knows and that is nearly one that is known.

    Others go to pi, which may know more than we: a name that is far from all, and a part of a model's name.
    """
    custom = custom_providers(environ)
    if provider not in MODEL_HOSTS and provider not in custom:
        known = {*MODEL_HOSTS, *custom, DEMO}
        if (close := did_you_mean(provider, known)) and provider not in kept():
            raise WrongUsage(f"no provider is called `{provider}`{close}", hint=f"known are {', '.join(sorted(known))}")
    entry = custom.get(provider)
    models = entry.get("models") if isinstance(entry, dict) and provider not in MODEL_HOSTS else None
    ids = [str(each["id"]) for each in models or () if isinstance(each, dict) and "id" in each]
    pattern = name.casefold()
    is_known = any(pattern in each.casefold() or pattern.rpartition(":")[0] == each.casefold() for each in ids)
    if not is_known and (close := did_you_mean(name, ids)):
        raise WrongUsage(f"{provider} has no model `{name}`{close}", hint=f"it has {', '.join(ids[:SHOWN_IDS])}")


def _check_host(agent: Agent, file: Path) -> None:
    host = agent.host() or ""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        place = urlsplit(str(agent.custom["baseUrl"])).netloc  # no user: that was refused
        raise ImpyardError(
            f"{file}: {agent.provider}: baseUrl names {host}, which inside the box is the box itself",
            hint=f"give it a name, baseUrl https://{agent.provider}.impyard.internal, and a policy entry for that host "
            f"with upstream: http://{place}",
        )


def _models(agent: Agent, stand_in: Credential | None) -> dict[str, Any]:
    """The models.json for the box: the user's entry with stand-ins where its secrets were."""
    if not agent.custom:
        return {}
    entry = json.loads(json.dumps(agent.custom))
    values = stand_in.values() if stand_in is not None else {}
    entry["apiKey"] = literal(values.get("key") or values.get("access") or NO_KEY)
    for header in agent.secret_headers:
        if value := values.get(header.named):
            part = entry
            for step in header.place:
                part = part[step]
            part["headers"][header.name] = literal(value)
    return {"providers": {agent.provider: entry}}


def _entry(stand_in: Credential) -> dict[str, Any]:
    """The provider's entry of auth.json, as pi writes it. It is never to be refreshed: the gateway does that."""
    extra = plain_extra(stand_in.extra)
    if stand_in.kind == "api_key":
        return {"type": "api_key", "key": literal(stand_in.key), **extra}
    entry = {"type": "oauth", "access": stand_in.access, "refresh": "", "expires": FAR_FUTURE_MS, **extra}
    return entry | ({"accountId": stand_in.account} if stand_in.account else {})
