"""Which model a run uses and what of the user's credentials goes into the box."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from impyard.addon.errors import ImpyardError
from impyard.runner.credentials import (
    BOX_SETTINGS,
    FAR_FUTURE_MS,
    choose_agent,
    write_agent_folder,
)
from impyard.runner.keysources import literal, resolve_template

NOW = 1_800_000_000.0


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".pi" / "agent").mkdir(parents=True)
    return {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}


def store(environ: dict[str, str], name: str, content: Any) -> None:
    path = Path(environ["HOME"]) / ".pi" / "agent" / f"{name}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def oauth(**more: Any) -> dict[str, Any]:
    return {"type": "oauth", "access": "sk-ant-oat-1", "refresh": "R", "expires": (NOW + 3600) * 1000, **more}


def test_the_demo_model_needs_nothing_of_the_users(environ: dict[str, str]) -> None:
    store(environ, "auth", "not json")
    for name in ("demo", "demo/demo"):
        agent = choose_agent(name, environ)
        assert agent.is_demo
        assert agent.pattern == "demo/demo"
        assert agent.auth == {}


def test_only_the_chosen_providers_entry_goes_in(environ: dict[str, str]) -> None:
    store(environ, "auth", {"anthropic": {"type": "api_key", "key": "A"}, "openai": {"type": "api_key", "key": "O"}})
    agent = choose_agent("anthropic/claude", environ)
    assert agent.auth == {"anthropic": {"type": "api_key", "key": "A"}}
    assert agent.pattern == "anthropic/claude"


def test_a_key_variable_is_used_when_nothing_is_stored(environ: dict[str, str]) -> None:
    agent = choose_agent("openai/gpt", {**environ, "OPENAI_API_KEY": "sk-1"})
    assert agent.auth == {"openai": {"type": "api_key", "key": "sk-1"}}
    assert agent.source == "OPENAI_API_KEY"


def test_a_stored_key_wins_over_the_variable_as_in_pi(environ: dict[str, str]) -> None:
    store(environ, "auth", {"openai": {"type": "api_key", "key": "stored"}})
    agent = choose_agent("openai/gpt", {**environ, "OPENAI_API_KEY": "variable"})
    assert agent.auth["openai"]["key"] == "stored"


def test_the_agent_folder_may_be_named_by_pis_own_variable(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "auth.json").write_text('{"openai": {"type": "api_key", "key": "there"}}')
    agent = choose_agent("openai/gpt", {**environ, "PI_CODING_AGENT_DIR": str(tmp_path / "other")})
    assert agent.auth["openai"]["key"] == "there"


@pytest.mark.parametrize(
    ("key", "expected"),
    [("$NAME", "from-env"), ("${NAME}", "from-env"), ("x-${OWN}-y", "x-own-y"), ("$$NAME", "$$NAME"), ("$!x", "$!x")],
)
def test_templates_are_resolved_on_the_host_and_handed_on_literally(
    environ: dict[str, str], key: str, expected: str
) -> None:
    store(environ, "auth", {"openai": {"type": "api_key", "key": key, "env": {"OWN": "own"}}})
    agent = choose_agent("openai/gpt", {**environ, "NAME": "from-env"})
    assert agent.auth["openai"]["key"] == expected


def test_a_key_command_runs_on_the_host(environ: dict[str, str]) -> None:
    store(environ, "auth", {"openai": {"type": "api_key", "key": "!printf 'a$b\\n'"}})
    assert choose_agent("openai/gpt", environ).auth["openai"]["key"] == "a$$b"


@pytest.mark.parametrize("command", ["!exit 3", "!true", "!no-such-command-xyz"])
def test_a_key_command_that_yields_nothing_is_an_error(environ: dict[str, str], command: str) -> None:
    store(environ, "auth", {"openai": {"type": "api_key", "key": command}})
    with pytest.raises(ImpyardError, match="key command failed"):
        choose_agent("openai/gpt", environ)


def test_an_unset_variable_in_a_template_is_an_error(environ: dict[str, str]) -> None:
    store(environ, "auth", {"openai": {"type": "api_key", "key": "$NOT_THERE"}})
    with pytest.raises(ImpyardError, match="NOT_THERE is not set"):
        choose_agent("openai/gpt", environ)


@pytest.mark.parametrize("key", ["plain", "a$b", "$HOME", "!ls", "$!x", "$$", "${X}", "!$"])
def test_a_literal_key_comes_out_of_pis_template_as_it_went_in(key: str) -> None:
    assert resolve_template(literal(key), {}, {}, "test") == key


def test_a_login_goes_in_without_its_refresh_token(environ: dict[str, str]) -> None:
    store(environ, "auth", {"anthropic": oauth(accountId="a")})
    entry = choose_agent("anthropic/x", environ, now=lambda: NOW).auth["anthropic"]
    assert entry == {
        "type": "oauth",
        "access": "sk-ant-oat-1",
        "refresh": "",
        "expires": FAR_FUTURE_MS,
        "accountId": "a",
    }


def test_an_expired_login_is_an_error_that_says_how_to_renew_it(environ: dict[str, str]) -> None:
    store(environ, "auth", {"anthropic": oauth(expires=(NOW - 5) * 1000)})
    with pytest.raises(ImpyardError, match="expired") as refused:
        choose_agent("anthropic/x", environ, now=lambda: NOW)
    assert "pi auth check --provider anthropic" in str(refused.value.hint)


def test_the_default_model_is_that_of_the_pi_settings(environ: dict[str, str]) -> None:
    store(environ, "settings", {"defaultProvider": "openai", "defaultModel": "gpt-5", "packages": ["npm:evil"]})
    agent = choose_agent(None, {**environ, "OPENAI_API_KEY": "k"})
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
    settings = choose_agent("openai/gpt", {**environ, "OPENAI_API_KEY": "k"}).settings
    assert settings == {
        **BOX_SETTINGS,
        "defaultProvider": "openai",
        "defaultModel": "m",
        "defaultThinkingLevel": "high",
    }


def test_the_only_provider_with_credentials_is_taken_with_its_own_default_model(environ: dict[str, str]) -> None:
    agent = choose_agent(None, {**environ, "GROQ_API_KEY": "k"})
    assert (agent.provider, agent.pattern) == ("groq", None)
    assert agent.settings["defaultProvider"] == "groq"
    assert "groq" in agent.label


def test_several_providers_and_no_choice_is_an_error_that_names_them(environ: dict[str, str]) -> None:
    with pytest.raises(ImpyardError, match="groq, openai"):
        choose_agent(None, {**environ, "GROQ_API_KEY": "k", "OPENAI_API_KEY": "k"})


@pytest.mark.parametrize("model", [None, "anthropic/claude", "unheard-of/m"])
def test_without_credentials_the_error_names_the_ways_to_get_some(environ: dict[str, str], model: str | None) -> None:
    with pytest.raises(ImpyardError, match="no credentials") as refused:
        choose_agent(model, environ)
    hint = str(refused.value.hint)
    assert "--model demo" in hint
    assert "auth.json" in hint
    assert ("ANTHROPIC_API_KEY" in hint) == (model != "unheard-of/m")


@pytest.mark.parametrize("model", ["", "claude", "/m", "p/", "p/ ", "-x/m", "p/a\nb", "p/a\x1b"])
def test_a_model_of_another_form_is_refused(environ: dict[str, str], model: str) -> None:
    with pytest.raises(ImpyardError, match="provider/model") as refused:
        choose_agent(model, environ)
    assert "demo" in str(refused.value.hint)


@pytest.mark.parametrize("name", ["auth", "settings", "models"])
@pytest.mark.parametrize("content", ["{", "[]", "\udc80"])
def test_a_broken_file_of_pis_is_named(environ: dict[str, str], name: str, content: str) -> None:
    path = Path(environ["HOME"]) / ".pi" / "agent" / f"{name}.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ImpyardError, match=f"{name}.json"):
        choose_agent("openai/gpt", environ)


def test_a_custom_provider_comes_with_its_templates_resolved(environ: dict[str, str]) -> None:
    entry = {
        "baseUrl": "https://llm.example.org",
        "api": "openai-completions",
        "apiKey": "$K",
        "headers": {"x-team": "${T}"},
        "models": [{"id": "m", "headers": {"x-a": "plain"}, "name": "$literal"}],
    }
    store(environ, "models", {"providers": {"mine": entry, "other": {"apiKey": "secret"}}})
    agent = choose_agent("mine/m", {**environ, "K": "key", "T": "team"})
    providers = agent.models["providers"]
    assert list(providers) == ["mine"]
    assert providers["mine"]["apiKey"] == "key"
    assert providers["mine"]["headers"] == {"x-team": "team"}
    assert providers["mine"]["models"] == [{"id": "m", "headers": {"x-a": "plain"}, "name": "$literal"}]


@pytest.mark.parametrize("url", ["http://localhost:11434/v1", "http://127.0.0.1:4000", "http://[::1]:8000"])
def test_a_model_on_this_machine_is_told_how_to_be_reached(environ: dict[str, str], url: str) -> None:
    store(environ, "models", {"providers": {"ollama": {"baseUrl": url, "apiKey": "x"}}})
    with pytest.raises(ImpyardError, match="the box itself") as refused:
        choose_agent("ollama/llama", environ)
    assert "upstream: http://" in str(refused.value.hint)


def test_the_agent_folder_is_closed_to_others(environ: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    agent = choose_agent("openai/gpt", {**environ, "OPENAI_API_KEY": "k"})
    folder = write_agent_folder(agent, home)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["auth.json", "settings.json"]
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads((folder / "auth.json").read_text()) == {"openai": {"type": "api_key", "key": "k"}}


def test_the_key_does_not_show_when_an_agent_is_printed(environ: dict[str, str]) -> None:
    assert "sk-secret" not in repr(choose_agent("openai/gpt", {**environ, "OPENAI_API_KEY": "sk-secret"}))
