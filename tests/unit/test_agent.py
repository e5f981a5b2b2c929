"""Which model a run uses, and what pi's folder in the box holds in place of its credential."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError
from impyard.addon.vault.credential import FAR_FUTURE_MS, Credential
from impyard.runner.agent import BOX_SETTINGS, MODEL_HOSTS, Agent, choose_agent, write_agent_folder
from impyard.runner.keys.sources import KEY_VARIABLES, literal

KEY = Credential(name="openai", kind="api_key", key="sk-stand-in")
LOGIN = Credential(name="anthropic", kind="oauth", access="sk-ant-oat01-stand-in", refresh="sk-ant-ort01-stand-in")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".pi" / "agent").mkdir(parents=True)
    return {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}


def store(environ: dict[str, str], name: str, content: Any) -> None:
    path = Path(environ["HOME"]) / ".pi" / "agent" / f"{name}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def folder_of(agent: Agent, stand_in: Credential | None, tmp_path: Path) -> dict[str, Any]:
    """The files of pi's folder in the box, by name."""
    home = tmp_path / "home"
    home.mkdir()
    folder = write_agent_folder(agent, stand_in, home)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    return {path.stem: json.loads(path.read_text()) for path in folder.iterdir()}


def test_the_demo_model_needs_nothing_of_the_users(environ: dict[str, str]) -> None:
    store(environ, "auth", "not json")
    for name in ("demo", "demo/demo"):
        agent = choose_agent(name, environ)
        assert agent.is_demo
        assert agent.pattern == "demo/demo"


def test_a_key_is_stood_in_for_in_pis_form(environ: dict[str, str], tmp_path: Path) -> None:
    files = folder_of(choose_agent("openai/gpt", environ), KEY, tmp_path)
    assert files == {"auth": {"openai": {"type": "api_key", "key": "sk-stand-in"}}, "settings": BOX_SETTINGS}


def test_a_login_is_stood_in_for_without_a_refresh_token_and_never_expires(
    environ: dict[str, str], tmp_path: Path
) -> None:
    login = Credential(
        name="openai-codex",
        kind="oauth",
        access="a.b.c",
        refresh="r",
        account="made-up",
        extra={"availableModelIds": ["m"], "unheard-of": "x"},
    )
    files = folder_of(choose_agent("openai-codex/gpt", environ), login, tmp_path)
    assert files["auth"]["openai-codex"] == {
        "type": "oauth",
        "access": "a.b.c",
        "refresh": "",
        "expires": FAR_FUTURE_MS,
        "accountId": "made-up",
        "availableModelIds": ["m"],
    }


def test_without_a_stand_in_pi_finds_no_credential(environ: dict[str, str], tmp_path: Path) -> None:
    assert set(folder_of(choose_agent("openai/gpt", environ), None, tmp_path)) == {"settings"}


def test_what_the_user_has_stored_never_gets_into_the_folder(environ: dict[str, str], tmp_path: Path) -> None:
    store(environ, "auth", {"openai": {"type": "api_key", "key": "sk-real"}, "groq": {"type": "api_key", "key": "gr"}})
    files = folder_of(choose_agent("openai/gpt", {**environ, "OPENAI_API_KEY": "sk-real"}), KEY, tmp_path)
    assert "sk-real" not in json.dumps(files) and list(files["auth"]) == ["openai"]


def test_the_default_model_is_that_of_the_pi_settings(environ: dict[str, str]) -> None:
    store(environ, "settings", {"defaultProvider": "openai", "defaultModel": "gpt-5", "packages": ["npm:evil"]})
    agent = choose_agent(None, environ)
    assert agent.pattern == "openai/gpt-5"
    assert "packages" not in agent.settings


def test_settings_are_built_and_only_three_carry_over(environ: dict[str, str]) -> None:
    store(
        environ,
        "settings",
        {
            "defaultProvider": "openai",
            "defaultModel": "m",
            "defaultThinkingLevel": "high",
            "shellPath": "/evil",
            "httpProxy": "http://evil",
            "extensions": ["/x"],
            "transport": "websocket",
        },
    )
    assert choose_agent("openai/gpt", environ).settings == {
        **BOX_SETTINGS,
        "defaultProvider": "openai",
        "defaultModel": "m",
        "defaultThinkingLevel": "high",
    }


