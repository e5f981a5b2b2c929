"""What of pi's models.json and auth.json goes into a box, whatever stands in them, no secret of theirs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import Credential
from impyard.addon.vault.sentinels import mint
from impyard.runner.agent import choose_agent, write_agent_folder
from impyard.runner.keys.plainpi import plain_provider
from impyard.runner.keys.sources import available, first_of

SECRET = "REALSECRETAq7Zx9Lm3Kp5Vw8Ty2"

# All that pi documents, in its types.
COST = {"input": 1, "output": 2.5, "cacheRead": 0.1, "cacheWrite": 0}
SHARED: dict[str, Any] = {
    "name": "Qwen3 Coder (30B)",
    "reasoning": True,
    "thinkingLevelMap": {"low": "low", "xhigh": None},
    "input": ["text", "image"],
    "inputLimits": {"maxRequestBytes": 1000, "images": {"resize": {"maxWidth": 10}, "maxPerMessage": 2}},
    "cost": COST | {"tiers": [COST | {"inputTokensAbove": 200000}]},
    "promptCache": {"short": 300, "long": 3600},
    "contextWindow": 200000,
    "maxTokens": 8000,
    "samplingParams": {"temperature": 0.7, "top_k": 20, "reasoning": {"effort": "high"}, "stop": None},
    "samplingParamsByThinkingLevel": {"high": {"min_p": 0.1}},
    "headers": {"User-Agent": "mine/1.0 (linux)"},
    "compat": {
        "supportsStore": False,
        "maxTokensField": "max_tokens",
        "thinkingFormat": "chat-template",
        "chatTemplateKwargs": {"enable_thinking": {"$var": "thinking.enabled", "omitWhenOff": True}, "n": 1},
        "openRouterRouting": {
            "order": ["anthropic", "google-vertex"],
            "max_price": {"prompt": 1, "completion": "2.5"},
            "sort": {"by": "price", "partition": None},
            "preferred_max_latency": {"p50": 1},
        },
        "vercelGatewayRouting": {"only": ["bedrock"]},
        "vllmPriority": 3,
        "allowedFallbackModels": [{"provider": "anthropic", "model": "claude-opus-4-5", "cost": COST}],
    },
}
WHOLE: dict[str, Any] = {
    "name": "Mine",
    "baseUrl": "https://gateway.example:8443/v1/{CLOUDFLARE_ACCOUNT_ID}/openai",
    "api": "openai-completions",
    "authHeader": True,
    "headers": {"x-title": "my tool"},
    "compat": SHARED["compat"],
    "models": [
        {
            "id": "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
            "api": "openai-responses",
            "baseUrl": "http://h.test/",
            **SHARED,
        }
    ],
    "modelOverrides": {"claude-sonnet-4-5-20250929": SHARED},
}


def test_all_that_pi_documents_comes_through_as_it_is() -> None:
    found = plain_provider(WHOLE | {"apiKey": SECRET})
    assert (found.entry, found.headers, found.left_out) == (WHOLE, (), ())


def test_a_header_whose_name_is_a_secret_is_left_out() -> None:
    found = plain_provider({"headers": {SECRET: "x", "x-team": "y"}})
    assert [header.name for header in found.headers] == ["x-team"]
    assert found.entry == {"headers": {}}


def test_a_plain_headers_value_that_looks_like_a_key_is_a_secret() -> None:
    found = plain_provider({"headers": {"user-agent": SECRET, "x-title": "my tool"}})
    assert [header.name for header in found.headers] == ["user-agent"]
    assert found.entry == {"headers": {"x-title": "my tool"}}


# -- any JSON, with secrets anywhere ----------------------------------------------------------------------------------


def _secrets() -> st.SearchStrategy[str]:
    letters = st.text("abcdefghjkmnpqrstuvwxyzABCDEFGHJKMNPQRSTUVWXYZ23456789", min_size=16, max_size=40)
    return letters.map(lambda text: f"REALSECRET{text}")


KEYS = sorted(
    {*WHOLE, *SHARED, *SHARED["compat"], "apiKey", "id", "type", "key", "access", "refresh", "env", "enterpriseUrl"}
    | {"availableModelIds", "AWS_REGION", "AZURE_OPENAI_BASE_URL", "HTTPS_PROXY", "CLOUDFLARE_ACCOUNT_ID", "accountId"}
    | {"user-agent", "x-title", "authorization", "x-pat", "m", "temperature", "type", "scopes", "clientId", "token"}
)
FORMS = ["{}", "{}", "Bearer {}", "http://u:{}@h.test/v1", "https://h.test/v1?key={}", "x-{}", "note: {} ok"]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(0, 9)
    | st.sampled_from(["api_key", "oauth", "m", "https://h.test/v1", "openai-completions"])
    | st.builds(lambda form, secret: form.format(secret), st.sampled_from(FORMS), _secrets())
)
NAMES = st.sampled_from(KEYS) | _secrets()
ANY = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=8
)
OBJECTS = st.dictionaries(NAMES, ANY, max_size=6)
MODELS = st.lists(st.builds(lambda model: {**model, "id": "m"}, OBJECTS), max_size=2)
PROVIDERS = st.builds(
    lambda entry, own: {key: value for key, value in (entry | own).items() if key != "baseUrl" or value},
    OBJECTS,
    st.fixed_dictionaries(
        {},
        optional={
            "baseUrl": st.just("https://h.test/v1"),
            "headers": OBJECTS,
            "models": MODELS,
            "modelOverrides": st.dictionaries(NAMES, OBJECTS, max_size=2),
            "compat": OBJECTS,
        },
    ),
)
ENTRIES = st.builds(
    lambda entry, own: entry | own,
    OBJECTS,
    st.fixed_dictionaries(
        {"type": st.sampled_from(["api_key", "oauth"]), "key": _secrets(), "access": _secrets()},
        optional={"env": OBJECTS},
    ),
)


def _planted(value: Any) -> Iterator[str]:
    text = json.dumps(value)
    for found in text.split("REALSECRET")[1:]:
        yield "REALSECRET" + found[:16]


@settings(max_examples=20, deadline=None)
@given(entry=PROVIDERS, login=ENTRIES, settings_of_pi=st.dictionaries(st.sampled_from(["defaultModel"]), LEAVES))
def test_no_secret_of_pis_files_is_written_for_the_box_or_said(
    entry: dict[str, Any], login: dict[str, Any], settings_of_pi: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        agent_folder, home = Path(place) / ".pi" / "agent", Path(place) / "home"
        agent_folder.mkdir(parents=True)
        home.mkdir()
        for name, content in (
            ("models", {"providers": {"mine": entry}}),
            ("auth", {"mine": login}),
            ("settings", settings_of_pi | {"defaultProvider": "mine"}),
        ):
            (agent_folder / f"{name}.json").write_text(json.dumps(content))
        environ = {"HOME": place}
        said: list[str] = []
        credential = Credential(name="mine", kind="api_key", key="k-of-the-vault")
        try:
            credential = first_of(available(environ, Path(place) / "vault"))["mine"].get()
        except ImpyardError as exc:
            said.append(f"{exc.message} {exc.hint}")
        try:
            agent = choose_agent(None, environ)
            said.append(f"{agent.label} {agent.left_out} {agent.headers()} {agent.host()}")
            write_agent_folder(agent, mint([credential]).by_name["mine"], home)
        except ImpyardError as exc:
            said.append(f"{exc.message} {exc.hint}")
        written = "".join(path.read_text() for path in home.rglob("*.json"))
    shown = written + "".join(said) + " ".join(credential.fields)
    assert [secret for secret in _planted([entry, login, settings_of_pi]) if secret in shown] == []