def test_the_only_provider_with_credentials_is_taken_with_its_own_default_model(environ: dict[str, str]) -> None:
    for agent in (
        choose_agent(None, {**environ, "GROQ_API_KEY": "k"}),
        choose_agent(None, environ, lambda: ["groq", "github"]),
    ):
        assert (agent.provider, agent.pattern) == ("groq", None)
        assert agent.settings["defaultProvider"] == "groq"
        assert "groq" in agent.label


def test_several_providers_and_no_choice_is_an_error_that_names_them(environ: dict[str, str]) -> None:
    with pytest.raises(ImpyardError, match="groq, openai"):
        choose_agent(None, {**environ, "GROQ_API_KEY": "k"}, lambda: ["openai"])


def test_without_a_model_and_credentials_the_error_names_the_ways_to_get_some(environ: dict[str, str]) -> None:
    with pytest.raises(ImpyardError, match="no credentials") as refused:
        choose_agent(None, environ)
    for way in ("--model demo", "auth.json", "ANTHROPIC_API_KEY"):
        assert way in str(refused.value.hint)


@pytest.mark.parametrize("model", ["", "claude", "/m", "p/", "p/ ", "-x/m", "p/a\nb", "p/a\x1b"])
def test_a_model_of_another_form_is_refused(environ: dict[str, str], model: str) -> None:
    with pytest.raises(ImpyardError, match="provider/model") as refused:
        choose_agent(model, environ)
    assert "demo" in str(refused.value.hint)


@pytest.mark.parametrize("name", ["settings", "models"])
@pytest.mark.parametrize("content", ["{", "[]", "\udc80"])
def test_a_broken_file_of_pis_is_named(environ: dict[str, str], name: str, content: str) -> None:
    path = Path(environ["HOME"]) / ".pi" / "agent" / f"{name}.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ImpyardError, match=f"{name}.json"):
        choose_agent("openai/gpt", environ)


CUSTOM = {
    "baseUrl": "https://llm.example.org/v1",
    "api": "openai-completions",
    "apiKey": "$K",
    "headers": {"x-team": "${T}", "X-Api-Token": "literal-secret", "x-title": "plain"},
    "models": [{"id": "m", "headers": {"accept": "a/b", "x-secret": "!pass show it"}, "name": "$literal"}],
}


def test_a_custom_provider_comes_with_stand_ins_for_its_key_and_its_secret_headers(
    environ: dict[str, str], tmp_path: Path
) -> None:
    store(environ, "models", {"providers": {"mine": CUSTOM, "other": {"apiKey": "secret"}}})
    agent = choose_agent("mine/m", {**environ, "K": "real-key", "T": "real-team"})
    assert agent.host() == "llm.example.org"
    assert not {"$K", "${T}", "literal-secret", "!pass show it"} & set(json.dumps(dict(agent.custom)).split('"'))
    fields = {"x-team": "in-team", "x-api-token": "in-token", "x-secret": "in-secret"}
    stand_in = Credential(name="mine", kind="api_key", key="in-key", fields=fields)
    providers = folder_of(agent, stand_in, tmp_path)["models"]["providers"]
    assert list(providers) == ["mine"]
    assert providers["mine"]["apiKey"] == "in-key"
    assert providers["mine"]["headers"] == {"x-team": "in-team", "X-Api-Token": "in-token", "x-title": "plain"}
    model = {"id": "m", "headers": {"accept": "a/b", "x-secret": "in-secret"}, "name": "$literal"}
    assert providers["mine"]["models"] == [model]


def test_the_headers_of_a_custom_provider_are_those_of_its_kind_of_api(environ: dict[str, str]) -> None:
    for api, expected in (
        ("openai-completions", {"authorization": "Bearer {key}"}),
        ("anthropic-messages", {"x-api-key": "{key}"}),
        ("google-generative-ai", {"x-goog-api-key": "{key}"}),
    ):
        store(environ, "models", {"providers": {"mine": {"baseUrl": "https://llm.example.org", "api": api}}})
        assert choose_agent("mine/m", environ).headers() == expected
    store(environ, "models", {"providers": {"mine": CUSTOM}})
    more = {"x-team": "{x-team}", "x-api-token": "{x-api-token}", "x-secret": "{x-secret}"}
    assert choose_agent("mine/m", environ).headers() == {"authorization": "Bearer {key}", **more}


@pytest.mark.parametrize("url", ["http://localhost:11434/v1", "http://127.0.0.1:4000", "http://[::1]:8000"])
def test_a_model_on_this_machine_is_told_how_to_be_reached(environ: dict[str, str], url: str) -> None:
    store(environ, "models", {"providers": {"ollama": {"baseUrl": url, "apiKey": "x"}}})
    with pytest.raises(ImpyardError, match="the box itself") as refused:
        choose_agent("ollama/llama", environ)
    assert "upstream: http://" in str(refused.value.hint)


def test_the_host_of_a_model_is_where_pi_asks(environ: dict[str, str]) -> None:
    assert set(KEY_VARIABLES) <= set(MODEL_HOSTS)
    assert choose_agent("anthropic/claude", environ).host() == "api.anthropic.com"
    copilot = choose_agent("github-copilot/gpt", environ)
    assert copilot.host() == "api.individual.githubcopilot.com"
    token = Credential(
        name="github-copilot", kind="oauth", access="tid=1;proxy-ep=proxy.business.githubcopilot.com;8kp=1"
    )
    assert copilot.host(token) == "api.business.githubcopilot.com"
    own = Credential(
        name="github-copilot", kind="oauth", access="tid=1", extra={"enterpriseUrl": "https://git.example"}
    )
    assert copilot.host(own) == "copilot-api.git.example"
    store(environ, "models", {"providers": {"anthropic": {"baseUrl": "https://gateway.example"}}})
    assert choose_agent("anthropic/claude", environ).host() == "gateway.example"
    assert choose_agent("unheard-of/m", environ).host() is None


@pytest.mark.parametrize("key", ["plain", "a$b", "$HOME", "!ls", "$!x", "$$", "${X}", "!$"])
def test_a_stand_in_comes_out_of_pis_template_as_it_went_in(environ: dict[str, str], tmp_path: Path, key: str) -> None:
    stand_in = Credential(name="openai", kind="api_key", key=key)
    files = folder_of(choose_agent("openai/gpt", environ), stand_in, tmp_path)
    assert files["auth"]["openai"]["key"] == literal(key)


@pytest.fixture
def house(environ: dict[str, str]) -> dict[str, str]:
    """A provider of the user's own with two models."""
    models = [{"id": "qwen-coder:32b"}, {"id": "llama-scout"}]
    entry = {"baseUrl": "https://models.example", "api": "openai-completions", "apiKey": "K", "models": models}
    store(environ, "models", {"providers": {"house": entry}})
    return environ


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("antropic/claude", "no provider is called `antropic`; did you mean `anthropic`?"),
        ("hous/llama-scout", "did you mean `house`?"),
        ("dmeo", "did you mean `demo`?"),
        ("house/llama-scoot", "house has no model `llama-scoot`; did you mean `llama-scout`?"),
        ("house/qwen-codr:32b", "did you mean `qwen-coder:32b`?"),
    ],
)
def test_a_slip_of_the_fingers_is_told_before_anything_starts(house: dict[str, str], model: str, words: str) -> None:
    with pytest.raises(ImpyardError) as refused:
        choose_agent(model, house)
    assert words in refused.value.message and refused.value.hint


@pytest.mark.parametrize(
    "model",
    [
        *("house/scout", "house/llama-scout:high", "house/QWEN-coder:32b", "house/else-wholly", "openai/gpt-typo"),
        *("unheard-of/m", "house/qwen-coder:32b"),
    ],
)
def test_what_pi_may_know_is_left_to_it(house: dict[str, str], model: str) -> None:
    assert choose_agent(model, house).pattern == model


def test_a_provider_that_the_vault_knows_is_none_that_is_misspelt(house: dict[str, str]) -> None:
    assert choose_agent("antropic/claude", house, lambda: ["antropic"]).provider == "antropic"
